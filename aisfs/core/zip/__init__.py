"""The zip format: `directory` scans the central directory, `entry` parses one entry of it.

How members are stored is kept in `core.index.zip_columns`. Another compression method needs an entry
in `METHODS` of `core.archive.formats` and a decompressor in `core.archive.decompression`.
"""
