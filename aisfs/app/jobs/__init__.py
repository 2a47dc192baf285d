"""Jobs of the cluster, started and watched from here: the cluster does the work.

Enter through `overview` (`aisfs jobs`), `sort` (`aisfs sort`) or `shard_index`.
"""
