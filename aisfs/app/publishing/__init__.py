"""`aisfs index`: indexes beside the shards, for every machine that mounts them and for other programs.

`plan` checks what was typed, `publisher` does the work: for each shard it looks what is `published`,
scans what has to be scanned, uploads, and gives the index to the `exports`. `packed` publishes what `aisfs pack` writes.
"""
