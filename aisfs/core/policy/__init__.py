"""Decisions about fetching and keeping, without doing either.

What to read ahead (`readahead`), which order readers follow (`access_order`), which cached entries
to evict (`admission`), which members to push into the page cache (`push`).
"""
