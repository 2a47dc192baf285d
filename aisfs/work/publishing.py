"""The work of `aisfs index` and of the indexes that `aisfs pack` publishes: each shard's index looked at and written.

It also writes indexes that other programs read (wids, DALI), beside the shards or on this machine. What `aisfs index` is to do
comes as checked values. The members of shards that `aisfs pack` writes are known without reading them.
"""

import logging
import os
import posixpath
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from aisfs.core.archive.tar import BLOCK
from aisfs.core.archive.tar_scanner import TarScanner
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.published import (
    DALI_SUFFIX,
    LabelColumn,
    PublishedIndex,
    ScanRules,
    dali_index,
    decode_published,
    encode_published,
    most_bytes,
    wids_samples,
)
from aisfs.core.names.listing import IndexPlace, is_plain_tar, is_shard, shard_stem
from aisfs.core.names.sources import DatasetSource, ListedShard, encode_shard_list
from aisfs.core.views.sample_views import LabelScan, label_rows
from aisfs.core.views.spec import LabelRule, LabelSource, ViewSpec, parse_label
from aisfs.core.views.summary import shown
from aisfs.core.views.tree import without_folders
from aisfs.engine.dataset.shard_set import Shard, find_shards
from aisfs.engine.index_sources import IndexBucket
from aisfs.engine.shards import saved_as
from aisfs.errors import (
    AccessDenied,
    AisfsError,
    AlreadyExists,
    BucketNotFound,
    ConfigError,
    DeadlineExceeded,
    IndexOutdated,
    IndexRefused,
    InvalidName,
    IsADirectory,
    NameTooLong,
    NotADirectory,
    NotFound,
    OutOfSpace,
    ReadOnly,
    Stale,
    Unavailable,
    Unsupported,
)
from aisfs.model import Bucket, ObjectInfo
from aisfs.mount.services import Services, open_services
from aisfs.mount.setup import SourceSetup, load, load_cluster, read_shards
from aisfs.settings import CacheSettings, Scan, TreeSettings, View
from aisfs.stores.local import LocalStore
from aisfs.stores.pipeline import all_of
from aisfs.stores.port import BytesContent, Content, ObjectStore, Upload, WritableStore
from aisfs.stores.registry import refuse_read_only

LIST_NAME = "shards.json"
"""What a list of shards is called beside the shards."""


class Format(StrEnum):
    """An index that other programs read."""

    WIDS = "wids"
    """A list of shards with their samples, for webdataset's random access."""
    DALI = "dali"
    """An index of each shard, for DALI's webdataset reader."""


