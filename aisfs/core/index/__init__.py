"""The member index: where each member of a shard lies, as columns, in memory and as bytes.

`builder` collects rows, `member_index` answers for them, `codec` turns them into bytes and back.
"""
