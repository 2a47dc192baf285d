"""Decisions about fetching and keeping, without doing either.

Another read-ahead rule starts in `readahead`, another eviction rule in `admission`. `access_order`
detects in which order members and shards are read, `push` chooses the members to store into the
kernel's page cache. All of them are told what happened and return what to do.
"""
