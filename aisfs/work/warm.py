"""`aisfs warm`: reads shards and objects once, so that they are in the cache when training starts.

For a path, it reads through the mount as any program would, and the daemon behind the mount fills the cache. For a source it
needs no mount: it uses the services of one, so a later mount with the same cache directory finds all of it.
"""

import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from aisfs.core.names.listing import (
    SHARD_BYTES_SUFFIX,
    SHARD_DIRECTORY_SUFFIX,
    is_shard,
    shard_of_directory,
)
from aisfs.core.names.sources import (
    LIST_SUFFIX,
    DatasetSource,
    Everything,
    GlobPattern,
    ShardPattern,
    SourceArg,
    is_pattern,
    missing_path,
)
from aisfs.errors import AisfsError, ConfigError, SourceMissing
from aisfs.fuse.mountpoint import FILE_SYSTEM, mounted_filesystems
from aisfs.model import Bucket, ByteRange, ObjectInfo
from aisfs.mount.services import Services, open_services
from aisfs.mount.setup import SourceSetup, is_local, load, load_cluster, read_shards, transformation
from aisfs.mount.source import OpenSource
from aisfs.settings import CacheSettings, TreeSettings
from aisfs.stores.pipeline import all_of
from aisfs.work.buckets import Kind, Place, find_place, list_opened
from aisfs.work.mounts import read_counters
from aisfs.work.plan import mount_of, paths_of
from aisfs.work.progress import transfer_columns

PIECE = 1 << 20
"""Bytes read at once: the largest request that the kernel sends."""
SHARD_ATTRIBUTE = "user.aisfs.shard"
"""Folders of shards have this attribute, directories of a bucket do not."""
_LIMIT, _REJECTED = "aisfs_cache_limit_bytes", "aisfs_cache_rejected"
_REFUSED = 16
"""Ranges that a full cache has refused: one alone may be too large for what room is left."""
KEPT_ATTRIBUTE = "user.aisfs.kept"
"""How much is on disk; reading it of the folder of a shard writes the index there."""


@dataclass(frozen=True, slots=True)
class Item:
    """Something to warm."""

    content: bytes | None
    """The file to read; None when only members are wanted."""
    folder: bytes | None
    """The folder to open; None for what is not a shard."""
    size: int
    """Bytes of `content`."""


@dataclass(slots=True)
class Summary:
    """What was done."""

    shards: int = 0
    objects: int = 0
    size: int = 0
    """Bytes read."""
    indexes: int = 0
    """Indexes of shards that are on disk."""
    kept: int = 0
    """Bytes of those read that are on disk at the end."""
    failures: list[str] = field(default_factory=list)
    left: int = 0
    """Files of an order that were not read, since the cache was full."""
    missing: int = 0
    """Files that an order names, and that are not there."""

    @property
    def complete(self) -> bool:
        """Return whether everything that was read is on disk."""
        return self.kept == self.size and self.indexes == self.shards

    def count(self, item: Item, reading: Future[None]) -> bool:
        """Count an item whose reading ended; return whether it was read."""
        if reading.cancelled():
            self.left += 1
            return False
        error = reading.exception()
        if error is not None:
            name = os.fsdecode(item.content or item.folder or b"")
            self.failures.append(f"{name}: {getattr(error, 'strerror', None) or error}")
            return False
        self.shards += item.folder is not None
        self.objects += item.folder is None
        self.size += item.size
        return True

    def look(self, item: Item) -> None:
        """Count how much of an item that was read is on disk."""
        if item.folder is not None:
            self.indexes += _kept(item.folder, 1)
        if item.content is not None:
            self.kept += _kept(item.content, item.size)


def find_items(paths: Iterable[Path], *, index_only: bool) -> list[Item]:
    """Find the shards and objects below `paths`, each once.

    Raises:
        SourceMissing: a path does not exist or cannot be listed, or is not in a mount of aisfs.
    """
    items: dict[Item, None] = {}
    for path in paths:
        try:
            items |= dict.fromkeys(_items_below(path, index_only=index_only))
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                raise SourceMissing(
                    missing_path(os.fsdecode(error.filename), "file or directory")
                ) from error
            raise SourceMissing(f"{os.fsdecode(error.filename)}: {error.strerror}") from error
    return list(items)


