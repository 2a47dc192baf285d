"""Reads the samples of shards in this process: through a mount, or with the services of one in a thread.

Of a shard in a mount, the folder says what its members are, and the inode numbers of these where they come in the tar.
"""

import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import finalize

import msgspec
import trio
from cachetools import LRUCache

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.published import LabelColumn
from aisfs.core.names.inodes import slot_of, split_member
from aisfs.core.names.listing import SHARD_DIRECTORY_SUFFIX
from aisfs.core.names.sources import DatasetSource
from aisfs.core.names.urls import url_of
from aisfs.core.views.sample_lists import ShardSamples
from aisfs.core.views.samples import SPAN_MAX, SPLITS, split_name
from aisfs.engine.dataset.shard_set import find_shards as find_in
from aisfs.engine.parts import Data
from aisfs.errors import AisfsError, Stale
from aisfs.model import Bucket, ByteRange, ObjectInfo
from aisfs.mount.services import Services, open_services
from aisfs.mount.setup import SourceSetup, is_local, load, load_cluster, read_shards
from aisfs.settings import (
    CacheSettings,
    ClusterSettings,
    KeyRule,
    TransformSettings,
    TreeSettings,
    ViewSettings,
)
from aisfs.stores.pipeline import all_of
from aisfs.stores.registry import direct_bucket, kind_of
from aisfs.system.forks import can_fork, in_child
from aisfs.work.inspection import TOGETHER
from aisfs.work.warm import is_in_mount

log = logging.getLogger(__name__)

MEMORY = "64MiB"
"""Fetched bytes that a process keeps: some hundred samples, in each of many workers."""
AT_ONCE = 16
"""Samples of a batch that are fetched at once."""
END_SECONDS = 5.0

T = TypeVar("T")
_KINDS = (ClusterSettings, TreeSettings, CacheSettings, ViewSettings)


