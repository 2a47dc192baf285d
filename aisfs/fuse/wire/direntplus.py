"""Many entries of READDIRPLUS at once: a listing of files by columns.

All of an entry is words of 64 bits, or halves of them, so entries of one length are a matrix: what
most files have in common is repeated, what differs is assigned column by column.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from aisfs.filesystem.nodes import BLOCK_SIZE, LONGEST_TIMEOUT, FileRun
from aisfs.fuse.wire.abi import DIRENTPLUS, GIGA, WORD, timeout_words

# Where in an entry what differs between files is: in words of 64 bits, ...
_INO, _SIZE, _BLOCKS, _TIMES, _OFF = (0, 5, 16), 6, 7, (8, 9, 10), 17
# ... and in words of 32 bits.
_TIMES_NS, _MODE, _NAMELEN, _TYPE = (22, 23, 24), 25, 36, 37

_Column = tuple["array[int]", tuple[int, ...]]
"""Values, and the words they go to."""


class FilePacker:
    """Packs entries for files of one owner: regular ones and symbolic links."""

    def __init__(self, uid: int, gid: int, entry_timeout: float) -> None:
        """The kernel may keep names for `entry_timeout` seconds, and attributes without limit."""
        self._uid, self._gid = uid, gid
        valid, valid_ns = timeout_words(entry_timeout)
        attr_valid, attr_valid_ns = timeout_words(LONGEST_TIMEOUT)
        self._timeouts = valid, attr_valid, valid_ns, attr_valid_ns

    def pack(
        self, files: FileRun, offsets: Sequence[int], size: int
    ) -> tuple[bytes | bytearray, int]:
        """Pack files, as many as fit; also return how many do.

        Args:
            files: What is listed.
            offsets: The offset behind each of them.
            size: Room in bytes.
        """
        lengths = [DIRENTPLUS.size + (length + 7 & ~7) for length in map(len, files.names)]
        count = bisect_right(list(accumulate(lengths)), size)
        if not count:
            return b"", 0
        following = offsets[:count]
        alike = set(lengths[:count])
        if len(alike) == 1:
            return self._matrix(FileRun._make(column[:count] for column in files), following), count
        entries: list[bytes | bytearray] = [b""] * count
        for length in alike:
            places = [place for place in range(count) if lengths[place] == length]
            some = FileRun._make([column[place] for place in places] for column in files)
            packed = self._matrix(some, [following[place] for place in places])
            for at, place in enumerate(places):
                entries[place] = packed[at * length : (at + 1) * length]
        return b"".join(entries), count

    def _matrix(self, files: FileRun, following: Sequence[int]) -> bytearray:
        """Pack files whose entries are equally long: as if all were the first, then what differs."""
        rows, names = len(files.names), files.names
        lengths = list(map(len, names))
        packed = bytearray(self._first(files) * rows)
        longs, ints = memoryview(packed).cast("Q"), memoryview(packed).cast("I")
        step = len(longs) // rows
        text = _padded(names, lengths).cast("Q")
        words = len(text) // rows
        for word in range(words):
            longs[step - words + word :: step] = text[word::words]
        inos = array("Q", files.inos)
        columns: list[_Column] = [(inos, _INO), (array("Q", following), (_OFF,))]
        if _differ(files.sizes):
            columns.append((array("Q", files.sizes), (_SIZE,)))
            columns.append((array("Q", [size + 511 >> 9 for size in files.sizes]), (_BLOCKS,)))
        halves: list[_Column] = []
        if _differ(files.mtimes_ns):
            times = array("Q", [mtime // GIGA & WORD for mtime in files.mtimes_ns])
            columns.append((times, _TIMES))
            halves.append((array("I", [mtime % GIGA for mtime in files.mtimes_ns]), _TIMES_NS))
        if _differ(files.modes):
            halves.append((array("I", files.modes), (_MODE,)))
            halves.append((array("I", [mode >> 12 for mode in files.modes]), (_TYPE,)))
        if _differ(lengths):
            halves.append((array("I", lengths), (_NAMELEN,)))
        for column, places in columns:
            for word in places:
                longs[word::step] = column
        for column, places in halves:
            for half in places:
                ints[half :: 2 * step] = column
        return packed

    def _first(self, files: FileRun) -> bytes:
        """Pack the first file, without its numbers and its name."""
        size, name = files.sizes[0], files.names[0]
        seconds, ns = divmod(files.mtimes_ns[0], GIGA)
        seconds &= WORD
        fixed = DIRENTPLUS.pack(
            0, 0, *self._timeouts,
            0, size, size + 511 >> 9, seconds, seconds, seconds, ns, ns, ns,
            files.modes[0], 1, self._uid, self._gid, 0, BLOCK_SIZE, 0,
            0, 0, len(name), files.modes[0] >> 12,
        )  # fmt: skip
        return fixed + bytes(len(name) + 7 & ~7)


def _differ(column: Sequence[int]) -> bool:
    return column.count(column[0]) != len(column)


def _padded(names: Sequence[bytes], lengths: list[int]) -> memoryview:
    """Join names that take equally many words, each padded to whole words."""
    if _differ(lengths):
        room = lengths[0] + 7 & ~7
        return memoryview(b"".join([name.ljust(room, b"\0") for name in names]))
    return memoryview(bytes(-lengths[0] % 8).join([*names, b""]))
