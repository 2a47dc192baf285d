"""`aisfs pack`: a tree of files, or objects, into shards, straight into a bucket or a directory.

Nothing is copied on this machine: a shard is a `Content` that reads the files as its bytes are
asked for, and is uploaded like any other. A shard that exists with these very bytes is left alone.

What there is to pack is a `Tree`: the files of a local directory, or the objects of a cluster. Objects are read while
the shards are sent, by a client of their own: it never waits for a connection that an upload holds, which waits for it.
"""

import fnmatch
import os
import re
import stat
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import trio
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from aisfs.core.names.listing import INDEX_DIRECTORY, path_of, shard_of_published
from aisfs.core.names.sources import (
    EVERY_KEY,
    BucketSource,
    DirectorySource,
    Everything,
    KeyFilter,
    Source,
    is_pattern,
    literal,
    marked,
    missing_path,
    parse_source,
)
from aisfs.core.names.urls import place_end
from aisfs.core.views.packing import (
    END_BLOCKS,
    KEY_RULES,
    File,
    Layout,
    Sample,
    ShardNames,
    class_names_of,
    find_merged,
    header_of,
    reading_notes,
    samples_of,
    shards_of,
    shuffled,
    with_classes,
    without_dots,
)
from aisfs.core.views.spec import LabelRule, parse_classes, parse_label
from aisfs.engine.dataset.label_files import read_classes
from aisfs.engine.dataset.shard_set import Shard
from aisfs.engine.index_sources import IndexBucket
from aisfs.errors import (
    AccessDenied,
    AisfsError,
    ConfigError,
    ContentUnreadable,
    NotFound,
    SourceMissing,
)
from aisfs.model import DEFAULT_TYPE, Bucket, ObjectInfo, hasher_of, is_known
from aisfs.mount.setup import existing
from aisfs.mount.source import open_source
from aisfs.settings import ClusterSettings, KeyRule
from aisfs.stores.local import Links
from aisfs.stores.pipeline import all_of
from aisfs.stores.port import (
    BytesContent,
    ObjectStore,
    Upload,
    WritableStore,
    checksum_of,
    pages_of,
)
from aisfs.stores.registry import as_served, refuse_read_only
from aisfs.work.buckets import find_place, list_place
from aisfs.work.progress import transfer_columns
from aisfs.work.publishing import DEFAULT_LABEL, Shelf, publish_packed, remove_with_index

Place = BucketSource | DirectorySource
"""Where shards are written to."""

ReadFile = Callable[[File, int, memoryview], None]
"""Fills a view, which is not empty, with the content of a file from an offset on. Called in threads.

Raises:
    ContentUnreadable: it cannot be read, or has changed.
"""


_LITTER = re.compile(
    "|".join(
        fnmatch.translate(name.lower())
        for name in (
            ".DS_Store",
            "._*",
            "__MACOSX",
            ".AppleDouble",
            ".Spotlight-V100",
            ".Trashes",
            ".fseventsd",
            ".TemporaryItems",
            "Thumbs.db",
            "ehthumbs.db",
            "desktop.ini",
            "$RECYCLE.BIN",
            "System Volume Information",
            ".ipynb_checkpoints",
            "__pycache__",
            ".Trash-*",
            ".directory",
            ".nfs*",
            ".fuse_hidden*",
            "@eaDir",
            "lost+found",
            INDEX_DIRECTORY,
        )
    )
)
"""Names in lower case of what macOS, Windows, Jupyter, Python, desktops, file systems and aisfs leave behind."""
HIDDEN = "hidden, which --hidden packs"
LITTER = "litter of other programs"
EXCLUDED = "excluded"


