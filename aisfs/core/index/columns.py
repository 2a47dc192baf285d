"""The columns of a member index, and the rules for names and links that decide which rows there are.

A path of a member is relative and has no empty, `.` or `..` component and no NUL; it has at most 128 components of at most 255
bytes, and at most 4096 bytes. A name that climbs above the shard's root has no path: clamping it to the root could give two
different files one name.

A link is shown only if it stays inside the shard and leads somewhere. Datasets are walked with `followlinks=True` (torchvision,
timm, fastai), so a link to a parent makes the walk endless, and a link to `/etc/passwd` puts a file of the host into the
training data. Hence:
- a hardlink is its target: the last earlier member of that name, never itself;
- a symlink is relative and leads, perhaps through others, to a member or directory of the same shard;
- symlinks to directories never form a cycle, not even through the directories' own children.
The limits below bound the work for hostile shards.
"""

import re
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import accumulate, chain, compress
from operator import itemgetter
from typing import NamedTuple

from aisfs.core.index.zip_columns import progression

MAX_COMPONENT = 255
MAX_PATH = 4096
MAX_DEPTH = 128
"""Most components of a path. Each can need a directory, and 4096 bytes could name 2048 of them."""

_KEPT = 200
_HASH_DIGITS = 8
_UNTIDY = re.compile(rb"(?:\A|/)\.{0,2}(?:/|\Z)|\x00")
"""What `normalise` changes or refuses: empty, `.` and `..` components, and NUL."""


class HiddenName(Exception):
    """The name has no path; the text is the reason it is counted under."""


def all_tidy(names: list[bytes]) -> bool:
    """Return whether `normalise` would return every one of these names, none with a NUL, unchanged.

    Searching the joined names takes a fraction of the time of checking them one by one. False may
    be wrong (for a name such as `.hidden`), True never is.
    """
    blob = b"\0%b\0" % b"\0".join(names)
    if b"/" in blob:
        blob = blob.replace(b"/", b"\0")
    if b"\0\0" in blob or b"\0." in blob:
        return False
    return max(map(len, names), default=0) <= MAX_DEPTH


def normalise(name: bytes) -> bytes:
    """Return the path inside the shard; empty for the root itself.

    Raises:
        HiddenName: there is none.
    """
    if len(name) <= MAX_DEPTH and not _UNTIDY.search(name):  # too short to break any limit
        return name
    if b"\0" in name:
        raise HiddenName("bad name")
    parts: list[bytes] = []
    for part in name.split(b"/"):
        if part == b"..":
            if not parts:
                raise HiddenName("climbs")
            parts.pop()
        elif part and part != b".":
            parts.append(part)
    if len(parts) > MAX_DEPTH:
        raise HiddenName("too deep")
    path = b"/".join(map(_shortened, parts))
    if len(path) > MAX_PATH:
        raise HiddenName("name too long")
    return path


def _shortened(component: bytes) -> bytes:
    """Return a component of at most 255 bytes, with its extension and a hash that keeps it unique."""
    if len(component) <= MAX_COMPONENT:
        return component
    digest = sha256(component).hexdigest()[:_HASH_DIGITS].encode()
    room = MAX_COMPONENT - _KEPT - len(digest) - 1
    # The extension of a sample starts at the first dot; if that is too long, use the last one.
    for dot in (component.find(b"."), component.rfind(b".")):
        if dot > 0 and len(component) - dot <= room:
            return component[:_KEPT] + b"~" + digest + component[dot:]
    return component[:_KEPT] + b"~" + digest


DIRECTORY = 1
SYMLINK = 2
HARDLINK = 3

_MAX_HOPS = 40  # as many symlinks as Linux follows in one path
_MAX_STEPS = 4096  # components walked for one link: 40 targets of 100 components
_MAX_TARGET = 4095  # PATH_MAX without its NUL: readlink() cannot return more
_MAX_DIRECTORY_LINKS = 128  # the search for cycles can cost the cube of their number
_MAX_ALL_STEPS = 1_000_000  # components walked for all links in one round: half a second
_MAX_ROUNDS = 8  # of dropping links that hang on dropped ones


