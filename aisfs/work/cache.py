"""`aisfs cache`: the statistics of a disk cache, its verification and its removal."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aisfs.cache.block_cache import BlockCache
from aisfs.cache.directory import LAYOUT, CacheDirectory
from aisfs.cache.files import IndexCache, ListingCache, NumberCache
from aisfs.errors import ConfigError, SourceMissing
from aisfs.settings import CacheSettings
from aisfs.stores import results


@contextmanager
def existing_cache(cache_dir: Path | None) -> Iterator[BlockCache]:
    """Open the cache of a directory, without a limit; None is the default directory.

    Raises:
        SourceMissing: there is none.
        ConfigError: it cannot be opened.
    """
    blocks = BlockCache.open(_existing(cache_dir), None)
    try:
        yield blocks
    finally:
        blocks.close()


def clear(cache_dir: Path | None) -> bool:
    """Remove everything from a cache; False if mounts go on without it until they are remounted.

    Raises:
        SourceMissing: there is none.
        ConfigError: another process keeps it busy.
    """
    directory = _existing(cache_dir)
    IndexCache(directory, 0).clear()  # first: the ledger may need the room
    ListingCache(directory, 0).clear()
    NumberCache(directory, 0).clear()
    try:
        results.clear(directory)
    except OSError as error:
        raise ConfigError(f"{directory}: {error}") from error
    try:
        with existing_cache(cache_dir) as blocks:
            blocks.clear()
    except ConfigError as error:
        if not _is_unusable(error.__cause__):
            raise
        place = CacheDirectory(directory)
        with place.opening():
            place.remove()
            return not place.in_use()
    return True


def _existing(cache_dir: Path | None) -> Path:
    directory = CacheSettings.load({"cache_dir": cache_dir}).cache_dir
    try:
        if not (directory / LAYOUT).is_dir():
            raise SourceMissing(f"{directory}: there is no cache")
    except OSError as error:
        raise SourceMissing(f"{directory}: {error.strerror}") from None
    return directory


def _is_unusable(cause: BaseException | None) -> bool:
    """Return whether the ledger cannot be used at all (no room, for example), not just busy."""
    if isinstance(cause, sqlite3.Error):
        return cause.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY
    return isinstance(cause, OSError)