class Choice:
    """Which files are packed, and how many are not, by reason."""

    def __init__(self, keys: KeyFilter = EVERY_KEY, *, hidden: bool = False) -> None:
        """Leave out what `keys` do not want, and names that start with a dot unless they are packed."""
        self._keys = keys
        self._hidden = hidden
        self._seen: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}

    def wants(self, path: str) -> bool:
        """Return whether a file is packed; a path that ends in a slash is a directory that may have some."""
        parts = path.removesuffix("/").split("/")
        for end, part in enumerate(parts, start=1):
            reason = self._odd(part)
            if reason:
                self._count(reason, "/".join(parts[:end]))
                return False
        wanted = self._keys.enters(path) if path.endswith("/") else self._keys.wants(path)
        if not wanted:
            self._count(EXCLUDED, path)
        return wanted

    def _odd(self, name: str) -> str:
        if _LITTER.fullmatch(name.lower()):
            return LITTER
        return HIDDEN if name.startswith(".") and not self._hidden else ""

    def _count(self, reason: str, path: str) -> None:
        if path not in self._seen:
            self._seen.add(path)
            self._counts[reason] += 1
            self._examples.setdefault(reason, path)

    @property
    def left_out(self) -> list[str]:
        """A line for each reason."""
        return [
            f"{count} {reason}, such as {self._examples[reason]}"
            for reason, count in sorted(self._counts.items())
        ]


class Tree(Protocol):
    """Files to be packed."""

    @property
    def files(self) -> list[File]:
        """All of them."""
        ...

    @property
    def left_out(self) -> list[str]:
        """A line for each thing that cannot be packed."""
        ...

    def reading(self) -> AbstractAsyncContextManager[ReadFile]:
        """Open what they lie in, while they are packed."""
        ...


def is_own(key: str, names: ShardNames) -> bool:
    """Return whether a key is that of a shard with one of these names, of its index, or of the names of classes."""
    return key == names.classes_key or names.index(shard_of_published(key) or key) is not None


@dataclass(slots=True)
class Objects:
    """Objects with the names that they have in the shards; see `Tree`."""

    cluster: ClusterSettings
    files: list[File] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    source: Source = field(default_factory=Everything)
    """One of the places where they are."""
    found: dict[bytes, tuple[Bucket, ObjectInfo]] = field(default_factory=dict)

    def add(self, name: str, bucket: Bucket, info: ObjectInfo) -> None:
        """Add an object.

        Raises:
            ConfigError: another one has the name.
        """
        raw = os.fsencode(name)
        before = self.found.setdefault(raw, (bucket, info))
        if before != (bucket, info):
            both = f"{before[0]}/{before[1].key} and {bucket}/{info.key}"
            raise ConfigError(f"{both} would both be {name} in the shards; pack them one by one")
        self.files.append(File(raw, info.size))

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[ReadFile]:
        """See `Tree`."""
        token = trio.lowlevel.current_trio_token()
        async with open_source(self.source, self.cluster, may_be_unlistable=True) as opened:

            def read(file: File, at: int, view: memoryview) -> None:
                bucket, info = self.found[file.path]
                args = (bucket, info, at, view)
                try:
                    trio.from_thread.run(opened.store.read_range, *args, trio_token=token)
                except AisfsError as error:
                    raise ContentUnreadable(str(error)) from error

            yield read


async def find_objects(
    sources: Sequence[str],
    settings: Mapping[str, object],
    place: Place,
    names: ShardNames,
    choice: Choice,
) -> Objects:
    """Return the chosen objects of SOURCEs as `aisfs ls` takes them, but for the shards that are made of them.

    Those of a bucket or a directory are named by what follows it, others by their whole key.

    Raises:
        ConfigError: a SOURCE makes no sense, or two objects would have one name.
        SourceMissing: there is nothing of that name.
    """
    objects = Objects(ClusterSettings.load(settings))
    for source in sources:
        there = find_place(source, settings)
        if isinstance(there.source, Everything):
            raise ConfigError(f"{source}: pack one bucket, or a part of it")
        objects.source = there.source
        refused: Counter[str] = Counter()
        listed = list_place(there, settings, refused, recursive=True)
        for entry in [entry async for entries in listed for entry in entries]:
            info = entry.info
            if info is not None and not _is_new(place, entry.bucket, info.key, names):
                name = path_of(info.key if "://" in entry.path else entry.path)
                if choice.wants(name):
                    objects.add(name, entry.bucket, info)
        objects.left_out += [f"{source}: {n} keys: {why}" for why, n in sorted(refused.items())]
    return objects


