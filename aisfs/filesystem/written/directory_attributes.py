"""Modes and times of directories, which have nowhere to be stored."""

from cachetools import FIFOCache

from aisfs.model import Bucket
from aisfs.process.threads import any_thread

DIRECTORIES_MAX = 100_000


class DirectoryAttributes:
    """What was set in this mount, of the directories of which it was set last.

    Changed by the trio thread only; `of` is for any thread, so it must not change what is kept.
    """

    def __init__(self) -> None:
        """Start with none."""
        self._kept: FIFOCache[tuple[Bucket, str], tuple[int | None, int | None]] = FIFOCache(
            DIRECTORIES_MAX
        )

    def __bool__(self) -> bool:
        return bool(self._kept)

    @any_thread
    def of(self, bucket: Bucket, prefix: str) -> tuple[int | None, int | None]:
        """Return mode and time of a directory, each None if it was not set."""
        try:
            return self._kept[bucket, prefix]  # one step; `get` is two
        except KeyError:
            return None, None

    def keep(self, bucket: Bucket, prefix: str, mode: int | None, mtime_ns: int | None) -> None:
        """Remember both."""
        self._kept[bucket, prefix] = mode, mtime_ns

    def drop(self, bucket: Bucket, prefix: str) -> None:
        """Forget those of a directory that was removed."""
        self._kept.pop((bucket, prefix), None)

    def rename(self, bucket: Bucket, prefix: str, new_prefix: str) -> None:
        """Move those of a directory, and of all below it, to another name."""
        for at, old in list(self._kept):
            if at == bucket and old.startswith(prefix):
                renamed = new_prefix + old[len(prefix) :]
                self._kept[bucket, renamed] = self._kept.pop((bucket, old))