def planned_items(path: Path, file: str, summary: Summary) -> list[Item]:
    """Find the files that an order names, each once; count those that are missing.

    Raises:
        ConfigError: the order makes no sense, or the mount has no disk cache.
        MountError: the mount does not answer.
        SourceMissing: `path` is no directory in a mount of aisfs.
    """
    if not path.is_dir():
        raise SourceMissing(missing_path(path, "directory"))
    if not is_in_mount(path.resolve()):
        raise SourceMissing(f"{path} is not in a mount of aisfs")
    if not read_counters(mount_of(path)).value(_LIMIT):
        raise ConfigError(f"--plan: the mount of {path} has no disk cache")
    paths, summary.missing = paths_of(path, file)
    device, items = path.stat().st_dev, []
    for each in dict.fromkeys(paths):
        about = os.stat(each)
        if about.st_dev == device and stat.S_ISREG(about.st_mode):
            items.append(Item(os.fsencode(each), None, about.st_size))
        else:
            summary.missing += 1
    return items


class Room:
    """Ends reading once the disk cache of a mount takes no more."""

    def __init__(self, path: Path) -> None:
        self._mount = mount_of(path)
        self._before = read_counters(self._mount).value(_REJECTED)
        self._asked = time.monotonic()
        self._full = False

    def end_if_full(self, readings: Iterable[Future[None]]) -> None:
        """Begin no more readings if it has refused several ranges; the mount is asked once a second."""
        if self._full or time.monotonic() - self._asked < 1:
            return
        self._full = read_counters(self._mount).value(_REJECTED) - self._before >= _REFUSED
        self._asked = time.monotonic()
        for reading in readings if self._full else ():
            reading.cancel()


def _items_below(path: Path, *, index_only: bool) -> Iterator[Item]:
    path.stat()
    if not is_in_mount(path.resolve()):
        raise SourceMissing(f"{path} is not in a mount of aisfs")
    name = os.fsencode(path)
    if index_only and path.is_dir() and _is_folder_of_shard(name):  # members are of a shard too
        yield Item(None, name, 0)
        return
    is_one = not path.is_dir() or (_is_folder_of_shard(name) and is_shard(name))
    for each in [name] if is_one else _walk(name, index_only=index_only):
        item = _item(each, index_only)
        if item is not None:
            yield item


def warm(
    items: list[Item], summary: Summary, *, jobs: int, console: Console, room: Room | None = None
) -> None:
    """Read all items, `jobs` at a time, count them, and show the progress. Ctrl-C ends it within a piece.

    With `room`, nothing more is read once the cache is full.
    """
    total = sum(item.size for item in items)
    noun = "files" if any(item.folder is None for item in items) else "shards"
    stopped = threading.Event()
    with Progress(*columns(total), console=console) as progress:

        def done(count: int) -> str:
            return f"{count}/{len(items)} {noun}"

        def read(item: Item) -> None:
            for length in _read(item):
                progress.advance(task, length)
                if stopped.is_set():
                    return

        task = progress.add_task("", total=total or len(items), done=done(0))
        with ThreadPoolExecutor(jobs) as pool:
            try:
                under_way: dict[Future[None], Item] = {pool.submit(read, i): i for i in items}
                there: list[Item] = []
                for count, future in enumerate(as_completed(under_way), 1):
                    progress.update(task, done=done(count), advance=0 if total else 1)
                    if summary.count(under_way[future], future):
                        there.append(under_way[future])
                    if room is not None:
                        room.end_if_full(under_way)
                for item in there:  # only now: the last items may have evicted the first
                    summary.look(item)
            finally:
                stopped.set()
                pool.shutdown(cancel_futures=True)


def _kept(path: bytes, otherwise: int) -> int:
    """Return how much of a file is on disk; `otherwise` if the mount cannot say."""
    try:
        return int(os.getxattr(path, KEPT_ATTRIBUTE))
    except OSError:
        return otherwise


def columns(total: int) -> list[ProgressColumn]:
    """Return the columns of the progress; without `total`, no bytes are read."""
    columns: list[ProgressColumn] = [BarColumn(), TextColumn("{task.fields[done]}")]
    if total:
        columns += transfer_columns()
    return [*columns, TimeRemainingColumn()]


def is_in_mount(path: Path) -> bool:
    """Return whether the innermost mount that holds `path` is one of aisfs."""
    holding = [
        (len(mountpoint.parts), kind)
        for mountpoint, kind in mounted_filesystems()
        if path.is_relative_to(mountpoint)
    ]
    return max(holding, default=(0, ""))[1] == FILE_SYSTEM


