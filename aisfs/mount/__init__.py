"""The one place where a mount is put together, served and taken down.

`setup` checks what was typed, `source` connects to the store, `services` opens what reads it, and `run` builds
the rest on top of that, bottom up.
"""
