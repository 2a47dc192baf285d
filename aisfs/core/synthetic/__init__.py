"""Tars that are computed: virtual shards of a mount, and the plan of `aisfs pack`.

`tar` lays loose objects out as shards and `shuffled_tar` the samples of other shards; a new kind of
virtual shard is another `VirtualShard`. `packing` plans real shards, `epoch_order` the order of samples
for `aisfs.torch`.
"""
