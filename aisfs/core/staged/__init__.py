"""What is recorded of a file that is being written.

`record` is the JSON beside a staged file, from which `aisfs recover` works; a new field needs a default
there. `posix_metadata` keeps mode and mtime as custom metadata of the object; a new attribute of
files that should survive a remount starts there.
"""
