"""This mount's own changes on top of what the store lists, and checks of what a listing leaves open.

A change is pending while the store does not have it: a file being written, a directory that is
still empty. Once the store has it, it is settled: it wins over listings that were requested before
it, and goes when a later one has come or its time to live is over.

A bucket has no empty directories. One that was made or emptied here is kept in memory; and one
that was removed here is remembered, since AIStore goes on listing it.

AIStore goes on listing a directory after its last object was removed, and it ends a listing silently at
an object whose metadata is corrupt. Both are found out by asking for single names.
"""

import logging
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

import msgspec
import trio
from cachetools import LRUCache, TTLCache
from msgspec import structs

from aisfs.cache.names import WOULD_WAIT, Dated, DirectoryId, MetadataCache, WouldWait
from aisfs.core.names.listing import Listed, Listing, child_key, child_prefix, entry_name, is_key
from aisfs.errors import AccessDenied, AisfsError, InvalidName, NotFound, OutOfSpace, ProtocolError
from aisfs.model import Bucket, ObjectInfo, Page, Provider
from aisfs.stores.pipeline import all_of
from aisfs.stores.port import ObjectStore
from aisfs.system.locks import Rank, ranked_rlock
from aisfs.system.threads import any_thread

FRESH_SECONDS = 5.0
"""How long a directory that was made here counts as unknown to other clients: `cp -r` and `tar x` fill most
directories in this time. It is not longer, whatever the listing's time to live: others may write into it."""

HELD_MAX = 100_000
"""Empty directories that were made here, and as many that were emptied: some 50 MB in all."""

REMOVED_MAX = 10_000
"""Directories remembered, some 2 MB. Of the oldest the cluster's word counts again: they show as empty."""


class HeldDirectories:
    """Directories that the store does not have, or may not have."""

    def __init__(self, list_ttl: float, clock: Callable[[], float]) -> None:
        """Start without any; `list_ttl` is for how many seconds by `clock` a listing is believed."""
        fresh_seconds = min(list_ttl, FRESH_SECONDS)
        self._made: dict[DirectoryId, None] = {}
        self._fresh: TTLCache[DirectoryId, None] = TTLCache(HELD_MAX, fresh_seconds, clock)
        self._emptied: dict[DirectoryId, None] = {}
        """The one emptied first comes first."""

    def check_room(self, bucket: Bucket, prefix: str) -> None:
        """Make sure that one more may be made.

        Raises:
            OutOfSpace: there are too many with nothing in them.
        """
        if len(self._made) >= HELD_MAX:
            raise OutOfSpace(
                f"{bucket}/{prefix}: {HELD_MAX} directories that were made here are still empty; AIStore "
                "cannot store those, and they take memory: put something into them, or remove some"
            )

    def make(self, bucket: Bucket, prefix: str) -> None:
        """Keep a directory until something is put into it or it is removed."""
        self._emptied.pop((bucket, prefix), None)
        self._made[bucket, prefix] = self._fresh[bucket, prefix] = None

    def is_fresh(self, bucket: Bucket, prefix: str) -> bool:
        """Return whether a directory was made here so lately that nobody else has put anything into it.

        As sure as what was listed then; called with the lock of names held.
        """
        return (bucket, prefix) in self._fresh

    def empty(self, bucket: Bucket, prefix: str) -> DirectoryId | None:
        """Keep a directory from which a name was removed; return one that is dropped for it."""
        if (bucket, prefix) in self._made:
            return None
        self._emptied.pop((bucket, prefix), None)  # it goes to the end
        self._emptied[bucket, prefix] = None
        return next(iter(self._emptied)) if len(self._emptied) > HELD_MAX else None

    def let_go(self, bucket: Bucket, prefix: str) -> None:
        """Drop a directory."""
        self._made.pop((bucket, prefix), None)
        self._emptied.pop((bucket, prefix), None)

    def below(self, bucket: Bucket, prefix: str) -> list[str]:
        """Return those at and below `prefix`."""
        held = [*self._made, *self._emptied]
        return [place for at, place in held if at == bucket and place.startswith(prefix)]


