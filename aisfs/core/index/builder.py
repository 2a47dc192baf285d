"""Builds a member index: collects rows in bulk as scanners find them, then resolves the links.

It also decides which rows are members of tars inside a tar, and which tars get a folder for them. A member named like a tar is
opened: the members of `a.tar` are rows `a.tar.d/…`, right after the row of `a.tar` and the row of their folder. Invariants:
- names of an opened tar cannot climb out of its folder, and its links lead to its own members;
- a member that has the name of a folder, or lies below it, wins: then the tar is only a file;
- of several members with one name only the last is opened, because only that one is shown;
- a path is longer than in its own tar by at most the length of a header.
"""

from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType

from aisfs.core.index.columns import (
    KIND_BITS,
    MAX_COMPONENT,
    MAX_DEPTH,
    MAX_PATH,
    OPENED,
    SYMLINK,
    HiddenName,
    Links,
    MemberColumns,
    all_tidy,
    normalise,
    resolve_links,
)
from aisfs.core.index.member_index import MAX_ROWS, SPARSE, TRUNCATED, MemberIndex, MemberKind
from aisfs.core.index.zip_columns import Packing
from aisfs.core.names.listing import SHARD_DIRECTORY_SUFFIX, Form, is_plain_tar

MAX_NESTING = 8
"""How deep tars may be nested; a deeper tar is a file. Each level reads the bytes once more, and
more than two levels were never seen."""
MAX_FOLDER = 512
"""Most bytes of an opened tar's folder. It is in the name of each member, and a member takes 512 bytes
of the shard, so a small shard cannot fill memory with long names."""
_SHOWN_NAME = 200


@dataclass(slots=True)
class _Inner:
    """An opened tar."""

    row: int
    folder: bytes
    """The path of its folder."""
    stop: int = 0
    """The row after its last one."""

    @property
    def rows(self) -> range:
        """The folder and everything in the tar, including nested tars."""
        return range(self.row + 1, self.stop)


@dataclass(frozen=True, slots=True)
class Lost:
    """Tars that get no folder."""

    tars: list[int]
    """Their rows, which are kept."""
    rows: set[int]
    """The rows of their folders and members, which are dropped."""
    why: Counter[str]
    """How many members were dropped for each reason."""


