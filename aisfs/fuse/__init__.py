"""The kernel's side: requests in, replies out.

`session` runs one mount. `dispatcher` is the thread that reads /dev/fuse and, with `handlers`, answers what needs no
waiting; `requests` are those that the trio thread answers. `operations` serves everything else through pyfuse3,
which only that module touches. `pusher` fills the page cache ahead of readers.
"""
