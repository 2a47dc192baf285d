"""Where objects come from: the port that every store implements, and the stores.

A new store is a module that implements `port`; `registry` chooses it, and `tests/contract` runs against it. `pipeline`
retries and counts the calls of all stores.
"""
