"""Reads of objects and members, and what is fetched ahead of them.

`reader` serves reads, `indexer` finds out where the members of a shard lie, `unpacker` and
`zip_reader` make readable what is stored compressed, `prefetcher` fetches whole shards ahead.
"""
