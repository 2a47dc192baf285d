"""The shards of a dataset: found when it is mounted, looked up again when one of them turns out to have changed.

It also finds loose objects, of which `--view shards` makes shards, and counts what is not shown, with the reason. Many shards are
opened, some at a time; the log says how many are open.
"""

import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from typing import TypeVar

import trio

from aisfs.core.names.listing import (
    HEAD,
    INDEX_DIRECTORY,
    child_prefix,
    entry_name,
    form_of_content,
    is_shard_of_dataset,
)
from aisfs.core.names.reach import Reach
from aisfs.core.names.sources import (
    LIST_MAX,
    DatasetSource,
    GlobPattern,
    ShardPattern,
    SourceArg,
    parse_shard_list,
    pattern_without_aistore,
)
from aisfs.core.names.urls import url_of
from aisfs.core.views.merged import folder_names, folder_names_of_columns
from aisfs.engine.disk import unattended
from aisfs.engine.listing import Lister
from aisfs.errors import AisfsError, ConfigError, NotFound, SourceMissing, Unavailable
from aisfs.metrics import Metrics
from aisfs.model import Bucket, ObjectInfo
from aisfs.stores.pipeline import all_of
from aisfs.stores.port import ObjectStore
from aisfs.stores.posix_metadata import is_link

DAMAGED = "damaged shard"


def summarize(exclusions: Mapping[str, int]) -> str:
    """Return counts in one line, as `2 excluded shards, 1 shard`."""
    return ", ".join(
        f"{n} {reason}{'s' * (n > 1)}" for reason, n in sorted(exclusions.items()) if n
    )


SHARD = "shard"
EXCLUDED_OBJECT = "excluded object"
LINK = "symbolic link"


@dataclass(frozen=True, slots=True)
class LooseObjects:
    """Objects of one bucket."""

    bucket: Bucket
    directory: str
    """The prefix they were looked for below."""
    objects: list[ObjectInfo]
    exclusions: Counter[str]
    """Why how many other objects are not among them."""


async def walk(
    lister: Lister, bucket: Bucket, directory: str, enters: Callable[[str], bool]
) -> AsyncIterator[tuple[str, ObjectInfo]]:
    """Yield all objects below a prefix, sorted, those of a directory before what lies below it.

    Args:
        lister: Knows directories.
        bucket: The bucket.
        directory: The prefix, empty or ending in `/`.
        enters: Says of a directory's path, `a/b/`, whether to look into it.

    Yields:
        The path below `directory`, and the object.
    """
    pending = [directory]
    while pending:
        prefix = pending.pop()
        listing = (await lister.directory(bucket, prefix)).value
        below: list[str] = []
        for _, name, info in sorted(listing.after(0), key=lambda entry: entry[1]):
            if info is not None:
                yield info.key[len(directory) :], info
            elif enters(child_prefix(prefix, name)[len(directory) :]):
                below.append(child_prefix(prefix, name))
        pending += reversed(below)


async def find_loose_objects(source: DatasetSource, lister: Lister) -> LooseObjects:
    """Find the objects of a source that are no shards.

    Raises:
        ConfigError: the source is not one bucket, prefix or directory.
        SourceMissing: there are none.
    """
    patterns = [pattern for word in source.words for pattern in word.patterns]
    pattern = patterns[0]
    if len(patterns) > 1 or pattern.rest or pattern.bucket is None:
        raise ConfigError(
            f"{source}: --view shards takes one bucket, prefix or directory; --include and"
            " --exclude choose what of it"
        )
    found = LooseObjects(pattern.bucket, pattern.directory, [], Counter())
    async for path, info in walk(lister, pattern.bucket, pattern.directory, source.keys.enters):
        if is_link(info):
            found.exclusions[LINK] += 1
        elif is_shard_of_dataset(os.fsencode(path.rpartition("/")[2])):
            found.exclusions[SHARD] += 1
        elif not source.keys.wants(path):
            found.exclusions[EXCLUDED_OBJECT] += 1
        else:
            found.objects.append(info)
    if not found.objects:
        raise SourceMissing(f"{source}: {nothing(found.exclusions)}")
    return found


def nothing(exclusions: Counter[str]) -> str:
    """Return the message that there is nothing to make shards of, and what there is instead."""
    reasons = summarize(exclusions)
    shuffled = "; --shuffle SEED makes them of the samples of shards" if exclusions[SHARD] else ""
    return (
        "no loose objects there to make shards of" + (f": {reasons}" if reasons else "") + shuffled
    )


log = logging.getLogger(__name__)

