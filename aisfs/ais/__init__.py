"""AIStore as a store.

`client` implements the port of `aisfs.store`. `protocol` holds requests and replies as plain values,
`transport` sends them over HTTP.
"""
