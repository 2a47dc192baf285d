"""The members of a tar that goes by from its first byte to its last: each when its header was found.

Memory is that of the members found in one piece, however many the tar has. Links are left as they are
stored, since what they lead to is gone.
"""

from collections.abc import Sequence
from typing import NamedTuple

from aisfs.core.index.builder import MemberIndexBuilder
from aisfs.core.index.columns import KIND_BITS
from aisfs.core.index.member_index import SPARSE, TRUNCATED, MemberKind
from aisfs.core.tar.header import BLOCK, number
from aisfs.core.tar.scanner import TarScanner

_USUAL_MODE = 0o644


class StreamedMember(NamedTuple):
    """One member."""

    name: bytes
    """As stored."""
    kind: MemberKind
    offset: int
    """Where its data starts."""
    stop: int
    """Where its stored form ends."""
    size: int
    """The size users see: another one than that of the stored form if it is sparse."""
    lead: int
    """Header blocks before the data."""
    mtime_ns: int
    mode: int
    sparse: bool
    truncated: bool


class _Found(MemberIndexBuilder):
    """Takes the rows of a scanner and gives them away."""

    def __init__(self, object_size: int) -> None:
        super().__init__(object_size)
        self.members: list[StreamedMember] = []
        self.left_out: dict[str, int] = {}
        """Members of kinds that are no files, directories or links, by what they are."""
        self.warnings: list[str] = []

    @property
    def full(self) -> bool:
        return False

    def warn(self, message: str) -> None:
        super().warn(message)
        self.warnings = self._warnings

    def skip(self, reason: str) -> None:
        self.left_out[reason] = self.left_out.get(reason, 0) + 1

    def extend(
        self,
        names: list[bytes],
        offsets: Sequence[int],
        leads: Sequence[int],
        sizes: Sequence[int],
        mtimes: Sequence[int],
        flags: bytes | bytearray,
    ) -> None:
        for row in zip(names, offsets, leads, sizes, mtimes, flags, strict=True):
            self.add(*row)

    def add(
        self,
        name: bytes,
        offset: int,
        lead: int,
        size: int,
        mtime_ns: int,
        flags: int,
        *,
        target: bytes | None = None,
        stored_stop: int | None = None,
    ) -> bool:
        kind = MemberKind(flags & KIND_BITS)
        if kind is MemberKind.FILE and not size and name.endswith(b"/"):
            kind = MemberKind.DIRECTORY
        stop = offset + size if stored_stop is None else stored_stop
        self.members.append(
            StreamedMember(name, kind, offset, stop, size, lead, mtime_ns, _USUAL_MODE,
                           bool(flags & SPARSE), bool(flags & TRUNCATED))
        )  # fmt: skip
        return True


class MemberStream:
    """Feed it all bytes of a tar, in order."""

    def __init__(self, size: int) -> None:
        """Begin with a tar of so many bytes."""
        self._found = _Found(size)
        self._scanner = TarScanner(size, rows=self._found)
        self._at = 0
        self._last = b""
        """The end of what went by, where the header may begin that ends in the next piece."""

    def feed(self, piece: bytes | bytearray | memoryview) -> list[StreamedMember]:
        """Take the next bytes; return the members whose headers end in them, in order."""
        start, tail = self._at - len(self._last), self._last
        self._scanner.feed(memoryview(piece))
        self._at += len(piece)
        self._last = (tail + bytes(piece[-BLOCK:]))[-BLOCK:]
        found, self._found.members = self._found.members, []
        whole = memoryview(piece)

        def mode_of(member: StreamedMember) -> StreamedMember:
            at = member.offset - BLOCK - start
            field = (
                (tail + bytes(whole[:BLOCK]))[at:] if at < len(tail) else whole[at - len(tail) :]
            )
            mode = number(bytes(field[100:108])) if not member.sparse else None
            return member if mode is None else member._replace(mode=mode & 0o7777)

        return [mode_of(member) for member in found]

    def finish(self) -> None:
        """End: all bytes were fed."""
        self._scanner.finish()

    @property
    def end(self) -> int:
        """Where the zeros that end the tar are, or where it is damaged."""
        return self._scanner.end

    @property
    def ended(self) -> bool:
        """Whether no member comes any more; the data of the last one may."""
        return self._scanner.done or self._scanner.end_mark is not None

    @property
    def damaged(self) -> bool:
        """Whether members that come would not be found."""
        return self._scanner.done and self._scanner.end_mark is None

    @property
    def warnings(self) -> list[str]:
        """What is wrong with it, as far as is known."""
        return self._found.warnings

    @property
    def left_out(self) -> dict[str, int]:
        """Members that are no files, directories or links: what they are, and how many."""
        return self._found.left_out