@dataclass(frozen=True, slots=True)
class Export:
    """A format to write, and where to."""

    format: Format
    path: Path | None
    """A file or directory of this machine; None for beside the shards."""

    @classmethod
    def parse(cls, text: str) -> "Export":
        """Return what `--write-idx FORMAT[=PATH]` asks for.

        Raises:
            ConfigError: there is no such format.
        """
        name, equals, path = text.partition("=")
        if name not in list(Format) or (equals and not path):
            known = " or ".join(f"{kind}[=PATH]" for kind in Format)
            raise ConfigError(f"--write-idx {text!r}: expected {known}")
        place = Path(path).expanduser().absolute() if path else None
        if place is not None and name == Format.WIDS and (path.endswith("/") or place.is_dir()):
            place /= LIST_NAME
        return cls(Format(name), place)


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """What `aisfs index` is to do, as it was typed."""

    publish: bool
    publish_to: Path | None
    """The directory of this machine that has the published indexes; None for where mounts look for them."""
    check: bool
    """Only look whether what is published is current."""
    force: bool
    dry_run: bool
    labels: tuple[str, ...]
    write_idx: tuple[str, ...]

    def check_sense(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            ConfigError: some do.
        """
        if not (self.publish or self.check or self.write_idx):
            raise ConfigError(
                "say what to do: --publish, --publish-to DIR, --check, --move, --write-idx FORMAT or --server"
            )
        if self.check and (self.publish or self.write_idx or self.dry_run or self.force):
            raise ConfigError("--check only looks: give it alone")
        if self.force and not self.publish:
            raise ConfigError("--force needs --publish")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSetup(SourceSetup):
    """What is to be indexed, and what becomes of the indexes."""

    options: IndexOptions
    labels: tuple[LabelRule, ...]
    """Columns of labels that a published index must have; of the default only where there are any."""
    exports: tuple[Export, ...]


def index_setup(
    words: Sequence[str], options: IndexOptions, settings: Mapping[str, object]
) -> IndexSetup:
    """Return what the arguments and options of `aisfs index` ask for.

    Args:
        words: Each SOURCE as it was typed.
        options: The command's own options.
        settings: The other options that were given, by name of the setting.

    Raises:
        ConfigError: they contradict each other, or one of them makes no sense.
    """
    if options.publish_to is not None:
        publish, place = options.publish or not options.check, options.publish_to.absolute()
        options = replace(options, publish=publish, publish_to=place)
    options.check_sense()
    exports = tuple(map(Export.parse, options.write_idx))
    tree = load(TreeSettings, {**settings, "scan": Scan.HEADERS})
    if exports and tree.recursive:
        raise ConfigError("--write-idx: not with --recursive, which other programs do not know")
    source = read_shards(words, settings)
    cluster = load_cluster(source, settings)
    if options.publish and options.publish_to is None:
        refuse_read_only(source, cluster, "--publish without --publish-to DIR: ")
    if any(export.path is None for export in exports):
        refuse_read_only(source, cluster, "--write-idx without a PATH: ")
    return IndexSetup(
        source=source,
        cluster=cluster,
        tree=tree,
        cache=load(CacheSettings, settings),
        only_indexes=True,
        rescan=options.force,
        view=ViewSpec(View.FLAT),
        options=options,
        labels=_label_rules(options.labels),
        exports=exports,
    )


def _label_rules(texts: Sequence[str]) -> tuple[LabelRule, ...]:
    rules = tuple(map(parse_label, texts))
    for text, rule in zip(texts, rules, strict=True):
        if rule.component is None:
            raise ConfigError(f"--label {text}: such labels are not read from shards")
    return rules


class Exporter:
    """Writes one format."""

    def __init__(self, export: Export, shards: list[Shard], store: WritableStore) -> None:
        """Write the indexes of `shards`, in this order.

        Raises:
            ConfigError: there is no place beside all of them.
        """
        self._export = export
        self._shards = shards
        self._store = store
        self._listed: dict[int, ListedShard] = {}
        """By place in the dataset."""
        self.written: list[str] = []
        buckets = {shard.bucket for shard in shards}
        if export.path is None and export.format is Format.WIDS and len(buckets) > 1:
            raise ConfigError("--write-idx wids: shards of several buckets; give wids=FILE.json")
        self._directory = common_directory(shards)

    def prepare(self) -> None:
        """Make the directories of this machine that are written to.

        Raises:
            ConfigError: one cannot be made.
        """
        if self._export.path is not None:
            for place in self.targets():
                make_directory("--write-idx", Path(place).parent)

    def targets(self) -> list[str]:
        """Return where everything would be written to, as far as names say."""
        if self._export.format is Format.WIDS:
            return [self._list_place()]
        tars = (shard for shard in self._shards if is_plain_tar(os.fsencode(shard.info.key)))
        return [self._dali_place(shard) for shard in tars]

    async def add(self, at: int, index: MemberIndex) -> None:
        """Take the index of the shard at a place of the dataset.

        Raises:
            Unsupported: the format has nothing for such a shard.
        """
        shard = self._shards[at]
        if self._export.format is Format.DALI:
            data = await trio.to_thread.run_sync(dali_index, index)
            await self._write(shard, self._dali_key(shard), self._dali_place(shard), data)
            return
        samples = await trio.to_thread.run_sync(wids_samples, index)
        self._listed[at] = ListedShard(self._url(shard), samples, shard.info.size)

    async def finish(self) -> None:
        """Write what is about all shards together."""
        if self._export.format is Format.WIDS and self._listed:
            data = encode_shard_list(self._listed[at] for at in sorted(self._listed))
            first = self._shards[0]
            await self._write(first, self._directory + LIST_NAME, self._list_place(), data)

    async def _write(self, shard: Shard, key: str, place: str, data: bytes) -> None:
        if self._export.path is None:
            await self._store.upload(Upload(shard.bucket, key, BytesContent(data)))
        else:
            await trio.to_thread.run_sync(partial(_write_file, Path(place), data))
        self.written.append(place)

    def _list_place(self) -> str:
        if self._export.path is not None:
            return str(self._export.path)
        return f"{self._shards[0].bucket}/{self._directory}{LIST_NAME}"

    def _dali_key(self, shard: Shard) -> str:
        return shard_stem(shard.info.key) + DALI_SUFFIX

    def _dali_place(self, shard: Shard) -> str:
        key = self._dali_key(shard)
        if self._export.path is None:
            return f"{shard.bucket}/{key}"
        return str(self._export.path / key[len(self._directory) :])

    def _url(self, shard: Shard) -> str:
        """Return the URL of a shard; below the directory of the list, it is relative."""
        key, path = shard.info.key, self._export.path
        try:
            os.fsencode(key).decode()
        except UnicodeDecodeError:
            raise Unsupported("JSON cannot hold its name, which is not UTF-8") from None
        if path is None:
            return posixpath.relpath(key, self._directory or ".")
        url = f"{shard.bucket}/{key}"
        own = f"{path.parent}/"
        return url.removeprefix(own)


def common_directory(shards: list[Shard]) -> str:
    """Return the prefix of all shards that is a directory, empty or with a slash at its end."""
    directory = posixpath.commonpath([posixpath.dirname(shard.info.key) for shard in shards])
    return f"{directory}/" if directory else ""


def _write_file(path: Path, data: bytes) -> None:
    """Write a file of this machine: whole, or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            temporary.write_bytes(data)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"--write-idx: {path}: {error.strerror}") from error


