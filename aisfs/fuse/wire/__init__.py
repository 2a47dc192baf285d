"""The kernel's messages as bytes: structures, directory entries, INIT."""
