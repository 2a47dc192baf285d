"""What lies under the mountpoint above the shards: one tree of directories for each kind of source."""
