"""A listed directory of a bucket: names in an order that survives the next listing.

A reader of a directory continues at the offset of the last entry it got, perhaps after the
directory changed. Therefore each name keeps its offset as long as every listing contains it:
a new listing is merged with the previous one, names in both keep their offsets, and new ones get
higher offsets. So no reader sees a name twice or misses one that existed all the time.
"""

import os
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
)

from aisfs.core.namespace.keys import (
    INDEX_DIRECTORY,
    NAME_MAX,
    Refusal,
    entry_name,
    has_marks,
    odd_component,
    refusal,
)
from aisfs.errors import ProtocolError
from aisfs.model import ObjectInfo, Page
from aisfs.redaction import shown

PENDING_VERSION = "pending"
"""The version of an object that is being written and is not in the store yet."""

ENTRIES_MAX = 10_000_000
"""Most names of one directory. At half a kilobyte each they take 5 GB of memory."""
NAME_BYTES_MAX = 2 << 30
"""Most bytes of all names of one directory: 200 for each."""
SHORT_PAGE, SHORT_PAGES_MAX = 10, 1000
"""How many pages may have fewer names than this. Usual pages have 1,000 or 10,000 names, but after
many objects of a cloud were deleted they may be almost empty for a while."""

UNLISTED = INDEX_DIRECTORY.encode()
"""The name that is found and not listed, like the folder of a shard."""

Listed = ObjectInfo | None
"""What a name stands for: an object, or None for a directory."""
Wanted = Callable[[str], bool]
"""Returns whether a key, or a prefix with its slash, is shown."""


class Listing:
    """One complete listing; immutable once built."""

    __slots__ = ("_entries", "_names", "_offsets", "refused")

    def __init__(
        self,
        entries: dict[bytes, Listed],
        refused: Counter[Refusal],
        previous: "Listing | None" = None,
    ) -> None:
        """Order `entries` like `previous`, the last listing of the same directory."""
        self._entries = entries
        self.refused = refused
        """How many keys are not shown, by reason."""
        if previous is None:
            self._names = _listed(entries)
            self._offsets = array("Q", range(1, len(self._names) + 1))
        else:
            self._names, self._offsets = _merge(previous, entries)

    def with_changes(
        self, present: Mapping[bytes, Listed], absent: Collection[bytes], previous: "Listing"
    ) -> "Listing":
        """Return this listing with names added, changed or removed, ordered like `previous`."""
        entries = {**self._entries, **present}
        for name in absent:
            entries.pop(name, None)
        return Listing(entries, self.refused, previous)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: bytes) -> bool:
        return name in self._entries

    def __getitem__(self, name: bytes) -> Listed:
        return self._entries[name]

    @property
    def names(self) -> KeysView[bytes]:
        """All names, also the one that is not listed."""
        return self._entries.keys()

    def total_size(self) -> int:
        """Return the bytes of all objects together."""
        return sum(listed.size for listed in self._entries.values() if listed is not None)

    @property
    def has_indexes(self) -> bool:
        """Whether indexes of the shards in the directory are published."""
        return UNLISTED in self._entries

    def changes_since(self, previous: "Listing") -> list[bytes]:
        """Return the names that are new, gone, or of another version than in `previous`."""
        ours, theirs = self._entries, previous._entries
        changed = [n for n, listed in ours.items() if n not in theirs or theirs[n] != listed]
        return changed + [name for name in theirs if name not in ours]

    def after(self, offset: int) -> Iterator[tuple[int, bytes, Listed]]:
        """Yield (offset, name, object) of each entry after `offset`; 0 is before the first."""
        entries = self._entries
        for position in range(bisect_right(self._offsets, offset), len(self._names)):
            name = self._names[position]
            yield self._offsets[position], name, entries[name]

    def objects_after(
        self, offset: int, most: int, wanted: Callable[[bytes], bool] | None = None
    ) -> tuple[Sequence[int], list[bytes], list[ObjectInfo]]:
        """Return offsets, names and objects after `offset`: at most `most`, and up to the first
        directory or name that is not `wanted`."""
        start = bisect_right(self._offsets, offset)
        names, entries = self._names[start : start + most], self._entries
        objects: list[ObjectInfo] = []
        for name in names:
            listed = entries[name]
            if listed is None or (wanted is not None and not wanted(name)):
                break
            objects.append(listed)
        return self._offsets[start : start + len(objects)], names[: len(objects)], objects


