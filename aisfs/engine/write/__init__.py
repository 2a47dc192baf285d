"""Files being written: staged on the local disk, uploaded whole, or appended to a shard.

`staging` holds the bytes, `writer` and `appender` bring them into the store.
"""