def _walk(directory: bytes, *, index_only: bool) -> Iterator[bytes]:
    """Find files, and directories that stand for shards.

    A dataset mount shows only the folder of a shard: its members are files like any other.

    Raises:
        OSError: a directory cannot be listed.
    """

    def fail(error: OSError) -> None:
        raise error

    for parent, directories, files in os.walk(directory, onerror=fail):
        for name in sorted(files):
            yield os.path.join(parent, name)
        real = []
        for name in sorted(directories):
            path = os.path.join(parent, name)
            if not _is_folder_of_shard(path):
                real.append(name)
            elif is_shard(name):  # --shards dir: the folder is listed instead of the shard
                yield path
            elif shard_of_directory(name) is None:
                if index_only:
                    yield path
                else:
                    real.append(name)
        directories[:] = real


def _is_folder_of_shard(path: bytes) -> bool:
    try:
        return bool(os.getxattr(path, SHARD_ATTRIBUTE))
    except OSError:
        return False


def _item(path: bytes, index_only: bool) -> Item | None:
    folder: bytes | None = None
    content = path
    if is_shard(os.path.basename(path)):
        if os.path.isdir(path):
            content, folder = path + SHARD_BYTES_SUFFIX, path
        elif _is_folder_of_shard(path + SHARD_DIRECTORY_SUFFIX):  # a real key may have the name
            folder = path + SHARD_DIRECTORY_SUFFIX
    elif index_only and os.path.isdir(path):
        folder = path
    if index_only:
        return Item(None, folder, 0) if folder is not None else None
    try:
        size = os.stat(content).st_size
    except FileNotFoundError:  # since it was listed; reading it says so
        size = 0
    return Item(content, folder, size)


def _read(item: Item) -> Iterator[int]:
    """Read an item; yield the length of each piece."""
    if item.content is not None:
        descriptor = os.open(item.content, os.O_RDONLY)
        try:
            # The daemon is not asked for what the kernel has, but may have evicted it.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            while piece := os.read(descriptor, PIECE):
                yield len(piece)
            # Only the daemon's cache is to be filled.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    if item.folder is not None:
        with os.scandir(item.folder) as entries:
            next(entries, None)


@dataclass(frozen=True, slots=True)
class _Item:
    bucket: Bucket
    info: ObjectInfo
    is_shard: bool

    def __str__(self) -> str:
        return f"{self.bucket}/{self.info.key}"


async def warm_place(
    place: Place,
    settings: Mapping[str, object],
    summary: Summary,
    *,
    index_only: bool,
    jobs: int,
    console: Console,
) -> None:
    """Read what a source has, `jobs` objects at a time, and show the progress.

    Args:
        place: The source.
        settings: The options that were given, by name of the setting.
        summary: Counts what was done.
        index_only: Only find the members of shards.
        jobs: Objects at a time.
        console: Where the progress is shown.

    Raises:
        AisfsError: the source cannot be listed, or the disk cache cannot be opened.
    """
    if isinstance(place.source, Everything):
        raise ConfigError(f"{place.text}: give a bucket, such as {place.text}BUCKET")
    setup = SourceSetup(
        source=place.source,
        cluster=load_cluster(place.source, settings),
        tree=load(TreeSettings, settings),
        cache=load(CacheSettings, settings),
        partly=True,
        **transformation(settings, place.source),
    )
    async with open_services(setup) as services:
        found = await _find(services, place, index_only=index_only)
        services.scans.expect(sum(item.info.size for item in found if item.info.is_sized))
        warmed = await _Warmer(services, summary, index_only).warm(found, jobs, console)
        await services.flush()
        for item in warmed:  # only now: the last items may have evicted the first
            await _look(services, item, summary, index_only=index_only)


async def _find(services: Services, place: Place, *, index_only: bool) -> list[_Item]:
    opened = OpenSource(services.source, services.root, services.store)
    items: dict[_Item, None] = {}
    async for batch in list_opened(opened, place, Counter(), recursive=True):
        for entry in batch:
            is_shard = entry.kind is Kind.SHARD
            if entry.info is not None and (is_shard or not index_only):
                items[_Item(entry.bucket, entry.info, is_shard)] = None
    return list(items)


