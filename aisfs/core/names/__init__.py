"""Names: from keys of objects to directory entries, inode numbers and back.

`listing` decides which keys can be shown, which of them are archives and what the folder of a shard is called, and
keeps a listed directory with stable offsets. A new kind of SOURCE or of pattern starts in `sources`, a new scheme in
`urls`.
"""