def _is_new(place: Place, bucket: Bucket, key: str, names: ShardNames) -> bool:
    """Return whether a key is that of a shard that is being made."""
    return isinstance(place, BucketSource) and place.bucket == bucket and is_own(key, names)


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """Files below a directory; see `Tree`."""

    root: Path
    files: list[File]
    left_out: list[str]

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[ReadFile]:
        """See `Tree`."""
        yield self._read

    def _read(self, file: File, at: int, view: memoryview) -> None:
        path = os.path.join(os.fsencode(self.root), file.path)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                size = os.fstat(descriptor).st_size
                done = 0
                while done < len(view) and (got := os.preadv(descriptor, [view[done:]], at + done)):
                    done += got
            finally:
                os.close(descriptor)
        except OSError as error:
            raise ContentUnreadable(f"{os.fsdecode(path)}: {error.strerror}") from error
        if size != file.size or done < len(view):
            raise ContentUnreadable(f"{os.fsdecode(path)}: changed while it was packed")


def find_files(
    root: Path, place: Place, names: ShardNames, choice: Choice, *, follow_links: bool
) -> LocalFiles:
    """Return the chosen files below a directory, but for the shards that are made of them.

    Raises:
        SourceMissing: there is no such directory, or a part of it cannot be read.
    """
    files, left_out = _walk(root, choice, follow_links=follow_links)
    if isinstance(place, DirectorySource):
        files = _but_own(files, os.path.relpath(place.path, root.resolve()), names)
    return LocalFiles(root, files, left_out)


def _walk(root: Path, choice: Choice, *, follow_links: bool) -> tuple[list[File], list[str]]:
    """Find the chosen files below a directory, following the links that a mount of it follows.

    Returns:
        The files, and a line for each thing that cannot be packed.

    Raises:
        SourceMissing: there is no such directory, or a part of it cannot be read.
    """
    top, files, odd = os.fsencode(os.path.realpath(root)), list[File](), list[str]()
    links = Links(top, follow_links)
    if os.path.isfile(top):
        raise SourceMissing(f"{root} is a file: name a directory, and --include chooses in it")
    if not os.path.isdir(top):
        raise SourceMissing(missing_path(root, "directory"))

    def shown(path: bytes) -> str:
        return os.path.normpath(os.path.join(root, os.fsdecode(os.path.relpath(path, top))))

    def fail(error: OSError) -> None:
        raise SourceMissing(f"{shown(error.filename)}: {error.strerror}") from error

    for folder, directories, names in os.walk(top, onerror=fail, followlinks=follow_links):
        if not directories and not names and folder != top:
            odd.append(f"{shown(folder)}: an empty directory")
        above = "" if folder == top else f"{os.fsdecode(os.path.relpath(folder, top))}/"
        others = [d for d in directories if not links.enters(os.path.join(folder, d))]
        directories[:] = [
            d for d in directories if d not in others and choice.wants(f"{above}{os.fsdecode(d)}/")
        ]
        for name in (*names, *others):
            path = os.path.join(folder, name)
            if not choice.wants(above + os.fsdecode(name)):
                continue
            size = _look(path, links)
            if isinstance(size, str):
                odd.append(f"{shown(path)}: {size}")
            else:
                files.append(File(os.path.relpath(path, top), size))
    return files, odd


def _look(path: bytes, links: Links) -> int | str:
    """Return the size of a file, or why it cannot be packed."""
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            found = links.target(path)
            if found is None:
                os.stat(path)  # a link that leads nowhere is called that
                return "a link that is not followed; --follow-links follows all"
            status = found[1]
    except OSError as error:
        return error.strerror or "cannot be looked at"
    return status.st_size if stat.S_ISREG(status.st_mode) else "no file"


