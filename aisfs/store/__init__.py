"""Where objects come from: the port that every store implements, and the stores without a protocol.

A new store is a package beside `local` that implements `port`; `aisfs.app.stores` chooses it, and
`tests/contract` runs against it. `pipeline` retries and counts the calls of all stores.
"""