def make_directory(option: str, directory: Path) -> None:
    """Make what an option names, if it is not there.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ConfigError(f"{option}: {directory} is no directory") from None
    except OSError as error:
        raise ConfigError(f"{option}: {directory}: {error.strerror}") from error


MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where indexes are published: in their bucket, beside their shards, or elsewhere, to be brought there."""

    store: WritableStore
    own: IndexBucket | None = None
    """The bucket of indexes; None for beside the shards."""
    elsewhere: Bucket | None = None
    """What has them instead."""
    shards: str = ""
    """The directory of all shards, for which `elsewhere` stands."""

    async def place(self, bucket: Bucket) -> IndexPlace:
        """Return where the indexes of a bucket's shards are published."""
        if self.own is None:
            return IndexPlace(bucket)
        with explained(self.own):
            return await self.own.place(bucket)

    def key(self, place: IndexPlace, shard: Shard) -> tuple[Bucket, str]:
        """Return the bucket and the key of a shard's index."""
        key = place.key(shard.info.key)
        if self.elsewhere is None:
            return place.bucket, key
        return self.elsewhere, key.removeprefix(self.shards)


@contextmanager
def explained(own: IndexBucket) -> Iterator[None]:
    """Say of a token that may not what the bucket is for, and what there is instead."""
    try:
        yield
    except AccessDenied as error:
        raise AccessDenied(
            f"{error}: published indexes go into {own.bucket}, which this token may not make, read or"
            " write: have it made (aisfs mb) and permitted, name another bucket with --index-bucket, or"
            " put them beside the shards with --index-bucket ''"
        ) from error


@dataclass(frozen=True, slots=True)
class Found:
    """What is published of a shard."""

    index: PublishedIndex | str
    """Of exactly this version; otherwise why what there is is of no use."""
    beside: bool = False
    """Whether an index was found beside the shard, though there is a bucket for it."""


async def find_published(shelf: Shelf, shard: Shard, scan: ScanRules) -> Found:
    """Look where it is published now, then beside the shard, where it was published once."""
    place = await shelf.place(shard.bucket)
    if shelf.own is None:
        return Found(await _find_at(shelf.store, *shelf.key(place, shard), place, shard, scan))
    with explained(shelf.own):
        found = await _find_at(shelf.store, *shelf.key(place, shard), place, shard, scan)
    if isinstance(found, PublishedIndex):
        return Found(found)
    place = IndexPlace(shard.bucket)
    beside = await _find_at(shelf.store, *shelf.key(place, shard), place, shard, scan)
    there = beside != MISSING
    return Found(beside if isinstance(beside, PublishedIndex) or found == MISSING else found, there)