NAMED_MAX = 5
"""Shards that a line of the log names."""
MISSING = "missing shard"
ARCHIVED = "archived shard"
EXCLUDED_SHARD = "excluded shard"
NO_SHARD = "not a shard"
_STATES = {
    MISSING: "missing",
    ARCHIVED: "archived",
    EXCLUDED_SHARD: "excluded",
    NO_SHARD: "not_a_shard",
}


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of the dataset, in the version that is shown."""

    bucket: Bucket
    info: ObjectInfo
    name: bytes
    """The name of its folder, which also distinguishes its members from others of the same name."""
    source: int = 0
    """The position of the word that names it."""


MADE_AT_ONCE = 64
"""Shards that are asked to be made; what makes them does as many at once as it can."""
MADE_MOST = 5
"""Times that one look-up has a shard made which is found anew, or changes, meanwhile."""


class ShardSet:
    """Shards in order, and how many there are not."""

    def __init__(
        self,
        store: ObjectStore,
        metrics: Metrics,
        shards: list[Shard],
        exclusions: Counter[str],
        missing: Sequence[str] = (),
        sources: Sequence[str] = (),
    ) -> None:
        """Show `shards`; ask `store` when one of them changed."""
        self.sources = sources
        """The words of the sources."""
        self.missing = missing
        """What the sources named one by one and does not exist."""
        self._store = store
        self._shards = shards
        self._places = {(shard.bucket, shard.info.key): at for at, shard in enumerate(shards)}
        self._names = {shard.name: at for at, shard in enumerate(shards)}
        self._gone: set[int] = set()
        self._lost = 0
        """How many are gone since they were found."""
        self._archived = 0
        """How many of those that were found can only be read once they are restored."""
        self._changed: set[int] = set()
        self._made_last = -1
        """The place of the shard that was asked for last."""
        self.renewals = 0
        """How often the shards were found anew."""
        self._exclusions = exclusions
        self._metrics = metrics
        self._count()

    def __len__(self) -> int:
        return len(self._shards) - len(self._gone)

    @property
    def size(self) -> int:
        """The bytes of all shards that exist, as far as known."""
        return sum(shard.info.size for _, shard in self.current if shard.info.is_sized)

    @property
    def exclusions(self) -> Counter[str]:
        """What the sources named and is not shown: reason and how many."""
        return self._exclusions + Counter({MISSING: self._lost, ARCHIVED: self._archived})

    @property
    def current(self) -> list[tuple[int, Shard]]:
        """The shards that exist, each with its place, which never changes."""
        return [(at, shard) for at, shard in enumerate(self._shards) if at not in self._gone]

    def find(self, name: bytes) -> Shard | None:
        """Return the shard whose folder has this name."""
        at = self._names.get(name)
        return self._shards[at] if at is not None and at not in self._gone else None

    async def find_sized(self, name: bytes, nursery: trio.Nursery) -> Shard | None:
        """Return the shard whose folder has this name, with its size, for which it may have to be made.

        Of shards that are asked for in order, the one that comes next is made meanwhile, in `nursery`.
        """
        at = self._names.get(name)
        if at is None:
            return None
        before, self._made_last = self._made_last, at
        if at == before + 1 < len(self._shards) - 1 and not self._shards[at + 1].info.is_sized:
            shard = self._shards[at + 1]  # whoever needs it will run into its errors too
            what = f"making {shard.bucket}/{shard.info.key} ahead"
            nursery.start_soon(unattended, what, partial(self._make, at + 1))
        await self._make(at)
        return self.find(name)

    async def make_all(self) -> None:
        """Have all shards made whose sizes are not known.

        Raises:
            AisfsError: one could not.
        """
        while unsized := [at for at, shard in self.current if not shard.info.is_sized]:
            await all_of((partial(self._make, at) for at in unsized), MADE_AT_ONCE)

    async def _make(self, at: int) -> None:
        """Have a shard made as it is shown by then, unless it is gone."""
        for _ in range(MADE_MOST):
            shard = self._shards[at]
            if at in self._gone or shard.info.is_sized:
                return
            try:
                info = await self._store.sized(shard.bucket, shard.info)
            except NotFound:
                self._changed.add(at)
                await self.settle()
                continue
            if self._shards[at] is shard:
                self._shards[at] = replace(shard, info=info)
                return
        shard = self._shards[at]
        raise Unavailable(f"{shard.bucket}/{shard.info.key}: changes while it is made")

    def changed(self, bucket: Bucket, info: ObjectInfo) -> bool:
        """Mark this version as no longer what the store has; return whether it was shown."""
        at = self._places.get((bucket, info.key))
        if at is None or self._shards[at].info != info:
            return False
        self._changed.add(at)
        return True

    def leave_out(self, archived: Sequence[int]) -> None:
        """Show no more the shards in these places, which cannot be read until they are restored."""
        if not archived:
            return
        keys = [f"{self._shards[at].bucket}/{self._shards[at].info.key}" for at in archived]
        log.warning(
            "%d archived shards left out: restore them, then run aisfs refresh: %s",
            len(keys),
            _first_of(keys),
        )
        self._gone.update(archived)
        self._archived += len(archived)
        self._count()

    def renew(self, found: "ShardSet") -> bool:
        """Show the shards that were found again; return whether they are others than before.

        Those that were there keep their places, and new ones come last: listings go on.
        """
        before = self.current
        fresh = {(shard.bucket, shard.info.key): shard for _, shard in found.current}
        kept = [fresh.get(place, self._shards[at]) for place, at in self._places.items()]
        added = [shard for place, shard in fresh.items() if place not in self._places]
        self._shards = kept + added
        self._places = {(s.bucket, s.info.key): at for at, s in enumerate(self._shards)}
        self._gone = {at for place, at in self._places.items() if place not in fresh}
        self._names = {shard.name: at for at, shard in self.current}
        self._changed.clear()
        self._exclusions, self._lost, self._archived = found.exclusions, 0, 0
        self.missing = found.missing
        self.renewals += 1
        self._count()
        return self.current != before

    @property
    def settled(self) -> bool:
        """Whether no shard is known to have changed."""
        return not self._changed

    async def settle(self) -> None:
        """Ask for the versions of the shards that changed."""
        while self._changed:
            at = min(self._changed)
            shard = self._shards[at]
            info = None
            with suppress(NotFound):
                info = await self._store.head(shard.bucket, shard.info.key)
            if self._shards[at] is not shard:  # found anew meanwhile
                continue
            if info is None:
                log.warning("%s/%s is gone and left out", shard.bucket, shard.info.key)
                self._gone.add(at)
                self._lost += 1
            else:
                self._shards[at] = replace(shard, info=info)
            self._changed.discard(at)
            self._count()

    def _count(self) -> None:
        states = {"shown": len(self)}
        states |= {_STATES[reason]: count for reason, count in self.exclusions.items()}
        for state, count in states.items():
            self._metrics.dataset_shards.labels(state).set(count)


FindShards = Callable[[], Awaitable[ShardSet]]


async def find_shards(
    source: DatasetSource,
    lister: Lister,
    store: ObjectStore,
    metrics: Metrics,
    *,
    joined: bool = False,
) -> ShardSet:
    """Find all shards of a source, each once, in the order in which the words name them.

    Args:
        source: What was typed.
        lister: Knows directories.
        store: Where objects are.
        metrics: Count the shards.
        joined: Whether each word must have shards of its own, since they are joined.

    Raises:
        SourceMissing: a word leads to no shard.
        ConfigError: a word that is joined leads to no other shards than those before.
    """
    found: dict[tuple[Bucket, str], ObjectInfo] = {}
    starts: list[int] = []
    exclusions: Counter[str] = Counter()
    missing: dict[str, list[str]] = {}
    for word in source.words:
        before = exclusions.copy()
        some = False
        starts.append(len(found))
        listed = await _expand_lists(word, lister, store)
        search = _Search(source, lister, store, exclusions)
        async for bucket, info in _of_word(listed, search, missing):
            found.setdefault((bucket, info.key), info)
            some = True
        if not some:
            raise SourceMissing(await _nothing(word, exclusions - before, store))
        if joined and len(found) == starts[-1]:
            raise ConfigError(f"--join: all shards of {word.text} belong to an earlier source")
    every = [(bucket.name, key) for bucket, key in found]
    columns = [every[start:stop] for start, stop in pairwise([*starts, len(every)])]
    names = folder_names_of_columns(columns) if joined else folder_names(every)
    of = (at for at, column in enumerate(columns) for _ in column)
    shards = [
        Shard(bucket, info, name, at)
        for ((bucket, _), info), name, at in zip(found.items(), names, of, strict=True)
    ]
    for text, gone in missing.items():
        log.warning("%s: %d missing: %s", text, len(gone), _first_of(gone))
    log.info("%d shards of %s", len(shards), source)
    words = [word.text for word in source.words]
    all_missing = [*chain(*missing.values())]
    return ShardSet(store, metrics, shards, exclusions, all_missing, words)


def _first_of(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED_MAX]) + (", …" if len(names) > NAMED_MAX else "")


async def _nothing(word: SourceArg, why: Counter[str], store: ObjectStore) -> str:
    """Return the message that a word leads to no shard, and what is there instead."""
    pattern, said = word.patterns[0], f"{word.text}: no shard (X.tar) there"
    assert pattern.bucket is not None, "local files have a bucket once their root is known"
    there, is_here = await what_is_there(pattern.bucket, pattern.directory, store)
    if set(why) != {MISSING}:
        if why[NO_SHARD] and any(not one.one for one in word.patterns):
            there += "; --magic takes archives of any name"
        return f"{said}: {summarize(why)}; {there}" if why else f"{said}; {there}"
    if pattern.one:
        return f"{said}: {summarize(why)}; {there}"
    if pattern.rest:
        return f"{said}: nothing matches; {there}"
    if is_here:
        return f"{said}; {there}: make shards of its files (aisfs pack), or mount it without --view"
    return f"{said}: nothing is below it; {there}"


async def what_is_there(bucket: Bucket, directory: str, store: ObjectStore) -> tuple[str, bool]:
    """Return in words the first names in a directory, or in the nearest one above it that has any.

    Returns:
        The words, and whether it is the directory itself.
    """
    asked = directory
    while True:
        names: list[str] = []
        with suppress(AisfsError):
            page = await store.list_page(bucket, directory)
            keys = [*(info.key for info in page.objects), *page.directories]
            below = (key[len(directory) :] for key in keys)
            names = sorted(name for name in below if name and name != f"{INDEX_DIRECTORY}/")
        if names:
            return f"{bucket}/{directory} has {_first_of(names)}", directory == asked
        if not directory:
            return f"{bucket} is empty", False
        directory = directory[: directory.rstrip("/").rfind("/") + 1]


async def _expand_lists(word: SourceArg, lister: Lister, store: ObjectStore) -> SourceArg:
    """Put the shards that lists in a bucket name in place of these lists."""
    if not any(pattern.listing for pattern in word.patterns):
        return word
    patterns: list[ShardPattern] = []
    for pattern in word.patterns:
        patterns += await _read_list(pattern, lister, store) if pattern.listing else [pattern]
    return replace(word, patterns=tuple(patterns))


async def _read_list(
    pattern: ShardPattern, lister: Lister, store: ObjectStore
) -> Sequence[ShardPattern]:
    info = await _find(pattern, lister)
    if info is None or pattern.bucket is None:
        raise SourceMissing(f"{pattern}: no such list of shards")
    return await read_shard_list(pattern, await store.sized(pattern.bucket, info), store)


async def read_shard_list(
    pattern: ShardPattern, info: ObjectInfo, store: ObjectStore
) -> Sequence[ShardPattern]:
    """Return the shards that a list in a bucket names.

    Raises:
        ConfigError: the object is no such list, or names what a list in a bucket may not.
    """
    assert pattern.bucket is not None, "a list file of this machine was read before"
    if info.size > LIST_MAX:
        raise ConfigError(f"{pattern}: {info.size} bytes are too many for a list of shards")
    data = bytearray(info.size)
    if data:
        await store.read_range(pattern.bucket, info, 0, memoryview(data))
    place = url_of(pattern.bucket, pattern.directory)
    found = parse_shard_list(str(pattern), bytes(data), directory=place)
    if pattern.bucket.store:
        found = tuple(pattern_without_aistore(shard) for shard in found)
    reach = Reach.of_list(pattern.bucket)
    for shard in found:
        reach.check(f"{pattern} names {shard}", shard.bucket)
    return found


@dataclass(frozen=True, slots=True)
class _Search:
    """Where shards are looked for, and what is one."""

    source: DatasetSource
    lister: Lister
    store: ObjectStore
    exclusions: Counter[str]

    async def takes(self, bucket: Bucket, info: ObjectInfo, *, one: bool) -> bool:
        """Return whether an object is a shard, which is named by itself or found by a glob.

        Where the name does not say so, content does: of one that is named always, of others with
        `--magic`. One that is named with `--magic` is taken for a shard whatever it is.
        """
        magic = self.source.magic
        if is_shard_of_dataset(os.fsencode(info.key.rpartition("/")[2])) or (one and magic):
            return True
        if not (one or magic):
            return False
        info = await self.store.sized(bucket, info)
        if not info.size:
            return False
        head = bytearray(min(HEAD, info.size))
        await self.store.read_range(bucket, info, 0, memoryview(head))
        return form_of_content(bytes(head)) is not None


async def _of_word(
    word: SourceArg, search: _Search, all_missing: dict[str, list[str]]
) -> AsyncIterator[tuple[Bucket, ObjectInfo]]:
    missing: list[str] = []
    keys, exclusions = search.source.keys, search.exclusions
    for pattern in word.patterns:
        others, empty = exclusions[NO_SHARD], True
        async for bucket, info in _of_pattern(pattern, search):
            empty = False
            if keys.wants(info.key[len(pattern.directory) :]):
                yield bucket, info
            else:
                exclusions[EXCLUDED_SHARD] += 1
        if empty and exclusions[NO_SHARD] == others:
            missing.append(str(pattern))
    if missing:
        all_missing.setdefault(word.text, []).extend(missing)
        exclusions[MISSING] += len(missing)


async def _of_pattern(
    pattern: ShardPattern, search: _Search
) -> AsyncIterator[tuple[Bucket, ObjectInfo]]:
    bucket = pattern.bucket
    assert bucket is not None, "local files have a bucket once their root is known"
    if pattern.one:
        found = await _find(pattern, search.lister)
        if found is not None and not is_link(found) and await search.takes(bucket, found, one=True):
            yield bucket, found
        elif found is not None:
            search.exclusions[NO_SHARD] += 1
        return
    empty = True
    async for info, is_named in _below(bucket, pattern, search):
        empty = False
        if is_named:
            yield bucket, info
    if empty and not pattern.rest and pattern.directory:
        # What looks like a directory may be an object without a suffix.
        parent, slash, name = pattern.directory.removesuffix("/").rpartition("/")
        async for one in _of_pattern(ShardPattern(bucket, parent + slash, name), search):
            yield one


async def _below(
    bucket: Bucket, pattern: ShardPattern, search: _Search
) -> AsyncIterator[tuple[ObjectInfo, bool]]:
    """Yield the objects of a directory or glob, and whether they are shards."""
    glob = GlobPattern(pattern.rest) if pattern.rest else None

    def enters(path: str) -> bool:
        return search.source.keys.enters(path) and (glob is None or glob.enters(path))

    async for path, info in walk(search.lister, bucket, pattern.directory, enters):
        if glob is not None and not glob.matches(path):
            continue
        if is_link(info):  # nobody here follows it
            search.exclusions[NO_SHARD] += 1
            yield info, False
        elif glob is None:
            yield info, is_shard_of_dataset(os.fsencode(path.rpartition("/")[2]))
        else:
            taken = await search.takes(bucket, info, one=False)
            search.exclusions[NO_SHARD] += not taken
            yield info, taken


async def _find(pattern: ShardPattern, lister: Lister) -> ObjectInfo | None:
    """Return the one object that a pattern names."""
    assert pattern.bucket is not None, "local files have a bucket once their root is known"
    directory, slash, base = (pattern.directory + pattern.rest).rpartition("/")
    name = entry_name("", base)
    listed = await lister.find(pattern.bucket, directory + slash, name, sized=False)
    return listed.value if listed is not None else None


T = TypeVar("T")

PROGRESS_SECONDS = 10.0
"""Between lines of the log while shards are opened."""


async def open_each(
    shards: Sequence[T], open_one: Callable[[T], Awaitable[None]], at_once: int
) -> None:
    """Open shards with `open_one`, so many at a time.

    Raises:
        AisfsError: the first that `open_one` raised. No shard was begun after it; those under way
            were opened.
    """
    if not shards:
        return
    errors: list[AisfsError] = []
    opened = 0

    async def one(shard: T) -> None:
        nonlocal opened
        if errors:
            return
        try:
            await open_one(shard)
            opened += 1
        except AisfsError as error:
            errors.append(error)

    async def tell() -> None:
        while True:
            await trio.sleep(PROGRESS_SECONDS)
            log.info("opened %d of %d shards", opened, len(shards))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell)
        await all_of((partial(one, shard) for shard in shards), at_once)
        nursery.cancel_scope.cancel()
    if errors:
        raise errors[0]
    log.info("opened %d shards", opened)


@dataclass(slots=True)
class OpenProgress:
    """Shards opened, and what was found in them."""

    shards: int | None = None
    """Of the dataset; None until they are known."""
    opened: int = 0
    """Those whose members and labels are known."""
    files: int = 0
    """Files that they show: in the view `class` one for each sample. Of shuffled shards, samples."""

    def begin(self, shards: int, opened: int = 0, files: int = 0) -> None:
        """Start to open shards, some of which may be open already."""
        self.shards, self.opened, self.files = shards, opened, files

    def add(self, files: int) -> None:
        """Count one more that is open."""
        self.opened += 1
        self.files += files
