"""Archive formats: recognised by name or content, and decompressed piece by piece.

A new archive format starts in `formats`, with a scanner such as `core.tar.scanner`; a new compression
needs a suffix and a magic number in `formats` and a codec in `decompression`.
"""
