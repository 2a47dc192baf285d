"""Combines a header and the pax records before it to the description of one member.

The scanner finds the bytes; this module decides which records count, and which take precedence.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from aisfs.core.index.member_index import EXECUTABLE, SPARSE, MemberKind
from aisfs.core.tar.header import MAX_SIZE, Header, decimal, pax_time_ns
from aisfs.core.tar.sparse import SPARSE_KEYS, is_sparse, old_logical_size, pax_logical_size

OLD_SPARSE = b"S"
_COMMON_KEYS = (b"path", b"linkpath", b"mtime")
"""The recognized records of global pax headers."""
OWN_KEYS = frozenset((*_COMMON_KEYS, b"size")) | SPARSE_KEYS
"""The recognized records of a member's own pax headers."""

_KINDS = {
    b"0": MemberKind.FILE,
    b"\0": MemberKind.FILE,
    b"7": MemberKind.FILE,  # contiguous
    OLD_SPARSE: MemberKind.FILE,
    b"1": MemberKind.HARDLINK,
    b"2": MemberKind.SYMLINK,
    b"5": MemberKind.DIRECTORY,
    b"D": MemberKind.DIRECTORY,  # GNU, with a list of names as payload
}
BAD_SPARSE = "an unknown or malformed sparse header"
_DEVICES = (b"3", b"4", b"6")
_NO_PAYLOAD = (b"1", b"2", b"3", b"4", b"5", b"6")
"""Types without data, even if their size field is not 0."""


class Member(NamedTuple):
    """One member as the archive describes it."""

    name: bytes
    hidden: str
    """Why it cannot be shown; empty when it can."""
    flags: int
    """Kind and flags as in the index."""
    size: int
    """The size users see."""
    stored: int
    """Bytes of data in the archive."""
    mtime_ns: int
    target: bytes | None
    """The target of a link."""

    @property
    def sparse(self) -> bool:
        """Whether the data is stored without its holes."""
        return bool(self.flags & SPARSE)


def sound_records(pairs: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return pax records without malformed times, which leave what other headers say, as in GNU tar."""
    return [
        (key, value)
        for key, value in pairs
        if key != b"mtime" or not value or pax_time_ns(value) is not None
    ]


def set_common(common: dict[bytes, bytes], pairs: Iterable[tuple[bytes, bytes]]) -> None:
    """Add the records of another global pax header; an empty value removes a record."""
    for key, value in pairs:
        if key in _COMMON_KEYS:
            common.pop(key, None)
            if value:
                common[key] = value


def describe(
    header: Header, block: bytes, own: Mapping[bytes, bytes], common: Mapping[bytes, bytes]
) -> Member | None:
    """Return the description of a member; None when its size is invalid.

    Args:
        header: its decoded header.
        block: the header as stored.
        own: pax records and long names for this member, without malformed times.
        common: records of global pax headers, likewise.
    """
    name = own.get(b"path") or common.get(b"path") or header.name
    stored = decimal(own[b"size"]) if b"size" in own else header.size
    said = own.get(b"mtime") or common.get(b"mtime")
    time = pax_time_ns(said) if said else None
    kind = _KINDS.get(header.kind)
    if header.kind == b"\0" and name.endswith(b"/"):
        kind = MemberKind.DIRECTORY  # V7 has no type for directories, and stores no data for them
    if header.kind in _NO_PAYLOAD or (header.kind == b"\0" and kind == MemberKind.DIRECTORY):
        stored = 0
    if stored is None or not 0 <= stored <= MAX_SIZE:
        return None
    size, hidden = stored, ""
    flags = EXECUTABLE if header.executable else 0
    if kind == MemberKind.FILE:
        old = header.kind == OLD_SPARSE
        if old or is_sparse(own):
            logical = old_logical_size(block) if old else pax_logical_size(own)
            name = own.get(b"GNU.sparse.name") or name
            flags |= SPARSE
            if logical is None:
                hidden = BAD_SPARSE
            else:
                size = logical
    elif kind is not None:
        size = 0
        flags |= kind
    else:
        hidden = "device" if header.kind in _DEVICES else "unknown type"
    return Member(
        name=name,
        hidden=hidden,
        flags=flags,
        size=size,
        stored=stored,
        mtime_ns=header.mtime_ns if time is None else time,
        target=(own.get(b"linkpath") or common.get(b"linkpath") or header.target)
        if kind in (MemberKind.HARDLINK, MemberKind.SYMLINK)
        else None,
    )
