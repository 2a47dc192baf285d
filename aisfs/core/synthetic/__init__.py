"""Tar files that exist nowhere: made of objects, or of the samples of other shards, as they are read."""
