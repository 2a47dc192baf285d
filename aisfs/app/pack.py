"""`aisfs pack`: a tree of files, or objects, into shards, straight into a bucket or a directory.

Nothing is copied on this machine: a shard is a `Content` that reads the files as its bytes are
asked for, and is uploaded like any other. A shard that exists with these very bytes is left alone.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from aisfs.app.display.progress import transfer_columns
from aisfs.app.packing.local_files import find_files
from aisfs.app.packing.objects import find_objects
from aisfs.app.packing.tree import Choice, Place, ReadFile, Tree
from aisfs.app.publishing.packed import publish_packed
from aisfs.app.publishing.published import Shelf, remove_with_index
from aisfs.app.publishing.publisher import DEFAULT_LABEL
from aisfs.core.checksums import DEFAULT_TYPE, hasher_of, is_known
from aisfs.core.names.sources import (
    BucketSource,
    DirectorySource,
    KeyFilter,
    is_pattern,
    literal,
    marked,
    parse_source,
)
from aisfs.core.names.urls import place_end
from aisfs.core.views.shuffled_tar import (
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
from aisfs.engine.dataset.shard_set import Shard, read_classes
from aisfs.engine.index_sources import IndexBucket
from aisfs.errors import (
    AccessDenied,
    ConfigError,
    NotFound,
    SourceMissing,
)
from aisfs.model import Bucket, ObjectInfo
from aisfs.mount.plan import existing
from aisfs.mount.source import open_source
from aisfs.settings import ClusterSettings, KeyRule
from aisfs.stores.pipeline import each
from aisfs.stores.port import BytesContent, ObjectStore, WritableStore, checksum_of, pages_of
from aisfs.stores.registry import as_served, refuse_read_only

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
                    info = await self.store.upload(self.bucket, key, content, progress=told)
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
            await each(jobs, [partial(one, key, layout) for key, layout in pairs])
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
    """What is to be packed, and where to."""

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
            await place.store.upload(place.bucket, plan.classes.key, content)
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
