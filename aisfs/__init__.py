"""aisfs: AIStore buckets as directories, tar shards as folders of samples.

From the kernel down to the cluster: `fuse`, `filesystem`, `engine`, `store` and `ais`, with `cache`
beside them and the decisions in `core`. `cli` and `app` are the commands, `server` is an AIStore for
demos and tests. docs/ARCHITECTURE.md maps every module.
"""

__version__ = "0.1.0"