@dataclass(frozen=True, slots=True)
class Setup:
    """What a data set was asked for; can be pickled."""

    sources: tuple[str, ...]
    settings: Mapping[str, object]
    open_shards: int

    def read(self) -> SourceSetup:
        """Return where to read.

        Raises:
            ConfigError: a source or an option makes no sense.
            TypeError: there is no such option.
        """
        unknown = [name for name in self.settings if not any(name in k.options for k in _KINDS)]
        if any(name in TransformSettings.options for name in unknown):
            raise TypeError(f"{unknown[0]}: give the shards of a mount that has this option")
        if unknown:
            raise TypeError(f"no such options: {', '.join(unknown)}")
        settings = {"memory_limit": MEMORY, **self.settings}
        source = read_shards(self.sources, settings)
        return SourceSetup(
            source=source,
            cluster=load_cluster(source, settings),
            tree=load(TreeSettings, settings),
            cache=load(CacheSettings, settings),
            partly=True,
        )


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard, in one version."""

    bucket: Bucket
    info: ObjectInfo
    url: str
    """What its samples have as `__url__`."""
    folder: str
    """Where a mount shows its members; empty if it is in no mount."""
    inode: int
    """That of the folder, which another version has not."""


def find_shards(setup: Setup) -> tuple[list[Shard], list[int]]:
    """Return the shards of a data set, and how many samples each has.

    Raises:
        AisfsError: a source has no shards, or cannot be read.
    """
    source = setup.read()
    find = partial(trio.run, _find, source)
    bucket = direct_bucket(source.source)
    # Workers may be forked from this process, and are to read the cloud.
    apart = bucket is not None and kind_of(bucket).is_cloud and can_fork()
    return in_child(find) if apart else find()


async def _find(setup: SourceSetup) -> tuple[list[Shard], list[int]]:
    async with open_services(setup) as services:
        source, lister = services.source, services.lister
        assert isinstance(source, DatasetSource), "`read_shards` makes a dataset of any source"
        found = await find_in(source, lister, services.store, services.metrics)
        shards = list(
            _located(((s.bucket, s.info) for _, s in found.current), is_local(setup.source))
        )
        counts = [-1] * len(shards)

        async def count(at: int) -> None:
            shard = shards[at]
            if shard.folder:
                counts[at] = len(await trio.to_thread.run_sync(_listed, shard.folder))
            elif counts[at] < 0:
                index = (await services.indexer.open(shard.bucket, shard.info)).index
                counts[at] = len(await trio.to_thread.run_sync(_samples, index))
            services.indexer.forget(shard.bucket, shard.info)

        for start in range(0, len(shards), TOGETHER):
            some = range(start, min(start + TOGETHER, len(shards)))
            plain = [at for at in some if not shards[at].folder]
            ids = [(shards[at].bucket, shards[at].info) for at in plain]
            for at, known in zip(
                plain, await services.indexer.use_known(ids, None, _count), strict=True
            ):
                counts[at] = -1 if known is None else known
            await all_of((partial(count, at) for at in some), services.indexer.at_once)
        await services.flush()
    return shards, counts


def _located(found: Iterable[tuple[Bucket, ObjectInfo]], local: bool) -> Iterator[Shard]:
    """Find out which shards are in a mount."""
    mounted: dict[str, bool] = {}
    for bucket, described in found:
        info = msgspec.structs.replace(described, custom={})  # which could not be pickled
        if not local:
            yield Shard(bucket, info, url_of(bucket, info.key), "", 0)
            continue
        path = os.path.join(bucket.path, info.key)
        directory = os.path.dirname(path)
        if directory not in mounted:
            mounted[directory] = is_in_mount(Path(directory).resolve())
        folder = path + os.fsdecode(SHARD_DIRECTORY_SUFFIX) if mounted[directory] else ""
        yield Shard(bucket, info, path, folder, os.stat(folder).st_ino if folder else 0)


# Through a mount -----------------------------------------------------------------------------------

Parts = list[tuple[str, str, int]]
"""Extensions, paths and inode numbers of the members of a sample."""


def _listed(folder: str) -> list[tuple[str, Parts]]:
    """Return the samples in the folder of a shard, with their members in the order of the tar."""
    samples: dict[bytes, Parts] = {}
    for _, name, number in sorted(_members(folder, b"")):
        split = split_name(name, SPLITS[KeyRule.WDS])
        if not isinstance(split, str) and _has_extension(name):
            path = os.path.join(folder, os.fsdecode(name))
            samples.setdefault(split[0], []).append((_text(split[1].lower()), path, number))
    return [(_text(key), parts) for key, parts in samples.items()]


def _listed_again(shard: Shard) -> list[tuple[str, Parts]]:
    if os.stat(shard.folder).st_ino != shard.inode:
        raise Stale(f"{shard.url} has changed since the data set was made")
    return _listed(shard.folder)


def numbers_of_members(shards: Iterable[Shard]) -> Iterator[list[int]]:
    """Yield the inode numbers of the members of each sample of shards in a mount.

    Raises:
        OSError: a shard cannot be listed.
        Stale: one has changed.
    """
    for shard in shards:
        for _, parts in _listed_again(shard):
            yield [number for _, _, number in parts]


def _members(folder: str, below: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Yield the files in a shard, each with its row and its inode number."""
    with os.scandir(os.path.join(os.fsencode(folder), below)) as entries:
        for entry in entries:
            name = os.path.join(below, entry.name)
            if entry.is_dir(follow_symlinks=False):
                yield from _members(folder, name)
            elif entry.is_file(follow_symlinks=False):
                member = split_member(entry.inode())
                yield member[2] if member is not None else 0, name, entry.inode()


def _read_file(path: str, shard: Shard) -> bytes:
    with open(path, "rb", buffering=0) as file:
        if slot_of(os.fstat(file.fileno()).st_ino) != slot_of(shard.inode):
            raise Stale(f"{shard.url} has changed since the data set was made")
        return file.readall()


# With services -------------------------------------------------------------------------------------


