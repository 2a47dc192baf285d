"""Which members belong together: those whose names share a sample key.

Three rules are in use (`config.KeyRule`). Where a rule finds no key, the whole name is one. What is
fetched together follows the rule of webdataset, whatever a user chose to see.
"""

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from aisfs.config import KeyRule
from aisfs.core.index.member_index import MemberIndex, MemberKind
from aisfs.core.views.spec import Component
from aisfs.model import ByteRange

SPAN_MAX = 4 << 20
"""Bytes of a sample fetched in one go; a larger one is left to read-ahead inside the member."""
PARTS_MAX = 64
"""Members looked at on either side; a shard whose names have no dots would be one endless sample."""

HIDDEN = "hidden"
METADATA = "metadata"
LINK = "link"
INCOMPLETE = "incomplete sample"

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
"""By rule: from a member's name to key and extension; None for a name that the rule skips."""


def split_name(name: bytes, split: Callable[[bytes], Split | None]) -> Split | str:
    """Split a member's name by one of `SPLITS`, or say why it belongs to no sample."""
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

    def __init__(self, index: MemberIndex, rule: KeyRule, require: tuple[Component, ...]) -> None:
        """Group the members of `index`, leaving out samples that lack a component."""
        self.skipped: Counter[str] = Counter()
        self._parts = list(self._all_parts(index, SPLITS[rule]))
        if require:
            self._drop_incomplete(require)

    def __iter__(self) -> Iterator[SampleMember]:
        """Yield the parts in the order of the tar; those of one sample may lie apart."""
        return iter(self._parts)

    def _all_parts(
        self, index: MemberIndex, split: Callable[[bytes], Split | None]
    ) -> Iterator[SampleMember]:
        others = array("B", bytes(len(index)))
        for kind in (MemberKind.DIRECTORY, MemberKind.SYMLINK):
            for row in index.rows_of(kind):
                others[row] = kind
        for row in index.opened_tars():  # shown by their members, as shards are
            others[row] = _OPENED
        for row, name in enumerate(index.names()):
            if others[row]:
                # A link says where its target is from where it was; it would lead nowhere now.
                self.skipped[LINK] += others[row] == MemberKind.SYMLINK
                continue
            found = split_name(name, split)
            if isinstance(found, str):
                self.skipped[found] += 1
            else:
                yield SampleMember(row, *found)

    def _drop_incomplete(self, require: tuple[Component, ...]) -> None:
        found: dict[bytes, int] = {}
        for _, key, extension in self._parts:
            has = sum(1 << at for at, c in enumerate(require) if c.rank(extension) is not None)
            found[key] = found.get(key, 0) | has
        whole = (1 << len(require)) - 1
        self._parts = [part for part in self._parts if found[part.key] == whole]
        self.skipped[INCOMPLETE] += sum(has != whole for has in found.values())


def sample_key(name: bytes) -> bytes:
    """Return the part of a member's path that its sample shares."""
    directory, slash, base = name.rpartition(b"/")
    return directory + slash + base.split(b".", 1)[0]


def sample_rows(index: MemberIndex, row: int) -> range:
    """Return the rows of the sample that `row` belongs to: neighbours in the tar."""
    key = sample_key(index.name(row))
    first = last = row
    while first > max(0, row - PARTS_MAX) and sample_key(index.name(first - 1)) == key:
        first -= 1
    while last < min(len(index) - 1, row + PARTS_MAX) and sample_key(index.name(last + 1)) == key:
        last += 1
    return range(first, last + 1)


def sample_span(index: MemberIndex, row: int) -> ByteRange:
    """Return the stored bytes of the sample that `row` belongs to, headers between members included.

    It is cut to the member alone where the sample is too large to be fetched for one of its parts.
    """
    rows = sample_rows(index, row)
    own = index.data_range(row)
    # A hardlink has its data where its target is, far from its neighbours.
    start = min(index.data_range(rows[0]).start, own.start)
    stop = max(index.data_range(rows[-1]).stop, own.stop)
    stop = min(stop, index.object_size)
    if stop - start > max(SPAN_MAX, len(own)):
        return member_span(index, row)
    return ByteRange(start, stop)


def member_span(index: MemberIndex, row: int) -> ByteRange:
    """Return the stored bytes of one member, as far as the shard has them."""
    own = index.data_range(row)
    return ByteRange(own.start, min(own.stop, index.object_size))
