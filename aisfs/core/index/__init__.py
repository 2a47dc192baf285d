"""The member index: where each member of a shard lies, as columns, in memory and as bytes.

`builder` collects the rows that a scanner finds, `member_index` is the finished index, `codec` encodes its columns,
`published` all that is kept and published of a shard, with labels. A new property of members starts as a column or flag in `columns`, which also decides
which names and links are shown; the stored layout has a version.
"""