def _but_own(files: list[File], folder: str, names: ShardNames) -> list[File]:
    """Leave out the shards themselves and their indexes, should they lie in the tree that is packed."""
    start = "" if folder == "." else f"{folder}/"
    paths = map(os.fsdecode, (file.name for file in files))
    return [
        file
        for file, path in zip(files, paths, strict=True)
        if not path.startswith(start) or not is_own(path[len(start) :], names)
    ]


_PRINTF = re.compile(r"%(\d{0,2})d")
"""A number as webdataset's ShardWriter takes it."""


class ShardContent:
    """The bytes of a shard, read from the files it is made of."""

    def __init__(self, read_file: ReadFile, layout: Layout) -> None:
        """Read `layout` from its files."""
        self._read_file = read_file
        self._layout = layout

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self._layout.size

    def read_into(self, start: int, buffer: memoryview) -> None:
        """See `Content`."""
        done = 0
        for file, first, last in self._layout.pieces(start, start + len(buffer)):
            view = buffer[done : done + last - first]
            if file is None:
                view[:] = END_BLOCKS[first:last]
            else:
                self._read(file, first, view)
            done += len(view)

    def _read(self, file: File, first: int, view: memoryview) -> None:
        """Fill `view` with what is stored of a file, from `first` on."""
        header = header_of(file)
        part = header[first : first + len(view)]
        view[: len(part)] = part
        view, at = view[len(part) :], max(0, first - len(header))
        content = view[: max(0, file.size - at)]
        if file.content is not None:
            content[:] = file.content[at : at + len(content)]
        elif content:
            self._read_file(file, at, content)
        view[len(content) :] = bytes(len(view) - len(content))


async def shards_there(
    store: ObjectStore, bucket: Bucket, names: ShardNames
) -> list[tuple[int, ObjectInfo]]:
    """List the shards of these names that exist, each with its index, in that order."""
    folder = names.before.rpartition("/")[0]
    found: dict[str, tuple[int, ObjectInfo]] = {}
    async for page in pages_of(store, bucket, f"{folder}/" if folder else ""):
        for info in page.objects:
            index = names.index(info.key)
            if index is not None:
                found[info.key] = index, info
    return sorted(found.values(), key=lambda pair: pair[0])


def progress_bar(console: Console) -> Progress:
    """Return a bar that shows bytes, their rate, and the time left."""
    left = TimeRemainingColumn(elapsed_when_finished=True)
    columns = (TextColumn("{task.description}"), BarColumn(), *transfer_columns(), left)
    return Progress(*columns, console=console)


@dataclass(slots=True)
class Packed:
    """What was done."""

    written: int = 0
    kept: int = 0
    """Shards that were there already, with these very bytes."""
    size: int = 0
    """Bytes of all shards."""
    unindexed: list[str] = field(default_factory=list)
    """Shards whose index was not published, each with the reason; or why none was."""
    others: list[str] = field(default_factory=list)
    """Shards of these names beyond the last: a reader of `{000000..}` reads these too."""
    removed: int = 0
    """How many such shards were removed."""


