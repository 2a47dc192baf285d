"""Services that wait: they join the stores, the caches and the decisions of `core`.

`listing` finds names, `fetch` and `read` find bytes, `dataset` shows many shards as one, `write`
brings staged files into the store.
"""