def _has_extension(name: bytes) -> bool:
    """Return whether webdataset takes a member for a part of a sample."""
    return b"." in name[name.rfind(b"/") + 1 :]


def _samples(index: MemberIndex) -> ShardSamples:
    return ShardSamples(index, KeyRule.WDS, (), _has_extension)


def _count(_at: int, index: MemberIndex, _labels: LabelColumn | None) -> int:
    return len(_samples(index))


def _text(name: bytes) -> str:
    return os.fsdecode(name)


class _Recent(LRUCache[int, T]):
    """What was made for the shards that were used last, by their numbers."""

    def __init__(self, most: int, forget: Callable[[int], object] = bool) -> None:
        super().__init__(most)
        self._forget = forget

    def popitem(self) -> tuple[int, T]:
        """Remove what was used least recently."""
        at, made = super().popitem()
        self._forget(at)
        return at, made


class _Reads:
    """Reads samples in the trio thread."""

    def __init__(self, services: Services, shards: Sequence[Shard], open_shards: int) -> None:
        self._services = services
        self._shards = shards
        self._open: _Recent[ShardSamples] = _Recent(open_shards, self._forget)

    def _forget(self, at: int) -> None:
        self._services.indexer.forget(self._shards[at].bucket, self._shards[at].info)

    async def read(self, places: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
        """Return samples, given the shard of each and its number there."""
        found: list[dict[str, Any]] = [{} for _ in places]

        async def one(at: int) -> None:
            found[at] = await self._read_one(*places[at])

        await all_of((partial(one, at) for at in range(len(places))), AT_ONCE)
        return found

    async def _read_one(self, at: int, number: int) -> dict[str, Any]:
        shard = self._shards[at]
        samples = self._open.get(at)
        if samples is None:
            index = (await self._services.indexer.open(shard.bucket, shard.info)).index
            samples = self._open[at] = await trio.to_thread.run_sync(_samples, index)
        sample: dict[str, Any] = {"__url__": shard.url}
        index, rows = samples.index, samples.rows(number)
        for row, content in zip(rows, await self._contents(shard, index, rows), strict=True):
            key, extension = SPLITS[KeyRule.WDS](index.name(row)) or (b"", b"")
            sample["__key__"] = _text(key)
            sample[_text(extension.lower())] = bytes(content)
        return sample

    async def _contents(
        self, shard: Shard, index: MemberIndex, rows: Sequence[int]
    ) -> Sequence[Data]:
        """Return the contents of the members of a sample; those of most samples are one range of the shard."""
        reader = self._services.reader
        first = reader.open_member(shard.bucket, shard.info, index, rows[0], again=False)
        adjacent = rows[-1] - rows[0] == len(rows) - 1
        if adjacent and index.packing is None and index.all_plain(rows[0], rows[-1] + 1):
            places = index.places(rows)
            start, stop = places[0][0], sum(places[-1])
            if stop - start <= SPAN_MAX and not first.in_order:
                fetched = self._services.fetcher.start(first.reads.opened, ByteRange(start, stop))
                data = memoryview(await fetched.wait())
                return [data[at - start : at - start + size] for at, size in places]
        members = (replace(first, row=row) for row in rows)
        return [await reader.read_member(m, ByteRange(0, index.size(m.row))) for m in members]


@dataclass(frozen=True, slots=True)
class _Thread:
    """A trio thread with open services."""

    thread: threading.Thread
    token: trio.lowlevel.TrioToken
    end: trio.Event
    reads: _Reads
    ended: "Future[BaseException | None]"
    """Done when nothing is read any more; with the reason, if there is one."""

    def run(self, call: Callable[..., Awaitable[T]], *args: object) -> T:
        """Call a function in the thread, and wait for it.

        Raises:
            AisfsError: the thread has ended meanwhile.
            Exception: what the function raises.
        """
        answer: Future[T] = Future()

        async def work() -> None:
            try:
                answer.set_result(await call(*args))
            except Exception as error:  # noqa: BLE001 - it belongs to the thread that waits
                answer.set_exception(error)

        def begin() -> None:
            with suppress(RuntimeError):  # the thread is about to end
                trio.lowlevel.spawn_system_task(work)

        with suppress(trio.RunFinishedError):
            self.token.run_sync_soon(begin)
        either: tuple[Future[Any], ...] = (answer, self.ended)
        wait(either, return_when=FIRST_COMPLETED)  # a thread that fails answers nothing
        if answer.done():
            return answer.result()
        reason = self.ended.result()
        why = f": {_first(reason)!r}" if reason is not None else ""
        raise AisfsError(f"the thread that reads samples has ended{why}") from reason


def _first(error: BaseException) -> BaseException:
    """Return the error that others of trio are about."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, trio.TrioInternalError) and error.__cause__ is not None:
        return _first(error.__cause__)
    return error


def _start(setup: Setup, shards: Sequence[Shard]) -> _Thread:
    """Open services in a thread of their own.

    Raises:
        AisfsError: the source or the disk cache cannot be opened.
    """
    opened: Future[tuple[trio.lowlevel.TrioToken, trio.Event, _Reads]] = Future()
    ended: Future[BaseException | None] = Future()

    async def serve() -> None:
        async with open_services(setup.read()) as services:
            end, token = trio.Event(), trio.lowlevel.current_trio_token()
            opened.set_result((token, end, _Reads(services, shards, setup.open_shards)))
            await end.wait()

    def run() -> None:
        reason: BaseException | None = None
        try:
            trio.run(serve)
        except BaseException as error:  # noqa: BLE001 - told to those who wait
            reason = error
        if not opened.done():
            opened.set_exception(reason or AisfsError("the services ended while they were opened"))
        elif reason is not None:
            log.error("the thread that reads samples has ended", exc_info=reason)
        ended.set_result(reason)

    thread = threading.Thread(target=run, name="aisfs samples", daemon=True)
    thread.start()
    return _Thread(thread, *opened.result(), ended)


def _end(process: int, started: _Thread) -> None:
    """Close the services, at the latest when the interpreter ends; a forked process has none."""
    if process == os.getpid() and started.thread.is_alive():
        with suppress(trio.RunFinishedError):
            started.token.run_sync_soon(started.end.set)
        started.thread.join(END_SECONDS)


class SampleReader:
    """Reads samples in this process, from any of its threads."""

    def __init__(self, setup: Setup, shards: Sequence[Shard]) -> None:
        """Read these shards; services are opened when there is one outside of mounts to be read."""
        self.process = os.getpid()
        self._setup = setup
        self._shards = shards
        self._listed: _Recent[list[tuple[str, Parts]]] = _Recent(setup.open_shards)
        self._lock = threading.Lock()
        self._started: _Thread | None = None

    def read(self, places: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
        """Return samples, given the shard of each and its number there.

        Raises:
            AisfsError: a shard has changed, or cannot be read.
            OSError: the same of one in a mount.
        """
        found = {
            place: self._from_mount(*place) for place in places if self._shards[place[0]].folder
        }
        others = [place for place in places if place not in found]
        if others:
            started = self._thread()
            found |= zip(others, started.run(started.reads.read, others), strict=True)
        return [found[place] for place in places]

    def _thread(self) -> _Thread:
        """Return the thread that reads; after one that failed, another one."""
        with self._lock:
            if self._started is None or self._started.ended.done():
                self._started = _start(self._setup, self._shards)
                finalize(self, _end, self.process, self._started)
            return self._started

    def _from_mount(self, at: int, number: int) -> dict[str, Any]:
        shard = self._shards[at]
        with self._lock:
            samples = self._listed.get(at)
            if samples is None:
                samples = self._listed[at] = _listed_again(shard)
        key, parts = samples[number]
        contents = {extension: _read_file(path, shard) for extension, path, _ in parts}
        return {"__url__": shard.url, "__key__": key, **contents}
