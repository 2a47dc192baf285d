"""Ranges of objects: from the disk cache, from memory, or fetched once for all readers.

`fetcher` is the entrance.
"""
