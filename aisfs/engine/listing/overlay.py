"""A lister that knows at once what this mount changes, whatever was listed before.

A change is pending while the store does not have it: a file being written, a directory that is
still empty. Once the store has it, it is settled: it wins over listings that were asked for before
it, and goes when a later one has come or its time to live is over.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

import trio

from aisfs.cache.metadata_cache import Dated, DirectoryId, MetadataCache, WouldWait
from aisfs.core.namespace.keys import entry_name
from aisfs.core.namespace.listing import Listed, Listing
from aisfs.engine.hooks import Hooks
from aisfs.engine.listing.lister import Lister
from aisfs.engine.listing.own_directories import HeldDirectories, RemovedDirectories
from aisfs.metrics import Metrics
from aisfs.model import Bucket, ObjectInfo
from aisfs.process.locks import Rank, ranked_rlock
from aisfs.store.port import ObjectStore

SWEEP_EVERY = 1024
"""Changes after which those whose time is over are looked for."""


class _Absent(Enum):
    ABSENT = "absent"


ABSENT = _Absent.ABSENT
"""The name is gone."""


@dataclass(frozen=True, slots=True)
class _Change:
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

    def take(self, name: bytes, number: int) -> None:
        """Take a change back."""
        if self.changes.pop(name, None) is not None:
            self.last = number


class OverlaidLister(Lister):
    """Lists what the store has, with this mount's own changes."""

    def __init__(
        self,
        store: ObjectStore,
        cache: MetadataCache,
        nursery: trio.Nursery,
        *,
        list_ttl: float,
        change_ttl: float,
        clock: Callable[[], float],
        metrics: Metrics,
        hooks: Hooks | None = None,
    ) -> None:
        """See `Lister`; `change_ttl` is the longest of all times to live, seconds."""
        super().__init__(
            store, cache, nursery, list_ttl=list_ttl, clock=clock, metrics=metrics, hooks=hooks
        )
        self._change_ttl = change_ttl
        self._directories: dict[DirectoryId, _Directory] = {}
        self._removed = RemovedDirectories()
        self.held = HeldDirectories()
        self._number = 0
        self.changing = ranked_rlock(Rank.NAMESPACE)
        """Held by the trio thread while it changes, perhaps in several steps but never waiting, what
        names stand for in this mount; and by another thread while it asks what they stand for."""

    @property
    def changes(self) -> int:
        """Say how many changes there were."""
        return self._number

    # what the mount tells it -----------------------------------------------------------------

    def set_pending(self, bucket: Bucket, key: str, listed: Listed) -> None:
        """Show an object the store does not have yet, or (None, key ends in `/`) a directory.

        The directories a directory is in are there as long as it is, whoever empties them.
        """
        with self.changing:
            if listed is not None:
                self._set(bucket, key, listed, None)
            for prefix in [key, *_directories_above(key)] if listed is None else []:
                self._removed.discard(*_place(bucket, prefix))
                self._set(bucket, prefix, None, None)
                self.held.make(bucket, prefix)

    def settle(self, bucket: Bucket, key: str, info: ObjectInfo, *, below: str = "") -> None:
        """Show an object that the store has now, and the directories above it.

        Directories at and below `below` are shown even if nobody has heard of them here.
        """
        expires = self._clock() + self._change_ttl
        with self.changing:
            self._set(bucket, key, info, expires)
            for prefix in _directories_above(key):
                change = self._known_change(bucket, prefix)
                held = change is not None and change.expires is None
                if held and self._holds_directories((bucket, prefix)):
                    continue
                was_removed = self._removed.discard(*_place(bucket, prefix))
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
        expires = self._clock() + self._change_ttl
        with self.changing:
            self._set_absent(bucket, key, expires)
            for prefix in _directories_above(key):
                if hold:
                    self._hold(bucket, prefix, expires)
                elif below and prefix.startswith(below):
                    self._set_absent(bucket, prefix, expires)

    def _set_absent(self, bucket: Bucket, key: str, expires: float) -> None:
        self._set(bucket, key, ABSENT, expires)
        if key.endswith("/"):
            self._removed.add(*_place(bucket, key))

    def _hold(self, bucket: Bucket, prefix: str, expires: float) -> None:
        """Keep a directory that may be empty now."""
        self._set(bucket, prefix, None, None)
        too_many = self.held.empty(bucket, prefix)
        if too_many is not None:
            self._set(*too_many, None, expires)

    def _holds_directories(self, directory: DirectoryId) -> bool:
        """Say whether there are directories in it that the store does not have."""
        known = self._directories.get(directory)
        return known is not None and any(
            change.listed is None and change.expires is None for change in known.changes.values()
        )

    def forget(self, bucket: Bucket, key: str) -> None:
        """Take a pending change back."""
        self._take_back(*_place(bucket, key))

    # what it answers -------------------------------------------------------------------------

    async def directory(self, bucket: Bucket, prefix: str) -> Dated[Listing]:
        """See `Lister`."""
        dated = await super().directory(bucket, prefix)
        return self._overlaid((bucket, prefix), dated)

    async def is_empty(self, bucket: Bucket, prefix: str) -> bool:
        """Say whether a directory may be removed now, whatever is believed about it.

        Directories with nothing below them, which AIStore goes on listing, do not count; those that
        this mount shows do.
        """
        asked = self._number
        if await self._probes.is_occupied(bucket, prefix, sure=True):
            return False
        known = self._directories.get((bucket, prefix))
        return known is None or not any(
            change.listed is not ABSENT and (change.expires is None or change.number > asked)
            for change in known.changes.values()
        )

    def try_directory(self, bucket: Bucket, prefix: str) -> Dated[Listing] | None:
        """See `Lister`; None also where a listing and its changes have to be merged first."""
        dated = super().try_directory(bucket, prefix)
        known = self._directories.get((bucket, prefix))
        if dated is None or known is None or not known.changes:
            return dated
        merged = known.merged
        if merged is None or merged[0] is not dated.value or merged[1] != known.last:
            return None
        return Dated(merged[2], dated.expires)

    def try_find(
        self, bucket: Bucket, prefix: str, name: bytes
    ) -> Dated[Listed] | WouldWait | None:
        """See `Lister`."""
        change = self._change((bucket, prefix), name)
        return super().try_find(bucket, prefix, name) if change is None else self._dated(change)

    async def find(self, bucket: Bucket, prefix: str, name: bytes) -> Dated[Listed] | None:
        """See `Lister`."""
        directory = (bucket, prefix)
        if (change := self._change(directory, name)) is not None:
            return self._dated(change)
        asked = self._number
        found = await super().find(bucket, prefix, name)
        # It may have been changed while the store was asked, whose answer is kept.
        self._outlast(directory, asked)
        change = self._change(directory, name)
        return found if change is None else self._dated(change)

    def drop(self, bucket: Bucket, prefix: str, name: bytes) -> None:
        """See `Lister`."""
        with self.changing:
            super().drop(bucket, prefix, name)
            known = self._directories.get((bucket, prefix))
            change = known.changes.get(name) if known is not None else None
            if change is not None and change.expires is not None:
                self._take_back((bucket, prefix), name)

    # within ----------------------------------------------------------------------------------

    def _news(self, directory: DirectoryId, listing: Listing, changed: list[bytes]) -> list[bytes]:
        """See `Lister`; what this mount shows already is no news."""
        news = super()._news(directory, listing, changed)
        return [name for name in news if not self._is_shown(directory, listing, name)]

    def _is_shown(self, directory: DirectoryId, listing: Listing, name: bytes) -> bool:
        change = self._change(directory, name)
        if change is None or change.expires is None:
            return change is not None
        if name not in listing:
            return change.listed is ABSENT
        return change.listed == listing[name]

    def _set(
        self, bucket: Bucket, key: str, listed: Listed | _Absent, expires: float | None
    ) -> None:
        directory, name = _place(bucket, key)
        with self.changing:
            self._number += 1
            known = self._directories.setdefault(directory, _Directory())
            known.changes[name] = _Change(listed, self._number, expires)
            known.last = self._number
            self._cache.forget((*directory, name))
            if key.endswith("/") and (listed is not None or expires is not None):
                self.held.let_go(bucket, key)
            if self._number % SWEEP_EVERY == 0:
                self._sweep()

    def _take_back(self, directory: DirectoryId, name: bytes) -> None:
        with self.changing:
            known = self._directories.get(directory)
            if known is not None:
                self._number += 1
                known.take(name, self._number)

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

    def _dated(self, change: _Change) -> Dated[Listed] | None:
        if isinstance(change.listed, _Absent):
            return None
        expires = change.expires
        return Dated(change.listed, self._clock() + self.list_ttl if expires is None else expires)

    def _overlaid(self, directory: DirectoryId, dated: Dated[Listing]) -> Dated[Listing]:
        known = self._directories.get(directory)
        if known is None or not known.changes:
            return dated
        merged = known.merged
        if merged is None or merged[0] is not dated.value or merged[1] != known.last:
            now = self._clock()
            valid = {
                name: change.listed
                for name, change in known.changes.items()
                if change.expires is None or now < change.expires
            }
            present = {n: listed for n, listed in valid.items() if not isinstance(listed, _Absent)}
            absent = valid.keys() - present.keys()
            previous = dated.value if merged is None else merged[2]
            both = dated.value.with_changes(present, absent, previous)
            known.merged = merged = (dated.value, known.last, both)
        return Dated(merged[2], dated.expires)

    async def _list(self, bucket: Bucket, prefix: str) -> Dated[Listing]:
        asked = self._number
        dated = await super()._list(bucket, prefix)
        self._listed((bucket, prefix), asked)
        return dated

    async def _list_one_page(self, directory: DirectoryId) -> Dated[Listing] | None:
        asked = self._number
        dated = await super()._list_one_page(directory)
        if dated is not None:
            self._listed(directory, asked)
        return dated

    def _listed(self, directory: DirectoryId, asked: int) -> None:
        """Drop the settled changes that a listing asked for after them has seen."""
        with self.changing:
            self._keep_changes(directory, lambda c: c.expires is None or c.number > asked)
            self._outlast(directory, asked)

    def _expected(self, directory: DirectoryId) -> dict[bytes, Listed]:
        """See `Lister`; what this mount has stored is there as well."""
        known, now = self._directories.get(directory), self._clock()
        stored = {
            name: change.listed
            for name, change in (known.changes.items() if known is not None else ())
            if isinstance(change.listed, ObjectInfo) and change.expires and now < change.expires
        }
        return super()._expected(directory) | stored

    def _removed_in(self, directory: DirectoryId) -> set[bytes]:
        """See `Lister`; what was removed here and is listed nevertheless."""
        return self._removed.within(directory)

    def _found_occupied(self, directory: DirectoryId, names: set[bytes]) -> None:
        """See `Lister`; somebody else has put something into these."""
        for name in names:
            self._removed.discard(directory, name)

    def _outlast(self, directory: DirectoryId, asked: int) -> None:
        """Show settled changes for longer than what was asked for before them and kept just now."""
        known = self._directories.get(directory)
        if known is None or known.last <= asked:
            return
        until = self._clock() + self._change_ttl
        with self.changing:
            for name, change in known.changes.items():
                if change.number > asked and change.expires is not None:
                    known.changes[name] = replace(change, expires=until)

    def _sweep(self) -> None:
        """Drop what is over; not while a listing that may be older is under way."""
        if len(self._listings) or len(self._first_pages):
            return
        now = self._clock()
        for directory in list(self._directories):
            self._keep_changes(directory, lambda c: c.expires is None or now < c.expires)

    def _keep_changes(self, directory: DirectoryId, wanted: Callable[[_Change], bool]) -> None:
        """Drop all other changes of a directory."""
        with self.changing:
            known = self._directories.get(directory)
            if known is None:
                return
            known.changes = {n: change for n, change in known.changes.items() if wanted(change)}
            if not known.changes:
                del self._directories[directory]


def _directories_above(key: str) -> list[str]:
    """Give the prefixes of the directories a key lies in, the nearest first."""
    parts = key.removesuffix("/").split("/")[:-1]
    return ["/".join(parts[:n]) + "/" for n in range(len(parts), 0, -1)]


def _place(bucket: Bucket, key: str) -> tuple[DirectoryId, bytes]:
    """Split a key, or the prefix of a directory, into directory and name."""
    parent, _, _ = key.removesuffix("/").rpartition("/")
    prefix = f"{parent}/" if parent else ""
    return (bucket, prefix), entry_name(prefix, key)