@dataclass(frozen=True, slots=True)
class Packer:
    """Writes the shards of one tree."""

    read_file: ReadFile
    store: WritableStore
    bucket: Bucket
    names: ShardNames
    labels: Sequence[LabelRule] | None
    """The labels to publish with the index of each shard; None to publish nothing."""
    index_bucket: IndexBucket | None = None
    """Where the indexes go; None for beside the shards."""

    async def pack(self, shards: list[Layout], jobs: int, console: Console) -> Packed:
        """Write all shards, `jobs` at a time.

        Raises:
            AisfsError: one failed; those that are finished stay, and are recognized next time.
            ConfigError: there are more shards than names; nothing is written.
        """
        keys = self.check_names(len(shards))
        packed = Packed(size=sum(shard.size for shard in shards))
        shelf, denied = Shelf(self.store, self.index_bucket), list[str]()
        with progress_bar(console) as progress:
            task = progress.add_task("shards", total=packed.size)

            async def one(key: str, layout: Layout) -> None:
                sent = 0

                def told(done: int) -> None:
                    nonlocal sent
                    progress.advance(task, done - sent)
                    sent = done

                content = ShardContent(self.read_file, layout)
                info = await self._find(key, content)
                packed.kept += info is not None
                if info is None:
                    upload = Upload(self.bucket, key, content, progress=told)
                    info = await self.store.upload(upload)
                    packed.written += 1
                if self.labels is not None and not denied:
                    shard = Shard(self.bucket, info, os.fsencode(key))
                    try:
                        reason = await publish_packed(shelf, shard, content, self.labels)
                        packed.unindexed += [f"{self.bucket}/{key}: {reason}"] if reason else []
                    except AccessDenied as error:
                        if self.index_bucket is None:
                            raise
                        denied.append(str(error))
                told(layout.size)

            pairs = zip(keys, shards, strict=True)
            await all_of((partial(one, key, layout) for key, layout in pairs), jobs)
        packed.unindexed += denied[:1]
        return packed

    def check_names(self, count: int) -> list[str]:
        """Return the names of so many shards.

        Raises:
            ConfigError: there are fewer.
        """
        return [self.names.name(index) for index in range(count)]

    async def find_others(self, count: int, packed: Packed, *, remove: bool) -> None:
        """Note the shards of these names beyond the first `count`, or remove them with their indexes.

        Raises:
            AccessDenied: they are to be removed, and cannot be listed or removed.
        """
        if not self.names.width:
            return
        # Permission to write does not imply permission to list.
        with suppress(*[] if remove else [AccessDenied]):
            there = await shards_there(self.store, self.bucket, self.names)
            older = [info.key for index, info in there if index >= count]
            if remove:
                shelf = Shelf(self.store, self.index_bucket)
                for key in older:
                    await remove_with_index(shelf, self.bucket, key)
                packed.removed = len(older)
            else:
                packed.others = [f"{self.bucket}/{key}" for key in older]

    async def _find(self, key: str, content: ShardContent) -> ObjectInfo | None:
        """Return the shard if it is there already, with these very bytes."""
        try:
            there = await self.store.head(self.bucket, key)
        except NotFound:
            return None
        same = there.size == content.size and await self._is(there, content)
        return there if same else None

    async def _is(self, there: ObjectInfo, content: ShardContent) -> bool:
        kind = there.checksum.partition(":")[0]
        if is_known(kind):
            return there.checksum == await trio.to_thread.run_sync(checksum_of, content, kind)
        # Where the store keeps no checksum, its bytes are read.
        hasher = hasher_of(DEFAULT_TYPE)
        await self.store.stream(self.bucket, there, hasher.update)
        wanted = await trio.to_thread.run_sync(partial(checksum_of, content, DEFAULT_TYPE))
        return wanted == f"{DEFAULT_TYPE}:{hasher.hexdigest()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """How files become shards."""

    max_count: int
    max_size: int
    shuffle: int | None = None
    class_to: str | None = None
    key_rule: KeyRule | None = None
    """None is webdataset's, if no two files that look like samples of their own share a key by it."""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    """Globs over the paths below the tree."""
    hidden: bool = False
    """Whether names are packed that start with a dot."""
    no_index: bool = False
    replace: bool = False
    """Whether older shards of these names are removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackPlan:
    """What `aisfs pack` packs, and where it writes."""

    tree: Tree
    place: Place
    names: ShardNames
    samples: int
    layouts: list[Layout]
    labels: list[LabelRule] | None
    """The labels to publish with the index of each shard; None to publish nothing."""
    notes: list[str]
    """A line for each kind of thing that was left out on purpose, or that readers see otherwise."""
    classes: "Classes | None"
    """The classes, if labels are added."""
    replace: bool


@dataclass(frozen=True, slots=True)
class Classes:
    """The classes of a tree, and where their names are stored."""

    names: list[bytes]
    """By number."""
    key: str
    """Of the file of names; empty if they cannot be stored."""
    changed: bool
    """Whether that file does not have all of them yet."""

    @property
    def content(self) -> bytes:
        """The lines of that file."""
        return b"".join(name + b"\n" for name in self.names)


async def plan_pack(
    sources: Sequence[str], shards: str, settings: Mapping[str, object], options: PackOptions
) -> PackPlan:
    """Return what `aisfs pack SOURCE… SHARDS` is to write; `settings` say how to reach the stores.

    Raises:
        ConfigError: an argument makes no sense, or files that look like several samples would become one.
        SourceMissing: there is nothing to pack, or it cannot be read.
    """
    place, names = parse_shards(shards, existing(settings))
    if isinstance(place, BucketSource):
        cluster = ClusterSettings.load(settings)
        served = as_served(place, cluster)
        assert isinstance(served, BucketSource), "served otherwise, it is still a bucket"
        refuse_read_only(served, cluster)
        place = served
    tree: Tree
    choice = Choice(KeyFilter(options.include, options.exclude), hidden=options.hidden)
    if all("://" in source for source in sources):
        tree = await find_objects(sources, settings, place, names, choice)
    elif len(sources) == 1:
        follow = ClusterSettings.load(settings).follow_links
        tree = find_files(Path(sources[0]), place, names, choice, follow_links=follow)
    else:
        raise ConfigError("SOURCE is one local directory, or objects of a cluster")
    if not tree.files:
        why = "; ".join(f"left out: {line}" for line in choice.left_out)
        raise SourceMissing(f"{' '.join(sources)}: no files" + (f" ({why})" if why else ""))
    samples = _group(tree.files, options.key_rule)
    notes = [*(f"left out: {line}" for line in choice.left_out), *reading_notes(samples)]
    classes = None
    if options.class_to:
        extension = parse_extension(options.class_to)
        classes = await _find_classes(samples, place, names, settings)
        samples = with_classes(samples, extension, classes.names)
    if options.shuffle is not None:
        samples = shuffled(samples, options.shuffle)
    labels = sorted({DEFAULT_LABEL, *_label_of(options.class_to)}, key=str)
    return PackPlan(
        tree=tree,
        place=place,
        names=names,
        samples=len(samples),
        layouts=shards_of(samples, options.max_count, options.max_size),
        labels=None if options.no_index else labels,
        notes=notes,
        classes=classes,
        replace=options.replace,
    )


def _group(files: Sequence[File], rule: KeyRule | None) -> list[Sample]:
    """Return the samples of files.

    Raises:
        ConfigError: no rule was asked for, and that of webdataset seems to merge samples; or two keys become
            one without their dots.
    """
    samples = samples_of(files, KEY_RULES[rule or KeyRule.WDS])
    if rule is KeyRule.LAST_DOT:
        return without_dots(samples)
    merged = find_merged(samples) if rule is None else None
    if merged is not None:
        first, second = os.fsdecode(merged.first), os.fsdecode(merged.second)
        more = (
            f", and so would the files of {merged.samples - 1} more" if merged.samples > 1 else ""
        )
        raise ConfigError(
            f"{first} and {second} would be one sample{more}, since a key ends at the first dot of a name:"
            " --key-rule last-dot makes a sample of each (and writes dots in keys as _), --key-rule wds packs"
            " them as one"
        )
    return samples


async def _find_classes(
    samples: Sequence[Sample], place: Place, names: ShardNames, settings: Mapping[str, object]
) -> Classes:
    """Number the classes: as a list of names beside the shards does, if there is one, else by their names.

    Raises:
        ConfigError: there is a file in its place that is no such list.
    """
    key, before = names.classes_key, tuple[bytes, ...]()
    if isinstance(place, BucketSource) or place.path.is_dir():
        cluster = (
            ClusterSettings.load(settings) if isinstance(place, BucketSource) else ClusterSettings()
        )
        async with open_source(place, cluster, may_be_unlistable=True) as opened:
            with suppress(NotFound):
                info = await opened.store.head(opened.bucket, key)
                before = await read_classes(opened.store, opened.bucket, info)
    found = class_names_of(samples, before)
    if "/" in names.after:  # there is no one directory of the shards
        return Classes(found, "", changed=False)
    try:
        storable = tuple(found) == parse_classes(b"\n".join(found).split(b"\n"), key)
    except ConfigError:
        storable = False
    return Classes(found, key if storable else "", tuple(found) != before)


async def pack(
    plan: PackPlan, settings: Mapping[str, object], jobs: int, console: Console
) -> Packed:
    """Write all shards, `jobs` at a time, and show the progress.

    Raises:
        AisfsError: one failed; those that are finished stay, and are recognized next time.
        ConfigError: there are more shards than names; nothing is written.
    """
    if isinstance(plan.place, DirectorySource):
        make_directory(plan.place.path)
        cluster = ClusterSettings()
    else:
        cluster = ClusterSettings.load(settings)
    # Permission to write does not imply permission to list.
    async with (
        plan.tree.reading() as read_file,
        open_source(plan.place, cluster, may_be_unlistable=True) as place,
    ):
        own = place.index_bucket
        packer = Packer(read_file, place.store, place.bucket, plan.names, plan.labels, own)
        packer.check_names(len(plan.layouts))
        if plan.classes is not None and plan.classes.key and plan.classes.changed:
            # Before the shards: at no time do they have numbers without a name.
            content = BytesContent(plan.classes.content)
            await place.store.upload(Upload(place.bucket, plan.classes.key, content))
        packed = await packer.pack(plan.layouts, jobs, console)
        await packer.find_others(len(plan.layouts), packed, remove=plan.replace)
        return packed


def parse_shards(
    text: str, exists: Callable[[str], bool] = lambda _: False
) -> tuple[Place, ShardNames]:
    """Separate SHARDS into the place, a bucket or a directory, and the names in it.

    Args:
        text: As typed.
        exists: Returns whether a directory of this very name exists; see `patterns.marked`.
    """
    scheme, separator, _ = text.partition("://")
    above, slash, name = text.rpartition("/")
    directory = marked(above + slash, exists)
    if not separator:
        _check_numbers(text, name)
        if is_pattern(directory):
            raise ConfigError(f"{text}: a new directory needs a name, not a pattern")
        path = Path(literal(directory) or ".")
        return DirectorySource(path.absolute()), ShardNames.parse(name)
    end = place_end(text)
    source, key = parse_source(text[:end]), text[end:]
    if not isinstance(source, BucketSource) or not key:
        raise ConfigError(f"{text}: write {scheme}://BUCKET/NAME-{{000000..}}.tar")
    _check_numbers(text, key)
    return source, ShardNames.parse((directory + name)[end:])


def _check_numbers(text: str, names: str) -> None:
    """Check that the names at the end of `text` are not numbered as ShardWriter does it."""
    braces = _PRINTF.sub(lambda found: f"{{{'0' * max(1, int(found[1] or 1))}..}}", names)
    if braces != names:
        instead = text.removesuffix(names) + braces
        raise ConfigError(f"{text}: shards are numbered with braces: write '{instead}'")


def parse_extension(text: str) -> bytes:
    """Return the extension of `--class-to`, without its dot."""
    if not text.strip(".") or "/" in text:
        raise ConfigError(f"--class-to {text}: an extension such as cls")
    return text.lstrip(".").encode(errors="surrogateescape")


def _label_of(class_to: str | None) -> list[LabelRule]:
    """Return the rule by which a mount finds what `--class-to` adds, if there is one."""
    with suppress(ConfigError):
        return [parse_label(class_to.lstrip("."))] if class_to else []
    return []


def make_directory(directory: Path) -> None:
    """Make a directory that files are to be written to."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{directory}: {error.strerror}") from error