async def _find_at(
    store: ObjectStore, bucket: Bucket, key: str, place: IndexPlace, shard: Shard, scan: ScanRules
) -> PublishedIndex | str:
    try:
        info = await store.head(bucket, key)
        if info.size > most_bytes(shard.info):
            return f"damaged: {info.size} bytes are too many for an index of it"
        data = bytearray(info.size)
        if data:
            await store.read_range(bucket, info, 0, memoryview(data))
    except (NotFound, Stale):  # an index that is replaced right now is not there either
        return MISSING
    try:
        renewable = place.renewable
        decode = partial(decode_published, bytes(data), shard.info, scan, renewable=renewable)
        return await trio.to_thread.run_sync(decode)
    except IndexOutdated as error:
        return f"stale: {error}"
    except IndexRefused as error:
        return f"damaged: {error}"


async def publish(
    store: ObjectStore,
    shelf: Shelf,
    shard: Shard,
    index: MemberIndex,
    labels: Mapping[str, LabelColumn],
    scan: ScanRules,
) -> None:
    """Publish an index, if the shard still is the version that was scanned.

    Args:
        store: Has the shard.
        shelf: Where its index goes.
        shard: As it was scanned.
        index: Its members.
        labels: Columns of their labels, by rule.
        scan: How it was scanned.

    Raises:
        Stale: it is not.
        Unsupported: such an index cannot be published.
    """
    now = await store.head(shard.bucket, shard.info.key)
    if not _is_same(shard.info, now):
        raise Stale(f"{shard.bucket}/{shard.info.key} changed while it was scanned; run it again")
    place = await shelf.place(shard.bucket)
    encode = partial(encode_published, now, index, labels, scan, renewable=place.renewable)
    try:
        data = await trio.to_thread.run_sync(encode)
    except ValueError as error:
        raise Unsupported(str(error)) from error
    await put(shelf, *shelf.key(place, shard), data)


async def put(shelf: Shelf, bucket: Bucket, key: str, data: bytes) -> None:
    """Write an index; make the bucket of indexes if it is missing."""
    upload = Upload(bucket, key, BytesContent(data))
    if shelf.own is None:
        await shelf.store.upload(upload)
        return
    with explained(shelf.own):
        try:
            await shelf.store.upload(upload)
        except BucketNotFound:
            with suppress(AlreadyExists):  # another client was faster
                await shelf.store.create_bucket(bucket)
            await shelf.store.upload(upload)


def _is_same(before: ObjectInfo, now: ObjectInfo) -> bool:
    versions = before.version and now.version
    return before.same_bytes(now) and (not versions or before.version == now.version)


async def remove_with_index(shelf: Shelf, bucket: Bucket, key: str) -> None:
    """Remove an object, and what is published as its index, wherever that lies.

    Raises:
        NotFound: there is no such object.
    """
    await shelf.store.remove(bucket, key)
    if not is_shard(os.fsencode(key.rpartition("/")[2])):
        return
    places = [IndexPlace(bucket)] + ([await shelf.place(bucket)] if shelf.own is not None else [])
    for place in places:
        # Without permission it stays, and is of no use to anybody.
        with suppress(NotFound, BucketNotFound, AccessDenied, InvalidName, Unsupported):
            await shelf.store.remove(place.bucket, place.key(key))


log = logging.getLogger(__name__)

DEFAULT_LABEL = LabelRule(LabelSource.CONTENT, "cls")
"""Published where shards have it, as `--view class` looks for it."""
_HOPELESS = (
    AccessDenied,
    BucketNotFound,
    ConfigError,
    DeadlineExceeded,
    OutOfSpace,
    ReadOnly,
    Unavailable,
)
"""What one shard fails with, all fail with."""


@dataclass(slots=True)
class Report:
    """What was found and done."""

    shards: int = 0
    current: int = 0
    """Shards whose index was published and current."""
    published: int = 0
    beside: int = 0
    """Indexes that were found beside their shards, though there is a bucket for them."""
    wanting: dict[str, str] = field(default_factory=dict)
    """By shard, why its index was not current."""
    written: list[str] = field(default_factory=list)
    """Where indexes for other programs were written, or would be."""
    left_out: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """By shard, what could not be written of it, and why."""
    damage: dict[str, list[str]] = field(default_factory=dict)
    """By shard, what is wrong with it."""
    failures: dict[str, AisfsError] = field(default_factory=dict)
    """By shard, why it could not be indexed."""
    missing: list[str] = field(default_factory=list)
    """What the sources named and does not exist."""


