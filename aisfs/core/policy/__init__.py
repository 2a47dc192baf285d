"""Decisions about fetching and keeping, without doing either.

`shard_readers` finds out how shards are read and decides what to fetch ahead, `push` chooses the members to store into
the kernel's page cache, `admission` decides what stays in the disk cache. Each hears what happened and returns
what to do.
"""
