"""What this mount itself changed, over what was listed before.

A change is pending while the store does not have it: a file being written, a directory that is
still empty. Once the store has it, it is settled: it wins over listings that were requested before
it, and goes when a later one has come or its time to live is over.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

import msgspec
from msgspec import structs

from aisfs.cache.names import WOULD_WAIT, Dated, DirectoryId, MetadataCache, WouldWait
from aisfs.core.names.listing import Listed, Listing, entry_name
from aisfs.engine.listing.own_directories import HeldDirectories, RemovedDirectories
from aisfs.engine.listing.probes import Probes
from aisfs.model import Bucket, ObjectInfo
from aisfs.system.locks import Rank, ranked_rlock
from aisfs.system.threads import any_thread

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

    def _set_absent(self, bucket: Bucket, key: str, expires: float) -> None:
        self._set(bucket, key, ABSENT, expires)
        if key.endswith("/"):
            self.removed.add(*_place(bucket, key))

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
        previous = dated.value if known.merged is None else known.merged[2]
        both = dated.value.with_changes(present, valid.keys() - present.keys(), previous)
        known.merged = (dated.value, last, both)
        return Dated(both, dated.expires)

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
