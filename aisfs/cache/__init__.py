"""What is kept after it was fetched: bytes, member indexes, listings, names.

Bytes on disk are shared by all mounts of a machine: start at `block_cache` (hit, read, reserve, sync). `ledger` grants
room before anything is written; `resident` keeps ledger, files and memory in agreement;
`aisfs.core.policy.admission` decides what is evicted. `files` keeps indexes and listings on disk, `names` keeps
listings in memory.
"""
