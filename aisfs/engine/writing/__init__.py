"""Files being written: staged on the local disk, uploaded whole, or appended to a shard.

`staging` holds the bytes, `uploads` and `appender` bring them into the store. `unsent` finds what earlier daemons left,
from the `record` beside each file; a new field of it needs a default.
"""