class Watcher(Protocol):
    """Shows the progress."""

    def found(self, shards: int, size: int) -> None:
        """Show the number of shards, and the bytes of all of them."""
        ...

    def done(self, size: int) -> None:
        """Show that one more is done, of so many bytes."""
        ...


async def index_shards(setup: IndexSetup, *, jobs: int, progress: Watcher) -> Report:
    """Index the shards of a source.

    Args:
        setup: What to do.
        jobs: Shards at once.
        progress: Shows the progress.

    Raises:
        AisfsError: the source cannot be listed, or nothing can be written there. What was published
            before stays, and is recognized next time.
    """
    async with open_services(setup) as services:
        source = services.source
        assert isinstance(source, DatasetSource), "the setup has no other"
        found = await find_shards(source, services.lister, services.store, services.metrics)
        shards = [shard for _, shard in found.current]
        report = Report(shards=len(shards), missing=list(found.missing))
        work = _Work(setup, services, shards, report)
        progress.found(len(shards), sum(shard.info.size for shard in shards))
        await work.run(jobs, progress)
    return report


class _Work:
    """One run over all shards."""

    def __init__(
        self, setup: IndexSetup, services: Services, shards: list[Shard], report: Report
    ) -> None:
        self._setup = setup
        self._services = services
        self._store = services.store
        self._shards = shards
        self._report = report
        self._shelf = _shelf(setup, services, shards)
        self._exporters = [Exporter(export, shards, services.store) for export in setup.exports]

    async def run(self, jobs: int, progress: Watcher) -> None:
        """Go through all shards, `jobs` at a time.

        Raises:
            AisfsError: one that would be the same for each shard.
        """
        if self._setup.options.dry_run:
            for exporter in self._exporters:
                self._report.written += exporter.targets()
            await self._index_all(jobs, progress)
            return
        if self._setup.options.publish and self._setup.options.publish_to is not None:
            make_directory("--publish-to", self._setup.options.publish_to)
        for exporter in self._exporters:
            exporter.prepare()
        await self._index_all(jobs, progress)
        for exporter in self._exporters:
            await exporter.finish()
            self._report.written += exporter.written

    async def _index_all(self, jobs: int, progress: Watcher) -> None:
        async def one(at: int) -> None:
            try:
                await self._index(at)
            except _HOPELESS:
                raise
            except AisfsError as error:
                self._report.failures[self._name(at)] = error
            progress.done(self._shards[at].info.size)

        await all_of((partial(one, at) for at in range(len(self._shards))), jobs)

    def _name(self, at: int) -> str:
        shard = self._shards[at]
        return f"{shard.bucket}/{shown(os.fsencode(shard.info.key))}"

    async def _index(self, at: int) -> None:
        """Do what is to be done about one shard."""
        setup, report, shard = self._setup, self._report, self._shards[at]
        looked = await find_published(self._shelf, shard, setup.scan)
        found = looked.index
        report.beside += looked.beside
        reason = await trio.to_thread.run_sync(self._wanting, found)
        index = (
            found.index if isinstance(found, PublishedIndex) and not setup.options.force else None
        )
        if reason is None:
            report.current += 1
        else:
            report.wanting[self._name(at)] = reason
        if setup.options.check or setup.options.dry_run:
            return
        if setup.options.publish and reason is not None:
            labels = found.labels if index is not None and isinstance(found, PublishedIndex) else {}
            index = await self._publish(shard, index, dict(labels))
        if self._exporters:
            if index is None:
                index = (await self._services.indexer.open(shard.bucket, shard.info)).index
            await self._export(at, index)
        if index is not None and index.warnings:
            report.damage[self._name(at)] = list(index.warnings)
        self._services.indexer.forget(shard.bucket, shard.info)

    def _wanting(self, found: PublishedIndex | str) -> str | None:
        """Return why an index has to be published; None if it has not. Runs in a worker thread."""
        if isinstance(found, str):
            return found
        if self._setup.options.force:
            return "forced"
        lacking = [
            rule
            for rule in self._rules
            if saved_as(rule) not in found.labels and self._has_column(rule, found.index)
        ]
        return f"no labels of {', '.join(map(str, lacking))}" if lacking else None

    @property
    def _rules(self) -> tuple[LabelRule, ...]:
        return self._setup.labels or (DEFAULT_LABEL,)

    def _has_column(self, rule: LabelRule, index: MemberIndex) -> bool:
        """Return whether a shard has a column of these labels, if only an empty one."""
        return bool(self._setup.labels) or bool(label_rows(rule, index))

    async def _publish(
        self, shard: Shard, index: MemberIndex | None, labels: dict[str, LabelColumn]
    ) -> MemberIndex:
        """Build what an index lacks and publish it; return its members."""
        indexer = self._services.indexer
        if index is not None:
            indexer.learn(shard.bucket, shard.info, without_folders(index))
        for rule in self._rules:
            if saved_as(rule) not in labels:
                index, column = await indexer.labels(
                    shard.bucket, shard.info, rule, self._services.reader.read_whole
                )
                if self._has_column(rule, index):
                    labels[saved_as(rule)] = column
        assert index is not None, "there is a rule at least"
        await publish(self._store, self._shelf, shard, index, labels, self._setup.scan)
        self._report.published += 1
        return index

    async def _export(self, at: int, index: MemberIndex) -> None:
        for exporter in self._exporters:
            try:
                await exporter.add(at, index)
            except Unsupported as error:
                self._report.left_out[self._name(at)].append(str(error))