class RemovedDirectories:
    """Names of removed directories, by the directory they were in."""

    def __init__(self) -> None:
        """Start without any."""
        self._within: OrderedDict[DirectoryId, set[bytes]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def within(self, directory: DirectoryId) -> set[bytes]:
        """Return the names removed in a directory."""
        return self._within.get(directory, set())

    def add(self, directory: DirectoryId, name: bytes) -> None:
        """Remember a directory that was removed."""
        names = self._within.setdefault(directory, set())
        self._within.move_to_end(directory)
        self._count += name not in names
        names.add(name)
        while self._count > REMOVED_MAX:
            oldest, some = next(iter(self._within.items()))
            some.pop()
            self._count -= 1
            if not some:
                del self._within[oldest]

    def discard(self, directory: DirectoryId, name: bytes) -> bool:
        """Forget a directory, which is there again; return whether it was remembered."""
        names = self._within.get(directory, set())
        if name not in names:
            return False
        names.remove(name)
        self._count -= 1
        if not names:
            del self._within[directory]
        return True


log = logging.getLogger(__name__)

FEW = 8
"""Directories asked about one by one. For more of them, one page of all keys below their parent most
often tells it at once."""
KEYS = 10_000
"""Of such a page: what AIStore returns at most."""
BESIDE_MAX = 10_000
"""Directories remembered that have the name of an object."""
CHECKED = 8
"""Names asked for of those that a listing lacks. A cut listing lacks all behind the cut, so the first
and the last of them tell."""

ORDERS_MAX = 64
"""Directories whose order is noted: more are hardly read at once."""
ORDERED_MAX = 1000
"""Names of such a directory."""
SECOND_ANSWER_SECONDS = 1.0
"""How long to wait whether a name that stands for something stands for something else, too."""


class Probes:
    """Asks a store."""

    def __init__(self, store: ObjectStore) -> None:
        """Ask `store`."""
        self._store = store
        self._beside: LRUCache[DirectoryId, None] = LRUCache(BESIDE_MAX)
        """Directories that have the name of an object."""

    def is_beside(self, directory: DirectoryId) -> bool:
        """Return whether an object is known to have the name of a directory, or of one above it."""
        bucket, prefix = directory
        ends = (at + 1 for at, character in enumerate(prefix) if character == "/")
        return bool(self._beside) and any((bucket, prefix[:end]) in self._beside for end in ends)

    def note_beside(self, directory: DirectoryId, names: Iterable[bytes]) -> None:
        """Remember directories that have the name of an object."""
        bucket, prefix = directory
        if bucket.provider is Provider.AIS:
            self._beside.update({(bucket, child_prefix(prefix, name)): None for name in names})

    async def first_page(self, directory: DirectoryId) -> Page:
        """Return the first page of a directory's listing."""
        if self.is_beside(directory):
            return await self.page(directory)
        return await self._store.list_page(*directory)

    async def peek(self, directory: DirectoryId) -> Page:
        """Return the first page of a directory's listing, which need not be complete."""
        if self.is_beside(directory):
            return await self.page(directory)
        return await self._store.peek_page(*directory)

    async def is_occupied(
        self, bucket: Bucket, prefix: str, *, sure: bool = False, but_for_marker: bool = False
    ) -> bool:
        """Return whether there is any object below a directory; see `first_keys`."""
        keys = await self._store.first_keys(bucket, prefix, 1 + but_for_marker, sure=sure)
        return any(key != prefix or not but_for_marker for key in keys.found)

    async def occupied(self, directory: DirectoryId, names: Collection[bytes]) -> set[bytes]:
        """Return which directories in a directory have any object below them."""
        bucket, prefix = directory
        unclear, occupied = set(names), set[bytes]()
        if len(unclear) > FEW:
            keys = await self._store.first_keys(bucket, prefix, KEYS)
            ends = ((key, key.find("/", len(prefix))) for key in keys.found)
            heads = {entry_name(prefix, key[:end]) for key, end in ends if end >= 0}
            occupied = unclear & heads
            unclear = set() if keys.complete else unclear - heads

        async def ask(name: bytes) -> None:
            if await self.is_occupied(bucket, child_prefix(prefix, name), sure=True):
                occupied.add(name)

        await all_of(partial(ask, name) for name in unclear)
        return occupied

    async def find(
        self, directory: DirectoryId, name: bytes, shows: Callable[[str], bool]
    ) -> Listed:
        """Return what the store has under a name: an object, or None for a directory.

        Both are asked for at once. Once there is the one, the other is not waited for any longer: a store
        that moves objects can tell what is there, but not what is not.

        Args:
            directory: The directory.
            name: The name in it.
            shows: Whether a key, or the prefix of a directory, is of interest.

        Raises:
            NotFound, InvalidName: there is neither.
            AisfsError: the store cannot say whether there is one.
        """
        bucket, prefix = directory
        below, key = child_prefix(prefix, name), child_key(prefix, name)
        sure = self.is_beside(directory)
        errors: list[AisfsError] = [NotFound(f"{bucket}/{key}: no such name")]
        is_directory, info = False, None

        async def ask(question: Callable[[], Awaitable[None]]) -> None:
            try:
                await question()
            except AisfsError as error:
                errors.append(error)
            if is_directory or info is not None:
                nursery.cancel_scope.deadline = trio.current_time() + SECOND_ANSWER_SECONDS

        async def look_below() -> None:
            nonlocal is_directory
            is_directory = await self.is_occupied(bucket, below, sure=sure)

        async def look() -> None:
            nonlocal info
            info = await self._store.head(bucket, key)

        async with trio.open_nursery() as nursery:
            for question in [look_below] * shows(below) + [look] * (is_key(key) and shows(key)):
                nursery.start_soon(ask, question)
        if is_directory and info is not None:
            self.note_beside(directory, [name])
        if is_directory or info is not None:
            return None if is_directory else info
        unclear = [error for error in errors if not isinstance(error, NotFound | InvalidName)]
        raise unclear[0] if unclear else errors[-1]

    async def page(self, directory: DirectoryId) -> Page:
        """List a directory that has the name of an object, or is below one that has.

        AIStore's own listing lacks names there, at random.

        Raises:
            ProtocolError: it is too large for that.
        """
        bucket, prefix = directory
        keys = await self._store.first_keys(bucket, prefix, KEYS, sure=True)
        if not keys.complete:
            raise ProtocolError(
                f"{bucket}/{prefix}: AIStore's listings lack names where an object has the name of a "
                f"directory, and here are more than {KEYS} keys: rename that object"
            )
        objects: list[ObjectInfo] = []
        directories = set[str]()
        for key in keys.found:
            end = key.find("/", len(prefix))
            if end >= 0:
                directories.add(key[: end + 1])
                continue
            with suppress(NotFound):
                objects.append(await self._store.head(bucket, key))
        return Page(objects, sorted(directories), "")

    async def check_gone(self, directory: DirectoryId, lacking: Mapping[bytes, Listed]) -> None:
        """Make sure that names which a listing lacks are gone indeed.

        Raises:
            ProtocolError: one of them is there.
        """
        bucket, prefix = directory
        names = sorted(lacking)
        if len(names) > CHECKED:
            names = names[: CHECKED // 2] + names[-(CHECKED // 2) :]
        for name in names:
            why = await self._why_there(bucket, prefix, name, lacking[name])
            if why is not None:
                raise ProtocolError(
                    f"{bucket}/{prefix}: the cluster's listing is cut short: "
                    f"it lacks {os.fsdecode(name)!r}, {why}. "
                    "Most likely an object before it is corrupt (ErrLmetaCorrupted), where its target "
                    "ends every listing: look for the first name that only a listing of names shows "
                    "(`ais ls --name-only`), and put an object over it"
                )

    async def _why_there(
        self, bucket: Bucket, prefix: str, name: bytes, listed: Listed
    ) -> str | None:
        try:
            if listed is None:
                there = await self.is_occupied(bucket, child_prefix(prefix, name))
                return "below which there are objects" if there else None
            await self._store.head(bucket, child_key(prefix, name))
        except (NotFound, AccessDenied):
            return None
        except ProtocolError as error:
            return f"whose metadata the cluster cannot read ({error})"
        return "which exists"


SWEEP_EVERY = 1024
"""Changes after which those that expired are looked for."""


class _Absent(Enum):
    ABSENT = "absent"


ABSENT = _Absent.ABSENT
"""The name is gone."""


class _Change(msgspec.Struct, frozen=True):
    listed: Listed | _Absent
    number: int
    expires: float | None
    """None while it is pending."""


@dataclass(slots=True)
class _Directory:
    changes: dict[bytes, _Change] = field(default_factory=dict)
    last: int = 0
    """Number of the last change."""
    merged: tuple[Listing, int, Listing] | None = None
    """A listing, the number of the last change then, and both together."""

    def take_back(self, name: bytes, number: int) -> None:
        if self.changes.pop(name, None) is not None:
            self.last = number


class Overlay:
    """This mount's own changes."""

    def __init__(
        self,
        probes: Probes,
        cache: MetadataCache,
        *,
        list_ttl: float,
        change_ttl: float,
        clock: Callable[[], float],
    ) -> None:
        """Start without any.

        Args:
            probes: Ask the store whether a directory is empty.
            cache: Forgets the names that change.
            list_ttl: Seconds a pending change may be believed by the kernel.
            change_ttl: The longest of all times to live, seconds.
            clock: What changes expire by.
        """
        self._probes = probes
        self._cache = cache
        self.list_ttl = list_ttl
        self.change_ttl = change_ttl
        self._clock = clock
        self._directories: dict[DirectoryId, _Directory] = {}
        self.removed = RemovedDirectories()
        self.held = HeldDirectories(list_ttl, clock)
        self.changes = 0
        """How many changes there were."""
        self._listings = 0
        """Listings under way."""
        self.note: Callable[[Bucket, str, str], None] = lambda *_: None
        """Told of each directory that is `held` here, is `gone`, or, empty, is what the store says of it."""
        self._orders: LRUCache[DirectoryId, Listing] = LRUCache(ORDERS_MAX)
        """How directories were listed here last, perhaps by a daemon before."""
        self.note_order: Callable[[Bucket, str, Listing | None], None] | None = None
        """Told of that, for the next daemon."""
        self.namespace_lock = ranked_rlock(Rank.NAMESPACE)
        """Held by the trio thread while it changes, perhaps in several steps but never waiting, what
        names stand for in this mount; and by another thread while it asks what they stand for."""

    # what the mount reports ------------------------------------------------------------------

    def set_pending(self, bucket: Bucket, key: str, listed: Listed) -> None:
        """Show an object the store does not have yet, or (None, key ends in `/`) a directory.

        The directories a directory is in are there as long as it is, even if others empty them.
        """
        with self.namespace_lock:
            if listed is not None:
                self._set(bucket, key, listed, None)
                return
            for prefix in [key, *_directories_above(key)]:
                self.removed.discard(*_place(bucket, prefix))
                self._set(bucket, prefix, None, None)
                self.held.make(bucket, prefix)

    def settle(self, bucket: Bucket, key: str, info: ObjectInfo, *, below: str = "") -> None:
        """Show an object that the store has now, and the directories above it.

        Directories at and below `below` are shown even if they were unknown here.
        """
        expires = self._clock() + self.change_ttl
        with self.namespace_lock:
            self._set(bucket, key, info, expires)
            for prefix in _directories_above(key):
                change = self._known_change(bucket, prefix)
                held = change is not None and change.expires is None
                if held and self._holds_directories((bucket, prefix)):
                    continue
                was_removed = self.removed.discard(*_place(bucket, prefix))
                unlisted = held or was_removed or (change and change.listed is ABSENT)
                if unlisted or (below and prefix.startswith(below)):
                    self._set(bucket, prefix, None, expires)

    def remove(self, bucket: Bucket, key: str, *, hold: bool = True, below: str = "") -> None:
        """Show an object, or a directory (its key ends in `/`), no more.

        Args:
            bucket: The bucket.
            key: What is gone.
            hold: Keep the directories it was in, which may be empty now.
            below: Directories at and below this one, in which it was, are gone too.
        """
        expires = self._clock() + self.change_ttl
        with self.namespace_lock:
            self._set_absent(bucket, key, expires)
            for prefix in _directories_above(key):
                if hold:
                    self._hold(bucket, prefix, expires)
                elif below and prefix.startswith(below):
                    self._set_absent(bucket, prefix, expires)

    def was_directory(self, bucket: Bucket, key: str) -> bool:
        """Return whether a directory of this name was removed here: AIStore may refuse an object in its place."""
        with self.namespace_lock:
            directory, name = _place(bucket, key)
            return name in self.removed.within(directory)

    def _set_absent(self, bucket: Bucket, key: str, expires: float) -> None:
        self._set(bucket, key, ABSENT, expires)
        if key.endswith("/"):
            self.removed.add(*_place(bucket, key))
            self.note(bucket, key, "gone")

    def restore(self, bucket: Bucket, prefix: str, state: str) -> None:
        """Know a directory as it was told to `note`."""
        with self.namespace_lock:
            if state == "held":
                self._hold(bucket, prefix, self._clock() + self.change_ttl)
            else:  # an object may have its name by now
                self.removed.add(*_place(bucket, prefix))

    def _hold(self, bucket: Bucket, prefix: str, expires: float) -> None:
        """Keep a directory that may be empty now."""
        self._set(bucket, prefix, None, None)
        too_many = self.held.empty(bucket, prefix)
        if too_many is not None:
            self._set(*too_many, None, expires)

    def _holds_directories(self, directory: DirectoryId) -> bool:
        """Return whether there are directories in it that the store does not have."""
        known = self._directories.get(directory)
        return known is not None and any(
            change.listed is None and change.expires is None
            for change in known.changes.copy().values()
        )

    def forget(self, bucket: Bucket, key: str) -> None:
        """Take a pending change back."""
        self._take_back(*_place(bucket, key))

    # what it answers -------------------------------------------------------------------------

    @any_thread
    def try_find(self, directory: DirectoryId, name: bytes) -> Dated[Listed] | WouldWait | None:
        """Return what a name stands for that was changed here; None if it is gone."""
        change = self._change(directory, name)
        if change is None:
            return WOULD_WAIT
        if isinstance(change.listed, _Absent):
            return None
        expires = change.expires
        return Dated(change.listed, self._clock() + self.list_ttl if expires is None else expires)

    @any_thread
    def try_merge(self, directory: DirectoryId, dated: Dated[Listing]) -> Dated[Listing] | None:
        """Return a listing with the changes over it; None where they have to be merged first."""
        known = self._directories.get(directory) if self._directories else None
        if known is None or not known.changes:
            return dated
        merged = known.merged
        if merged is None or merged[0] is not dated.value or merged[1] != known.last:
            return None
        return Dated(merged[2], dated.expires)

    def merge(self, directory: DirectoryId, dated: Dated[Listing]) -> Dated[Listing]:
        """Return a listing with the changes over it."""
        there = self.try_merge(directory, dated)
        if there is not None:
            return there
        with self.namespace_lock:  # the dispatcher adds new files
            known, now = self._directories[directory], self._clock()
            last = known.last
            valid = {
                name: change.listed
                for name, change in known.changes.items()
                if change.expires is None or now < change.expires
            }
        present = {n: listed for n, listed in valid.items() if not isinstance(listed, _Absent)}
        before = self.order_of(directory) if known.merged is None else known.merged[2]
        previous = dated.value if before is None else before
        both = dated.value.with_changes(present, valid.keys() - present.keys(), previous)
        known.merged = (dated.value, last, both)
        return Dated(both, dated.expires)

    @any_thread
    def given(self, directory: DirectoryId, listing: Listing) -> None:
        """Have it noted in what order the kernel is given a directory: it may read on with the next daemon of the mount."""
        if self.note_order is None or listing.is_first or len(listing) > ORDERED_MAX:
            return
        with self.namespace_lock:
            if self._orders.get(directory) is listing:
                return
            if directory not in self._orders and len(self._orders) == ORDERS_MAX:
                oldest, _ = self._orders.popitem()
                self.note_order(*oldest, None)
            self._orders[directory] = listing
            self.note_order(*directory, listing)

    def order_of(self, directory: DirectoryId) -> Listing | None:
        """Return what the first listing of a directory is ordered like, if a daemon before has listed it."""
        with self.namespace_lock:
            return self._orders.get(directory)

    def restore_order(self, directory: DirectoryId, order: Listing) -> None:
        """Know how a daemon before has listed a directory."""
        self._orders[directory] = order

    def shows(self, directory: DirectoryId, listing: Listing, name: bytes) -> bool:
        """Return whether this mount shows already what a listing says of a name."""
        change = self._change(directory, name)
        if change is None or change.expires is None:
            return change is not None
        if name not in listing:
            return change.listed is ABSENT
        return change.listed == listing[name]

    def stored(self, directory: DirectoryId) -> dict[bytes, Listed]:
        """Return the objects that this mount has stored lately in a directory."""
        known, now = self._directories.get(directory), self._clock()
        changes = known.changes.copy() if known is not None else {}
        return {
            name: change.listed
            for name, change in changes.items()
            if isinstance(change.listed, ObjectInfo) and change.expires and now < change.expires
        }

    async def is_empty(self, bucket: Bucket, prefix: str, *, but_for_marker: bool = False) -> bool:
        """Return whether a directory may be removed now, whatever is believed about it.

        Its marker counts, or not. Directories with nothing below them, which AIStore goes on listing, do not count; those that
        this mount shows do.
        """
        asked = self.changes
        if await self._probes.is_occupied(bucket, prefix, sure=True, but_for_marker=but_for_marker):
            return False
        known = self._directories.get((bucket, prefix))
        return known is None or not any(
            change.listed is not ABSENT and (change.expires is None or change.number > asked)
            for change in known.changes.copy().values()
        )

    # what the lister reports -------------------------------------------------------------------

    @contextmanager
    def listing(self) -> Iterator[int]:
        """Keep expired changes meanwhile, which a listing may not have seen; give their number."""
        self._listings += 1
        try:
            yield self.changes
        finally:
            self._listings -= 1

    def listed(self, directory: DirectoryId, asked: int) -> None:
        """Drop the settled changes that a listing has seen, which was requested after `asked` changes."""
        with self.namespace_lock:
            self._keep_changes(directory, lambda c: c.expires is None or c.number > asked)
            self.outlast(directory, asked)

    def outlast(self, directory: DirectoryId, asked: int) -> None:
        """Show settled changes for longer than what was requested before them and cached just now."""
        known = self._directories.get(directory)
        if known is None or known.last <= asked:
            return
        until = self._clock() + self.change_ttl
        with self.namespace_lock:
            for name, change in known.changes.items():
                if change.number > asked and change.expires is not None:
                    known.changes[name] = structs.replace(change, expires=until)

    def drop_settled(self, directory: DirectoryId, name: bytes) -> None:
        """Take a change back, unless it is pending: it turned out to be out of date."""
        known = self._directories.get(directory)
        change = known.changes.get(name) if known is not None else None
        if change is not None and change.expires is not None:
            self._take_back(directory, name)

    def drop_all_settled(self, within: Callable[[DirectoryId], bool]) -> None:
        """Take all changes in some directories back, unless they are pending."""
        for directory in list(self._directories):
            if within(directory):
                self._keep_changes(directory, lambda change: change.expires is None)

    # within ----------------------------------------------------------------------------------

    def _set(
        self, bucket: Bucket, key: str, listed: Listed | _Absent, expires: float | None
    ) -> None:
        directory, name = _place(bucket, key)
        with self.namespace_lock:
            self.changes += 1
            known = self._directories.get(directory)
            if known is None:
                known = self._directories[directory] = _Directory()
            known.changes[name] = _Change(listed, self.changes, expires)
            known.last = self.changes
            self._cache.forget((*directory, name))
            if key.endswith("/") and (listed is not None or expires is not None):
                self.held.let_go(bucket, key)
            if key.endswith("/"):
                self.note(bucket, key, "held" if listed is None and expires is None else "")
            if self.changes % SWEEP_EVERY == 0:
                self._sweep()

    def _take_back(self, directory: DirectoryId, name: bytes) -> None:
        with self.namespace_lock:
            known = self._directories.get(directory)
            if known is not None:
                self.changes += 1
                known.take_back(name, self.changes)

    def _known_change(self, bucket: Bucket, key: str) -> _Change | None:
        directory, name = _place(bucket, key)
        known = self._directories.get(directory)
        return known.changes.get(name) if known else None

    def _change(self, directory: DirectoryId, name: bytes) -> _Change | None:
        known = self._directories.get(directory)
        change = known.changes.get(name) if known else None
        if change is None or change.expires is None or self._clock() < change.expires:
            return change
        return None

    def _sweep(self) -> None:
        """Drop expired changes; not while a listing that may be older is under way."""
        if self._listings:
            return
        now = self._clock()
        for directory in list(self._directories):
            self._keep_changes(directory, lambda c: c.expires is None or now < c.expires)

    def _keep_changes(self, directory: DirectoryId, wanted: Callable[[_Change], bool]) -> None:
        """Drop all other changes of a directory."""
        with self.namespace_lock:
            known = self._directories.get(directory)
            if known is None:
                return
            known.changes = {n: change for n, change in known.changes.items() if wanted(change)}
            if not known.changes:
                del self._directories[directory]


def _directories_above(key: str) -> list[str]:
    """Return the prefixes of the directories a key lies in, the nearest first."""
    parts = key.removesuffix("/").split("/")[:-1]
    return ["/".join(parts[:n]) + "/" for n in range(len(parts), 0, -1)]


def _place(bucket: Bucket, key: str) -> tuple[DirectoryId, bytes]:
    """Split a key, or the prefix of a directory, into directory and name."""
    parent, slash, _ = key.removesuffix("/").rpartition("/")
    prefix = parent + slash
    return (bucket, prefix), entry_name(prefix, key)
