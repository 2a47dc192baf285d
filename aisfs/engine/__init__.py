"""Services that wait: they join the stores, the caches and the decisions of `core`.

`listing` finds names, and `overlay` has this mount's own changes of them. `fetcher` fetches ranges of objects, `shards`
finds out where the members of a shard lie, `reader` serves reads. `dataset` shows many shards as one, `writing` brings
files into the store.
"""
