"""The tree in the kernel's terms, without the kernel: inode numbers and names in, attributes out.

A new operation starts in `filesystem`, or in `write` if it changes something; `aisfs.fuse.pyfuse`
passes it on to the kernel. `instant` answers what needs no waiting, for the fast path.
"""
