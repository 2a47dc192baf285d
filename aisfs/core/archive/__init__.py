"""Archive formats: tar and zip, and the codecs they are compressed with.

A new compression of tars needs a suffix and a magic number in `core.names.listing` and a codec in `decompression`. A new
container starts there too, but needs a scanner such as `zip`, which `aisfs.engine.scanning` chooses. Another header or
dialect of tar starts in `tar` (bytes and meaning); `tar_scanner` only knows where headers lie.
"""
