"""What is kept on disk and in memory, and how much is fetched ahead."""

import shutil
from pathlib import Path

from platformdirs import user_cache_dir
from pydantic import ByteSize, Field, field_validator

from aisfs.config.values import GIB, MIB, AbsolutePath, Settings, Size, existing_directory

CACHE_LEAST = 5 * MIB
"""Smallest disk cache; the ledger and its margin take half of it."""
CACHE_MOST = 1 << 62
"""Largest that the ledger can count."""

MEMORY_LEAST = 16 * MIB
"""Smallest memory for fetched bytes."""


class CacheSettings(Settings):
    """What is kept on disk and in memory, and how much is fetched ahead."""

    cache_dir: AbsolutePath = Field(default_factory=lambda: Path(user_cache_dir("aisfs")))
    """Several daemons may share the directory."""
    cache_size: Size | None = None
    """Most bytes on disk; None is 10 GiB or a tenth of the free disk, whichever is less; 0 keeps
    nothing on disk."""
    read_ahead_max: Size = ByteSize(64 * MIB)
    """Most bytes fetched ahead of one sequential reader: a second of work at 64 MiB/s, and 1 GiB/s
    at 60 ms of latency."""
    prefetch_shards: int = Field(default=2, ge=0)
    """Shards fetched ahead of a reader that takes them in the order of their names."""
    memory_limit: Size | None = Field(default=None, ge=MEMORY_LEAST)
    """Bytes of parts in memory; None is 512 MiB, or what the machine and the control group have room for."""

    @field_validator("cache_size")
    @classmethod
    def _check_cache_size(cls, value: ByteSize | None) -> ByteSize | None:
        if value is not None and 0 < value < CACHE_LEAST:
            raise ValueError(f"a disk cache takes {CACHE_LEAST // MIB} MiB at least; 0 is none")
        if value is not None and value > CACHE_MOST:
            raise ValueError("no disk is that large")
        return value

    def disk_limit(self, kept: int = 0) -> int:
        """Return the bytes the cache may take on disk; 0 if the default has hardly any room.

        What it has `kept` there already counts as free, or it would shrink from mount to mount.
        """
        if self.cache_size is not None:
            return int(self.cache_size)
        limit = min(10 * GIB, (self.free_disk() + kept) // 10)
        return limit if limit >= CACHE_LEAST else 0

    def free_disk(self) -> int:
        """Return the free bytes of the cache's disk."""
        return shutil.disk_usage(existing_directory(self.cache_dir, "cache-dir")).free
