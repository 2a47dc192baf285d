"""A shard on the local disk: it gets more members there, and is uploaded whole.

    | members as they were | headers, content, padding of each new one | two blocks of zeros |

What was there stays byte for byte up to the zeros that ended it. Nothing is added to a tar that cannot
be read to its end, since what lies behind the damage would be lost.

All of it is for one worker thread at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from aisfs.core.archive.tar import BLOCK, padded
from aisfs.core.archive.tar_scanner import TarScanner
from aisfs.core.index.member_index import MemberIndex, MemberKind
from aisfs.core.views.shuffled_tar import member_header
from aisfs.engine.read.shard_scanner import scan_local
from aisfs.engine.write.staging import StagedFile
from aisfs.errors import AisfsError, ShardDamaged, Unsupported
from aisfs.stores.port import BytesContent, Content, FileContent, pieces_of

END_MARK = bytes(2 * BLOCK)
"""What ends a tar. Padding to a whole record, as tar writes for tapes, is not needed."""
_LOOK = 256 << 10
"""Bytes read at once: some hundred small members, or little more than the header of a large one."""
_SECOND = 1_000_000_000
_FILE_MODE, _DIRECTORY_MODE = 0o644, 0o755


@dataclass(frozen=True, slots=True)
class NewMember:
    """What is to be in a shard."""

    path: str
    content: Content | None
    """None for a directory."""
    mode: int | None
    """Permissions; None for the usual ones."""
    mtime_ns: int
    replaces: bool = False
    """Whether it takes the place of what the shard has under this path: an earlier state of it."""

    def header(self) -> bytes:
        """Return its header blocks."""
        directory = self.content is None
        usual = _DIRECTORY_MODE if directory else _FILE_MODE
        return member_header(
            self.path,
            0 if self.content is None else self.content.size,
            mode=usual if self.mode is None else self.mode,
            mtime=self.mtime_ns // _SECOND,
            directory=directory,
        )


@dataclass(slots=True)
class Growth:
    """What became of new members."""

    errors: list[AisfsError | None]
    """For each member why it was not added."""
    changed: bool = False
    """Whether the shard is another than before; not if it had them already."""
    replaced: int | None = None
    """The row, the last one by then, that a member took."""
    in_place: bool = True
    """Whether all other rows are what they were."""


class ShardCopy:
    """The content of one version of a shard."""

    def __init__(self, staged: StagedFile, subject: str, *, ignore_zeros: bool = False) -> None:
        """Use `staged`, which has the whole content, and find its end.

        Args:
            staged: The content; stays the caller's to discard.
            subject: What messages call the shard.
            ignore_zeros: Go on behind zeros, in archives that were joined.

        Raises:
            ShardDamaged: it is no tar, or not all of one.
            Unsupported: there is something behind its end, which would be lost.
        """
        self.staged = staged
        self._subject = subject
        self._ignore_zeros = ignore_zeros
        self.index, self._end = self._scan()
        self._check_behind()

    def content(self) -> FileContent:
        """Return the bytes as they are to be uploaded."""
        return self.staged.content()

    def add(self, members: Sequence[NewMember]) -> Growth:
        """Add members, each one wholly or not at all.

        Raises:
            OutOfSpace: the zeros at the end do not fit. After any error the copy is of no more use.
        """
        before = self.index
        growth = Growth([])
        rows = _rows(before)
        for member in members:
            behind = self._end
            try:
                row = rows.get(member.path.encode(errors="surrogateescape"))
                if row is not None and self._is(row, member):
                    growth.errors.append(None)
                    continue
                self._append(member)
            except AisfsError as error:
                growth.errors.append(error)
                continue
            growth.errors.append(None)
            growth.changed = True
            if row is not None and member.replaces:
                # Not before: the store may have the earlier state only, and the later one did not fit.
                last = self._drop(row, behind)
                growth.replaced = row if last else None
                growth.in_place &= last
                rows = _rows(self.index)
        self.staged.truncate(self._end)
        self.staged.write(self._end, END_MARK)
        self.index, self._end = self._scan()
        growth.in_place &= _extends(self.index, before, growth.replaced)
        return growth

    # parts of these --------------------------------------------------------------------------

    def _scan(self) -> tuple[MemberIndex, int]:
        """Find the members, and where the next one goes."""
        scanner = TarScanner(self.staged.size, ignore_zeros=self._ignore_zeros)
        scan_local(scanner, self.staged.size, self.staged.read)
        index = scanner.finish()
        if index.warnings:
            raise ShardDamaged(f"{self._subject}: nothing can be added: {index.warnings[0]}")
        return index, scanner.end

    def _check_behind(self) -> None:
        for start in range(self._end, self.staged.size, _LOOK):
            piece = self.staged.read(start, _LOOK)
            if piece.count(0) < len(piece):
                raise Unsupported(
                    f"{self._subject}: nothing can be added: other bytes follow the end of the tar"
                )

    def _append(self, member: NewMember) -> None:
        """Add a member behind the last one; after an error what was written of it does not count."""
        header = member.header()
        size = 0 if member.content is None else member.content.size
        following = self._end + len(header) + padded(size)
        self.staged.truncate(self._end)  # whatever is there is no padding
        self.staged.truncate(following)
        at = self._end
        for content in (BytesContent(header), member.content or BytesContent(b"")):
            for piece in pieces_of(content):
                self.staged.write(at, piece)
                at += len(piece)
        self._end = following

    def _is(self, row: int, member: NewMember) -> bool:
        """Return whether a member is there already: an earlier attempt may have got so far."""
        index, content = self.index, member.content
        if content is None or not index.plain(row) or index.size(row) != content.size:
            return False
        header = member.header()
        if member.replaces and self.staged.read(index.span(row).start, len(header)) != header:
            return False  # its mode or time is another one now
        at = index.data_range(row).start
        for piece in pieces_of(content):
            if self.staged.read(at, len(piece)) != piece:
                return False
            at += len(piece)
        return True

    def _drop(self, row: int, behind: int) -> bool:
        """Remove a member; return whether it was the last one of those that end at `behind`."""
        span = self.index.span(row)
        to, start = span.start, span.start + padded(span.stop - span.start)
        last = start >= behind
        while start < self._end:
            piece = self.staged.read(start, min(_LOOK, self._end - start))
            self.staged.write(to, piece)
            start, to = start + len(piece), to + len(piece)
        self.staged.truncate(to)
        self.index, self._end = self._scan()
        return last


def _rows(index: MemberIndex) -> dict[bytes, int]:
    """Return the last member of each path, other than directories."""
    return {
        name: row
        for row, name in enumerate(index.names())
        if index.kind(row) is not MemberKind.DIRECTORY
    }


def _extends(new: MemberIndex, old: MemberIndex, replaced: int | None) -> bool:
    """Return whether an index begins with all rows of another one, but for `replaced`, its last."""
    one, two = old.columns, new.columns
    rows = len(old) if replaced is None else replaced
    named = one.ends[len(old) - 1] if len(old) else 0
    return (
        len(new) >= len(old)
        and two.ends[: len(old)] == one.ends
        and two.names[:named] == one.names[:named]
        and two.offsets[:rows] == one.offsets[:rows]
        and two.sizes[:rows] == one.sizes[:rows]
        and two.flags[:rows] == one.flags[:rows]
    )
