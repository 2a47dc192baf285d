"""The member index: where each member of a shard lies, as columns, in memory and as bytes.

`builder` collects the rows a scanner finds, `member_index` is the finished index, `codec` stores it. A
new property of members starts as a column or flag in `columns`; the stored layout has a version.
Which names and links are shown is decided in `paths` and `links`.
"""
