"""Archive formats: recognised by name or content, decompressed piece by piece.

A new format of archive starts in `formats`; a new compression in `decompression`.
"""
