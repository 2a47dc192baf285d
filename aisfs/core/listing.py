"""A directory of a bucket as it was listed: names in an order that survives the next listing.

A reader of a directory comes back with the offset of the last entry it got, perhaps after the
directory changed. Each name therefore keeps its offset for as long as it is listed without a gap:
a new listing is merged with the one before, names that stayed keep their offsets, new ones get
higher ones. So nobody sees a name twice or misses one that was there all the time.
"""

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from aisfs.core.names import Refusal, entry_name, refusal
from aisfs.model import ObjectInfo, Page

PENDING_VERSION = "pending"
"""The version of an object that is being written here and that the store does not have yet."""

Listed = ObjectInfo | None
"""What a name stands for: an object, or None for a directory."""


class Listing:
    """One complete listing; immutable once built."""

    __slots__ = ("_entries", "_names", "_offsets", "refused")

    def __init__(
        self,
        entries: dict[bytes, Listed],
        refused: Counter[Refusal],
        previous: "Listing | None" = None,
    ) -> None:
        """Order `entries` after `previous`, the last listing of the same directory."""
        self._entries = entries
        self.refused = refused
        """How many keys are not shown, by reason."""
        if previous is None:
            self._names = list(entries)
            self._offsets = array("Q", range(1, len(entries) + 1))
        else:
            self._names, self._offsets = _merge(previous, entries)

    @classmethod
    def of_pages(
        cls,
        prefix: str,
        pages: Iterable[Page],
        previous: "Listing | None" = None,
        *,
        wanted: Callable[[str], bool] = lambda _: True,
    ) -> "Listing":
        """Build from all pages of the directory `prefix`, in order.

        Args:
            prefix: The directory.
            pages: What the store said.
            previous: The last listing of the same directory, whose order is kept.
            wanted: Says of a key, or of a prefix with its slash, whether it is to be shown.
        """
        directories: dict[bytes, Listed] = {}
        objects: dict[bytes, Listed] = {}
        refused: Counter[Refusal] = Counter()
        for page in pages:
            for whole in page.directories:
                name = entry_name(prefix, whole)
                if reason := refusal(name) or _excluded(wanted, whole):
                    refused[reason] += 1
                else:
                    directories[name] = None
            for info in page.objects:
                if info.key == prefix:  # the zero-size marker some tools leave for a directory
                    continue
                name = entry_name(prefix, info.key)
                if info.key.endswith("/"):
                    refused[Refusal.EMPTY_COMPONENT] += 1
                elif reason := refusal(name) or _excluded(wanted, info.key):
                    refused[reason] += 1
                else:
                    objects[name] = info
        hidden = directories.keys() & objects.keys()
        if hidden:
            refused[Refusal.HIDDEN_BY_DIRECTORY] += len(hidden)
        return cls(objects | directories, refused, previous)

    def with_changes(
        self, present: Mapping[bytes, Listed], absent: Collection[bytes], previous: "Listing"
    ) -> "Listing":
        """Build the same directory with some names more, changed or gone, ordered after `previous`."""
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

    def changes_since(self, previous: "Listing") -> list[bytes]:
        """Name what is new, gone, or another version than in `previous`."""
        ours, theirs = self._entries, previous._entries
        changed = [n for n, listed in ours.items() if n not in theirs or theirs[n] != listed]
        return changed + [name for name in theirs if name not in ours]

    def after(self, offset: int) -> Iterator[tuple[int, bytes, Listed]]:
        """Give (offset, name, object) of each entry behind `offset`; 0 is before the first."""
        entries = self._entries
        for position in range(bisect_right(self._offsets, offset), len(self._names)):
            name = self._names[position]
            yield self._offsets[position], name, entries[name]


def _excluded(wanted: Callable[[str], bool], key: str) -> Refusal | None:
    return None if wanted(key) else Refusal.EXCLUDED


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
    new = [name for name in entries if name not in previous._entries]
    names.extend(new)
    offsets.extend(range(following, following + len(new)))
    return names, offsets