@dataclass(frozen=True, slots=True)
class _Warmer:
    """Reads objects into the disk cache."""

    services: Services
    summary: Summary
    index_only: bool

    async def warm(self, items: list[_Item], jobs: int, console: Console) -> list[_Item]:
        """Read all; return those that could be read."""
        warmed: list[_Item] = []
        is_known = not self.index_only and all(item.info.is_sized for item in items)
        total = sum(item.info.size for item in items) if is_known else 0
        with Progress(*columns(total), console=console) as progress:

            def done(count: int) -> str:
                return f"{count}/{len(items)} objects"

            task = progress.add_task("", total=total or len(items), done=done(0))

            async def one(item: _Item) -> None:
                try:
                    info = await self.services.store.sized(item.bucket, item.info)
                    item = _Item(item.bucket, info, item.is_shard)
                    await self._read(item, progress, task)
                    warmed.append(item)
                except AisfsError as error:
                    self.summary.failures.append(str(error))
                progress.update(task, done=done(len(warmed)), advance=0 if total else 1)

            await all_of((partial(one, item) for item in items), jobs)
        return warmed

    async def _read(self, item: _Item, progress: Progress, task: TaskID) -> None:
        services = self.services
        if not self.index_only:
            fetcher = services.fetcher
            async for _, data in fetcher.stream(fetcher.open(item.bucket, item.info)):
                progress.advance(task, len(data))
            self.summary.size += item.info.size
        if item.is_shard:
            await services.indexer.open(item.bucket, item.info)
        self.summary.shards += item.is_shard
        self.summary.objects += not item.is_shard


async def _look(services: Services, item: _Item, summary: Summary, *, index_only: bool) -> None:
    """Count how much of an object that was read is on disk."""
    coverage = services.coverage
    if item.is_shard:
        summary.indexes += await coverage.save_index(item.bucket, item.info)
    if not index_only:
        whole = ByteRange(0, item.info.size)
        summary.kept += await coverage.cached(item.bucket, item.info, whole)


def parse_words(
    words: Sequence[str], settings: Mapping[str, object]
) -> tuple[list[Path], list[Place]]:
    """Return the paths and the sources that the arguments name.

    Raises:
        ConfigError: there is none, or one of them or the list file makes no sense.
        SourceMissing: a pattern over paths matches nothing.
    """
    if "files_from" not in settings and not words:
        raise ConfigError("give a PATH in a mount or a SOURCE, such as ais://BUCKET")
    paths: list[Path] = []
    places: list[Place] = []
    if "files_from" in settings:
        places.append(Place("", read_shards(words, settings)))
        words = ()
    for text in words:
        if os.path.lexists(text) and not _is_list(text):
            paths.append(Path(text))
        elif "://" in text or is_pattern(text) or _is_list(text):
            places.append(find_place(text, settings))
        else:
            paths.append(Path(text))
    local = [place.source for place in places if is_local(place.source)]
    for source in local:
        assert isinstance(source, DatasetSource), "patterns and lists are a dataset"
        paths += [path for word in source.words for path in _expand(word)]
    return paths, [place for place in places if not is_local(place.source)]


def _is_list(text: str) -> bool:
    """Return whether this is a list of shards on this machine, and no object of a mount."""
    return (
        text.endswith(LIST_SUFFIX)
        and os.path.isfile(text)
        and not is_in_mount(Path(text).resolve())
    )


def _expand(word: SourceArg) -> list[Path]:
    """Return what exists of the local files and directories that one argument or list names."""
    found = [path for pattern in word.patterns for path in _matching(pattern)]
    if not found:
        raise SourceMissing(f"{word.text}: nothing there has such a name")
    return found


def _matching(pattern: ShardPattern) -> Iterator[Path]:
    if pattern.one or not pattern.rest:
        path = Path(pattern.directory + pattern.rest)
        if path.exists():
            yield path
        return
    glob = GlobPattern(pattern.rest)

    def fail(error: OSError) -> None:
        raise SourceMissing(f"{error.filename}: {error.strerror}") from error

    for parent, directories, files in os.walk(pattern.directory or ".", onerror=fail):
        below = os.path.relpath(parent, pattern.directory or ".")
        start = "" if below == "." else f"{below}/"
        yield from (
            Path(parent, n) for n in sorted([*directories, *files]) if glob.matches(start + n)
        )
        directories[:] = sorted(name for name in directories if glob.enters(f"{start}{name}/"))
