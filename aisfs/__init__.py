"""aisfs: AIStore buckets as directories, tar shards as folders of samples."""

__version__ = "0.1.0"
