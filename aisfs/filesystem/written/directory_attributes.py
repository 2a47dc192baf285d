"""Modes and times of directories, which have nowhere to be stored."""

import time

from cachetools import FIFOCache

from aisfs.model import Bucket
from aisfs.system.locks import Rank, ranked_lock
from aisfs.system.threads import any_thread

DIRECTORIES_MAX = 100_000


class DirectoryAttributes:
    """Modes that were set in this mount, and times when entries changed or that were set.

    They are kept of the directories where that happened last.

    `of` takes no lock, so it must not change what is kept.
    """

    def __init__(self) -> None:
        """Start with none."""
        self._kept: FIFOCache[tuple[Bucket, str], tuple[int | None, int | None]] = FIFOCache(
            DIRECTORIES_MAX
        )
        self._lock = ranked_lock(Rank.DIRECTORY_ATTRIBUTES)

    @any_thread
    def of(self, bucket: Bucket, prefix: str) -> tuple[int | None, int | None]:
        """Return mode and time of a directory, each None if it is not known."""
        try:
            return self._kept[bucket, prefix]  # one step; `get` is two
        except KeyError:
            return None, None

    def keep(self, bucket: Bucket, prefix: str, mode: int | None, mtime_ns: int | None) -> None:
        """Remember both."""
        with self._lock:
            self._kept[bucket, prefix] = mode, mtime_ns

    @any_thread
    def touch(self, bucket: Bucket, prefix: str) -> None:
        """Record that an entry of a directory was made, removed or replaced just now."""
        with self._lock:
            mode, _ = self.of(bucket, prefix)
            self._kept[bucket, prefix] = mode, time.time_ns()

    def drop(self, bucket: Bucket, prefix: str) -> None:
        """Forget those of a directory that was removed."""
        with self._lock:
            self._kept.pop((bucket, prefix), None)

    def rename(self, bucket: Bucket, prefix: str, new_prefix: str) -> None:
        """Move those of a directory, and of all below it, to another name, where nothing is left."""
        self.drop(bucket, new_prefix)
        with self._lock:
            for at, old in list(self._kept):
                if at == bucket and old.startswith(prefix):
                    renamed = new_prefix + old[len(prefix) :]
                    self._kept[bucket, renamed] = self._kept.pop((bucket, old))