class Links(NamedTuple):
    """The result for all link rows."""

    contents: dict[int, int]
    """Hardlink row to the row of its content, never itself a hardlink."""
    targets: dict[int, bytes]
    """Symlink rows, and hardlinks to symlinks, to their targets."""
    refused: set[int]


def resolve_links(names: list[bytes], kinds: bytes, links: Mapping[int, bytes]) -> Links:
    """Return which link rows are shown, and what they lead to.

    Args:
        names: the paths of all rows.
        kinds: their kinds.
        links: link rows and their targets as stored.
    """
    found = Links({}, {}, set())
    latest: dict[bytes, int] = {}
    for row, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        if kind == HARDLINK and not _take_hardlink(row, name, kinds, links[row], latest, found):
            found.refused.add(row)
            continue
        if kind == SYMLINK:
            found.targets[row] = links[row]
        latest[name] = row
    if found.targets:
        _Symlinks(names, kinds, found, latest).refuse_bad()
    return found


def _take_hardlink(
    row: int, name: bytes, kinds: bytes, said: bytes, latest: dict[bytes, int], found: Links
) -> bool:
    try:
        target = normalise(said)
    except HiddenName:
        return False
    content = latest.get(target)
    if content is None or target == name or kinds[content] == DIRECTORY:
        return False
    if content in found.targets:  # a second name of a symlink is a symlink with the same target
        found.targets[row] = found.targets[content]
    else:
        found.contents[row] = found.contents.get(content, content)
    return True


class _End(NamedTuple):
    path: bytes
    is_directory: bool


