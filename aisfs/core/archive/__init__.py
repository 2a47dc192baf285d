"""Archive formats: recognised by name or content, and decompressed piece by piece.

A new compression of tars needs a suffix and a magic number in `formats` and a codec in `decompression`.
A new container also starts in `formats`, but needs a scanner such as `core.zip.directory`, which
`aisfs.engine.read.indexer` chooses.
"""
