"""Ranges of objects: from the disk cache, from memory, or fetched once for everyone who asks.

`fetcher` is the entrance.
"""