class _Directories:
    """All directories, by parent and component, so that long paths cost no more than short ones."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, bytes], int] = {}
        self._known: set[bytes] = {b""}

    def add(self, path: bytes) -> None:
        if path in self._known:
            return
        self._known.add(path)
        number = 0
        for part in path.split(b"/"):
            number = self._numbers.setdefault((number, part), len(self._numbers) + 1)

    def walk(self, path: bytes) -> "_Place | None":
        place = _Place(self._numbers)
        parts = path.split(b"/") if path else []
        return place if all(map(place.down, parts)) else None


class _Place:
    """The current place of a walk through the directories."""

    def __init__(self, numbers: Mapping[tuple[int, bytes], int]) -> None:
        self._numbers = numbers
        self._stack = [0]
        self._parts: list[bytes] = []

    def down(self, part: bytes) -> bool:
        number = self._numbers.get((self._stack[-1], part))
        if number is None:
            return False
        self._stack.append(number)
        self._parts.append(part)
        return True

    def up(self) -> bool:
        if not self._parts:
            return False
        self._stack.pop()
        self._parts.pop()
        return True

    def path(self, *more: bytes) -> bytes:
        return b"/".join([*self._parts, *more])


class _Symlinks:
    """Follows symlinks through the names that are shown."""

    def __init__(
        self, names: list[bytes], kinds: bytes, found: Links, latest: dict[bytes, int]
    ) -> None:
        self._names = names
        self._found = found
        self._latest = latest
        self._solid = [
            name if kind == DIRECTORY else _folder(name)
            for row, (name, kind) in enumerate(zip(names, kinds, strict=True))
            if row not in found.targets and row not in found.refused
        ]
        self._directories = _Directories()
        self._steps_left = 0

    def refuse_bad(self) -> None:
        """Refuse links until every remaining symlink leads somewhere and none is part of a cycle."""
        for _ in range(_MAX_ROUNDS):
            self._refuse_dangling()
            circles = self._going_round()
            if not circles:
                return
            self._refuse(circles)  # others may have led through these
        self._refuse(list(self._found.targets))

    def _refuse_dangling(self) -> None:
        targets = self._found.targets
        for _ in range(_MAX_ROUNDS):
            self._steps_left = _MAX_ALL_STEPS
            # A directory may exist only because a link lies in it.
            self._directories = _Directories()
            for path in self._solid:
                self._directories.add(path)
            for row in targets:
                self._directories.add(_folder(self._names[row]))
            bad = [row for row in targets if self._follow(row) is None]
            if not bad:
                break
            self._refuse(bad)
        else:
            self._refuse(list(targets))

    def _refuse(self, rows: Iterable[int]) -> None:
        for row in rows:
            del self._found.targets[row]
            self._found.refused.add(row)

    def _follow(self, row: int) -> "_End | None":
        """Return where a symlink leads; None when it is refused."""
        here = self._directories.walk(_folder(self._names[row]))
        said = self._found.targets[row]
        if here is None or not _sane(said):
            return None
        hops = 1
        left = _reversed_parts(said)
        for _ in range(min(_MAX_STEPS, self._steps_left)):
            self._steps_left -= 1
            if not left:
                return _End(here.path(), is_directory=True)
            part = left.pop()
            if part == b"..":
                if not here.up():
                    return None
                continue
            if part == b"." or here.down(part):
                continue
            path = here.path(part)
            found = self._latest.get(path)
            if found is None or found in self._found.refused:
                return None
            onward = self._found.targets.get(found)
            if onward is None:
                return None if left else _End(path, is_directory=False)
            hops += 1
            if hops > _MAX_HOPS or not _sane(onward):
                return None
            left += _reversed_parts(onward)
        return None

    def _going_round(self) -> list[int]:
        """Return the links to directories that would close a cycle with the accepted ones."""
        accepted: list[tuple[bytes, bytes]] = []
        bad: list[int] = []
        self._steps_left = _MAX_ALL_STEPS
        for row in self._found.targets:
            end = self._follow(row)
            if end is None or not end.is_directory:
                continue
            home = _folder(self._names[row])
            if len(accepted) >= _MAX_DIRECTORY_LINKS or _reaches(end.path, home, accepted):
                bad.append(row)
            else:
                accepted.append((home, end.path))
        return bad


def _reversed_parts(target: bytes) -> list[bytes]:
    """Return the components in reverse; a first `.` requires a directory."""
    parts = target.split(b"/")
    meant = [part for part in reversed(parts) if part not in (b"", b".")]
    return [b".", *meant] if parts[-1] in (b"", b".") else meant


def _sane(target: bytes) -> bool:
    return 0 < len(target) <= _MAX_TARGET and b"\0" not in target and not target.startswith(b"/")


def _folder(path: bytes) -> bytes:
    return path.rpartition(b"/")[0]


def _reaches(start: bytes, goal: bytes, edges: list[tuple[bytes, bytes]]) -> bool:
    """Return whether a walk down from `start`, through links too, reaches `goal`."""
    seen: set[bytes] = set()
    todo = [start]
    while todo:
        place = todo.pop()
        if place in seen:
            continue
        seen.add(place)
        if _inside(goal, place):
            return True
        todo += [end for home, end in edges if _inside(home, place)]
    return False


def _inside(path: bytes, directory: bytes) -> bool:
    return not directory or path == directory or path.startswith(directory + b"/")


KIND_BITS = 0b11
"""Mask of the flags: the `MemberKind` of a row."""
OPENED = 1 << 5
"""A flag: a tar whose members are rows too, or their folder, which is the next row."""
_DICT_COST = 150  # bytes of one entry of a dict of small values, measured


class MemberColumns:
    """The columns of all rows, and dicts for values that few rows have."""

    __slots__ = ("contents", "ends", "flags", "leads", "mtimes", "names", "offsets", "sizes",
                 "stored_stops", "targets")  # fmt: skip

    def __init__(self) -> None:
        self.names: bytes | bytearray = bytearray()
        self.ends = array("I")
        """Where each row's name ends in `names`."""
        self.offsets = array("Q")
        """Where the data starts."""
        self.leads = array("H")
        """Header blocks before the data."""
        self.sizes = array("Q")
        self.mtimes = array("q")
        self.flags: bytes | bytearray = bytearray()
        self.targets: dict[int, bytes] = {}
        """The target of each symlink."""
        self.contents: dict[int, int] = {}
        """For each hardlink the row whose content it shares."""
        self.stored_stops: dict[int, int] = {}
        """For each sparse row, where its stored form ends."""

    @property
    def nbytes(self) -> int:
        """The memory this takes, roughly."""
        arrays = (self.ends, self.offsets, self.leads, self.sizes, self.mtimes)
        rare = len(self.targets) + len(self.contents) + len(self.stored_stops)
        rare_bytes = rare * _DICT_COST + sum(map(len, self.targets.values()))
        plain = len(self.names) + len(self.flags)
        return plain + sum(a.itemsize * len(a) for a in arrays) + rare_bytes

    def name(self, row: int) -> bytes:
        """Return one name."""
        ends = self.ends
        return bytes(self.names[ends[row - 1] if row else 0 : ends[row]])

    def append(
        self, name: bytes, offset: int, lead: int, size: int, mtime_ns: int, flags: int
    ) -> None:
        """Add a row that is neither a link nor sparse."""
        self.names += name
        self.ends.append(len(self.names))
        self.offsets.append(offset)
        self.leads.append(lead)
        self.sizes.append(size)
        self.mtimes.append(mtime_ns)
        self.flags.append(flags)  # type: ignore[union-attr]

    def last_names(self, rows: Sequence[int]) -> list[bytes]:
        """Return the last components of some names, much faster than one by one."""
        names = self.names
        stops = column_at(self.ends, rows)
        if isinstance(rows, range):  # adjacent names begin where the previous one ends
            starts = [self.ends[rows.start - 1] if rows.start else 0, *stops[:-1]]
        else:
            starts = [self.ends[row - 1] if row else 0 for row in rows]
        found = [bytes(names[start:stop]) for start, stop in zip(starts, stops, strict=True)]
        return [name.rpartition(b"/")[2] for name in found] if b"/" in b"".join(found) else found

    def all_names(self) -> list[bytes]:
        """Return all names, much faster than one by one."""
        blob = bytes(self.names)
        ends = self.ends
        return [blob[start:stop] for start, stop in zip([0, *ends], ends, strict=False)]

    def share_content(self, row: int, content: int) -> None:
        """Copy a row's columns to a hardlink, so that reading the link needs no second lookup."""
        for column in (self.offsets, self.leads, self.sizes, self.mtimes):
            column[row] = column[content]
        kept = self.flags[content] & ~(KIND_BITS | OPENED)
        self.flags[row] = kept | HARDLINK  # type: ignore[index]
        self.contents[row] = content
        if content in self.stored_stops:
            self.stored_stops[row] = self.stored_stops[content]

    def reordered(self, order: Sequence[int]) -> "MemberColumns":
        """Return the rows, none of them a link or sparse, in another order."""
        new, names = MemberColumns(), self.all_names()
        new.names = b"".join([names[row] for row in order])
        new.ends = array("I", accumulate(len(names[row]) for row in order))
        for column in ("offsets", "leads", "sizes", "mtimes"):
            old: array[int] = getattr(self, column)
            setattr(new, column, array(old.typecode, map(old.__getitem__, order)))
        new.flags = bytes(map(self.flags.__getitem__, order))
        return new

    def packed(self, keep: Sequence[bool] | None) -> "MemberColumns":
        """Return the rows to keep (None: all) in columns without spare capacity."""
        new = MemberColumns()
        for column in ("offsets", "leads", "sizes", "mtimes"):
            old: array[int] = getattr(self, column)
            setattr(
                new, column, old[:] if keep is None else array(old.typecode, compress(old, keep))
            )
        if keep is None:
            new.names, new.ends, new.flags = bytes(self.names), self.ends[:], bytes(self.flags)
            moved: Mapping[int, int] | range = range(len(self.ends))
        else:
            names = list(compress(self.all_names(), keep))
            new.names, new.ends = b"".join(names), array("I", accumulate(map(len, names)))
            new.flags = bytes(compress(self.flags, keep))
            moved = {old: now for now, old in enumerate(compress(range(len(keep)), keep))}
        new.targets = {moved[row]: said for row, said in self.targets.items()}
        new.contents = {moved[row]: moved[content] for row, content in self.contents.items()}
        new.stored_stops = {
            moved[row]: stop for row, stop in self.stored_stops.items() if row in moved
        }
        return new


