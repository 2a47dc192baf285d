"""`aisfs pack`: a tree of files into shards, straight into a bucket or a directory.

Nothing is copied on this machine: a shard is a `Content` that reads the files as its bytes are
asked for, and is uploaded like any other. A shard that exists with these very bytes is left alone.
"""

import os
import stat
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from aisfs.app.source import OpenSource, open_source
from aisfs.config import ClusterSettings
from aisfs.core.checksums import DEFAULT_TYPE, hasher_of, is_known
from aisfs.core.namespace.sources import BucketSource, DirectorySource, parse_source
from aisfs.core.synthetic.packing import (
    END,
    KEY_RULES,
    File,
    Layout,
    ShardNames,
    header_of,
    samples_of,
    shards_of,
    shuffled,
    with_classes,
)
from aisfs.errors import (
    AccessDenied,
    AisfsError,
    ConfigError,
    ContentUnreadable,
    NotFound,
    SourceMissing,
)
from aisfs.model import Bucket, ObjectInfo
from aisfs.store.content import checksum_of
from aisfs.store.pages import pages_of
from aisfs.store.port import ObjectStore, WritableStore

Place = BucketSource | DirectorySource


class ShardContent:
    """The bytes of a shard, read from the files it is made of."""

    def __init__(self, root: bytes, layout: Layout) -> None:
        """Read `layout` from the files below `root`."""
        self._root = root
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
                view[:] = END[first:last]
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

    def _read_file(self, file: File, at: int, view: memoryview) -> None:
        path = os.path.join(self._root, file.name)
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


