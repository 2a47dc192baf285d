"""Samples: members whose names share a key, and which of them a component means.

There are three rules for keys (`settings.KeyRule`). If a rule finds no key, the whole name is the key.
Fetching samples together always follows webdataset's rule, even if a view uses another one.

Of the components, exact extensions win, in their order. If a sample has none of them, `jpg` also means the
part `image.jpg`: one that ends in `.jpg`, if the sample has exactly one such part.
"""

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from aisfs.core.index.member_index import MemberIndex, MemberKind
from aisfs.core.views.spec import Component
from aisfs.model import ByteRange
from aisfs.settings import KeyRule

MISSING = -1
AMBIGUOUS = -2
"""Stand for the row of a sample that has no such part, or several and none of them exactly."""


class ComponentFinder:
    """Finds the part in all samples of a shard, offered member by member in any order."""

    def __init__(self, component: Component) -> None:
        """Look for `component`."""
        self._component = component
        self._exact = len(component.extensions)
        self._ranks: dict[bytes, tuple[int, bytes]] = {}
        """By extension, since a shard has few: its rank, and its form in lower case."""
        self._found: dict[bytes, tuple[int, int, bytes]] = {}
        """By key: rank, row and extension of the best part so far."""

    def offer(self, key: bytes, row: int, extension: bytes) -> None:
        """Look at one member of the sample `key`. Of members with one name the last wins."""
        rank, lowered = self._ranks.get(extension) or self._learn(extension)
        known = self._found.get(key)
        if known is None or rank < known[0]:
            self._found[key] = (rank, MISSING if rank == 2 * self._exact else row, lowered)
        elif rank == known[0] < 2 * self._exact and known[1] != AMBIGUOUS:
            clash = rank >= self._exact and lowered != known[2]
            self._found[key] = (rank, AMBIGUOUS if clash else row, lowered)

    def choose(self, members: Iterable[tuple[int, bytes]]) -> int:
        """Return the row, `MISSING` or `AMBIGUOUS`, of one sample with all its rows and extensions.

        Nothing is remembered of it, nor of what was offered before.
        """
        self._found.clear()
        for row, extension in members:
            self.offer(b"", row, extension)
        return next((row for _, row in self), MISSING)

    def _learn(self, extension: bytes) -> tuple[int, bytes]:
        found = self._component.loose_rank(extension)
        learnt = (2 * self._exact if found is None else found, extension.lower())
        self._ranks[extension] = learnt
        return learnt

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        """Return the key of each sample that was offered, and the row, `MISSING` or `AMBIGUOUS`."""
        return ((key, row) for key, (_, row, _) in self._found.items())


class EveryPart:
    """Finds all parts of a component, exact or not, in all samples of a shard."""

    def __init__(self, component: Component) -> None:
        """Look for `component`."""
        self._component = component
        self._found: dict[bytes, dict[bytes, int]] = {}
        """By key: the row of each part, by its extension in lower case."""

    def offer(self, key: bytes, row: int, extension: bytes) -> None:
        """Look at one member of the sample `key`. Of members with one name the last wins."""
        parts = self._found.setdefault(key, {})
        if self._component.loose_rank(extension) is not None:
            parts[extension.lower()] = row

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        """Return the key of each sample and the row of a part, once for each part, or `MISSING`."""
        for key, parts in self._found.items():
            yield from ((key, row) for row in parts.values() or (MISSING,))


def has_component(component: Component, extensions: Iterable[bytes]) -> bool:
    """Return whether a sample with these extensions has the part."""
    finder = ComponentFinder(component)
    for extension in extensions:
        finder.offer(b"", 0, extension)
    return any(row >= 0 for _, row in finder)


SPAN_MAX = 4 << 20
"""Most bytes of a sample fetched at once; a larger one is left to read-ahead inside the member."""
PARTS_MAX = 64
"""Most members of a sample on either side, since names without dots would make one huge sample."""

HIDDEN = "hidden"
METADATA = "metadata"
LINK = "link"
INCOMPLETE = "incomplete sample"
EXCLUDED = "excluded member"

Split = tuple[bytes, bytes]
"""The key, and the extension without its dot."""

_OPENED = 255
_WDS = re.compile(rb"^((?:.*/|)[^.]+)[.]([^/]*)$")
_METADATA = re.compile(rb"__[^/]*__(?:$|/)")
_METADATA_NAME = re.compile(rb"__[^/.]*__(?:\.|$)")


def _split_wds(name: bytes) -> Split | None:
    match = _WDS.match(name)
    return (match[1], match[2]) if match else None


def _split_last_dot(name: bytes) -> Split | None:
    name = name.removeprefix(b"/")
    dot = name.rfind(b".", name.rfind(b"/") + 1)
    return (name[:dot], name[dot + 1 :]) if dot >= 0 else (name, b"")


