"""The kernel's side: requests in, replies out.

`session` runs one mount. `fastpath` answers what needs no waiting, `pyfuse` serves everything else
through pyfuse3, `push` fills the page cache ahead of readers.
"""
