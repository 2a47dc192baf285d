"""Where the index of a shard may be found that need not be scanned then; start with `source`."""