class NestedTars:
    """The tars inside one shard, in the order they were opened."""

    def __init__(self) -> None:
        self._all: list[_Inner] = []
        self._open: list[_Inner] = []
        """The tars whose members are being added, each inside the previous one."""
        self.prefix = b""
        """The prefix of the names of the next members."""

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def rows(self) -> list[int]:
        """The rows of the tars themselves."""
        return [tar.row for tar in self._all]

    @property
    def where(self) -> str:
        """The prefix of a warning that names the current tar."""
        if not self._open:
            return ""
        path = self._open[-1].folder.removesuffix(SHARD_DIRECTORY_SUFFIX)
        return f"in {path[:_SHOWN_NAME].decode(errors='backslashreplace')!r}: "

    @staticmethod
    def is_about(warning: str) -> bool:
        """Return whether a warning concerns a tar in the shard, and not the shard itself."""
        return warning.startswith(("in '", 'in "'))

    @staticmethod
    def opens(path: bytes) -> bool:
        """Return whether a file is opened as a tar if its content is one."""
        name = path[path.rfind(b"/") + 1 :]
        return (
            is_plain_tar(name)
            and len(name) + len(SHARD_DIRECTORY_SUFFIX) <= MAX_COMPONENT
            and len(path) + len(SHARD_DIRECTORY_SUFFIX) <= MAX_FOLDER
            and path.count(b"/") < MAX_DEPTH // 2  # leaves as much depth for its members
        )

    def begin(self, row: int, path: bytes) -> bytes:
        """Treat the next rows as members of the tar in `row`; return the path of their folder."""
        tar = _Inner(row, path + SHARD_DIRECTORY_SUFFIX)
        self._all.append(tar)
        self._open.append(tar)
        self.prefix = tar.folder + b"/"
        return tar.folder

    def end(self, stop: int) -> None:
        """End the tar begun last; row `stop` is the first after it."""
        self._open.pop().stop = stop
        self.prefix = self._open[-1].folder + b"/" if self._open else b""

    def place(self, path: bytes) -> bytes:
        """Return where a member of the current tar goes in the shard.

        Raises:
            HiddenName: too deep or too long.
        """
        if not self.prefix:
            return path
        placed = self.prefix + path
        if placed.count(b"/") >= MAX_DEPTH:
            raise HiddenName("too deep")
        if len(placed) > MAX_PATH:
            raise HiddenName("name too long")
        return placed

    # when all rows are there -------------------------------------------------------------------

    def settle(self, names: list[bytes]) -> Lost:
        """Return the tars that get no folder. Call this once, before `resolve_links`."""
        lost = Lost([], set(), Counter())
        clashing = self._clashing(names)
        self._lose([tar for tar in self._all if tar.folder in clashing], "clash", lost)
        last = dict.fromkeys((names[tar.row] for tar in self._all), -1)
        for row, name in enumerate(names):
            if name in last and row not in lost.rows:
                last[name] = row
        hidden = [tar for tar in self._all if last[names[tar.row]] != tar.row]
        self._lose(hidden, "duplicate", lost)
        return lost

    def _clashing(self, names: list[bytes]) -> set[bytes]:
        """Return the folders whose names the enclosing tars use for something else."""
        folders = {tar.folder for tar in self._all}
        found = set()
        suffix = SHARD_DIRECTORY_SUFFIX
        for name, owner in zip(names, self._owners(len(names)), strict=True):
            at = len(self._all[owner - 1].folder) + 1 if owner else 0
            while (at := name.find(suffix, at)) >= 0:
                at += len(suffix)
                if name[:at] in folders and name[at : at + 1] in (b"/", b""):
                    found.add(name[:at])
        return found

    def _lose(self, tars: list[_Inner], why: str, lost: Lost) -> None:
        folders = {tar.row + 1 for tar in self._all}
        for tar in tars:
            members = len(set(tar.rows) - lost.rows - folders)
            if members:
                lost.why[why] += members
            lost.tars.append(tar.row)
            lost.rows.update(tar.rows)

    def resolve_links(self, names: list[bytes], kinds: bytes, links: Mapping[int, bytes]) -> Links:
        """Resolve the links as `links` does, those of each tar among its own members."""
        if not self._all:
            return resolve_links(names, kinds, links)
        owners = self._owners(len(names))
        by_owner: defaultdict[int, dict[int, bytes]] = defaultdict(dict)
        for row, target in links.items():
            by_owner[owners[row]][row] = target
        found = Links({}, {}, set())
        for owner, own in by_owner.items():
            tar = self._all[owner - 1] if owner else None
            cut = len(tar.folder) + 1 if tar is not None else 0
            within = tar.rows if tar is not None else range(len(names))
            rows = [row for row in within if owners[row] == owner]
            local = resolve_links(
                [names[row][cut:] for row in rows],
                bytes(kinds[row] for row in rows),
                {bisect_left(rows, row): target for row, target in own.items()},
            )
            found.contents.update((rows[at], rows[to]) for at, to in local.contents.items())
            found.targets.update((rows[at], said) for at, said in local.targets.items())
            found.refused.update(rows[at] for at in local.refused)
        return found

    def _owners(self, rows: int) -> "array[int]":
        """Return for each row the tar that contains it, counted from 1; 0 for the shard."""
        owners = array("I", bytes(4 * rows))
        for number, tar in enumerate(self._all, start=1):
            owners[tar.row + 1 : tar.stop] = array("I", [number]) * len(tar.rows)
        return owners


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
