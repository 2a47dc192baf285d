"""The fast path: one thread that reads /dev/fuse and answers what needs no waiting; the rest goes on
to trio or to pyfuse3.

`dispatcher` is the thread, `handlers` (and `writable_handlers`) are its answers.
"""
