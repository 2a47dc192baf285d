"""The tree in the kernel's terms, without the kernel: inode numbers and names in, attributes out.

A new operation starts in `filesystem`, or in `writing` if it changes something; `aisfs.fuse.operations` passes it on to
the kernel. `filesystem.InstantAnswers` answers what needs no waiting, for the fast path.
"""