class Names:
    """Names in the columns of many shards."""

    def __init__(self, columns: Iterable[MemberColumns]) -> None:
        columns = list(columns)
        self._names = [bytes(column.names) for column in columns]
        self._ends = [column.ends for column in columns]

    def at(self, members: Iterable[int]) -> list[bytes]:
        """Return names by the position of a shard, above 32 bits for the row in it."""
        names, ends = self._names, self._ends
        places = [(member >> 32, member & 0xFFFFFFFF) for member in members]
        return [
            names[shard][ends[shard][row - 1] if row else 0 : ends[shard][row]]
            for shard, row in places
        ]


def column_at(column: Sequence[int], rows: Sequence[int]) -> Sequence[int]:
    """Return the values of a column in some rows."""
    if isinstance(rows, range):
        return column[rows.start : rows.stop]
    if len(rows) == 1:
        return [column[rows[0]]]
    return itemgetter(*rows)(column)  # type: ignore[no-any-return]


# Names that follow one pattern, as those of most shards do: `00000000.cls00000000.jpg00000001.cls…` has
# records of 24 bytes, each of the names of one sample. The checks read whole columns of bytes; they never
# build a name. ADR 0002 has what that saves.

RECORD_MAX = 64
"""Most names of one record that are looked for."""


class RegularNames(NamedTuple):
    """Names without a slash, whose records are alike but for their keys."""

    blob: bytes
    """All names, one behind the other."""
    width: int
    """Bytes of one record."""
    key_length: int
    """Above 0. Each name of a record begins with the same key, which has no dot."""
    suffixes: Sequence[bytes]
    """What follows the key in each name: nothing, or a dot and more."""

    def keys(self) -> list[bytes]:
        """Return the key of each record."""
        rest = self.width - self.key_length
        return list(
            chain.from_iterable(struct.iter_unpack(f"{self.key_length}s{rest}x", self.blob))
        )