def _shelf(setup: IndexSetup, services: Services, shards: list[Shard]) -> Shelf:
    """Return where the indexes of shards are published.

    Raises:
        ConfigError: one directory cannot stand for all of theirs.
    """
    if setup.options.publish_to is None:
        return Shelf(services.store, services.index_bucket)
    if len({shard.bucket for shard in shards}) > 1:
        raise ConfigError("--publish-to: shards of several buckets; publish them one by one")
    directory = LocalStore(setup.options.publish_to)
    return Shelf(directory, elsewhere=directory.bucket, shards=common_directory(shards))


RULES = ScanRules()
"""What usual mounts scan by."""
_UNPUBLISHABLE = (InvalidName, IsADirectory, NameTooLong, NotADirectory, Unsupported)
"""What is wrong with the name, or the index, of one shard."""
_LABEL_READ = 64 << 10
"""Bytes of a label read at once; a number has one or two."""


async def publish_packed(
    shelf: Shelf, shard: Shard, content: Content, rules: Sequence[LabelRule]
) -> str:
    """Publish the index of a shard that has just been written, or was there already.

    Returns:
        Why there is no index; empty where there is one.

    Raises:
        AccessDenied: there will be none of any shard.
    """
    found = await find_published(shelf, shard, RULES)
    names = set(map(saved_as, rules))
    if isinstance(found.index, PublishedIndex) and names <= found.index.labels.keys():
        return ""
    index, labels = await trio.to_thread.run_sync(_scan, content, rules)
    try:
        await publish(shelf.store, shelf, shard, index, labels, RULES)
    except _UNPUBLISHABLE as error:
        return str(error)
    return ""


def _scan(
    content: Content, rules: Sequence[LabelRule]
) -> tuple[MemberIndex, dict[str, LabelColumn]]:
    """Scan the headers and the labels of a shard; no other file is opened."""
    scanner = TarScanner(content.size)
    scans = {rule: LabelScan(rule, scanner.rows) for rule in rules}
    while (start := min([scanner.needed, *_needed(scans.values())])) < content.size:
        most = BLOCK if start == scanner.needed else _LABEL_READ
        piece = bytearray(min(most, content.size - start))
        content.read_into(start, memoryview(piece))
        scanner.seek(start)
        scanner.feed(bytes(piece))
        for scan in scans.values():
            scan.feed(start, memoryview(piece))
    index = scanner.finish()
    return index, {saved_as(rule): scan.finish(index) for rule, scan in scans.items()}


def _needed(scans: Iterable[LabelScan]) -> Iterator[int]:
    """Yield the next byte that each scan of labels needs; none of those that need none yet."""
    for scan in scans:
        if scan.needed is not None:
            yield scan.needed
