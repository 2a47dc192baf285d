"""The shard cache on disk, shared by all mounts of a machine.

Start at `block_cache`: hit, read, reserve, sync. `ledger` grants room before anything is written;
`bookkeeping` keeps ledger, files and memory in agreement; `aisfs.core.policy.admission` decides what
is evicted.
"""
