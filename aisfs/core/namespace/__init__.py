"""Names: from keys of objects to directory entries, inode numbers and back.

`keys` decides which keys can be shown and what the folder of a shard is called, `listing` keeps a
listed directory with stable offsets. A new kind of SOURCE starts in `sources`, a new pattern syntax in
`patterns`.
"""
