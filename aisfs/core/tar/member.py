"""What a header and the pax records before it say of one member, put together.

The scanner knows where the bytes are; this knows which records count and which has the last word.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aisfs.core.index.member_index import EXECUTABLE, SPARSE, MemberKind
from aisfs.core.tar.header import MAX_SIZE, Header, decimal, pax_time_ns
from aisfs.core.tar.sparse import SPARSE_KEYS, old_logical_size, pax_logical_size

OLD_SPARSE = b"S"
_COMMON_KEYS = (b"path", b"linkpath", b"mtime")
"""Records of global pax headers that count."""
OWN_KEYS = frozenset((*_COMMON_KEYS, b"size")) | SPARSE_KEYS
"""Records of a member's own pax headers that count."""

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
_DEVICES = (b"3", b"4", b"6")
_NO_PAYLOAD = (b"1", b"2", b"3", b"4", b"5", b"6")
"""Types without data, whatever their size field says."""


class Member(NamedTuple):
    """One member as the archive describes it."""

    name: bytes
    hidden: str
    """Why it cannot be shown; empty when it can."""
    flags: int
    """Kind and flags as the index keeps them."""
    size: int
    """As users see it."""
    stored: int
    """Bytes of data in the archive."""
    mtime_ns: int
    target: bytes | None
    """Of links."""

    @property
    def sparse(self) -> bool:
        """Whether the data is stored with its holes left out."""
        return bool(self.flags & SPARSE)


def set_common(common: dict[bytes, bytes], pairs: Iterable[tuple[bytes, bytes]]) -> None:
    """Take the records of one more global pax header; an empty value takes a record back."""
    for key, value in pairs:
        if key in _COMMON_KEYS:
            common.pop(key, None)
            if value:
                common[key] = value


def describe(
    header: Header, block: bytes, own: Mapping[bytes, bytes], common: Mapping[bytes, bytes]
) -> Member | None:
    """Put a member together; None when its size makes no sense.

    Args:
        header: its decoded header.
        block: the same, as stored.
        own: pax records and long names for this member.
        common: records of global pax headers.
    """
    name = own.get(b"path") or common.get(b"path") or header.name
    stored = decimal(own[b"size"]) if b"size" in own else header.size
    time = own.get(b"mtime") or common.get(b"mtime")
    kind = _KINDS.get(header.kind)
    if header.kind == b"\0" and name.endswith(b"/"):
        kind = MemberKind.DIRECTORY  # V7 has no type for them, and gives them no data
    if header.kind in _NO_PAYLOAD or (header.kind == b"\0" and kind == MemberKind.DIRECTORY):
        stored = 0
    size: int | None = stored
    flags = EXECUTABLE if header.executable else 0
    if kind == MemberKind.FILE:
        logical = old_logical_size(block) if header.kind == OLD_SPARSE else pax_logical_size(own)
        if logical is not None:
            name = own.get(b"GNU.sparse.name") or name
            size = logical
            flags |= SPARSE
    elif kind is not None:
        size = 0
        flags |= kind
    if size is None or not 0 <= size <= MAX_SIZE or stored is None or not 0 <= stored <= MAX_SIZE:
        return None
    hidden = ""
    if kind is None:
        hidden = "device" if header.kind in _DEVICES else "unknown type"
    return Member(
        name=name,
        hidden=hidden,
        flags=flags,
        size=size,
        stored=stored,
        mtime_ns=header.mtime_ns if time is None else pax_time_ns(time),
        target=(own.get(b"linkpath") or common.get(b"linkpath") or header.target)
        if kind in (MemberKind.HARDLINK, MemberKind.SYMLINK)
        else None,
    )