def regular_names(columns: MemberColumns) -> RegularNames | None:
    """Return what the names of two records or more have in common; None if that is not so much."""
    ends, blob = columns.ends, bytes(columns.names)
    key, suffixes = _first_record(columns)
    step = len(suffixes)
    if not key or not step or len(ends) % step or b"/" in blob:
        return None
    width, records = ends[step - 1], len(ends) // step
    if (
        width * records != len(blob)
        or any(
            ends[at::step] != progression(range(ends[at], len(blob) + 1, width))
            for at in range(step)
        )
        # The rest of the dots are in the suffixes, if these are all the same.
        or blob.count(b".") != records * sum(suffix.count(b".") for suffix in suffixes)
    ):
        return None
    starts = [0, *ends[: step - 1]]
    for start, suffix in zip(starts, suffixes, strict=True):
        for at in range(len(key)):
            if start and blob[start + at :: width] != blob[at::width]:
                return None
        for at in range(start + len(key), start + len(key) + len(suffix)):
            if blob[at::width] != blob[at : at + 1] * records:
                return None
    return RegularNames(blob, width, len(key), suffixes)


def _first_record(columns: MemberColumns) -> tuple[bytes, list[bytes]]:
    """Return the key and the suffixes of the first names, without suffixes if no other key follows."""
    suffixes: list[bytes] = []
    key = columns.name(0).partition(b".")[0] if columns.ends else b""
    for row in range(min(len(columns.ends), RECORD_MAX + 1)):
        name = columns.name(row)
        if name.partition(b".")[0] != key:
            return key, suffixes
        suffixes.append(name[len(key) :])
    return b"", []