async def each(jobs: int, works: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Run all works, `jobs` at a time; the first that fails cancels the others.

    Raises:
        AisfsError: what that one raised.
    """
    failed: list[AisfsError] = []
    left = iter(works)

    async def worker(scope: trio.CancelScope) -> None:
        for work in left:
            try:
                await work()
            except AisfsError as error:
                failed.append(error)
                scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in range(min(jobs, len(works))):
            nursery.start_soon(worker, nursery.cancel_scope)
    if failed:
        raise failed[0]


def progress_bar(console: Console) -> Progress:
    """Return a bar that shows bytes and speed."""
    size = DownloadColumn(binary_units=True)
    name = TextColumn("{task.description}")
    return Progress(name, BarColumn(), size, TransferSpeedColumn(), console=console)


@dataclass(slots=True)
class Packed:
    """What was done."""

    written: int = 0
    kept: int = 0
    """Shards that were there already, with these very bytes."""
    size: int = 0
    """Bytes of all shards."""
    others: list[str] = field(default_factory=list)
    """Shards of these names beyond the last: a reader of `{000000..}` reads these too."""


@dataclass(frozen=True, slots=True)
class Packer:
    """Writes the shards of one tree."""

    root: Path
    store: WritableStore
    bucket: Bucket
    names: ShardNames

    async def pack(self, shards: list[Layout], jobs: int, console: Console) -> Packed:
        """Write all shards, `jobs` at a time.

        Raises:
            AisfsError: one failed; those that are finished stay, and are recognized next time.
            ConfigError: there are more shards than names; nothing is written.
        """
        keys = [self.names.name(index) for index in range(len(shards))]
        packed = Packed(size=sum(shard.size for shard in shards))
        with progress_bar(console) as progress:
            task = progress.add_task("shards", total=packed.size)

            async def one(key: str, layout: Layout) -> None:
                sent = 0

                def told(done: int) -> None:
                    nonlocal sent
                    progress.advance(task, done - sent)
                    sent = done

                is_new = await self._write(key, layout, told)
                told(layout.size)
                packed.written += is_new
                packed.kept += not is_new

            pairs = zip(keys, shards, strict=True)
            await each(jobs, [partial(one, key, layout) for key, layout in pairs])
        if self.names.width:
            with suppress(AccessDenied):  # permission to write does not imply permission to list
                there = await shards_there(self.store, self.bucket, self.names)
                packed.others = [
                    f"{self.bucket}/{info.key}" for index, info in there if index >= len(shards)
                ]
        return packed

    async def _write(self, key: str, layout: Layout, told: Callable[[int], None]) -> bool:
        """Write one shard; False when it is there already."""
        content = ShardContent(os.fsencode(self.root), layout)
        try:
            there = await self.store.head(self.bucket, key)
        except NotFound:
            there = None
        if there and there.size == content.size and await self._is(there, content):
            return False
        await self.store.upload(self.bucket, key, content, progress=told)
        return True

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
class PackPlan:
    """What is to be packed, and where to."""

    tree: Path
    place: Place
    names: ShardNames
    samples: int
    layouts: list[Layout]
    left_out: list[str]
    """A line for each thing below `tree` that cannot be packed."""


def plan_pack(
    tree: Path,
    shards: str,
    *,
    max_count: int,
    max_size: int,
    shuffle: int | None,
    class_to: str | None,
    key_rule: str,
) -> PackPlan:
    """Return what `aisfs pack DIR SHARDS` is to write.

    Raises:
        ConfigError: an argument makes no sense.
        SourceMissing: there is nothing to pack, or it cannot be read.
    """
    place, names = parse_shards(shards)
    files, left_out = _find_files(tree)
    if isinstance(place, DirectorySource):
        files = _but_own(files, os.path.relpath(place.path, tree.resolve()), names)
    if not files:
        raise SourceMissing(f"{tree}: no files")
    samples = samples_of(files, KEY_RULES[key_rule])
    if class_to:
        samples = with_classes(samples, parse_extension(class_to))
    if shuffle is not None:
        samples = shuffled(samples, shuffle)
    return PackPlan(
        tree=tree,
        place=place,
        names=names,
        samples=len(samples),
        layouts=shards_of(samples, max_count, max_size),
        left_out=left_out,
    )


async def pack(plan: PackPlan, endpoint: str | None, jobs: int, console: Console) -> Packed:
    """Write all shards, `jobs` at a time, and show the progress.

    Raises:
        AisfsError: one failed; those that are finished stay, and are recognized next time.
        ConfigError: there are more shards than names; nothing is written.
    """
    if isinstance(plan.place, DirectorySource):
        make_directory(plan.place.path)
    async with open_place(plan.place, endpoint) as place:
        packer = Packer(plan.tree, place.store, place.bucket, plan.names)
        return await packer.pack(plan.layouts, jobs, console)


def open_place(place: Place, endpoint: str | None) -> AbstractAsyncContextManager[OpenSource]:
    """Open a bucket or directory of shards; permission to write does not imply that to list."""
    local = isinstance(place, DirectorySource)
    cluster = ClusterSettings() if local else ClusterSettings.load({"endpoint": endpoint})
    return open_source(place, cluster, may_be_unlistable=True)


def parse_shards(text: str) -> tuple[Place, ShardNames]:
    """Separate SHARDS into the place, a bucket or a directory, and the names in it."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        path = Path(text)
        return DirectorySource(path.parent.absolute()), ShardNames.parse(path.name)
    name, _, key = rest.partition("/")
    source = parse_source(f"{scheme}://{name}")
    if not isinstance(source, BucketSource) or not key:
        raise ConfigError(f"{text}: write {scheme}://BUCKET/NAME-{{000000..}}.tar")
    return source, ShardNames.parse(key)


def parse_extension(text: str) -> bytes:
    """Return the extension of `--class-to`, without its dot."""
    if not text.strip(".") or "/" in text:
        raise ConfigError(f"--class-to {text}: an extension such as cls")
    return text.lstrip(".").encode(errors="surrogateescape")


def make_directory(directory: Path) -> None:
    """Make a directory that files are to be written to."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{directory}: {error.strerror}") from error


def _find_files(root: Path) -> tuple[list[File], list[str]]:
    """Find all files below a directory, following symbolic links to files but not to directories.

    Returns:
        The files, and a line for each thing that cannot be packed.

    Raises:
        SourceMissing: there is no such directory, or a part of it cannot be read.
    """
    top, files, odd = os.fsencode(root), [], []
    if not os.path.isdir(top):
        raise SourceMissing(f"{root}: no such directory")

    def fail(error: OSError) -> None:
        raise SourceMissing(f"{os.fsdecode(error.filename)}: {error.strerror}") from error

    for folder, directories, names in os.walk(top, onerror=fail):
        links = [d for d in directories if os.path.islink(os.path.join(folder, d))]
        if not directories and not names and folder != top:
            odd.append(f"{os.fsdecode(folder)}: an empty directory")
        for name in (*names, *links):
            path = os.path.join(folder, name)
            try:
                status = os.stat(path)
            except OSError as error:
                odd.append(f"{os.fsdecode(path)}: {error.strerror}")
                continue
            if stat.S_ISREG(status.st_mode):
                files.append(File(os.path.relpath(path, top), status.st_size))
            else:
                odd.append(f"{os.fsdecode(path)}: no file")
    return files, odd


def _but_own(files: list[File], folder: str, names: ShardNames) -> list[File]:
    """Leave out the shards themselves, should they lie in the tree that is packed."""
    start = "" if folder == "." else f"{folder}/"
    paths = map(os.fsdecode, (file.name for file in files))
    return [
        file
        for file, path in zip(files, paths, strict=True)
        if not path.startswith(start) or names.index(path[len(start) :]) is None
    ]
