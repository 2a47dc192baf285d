"""Names: object keys to file names and back, sources as typed, globs, listings, inode numbers."""