def _split_basename(name: bytes) -> Split | None:
    base = name[name.rfind(b"/") + 1 :]
    extension = base.rpartition(b".")[2]
    if extension == base or not extension:
        return None
    return base.partition(b".")[0], extension


SPLITS: dict[KeyRule, Callable[[bytes], Split | None]] = {
    KeyRule.WDS: _split_wds,
    KeyRule.LAST_DOT: _split_last_dot,
    KeyRule.BASENAME: _split_basename,
}
"""By rule: returns key and extension of a name; None for a name that the rule skips."""


def split_name(name: bytes, split: Callable[[bytes], Split | None]) -> Split | str:
    """Return key and extension of a member's name, or why it belongs to no sample."""
    base = name[name.rfind(b"/") + 1 :]
    if base.startswith(b"."):
        return HIDDEN
    if b"__" in name and (_METADATA.match(name) or _METADATA_NAME.match(base)):
        return METADATA
    return split(name) or (base if split is _split_basename else name, b"")


class SampleMember(NamedTuple):
    """One member of a sample."""

    row: int
    key: bytes
    extension: bytes


class Samples:
    """The members of a shard that belong to samples, and why others do not."""

    def __init__(
        self,
        index: MemberIndex,
        rule: KeyRule,
        require: tuple[Component, ...],
        wanted: Callable[[bytes], bool] | None = None,
    ) -> None:
        """Group the members of `index` that are `wanted`, without samples that lack a component."""
        self.skipped: Counter[str] = Counter()
        self._wanted = wanted
        self._parts = list(self._all_parts(index, SPLITS[rule]))
        if require:
            self._drop_incomplete(require)

    def __iter__(self) -> Iterator[SampleMember]:
        """Return the members in the order of the tar; those of one sample may lie apart."""
        return iter(self._parts)

    def _all_parts(
        self, index: MemberIndex, split: Callable[[bytes], Split | None]
    ) -> Iterator[SampleMember]:
        others = array("B", bytes(len(index)))
        for kind in (MemberKind.DIRECTORY, MemberKind.SYMLINK):
            for row in index.rows_of(kind):
                others[row] = kind
        for row in index.opened_tars():  # shown by their members, like shards
            others[row] = _OPENED
        for row, name in enumerate(index.names()):
            if others[row]:
                # A link is relative to its place in the tar, so it would be broken here.
                self.skipped[LINK] += others[row] == MemberKind.SYMLINK
                continue
            found = split_name(name, split)
            if isinstance(found, str):
                self.skipped[found] += 1
            elif self._wanted is not None and not self._wanted(name):
                self.skipped[EXCLUDED] += 1
            else:
                yield SampleMember(row, *found)

    def _drop_incomplete(self, require: tuple[Component, ...]) -> None:
        incomplete: set[bytes] = set()
        for component in require:
            finder = ComponentFinder(component)
            for row, key, extension in self._parts:
                finder.offer(key, row, extension)
            incomplete.update(key for key, row in finder if row < 0)
        self._parts = [part for part in self._parts if part.key not in incomplete]
        self.skipped[INCOMPLETE] += len(incomplete)


def count_samples(index: MemberIndex, rows: Iterable[int], rule: KeyRule) -> int:
    """Return to how many samples these members belong."""
    found = (split_name(index.name(row), SPLITS[rule]) for row in rows)
    return len({split[0] for split in found if not isinstance(split, str)})


def sample_key(name: bytes) -> bytes:
    """Return the part of a member's path that is common to its sample."""
    directory, slash, base = name.rpartition(b"/")
    return directory + slash + base.split(b".", 1)[0]


def sample_rows(index: MemberIndex, row: int) -> range:
    """Return the rows of the sample that contains `row`, as far as adjacent in the tar."""
    key = sample_key(index.name(row))
    first = last = row
    while first > max(0, row - PARTS_MAX) and sample_key(index.name(first - 1)) == key:
        first -= 1
    while last < min(len(index) - 1, row + PARTS_MAX) and sample_key(index.name(last + 1)) == key:
        last += 1
    return range(first, last + 1)


def sample_span(index: MemberIndex, row: int) -> ByteRange:
    """Return the stored bytes of the sample that contains `row`, including headers in between.

    If the sample is too large to be fetched for one member, this is the member alone.
    """
    rows = sample_rows(index, row)
    own = index.data_range(row)
    # A hardlink's data is that of its target, far from its neighbours.
    start = min(index.data_range(rows[0]).start, own.start)
    stop = max(index.data_range(rows[-1]).stop, own.stop)
    stop = min(stop, index.object_size)
    if stop - start > max(SPAN_MAX, len(own)):
        return ByteRange(own.start, min(own.stop, index.object_size))
    return ByteRange(start, stop)
