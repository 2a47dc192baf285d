"""AIStore as a store.

`client` implements the port of `aisfs.stores`. `requests`, `replies` and `shard_index` are the protocol as plain values,
`transport` sends requests over HTTP: tokens, redirects, a proxy that is not ready. A new request starts in
`requests`, a new error name gets its meaning in `replies`.
"""
