"""The shard cache on disk, shared by all mounts of a machine.

`block_cache` is the entrance: hit, read, reserve, sync. `ledger` grants space before anything is
written; `bookkeeping` keeps ledger, files and memory in agreement; which entries are evicted is
decided in `aisfs.core.policy.admission`.
"""