class ListingBounds:
    """Ends a listing that makes no progress, or that is too large for memory."""

    def __init__(self, subject: str) -> None:
        """Watch the pages of one listing; `subject` begins each message."""
        self._subject = subject
        self._tokens: set[str] = set()
        self._entries = self._bytes = 0

    def check(self, names: Collection[str], token: str) -> None:
        """Check a page and the token of the next one.

        Raises:
            ProtocolError: the listing does not end, or not within the bounds.
        """
        self._entries += len(names)
        self._bytes += sum(map(len, names))
        pages = len(self._tokens)
        if token and token in self._tokens:
            raise self._error(f"it goes in circles, and is at {shown(token)[:100]!r} again")
        if self._entries > ENTRIES_MAX or self._bytes > NAME_BYTES_MAX:
            raise self._error(f"more than {self._entries} names, {self._bytes >> 20} MiB of them")
        if pages > SHORT_PAGES_MAX + self._entries // SHORT_PAGE:
            raise self._error(f"{pages} pages brought {self._entries} names only")
        self._tokens.add(token)

    def _error(self, why: str) -> ProtocolError:
        return ProtocolError(f"{self._subject}: the listing has no end: {why}")


class ListingBuilder:
    """Builds a listing from the pages of one directory as they arrive."""

    def __init__(self, prefix: str, wanted: Wanted | None = None) -> None:
        """Begin the listing of the directory `prefix`, with the names that are `wanted`."""
        self._prefix = prefix
        self._wanted = wanted
        self._directories: dict[bytes, Listed] = {}
        self._objects: dict[bytes, Listed] = {}
        self._refused: Counter[Refusal] = Counter()

    def __len__(self) -> int:
        return len(self._directories) + len(self._objects)

    def __contains__(self, name: bytes) -> bool:
        return name in self._objects or name in self._directories

    @property
    def directories(self) -> KeysView[bytes]:
        """The names of directories."""
        return self._directories.keys()

    @property
    def ambiguous(self) -> set[bytes]:
        """The names that stand for an object and for a directory."""
        return self._directories.keys() & self._objects.keys()

    def lacking(self, previous: Listing) -> dict[bytes, Listed]:
        """Return the entries of an earlier listing that this one lacks."""
        gone = previous.names - self._objects.keys() - self._directories.keys()
        return {name: previous[name] for name in gone}

    def drop(self, directories: Iterable[bytes]) -> None:
        """Leave directories out."""
        for name in directories:
            self._directories.pop(name, None)

    def add(self, page: Page) -> None:
        """Add the next page."""
        for whole in page.directories:
            name = entry_name(self._prefix, whole)
            if name == UNLISTED:  # whatever is wanted
                self._directories[name] = None
            elif reason := self._refusal(name, whole):
                self._refused[reason] += 1
            else:
                self._directories[name] = None
        self._refused[Refusal.NO_FILE] += page.left_out
        self._refused.update(filter(None, (odd_component(self._prefix, n) for n in page.unusable)))
        names = self._usual_names(page.objects)
        if names is not None:
            self._objects.update(zip(names, page.objects, strict=True))
            return
        for info in page.objects:
            if info.key == self._prefix:  # the zero-size marker some tools leave for a directory
                continue
            name = entry_name(self._prefix, info.key)
            if info.key.endswith("/"):
                self._refused[Refusal.EMPTY_COMPONENT] += 1
            elif reason := self._refusal(name, info.key):
                self._refused[reason] += 1
            else:
                self._objects[name] = info

    def finish(self, previous: Listing | None = None) -> Listing:
        """Return the listing, ordered like `previous`, the last one of the same directory."""
        refused = +self._refused
        hidden = self.ambiguous
        if hidden:
            refused[Refusal.HIDDEN_BY_DIRECTORY] += len(hidden)
        entries = self._objects | self._directories if self._directories else self._objects
        return Listing(entries, refused, previous)

    def _refusal(self, name: bytes, key: str) -> Refusal | None:
        reason = refusal(name)
        if reason is None and self._wanted is not None and not self._wanted(key):
            return Refusal.EXCLUDED
        return reason

    def _usual_names(self, objects: list[ObjectInfo]) -> list[bytes] | None:
        """Return the names of objects, or None when one of them needs a closer look.

        Encoding and checking all names as one string takes a third of the time.
        """
        if self._wanted is not None:
            return None
        cut = len(self._prefix)
        joined = os.fsencode("/".join([info.key[cut:] for info in objects]))
        names = joined.split(b"/")
        if len(names) != len(objects) or b"\0" in joined or len(max(names, key=len)) > NAME_MAX:
            return None
        if has_marks(joined):
            return None
        return None if any(special in names for special in (b"", b".", b"..")) else names


def _merge(previous: Listing, entries: dict[bytes, Listed]) -> tuple[list[bytes], "array[int]"]:
    if previous._entries.keys() == entries.keys():
        return previous._names, previous._offsets
    kept = [
        (offset, name)
        for offset, name in zip(previous._offsets, previous._names, strict=True)
        if name in entries
    ]
    names = [name for _, name in kept]
    offsets = array("Q", (offset for offset, _ in kept))
    following = previous._offsets[-1] + 1 if previous._offsets else 1
    new = _listed(name for name in entries if name not in previous._entries)
    names.extend(new)
    offsets.extend(range(following, following + len(new)))
    return names, offsets


def _listed(names: Iterable[bytes]) -> list[bytes]:
    """Return the names that a directory lists."""
    listed = list(names)
    if UNLISTED in listed:
        listed.remove(UNLISTED)
    return listed
