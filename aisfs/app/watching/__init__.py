"""Mounts as their users see them from outside: which there are, how they are, and what they are told.

`asking` is the only way to a daemon: an extended attribute of its mountpoint.
"""
