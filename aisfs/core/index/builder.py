"""Collects rows of a member index in bulk as scanners find them; `build` resolves the links."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from types import MappingProxyType

from aisfs.core.archive.formats import Form
from aisfs.core.index.columns import KIND_BITS, OPENED, MemberColumns
from aisfs.core.index.links import SYMLINK
from aisfs.core.index.member_index import MAX_ROWS, SPARSE, TRUNCATED, MemberIndex, MemberKind
from aisfs.core.index.nested_tars import NestedTars
from aisfs.core.index.paths import HiddenName, all_tidy, normalise
from aisfs.core.index.zip_columns import Packing

MAX_NAMES = 2**32 - 2**24
"""Most bytes of names in one shard: what the column of their ends can hold, less one batch of rows."""

MAX_WARNINGS = 20
MAX_REASONS = 64
"""Why members are not shown. A hostile shard must not fill memory or terminals: a zip may have 65,536 methods."""
_OTHERS = "other reasons"


class MemberIndexBuilder:
    """Collects rows in the order of the tar, then builds the index once."""

    def __init__(self, object_size: int) -> None:
        self._object_size = object_size
        self._columns = MemberColumns()
        self._links: dict[int, bytes] = {}
        """Link rows with the target as stored."""
        self._skipped: dict[str, int] = {}
        self._warnings: list[str] = []
        self._inner = NestedTars()

    def __len__(self) -> int:
        return len(self._columns.ends)

    @property
    def full(self) -> bool:
        """Whether no more rows can be added."""
        return len(self._columns.names) > MAX_NAMES or len(self._columns.ends) > MAX_ROWS

    def warn(self, message: str) -> None:
        """Add a warning about the shard."""
        if len(self._warnings) < MAX_WARNINGS:
            self._warnings.append(self._inner.where + message)

    def skip(self, reason: str) -> None:
        """Count a member that is not shown, by reason."""
        if reason not in self._skipped and len(self._skipped) >= MAX_REASONS:
            reason = _OTHERS
        self._skipped[reason] = self._skipped.get(reason, 0) + 1

    def extend(
        self,
        names: list[bytes],
        offsets: Sequence[int],
        leads: Sequence[int],
        sizes: Sequence[int],
        mtimes: Sequence[int],
        flags: bytes | bytearray,
    ) -> None:
        """Add regular files as a scanner found them; parallel columns of one length."""
        if not all_tidy(names):
            # Every name begins so after `tar cf x.tar .`
            plain = [name[2:] if name.startswith(b"./") else name for name in names]
            if not all_tidy(plain):
                for row in zip(names, offsets, leads, sizes, mtimes, flags, strict=True):
                    self.add(*row)
                return
            names = plain
        if self._inner.prefix:  # tidy names never become too long by it
            names = [self._inner.prefix + name for name in names]
        columns = self._columns
        start = len(columns.names)
        columns.names += b"".join(names)
        ends = accumulate(map(len, names), initial=start)
        next(ends)
        columns.ends.extend(ends)
        columns.offsets.extend(offsets)
        columns.leads.extend(leads)
        columns.sizes.extend(sizes)
        columns.mtimes.extend(mtimes)
        columns.flags += flags

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
        """Add one member of any kind, or count why it is not shown; return whether it is a row.

        Args:
            name: as stored.
            offset: where the data starts.
            lead: header blocks before it.
            size: as users see it.
            mtime_ns: nanoseconds since the epoch.
            flags: kind and the flags of this module.
            target: of a link, as stored.
            stored_stop: of a sparse member, where its stored form ends.
        """
        kind = flags & KIND_BITS
        # In old tars only a final slash marks a directory.
        if kind == MemberKind.FILE and size == 0 and name.endswith(b"/"):
            kind = MemberKind.DIRECTORY
            flags |= kind
        try:
            path = normalise(name)
            if not path and kind != MemberKind.DIRECTORY:
                raise HiddenName("bad name")
            if not path and self._inner.prefix:
                return False  # the folder exists already
            path = self._inner.place(path)
        except HiddenName as reason:
            self.skip(str(reason))
            return False
        columns = self._columns
        row = len(columns.ends)
        if target is not None:
            self._links[row] = target
        if stored_stop is not None:
            columns.stored_stops[row] = stored_stop
        columns.append(path, offset, lead, size, mtime_ns, flags)
        return True

    @property
    def last_opens(self) -> bool:
        """Whether the last row is a file to open as a tar if its content is one."""
        columns = self._columns
        row = len(columns.ends) - 1
        ordinary = not columns.flags[row] & (KIND_BITS | SPARSE)
        return ordinary and NestedTars.opens(columns.name(row))

    def open_tar(self) -> None:
        """Treat all rows until `close_tar` as members of the tar in the last row."""
        columns = self._columns
        row = len(columns.ends) - 1
        columns.flags[row] |= OPENED  # type: ignore[index]
        folder = self._inner.begin(row, columns.name(row))
        kind = MemberKind.DIRECTORY | OPENED
        columns.append(folder, columns.offsets[row], 0, 0, columns.mtimes[row], kind)

    def close_tar(self) -> None:
        """End the tar that was opened last."""
        self._inner.end(len(self))

    def contents_of(self, suffix: bytes, first: int, size_max: int) -> Iterator[tuple[int, int]]:
        """Yield offset and size of the files from row `first` on whose names end in `suffix`.

        Case is ignored. Empty, truncated and sparse files, and those larger than `size_max`, are left
        out.
        """
        columns = self._columns
        start = columns.ends[first - 1] if first else 0
        for row in range(first, len(columns.ends)):
            stop = columns.ends[row]
            if (
                columns.names[start:stop].lower().endswith(suffix)
                and not columns.flags[row] & (KIND_BITS | SPARSE | TRUNCATED)
                and 0 < columns.sizes[row] <= size_max
            ):
                yield columns.offsets[row], columns.sizes[row]
            start = stop

    def cut(self, size: int) -> tuple[bytes, int] | None:
        """Set the object's real size, which turned out smaller than announced.

        Returns:
            The name of the truncated member and where its data would end, if there is one.
        """
        self._object_size = size
        columns = self._columns
        found = None
        for row in (*self._inner.rows, *range(len(columns.ends))[-1:]):
            stop = columns.stored_stops.get(row, columns.offsets[row] + columns.sizes[row])
            if stop > size and columns.flags[row] & KIND_BITS == MemberKind.FILE:
                columns.flags[row] |= TRUNCATED  # type: ignore[index]
                found = columns.name(row), stop
        return found

    def build(self, *, form: Form = Form.TAR, packing: Packing | None = None) -> MemberIndex:
        """Resolve the links and return the index. The builder is spent.

        Args:
            form: what the rows were found in.
            packing: of a zip, for exactly these rows; it has no links.
        """
        keep = self._settle() if self._links or self._inner else None
        return MemberIndex(
            self._columns.packed(keep),
            self._object_size,
            tuple(self._warnings),
            MappingProxyType(dict(self._skipped)),
            form=form,
            packing=packing,
        )

    def _settle(self) -> list[bool] | None:
        """Resolve every opened tar and every link; return which rows to keep, None for all."""
        columns = self._columns
        names = columns.all_names()
        lost = self._inner.settle(names)
        for row in lost.tars:
            columns.flags[row] &= ~OPENED  # type: ignore[index]
        for why, count in lost.why.items():
            self._skipped[why] = self._skipped.get(why, 0) + count
        gone = lost.rows
        kinds = bytes(flags & KIND_BITS for flags in columns.flags)
        said = {row: target for row, target in self._links.items() if row not in gone}
        links = self._inner.resolve_links(names, kinds, said)
        for row, content in links.contents.items():
            columns.share_content(row, content)
        for row, target in links.targets.items():
            columns.targets[row] = target
            columns.sizes[row] = len(target)
            columns.flags[row] = columns.flags[row] & ~KIND_BITS | SYMLINK  # type: ignore[index]
        for _ in links.refused:
            self.skip("bad link")
        gone |= links.refused
        return [row not in gone for row in range(len(kinds))] if gone else None
