"""The kernel's side of /dev/fuse as bytes: requests taken apart, replies and notifications packed.

The only module that knows the layouts; source: linux/include/uapi/linux/fuse.h, ABI 7.45, in the byte order of the machine.
Nothing here reads or writes a descriptor.

- INIT says, when the mount begins, what the kernel can do and what we ask of it. pyfuse3 negotiates; its reply is changed so that
  it asks for what the fast path expects.
- READDIRPLUS has many entries at once, packed by columns. All of an entry is words of 64 bits, or halves of them, so entries of
  one length are a matrix: what most files have in common is repeated, what differs is assigned column by column.
"""

import errno
import stat
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum, IntFlag
from itertools import accumulate
from struct import Struct
from typing import NamedTuple

from aisfs.filesystem.nodes import BLOCK_SIZE, LONGEST_TIMEOUT, Attr, FileRun


class Opcode(IntEnum):
    """Requests of the kernel."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    GETLK = 31
    SETLK = 32
    SETLKW = 33
    ACCESS = 34
    CREATE = 35
    INTERRUPT = 36
    BMAP = 37
    DESTROY = 38
    IOCTL = 39
    POLL = 40
    NOTIFY_REPLY = 41
    BATCH_FORGET = 42
    FALLOCATE = 43
    READDIRPLUS = 44
    RENAME2 = 45
    LSEEK = 46
    COPY_FILE_RANGE = 47
    SETUPMAPPING = 48
    REMOVEMAPPING = 49
    SYNCFS = 50
    TMPFILE = 51
    STATX = 52
    COPY_FILE_RANGE_64 = 53


def name_of_opcode(opcode: int) -> str:
    """Return the name of a request in lower case; of an unknown one its number."""
    return Opcode(opcode).name.lower() if opcode in set(Opcode) else str(opcode)


class InitFlag(IntFlag):
    """Flags of INIT that matter here."""

    ATOMIC_O_TRUNC = 1 << 3
    EXPORT_SUPPORT = 1 << 4
    """It may look up "." and ".." of any number: what a server of NFS exports needs that."""
    AUTO_INVAL_DATA = 1 << 12
    DO_READDIRPLUS = 1 << 13
    NO_OPEN_SUPPORT = 1 << 17
    """The kernel understands ENOSYS to OPEN."""
    NO_OPENDIR_SUPPORT = 1 << 24
    """The kernel understands ENOSYS to OPENDIR, and keeps listings then."""
    PARALLEL_DIROPS = 1 << 18
    HANDLE_KILLPRIV_V2 = 1 << 28
    """Changes take setuid and setgid away here. The kernel need not ask before each write whether a
    file has capabilities, but once."""
    INIT_EXT = 1 << 30
    """There are more than 32 flags: the rest is in a word of its own."""
    DIRECT_IO_ALLOW_MMAP = 1 << 36
    """Files opened with `OpenFlag.DIRECT_IO` can be mapped, and a write through such a handle drops
    the pages it is about."""


class OpenFlag(IntFlag):
    """The flags of a reply to OPEN or OPENDIR."""

    DIRECT_IO = 1 << 0
    """Reads and writes go past the page cache."""
    KEEP_CACHE = 1 << 1
    """What it has of the content is still right."""
    CACHE_DIR = 1 << 3
    """It may keep the listing."""
    NOFLUSH = 1 << 5
    """It need not say when a descriptor is closed."""


HEADER = Struct("=IIQQIIIHH")
"""fuse_in_header: len opcode unique nodeid uid gid pid total_extlen padding."""
READ = Struct("=QQIIQII")
"""fuse_read_in: fh offset size read_flags lock_owner flags padding; READDIR and READDIRPLUS too."""
_WRITE = Struct("=QQIIQII")
"""fuse_write_in: fh offset size write_flags lock_owner flags padding."""
REPLY = Struct("=IiQ")
"""fuse_out_header: len error unique."""
_FORGET = Struct("=Q")
_BATCH_FORGET = Struct("=II")
_FORGET_ONE = Struct("=QQ")
_INTERRUPT = Struct("=Q")
_INIT_IN = Struct("=IIII")
_INIT_FLAGS2 = Struct("=I")
"""fuse_init_in: major minor max_readahead flags; flags2, which an old kernel does not send."""
_OPEN_IN = Struct("=II")
_CREATE_IN = Struct("=IIII")
"""fuse_create_in: flags mode umask open_flags; the name follows."""
_FALLOCATE_IN = Struct("=QQQII")
"""fuse_fallocate_in: fh offset length mode padding."""
_OPEN_OUT = Struct("=IiQ QII")
_WRITE_OUT = Struct("=IiQ II")
_GETXATTR = Struct("=II")
_ATTR = "QQQQQQIIIIIIIIII"
_ATTR_OUT = Struct("=IiQ QII" + _ATTR)
_ENTRY_OUT = Struct("=IiQ QQQQII" + _ATTR)
_CREATE_OUT = Struct("=IiQ QQQQII" + _ATTR + "QII")
"""What LOOKUP and OPEN are answered with, one after the other."""
_MISSING = Struct("=IiQ QQQQII88x")
DIRENTPLUS = Struct("=QQQQII" + _ATTR + "QQII")
"""fuse_direntplus, without the name that follows."""
_INIT_OUT = Struct("=IIIIHHIIHHIIH22x")
BODY = HEADER.size
"""Where the body of a request begins."""
DIRENT_ALIGNMENT = 8
GIGA = 1_000_000_000
_HALF = 32
"""Bits of each of the two words with flags of INIT."""
WORD = (1 << 64) - 1


class InitReply(NamedTuple):
    """fuse_init_out, without its reserved words."""

    major: int
    minor: int
    max_readahead: int
    flags: int
    max_background: int
    congestion_threshold: int
    max_write: int
    time_gran: int
    max_pages: int
    map_alignment: int
    flags2: int
    max_stack_depth: int
    request_timeout: int

    @property
    def all_flags(self) -> InitFlag:
        """Both words of flags."""
        return InitFlag(self.flags | self.flags2 << _HALF)

    def with_flags(self, flags: InitFlag) -> "InitReply":
        """Return the same with other flags."""
        return self._replace(flags=flags & (1 << _HALF) - 1, flags2=flags >> _HALF)


# Requests ------------------------------------------------------------------------------------------


def name_of(message: memoryview) -> bytes:
    """Return the name that is all of the body, as of LOOKUP."""
    return bytes(message[BODY:]).partition(b"\0")[0]


def xattr_name(message: memoryview) -> bytes:
    """Return the name that a GETXATTR asks for."""
    return bytes(message[BODY + _GETXATTR.size :]).partition(b"\0")[0]


def forgotten(message: memoryview) -> int:
    """Return how many lookups a FORGET takes back."""
    count: int = _FORGET.unpack_from(message, BODY)[0]
    return count


def batch_forgotten(message: memoryview) -> Iterator[tuple[int, int]]:
    """Return (inode, lookups to take back) of a BATCH_FORGET."""
    count, _ = _BATCH_FORGET.unpack_from(message, BODY)
    start = BODY + _BATCH_FORGET.size
    return _FORGET_ONE.iter_unpack(message[start : start + count * _FORGET_ONE.size])


def interrupted(message: memoryview) -> int:
    """Return the request that an INTERRUPT is about."""
    unique: int = _INTERRUPT.unpack_from(message, BODY)[0]
    return unique


def init_flags(message: memoryview) -> InitFlag:
    """Return what the kernel offers in its INIT."""
    flags = InitFlag(_INIT_IN.unpack_from(message, BODY)[3])
    if flags & InitFlag.INIT_EXT:
        flags |= InitFlag(_INIT_FLAGS2.unpack_from(message, BODY + _INIT_IN.size)[0] << _HALF)
    return flags


def open_flags(message: memoryview) -> int:
    """Return the flags, of open(2), of an OPEN."""
    flags: int = _OPEN_IN.unpack_from(message, BODY)[0]
    return flags


def created(message: memoryview) -> tuple[bytes, int, int]:
    """Return name, mode and flags, of open(2), of a CREATE; the mask is in the mode already."""
    flags, mode, _, _ = _CREATE_IN.unpack_from(message, BODY)
    return bytes(message[BODY + _CREATE_IN.size :]).partition(b"\0")[0], mode, flags


def handle(message: memoryview) -> int:
    """Return the handle that a FLUSH, FSYNC or RELEASE is about."""
    number: int = _FORGET.unpack_from(message, BODY)[0]
    return number


def allocated(message: memoryview) -> tuple[int, int, int]:
    """Return handle, end of the range and mode, of fallocate(2), of a FALLOCATE."""
    handle, offset, length, mode, _ = _FALLOCATE_IN.unpack_from(message, BODY)
    return handle, offset + length, mode


def written(message: memoryview) -> tuple[int, memoryview]:
    """Return offset and data of a WRITE; the data is a part of the message."""
    _, offset, size, *_ = _WRITE.unpack_from(message, BODY)
    start = BODY + _WRITE.size
    return offset, message[start : start + size]


_NAME_CHANGES = {
    Opcode.MKDIR: Struct("=II"),
    Opcode.MKNOD: Struct("=IIII"),
    Opcode.SYMLINK: Struct(""),
    Opcode.UNLINK: Struct(""),
    Opcode.RMDIR: Struct(""),
    Opcode.RENAME: Struct("=Q"),
    Opcode.RENAME2: Struct("=QII"),
}
NAME_CHANGES = frozenset(_NAME_CHANGES)
"""Requests that change names, and open nothing."""


def name_change(opcode: Opcode, message: memoryview) -> tuple[tuple[int, ...], list[bytes]]:
    """Return the numbers and the names, or the target of a link, in a request that changes names.

    MKDIR and MKNOD begin with the mode, and RENAME with the new directory, and perhaps flags.
    """
    fixed = _NAME_CHANGES[opcode]
    return fixed.unpack_from(message, BODY), bytes(message[BODY + fixed.size :]).split(b"\0")


RESENT = 1 << 63
"""In the number of a request that was asked of a daemon before."""


def set_handle(message: memoryview, handle: int, max_size: int) -> None:
    """Change the handle of a READDIR or READDIRPLUS in place, and ask for `max_size` at most."""
    _, offset, size, *rest = READ.unpack_from(message, BODY)
    READ.pack_into(message, BODY, handle, offset, min(size, max_size), *rest)


# Replies -------------------------------------------------------------------------------------------


def error_reply(unique: int, code: int) -> bytes:
    """Refuse a request with an errno; 0 says it is done."""
    return REPLY.pack(REPLY.size, -code, unique)


def data_header(unique: int, size: int) -> bytes:
    """Begin a reply that goes on with `size` bytes of data."""
    return REPLY.pack(REPLY.size + size, 0, unique)


def open_reply(unique: int, handle: int, flags: OpenFlag) -> bytes:
    """Answer OPEN or OPENDIR with the handle that requests about it shall carry."""
    return _OPEN_OUT.pack(_OPEN_OUT.size, 0, unique, handle, flags, 0)


def opened_handle(message: memoryview) -> int:
    """Return the handle in a successful reply to OPEN or OPENDIR."""
    return int(_OPEN_OUT.unpack_from(message)[3])


def set_open_flags(message: memoryview, flags: OpenFlag) -> None:
    """Change the flags of a successful reply to OPEN or OPENDIR in place."""
    *before, _, padding = _OPEN_OUT.unpack_from(message)
    _OPEN_OUT.pack_into(message, 0, *before, flags, padding)


def create_reply(
    unique: int, attr: Attr, entry_timeout: float, handle: int, flags: OpenFlag
) -> bytes:
    """Answer CREATE with what was made, and the handle of it."""
    return _CREATE_OUT.pack(
        _CREATE_OUT.size, 0, unique, *_entry(attr, entry_timeout), *_attr(attr), handle, flags, 0
    )


def write_reply(unique: int, size: int) -> bytes:
    """Return how many bytes of a WRITE were written."""
    return _WRITE_OUT.pack(_WRITE_OUT.size, 0, unique, size, 0)


def attr_reply(unique: int, attr: Attr) -> bytes:
    """Answer GETATTR."""
    valid, valid_ns = timeout_words(attr.timeout)
    return _ATTR_OUT.pack(_ATTR_OUT.size, 0, unique, valid, valid_ns, 0, *_attr(attr))


def entry_reply(unique: int, attr: Attr, entry_timeout: float) -> bytes:
    """Answer LOOKUP with what is there; the kernel may keep the name for `entry_timeout` seconds."""
    return _ENTRY_OUT.pack(_ENTRY_OUT.size, 0, unique, *_entry(attr, entry_timeout), *_attr(attr))


def missing_reply(unique: int, timeout: float) -> bytes:
    """Answer LOOKUP: nothing is there, which the kernel may keep for `timeout` seconds."""
    if not timeout:
        return error_reply(unique, errno.ENOENT)
    valid, valid_ns = timeout_words(timeout)
    return _MISSING.pack(_MISSING.size, 0, unique, 0, 0, valid, 0, valid_ns, 0)


def direntplus(attr: Attr, name: bytes, offset: int, entry_timeout: float) -> bytes:
    """Pack one entry of READDIRPLUS; `offset` is where the one behind it is."""
    length = len(name)
    fixed = DIRENTPLUS.pack(
        *_entry(attr, entry_timeout), *_attr(attr), attr.ino, offset, length, attr.mode >> 12
    )
    return fixed + name + bytes(-length % DIRENT_ALIGNMENT)


def bare_entry(attr: Attr, name: bytes, offset: int) -> bytes:
    """Pack one entry without attributes: the kernel looks it up when it needs them. It counts no lookup."""
    length = len(name)
    fixed = DIRENTPLUS.pack(*[0] * 22, attr.ino, offset, length, attr.mode >> 12)
    return fixed + name + bytes(-length % DIRENT_ALIGNMENT)


def strip_bare(message: memoryview) -> None:
    """Take the attributes out of the entries of a reply to READDIRPLUS that are `BARE`."""
    at = REPLY.size
    while at < len(message):
        length = _NAME_LENGTH.unpack_from(message, at)[0]
        if _GENERATION.unpack_from(message, at)[0] == BARE:
            message[at : at + _ATTRIBUTES] = bytes(_ATTRIBUTES)
        at += DIRENTPLUS.size + length + -length % DIRENT_ALIGNMENT


BARE = (1 << 64) - 1
"""The generation of an entry that is to have no attributes, which pyfuse3 cannot leave out."""
_GENERATION = Struct("=8xQ")
_ATTRIBUTES = DIRENTPLUS.size - 24
"""Bytes before the part of an entry that READDIR gives as well."""


def dot_entry(ino: int) -> bytes:
    """Pack the entry of READDIRPLUS for a directory in itself, at offset 1; it counts no lookup."""
    fixed = DIRENTPLUS.pack(*[0] * 22, ino, 1, 1, stat.S_IFDIR >> 12)
    return fixed + b".".ljust(DIRENT_ALIGNMENT, b"\0")


def reply_header(message: memoryview) -> tuple[int, int]:
    """Return (request, errno) of a reply; the request 0 is a notification."""
    _, error, unique = REPLY.unpack_from(message)
    return unique, -error


def entry_nodeid(message: memoryview) -> int:
    """Return the inode that a successful reply to LOOKUP counted; 0 when it says a name is missing."""
    nodeid: int = _FORGET.unpack_from(message, REPLY.size)[0]
    return nodeid


def listed_nodeids(message: memoryview) -> Iterator[int]:
    """Return the inodes that a successful reply to READDIRPLUS counted."""
    at = REPLY.size
    while at < len(message):
        nodeid = _FORGET.unpack_from(message, at)[0]
        length = _NAME_LENGTH.unpack_from(message, at)[0]
        if nodeid:
            yield nodeid
        at += DIRENTPLUS.size + length + -length % DIRENT_ALIGNMENT


_NAME_LENGTH = Struct(f"={DIRENTPLUS.size - 8}xI")
"""The length of the name in an entry of READDIRPLUS."""


def init_reply(message: memoryview) -> InitReply:
    """Take a reply to INIT apart."""
    return InitReply._make(_INIT_OUT.unpack_from(message, REPLY.size))


def with_init(message: memoryview, reply: InitReply) -> bytes:
    """Put other values into a reply to INIT."""
    return bytes(message[: REPLY.size]) + _INIT_OUT.pack(*reply)


# Parts ---------------------------------------------------------------------------------------------


def timeout_words(seconds: float) -> tuple[int, int]:
    """Return whole seconds and nanoseconds."""
    whole = int(seconds)
    return whole, int((seconds - whole) * GIGA)


def _entry(attr: Attr, entry_timeout: float) -> tuple[int, ...]:
    valid, valid_ns = timeout_words(entry_timeout)
    attr_valid, attr_valid_ns = timeout_words(attr.timeout)
    return attr.ino, 0, valid, attr_valid, valid_ns, attr_valid_ns


def _attr(attr: Attr) -> tuple[int, ...]:
    seconds, ns = divmod(attr.mtime_ns, GIGA)
    seconds &= WORD
    blocks = 0 if stat.S_ISDIR(attr.mode) else (attr.size + 511) >> 9
    return (
        attr.ino, attr.size, blocks, seconds, seconds, seconds, ns, ns, ns,
        attr.mode, attr.links, attr.uid, attr.gid, 0, BLOCK_SIZE, 0,
    )  # fmt: skip


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


class Negotiation:
    """The one INIT of a mount."""

    def __init__(
        self,
        on_offer: Callable[[InitFlag], None],
        *,
        without: InitFlag,
        wanted: InitFlag,
        max_message: int,
        background: int,
    ) -> None:
        """Wait for it.

        Args:
            on_offer: Told once what the kernel can.
            without: What pyfuse3 asks the kernel to do, and the handlers do not expect.
            wanted: What it does not know to ask for, and the handlers do expect, if offered.
            max_message: Bytes of data that a message to pyfuse3 or back may carry.
            background: Requests that the kernel may send without waiting for answers.
        """
        self._on_offer = on_offer
        self._without = without
        self._wanted = wanted
        self._offered = InitFlag(0)
        self._max_message = max_message
        self._background = background

    def offered(self, message: memoryview) -> None:
        """Record the kernel's request."""
        self._offered = init_flags(message)
        self._on_offer(self._offered)

    def agreed(self, message: memoryview) -> bytes:
        """Return pyfuse3's reply with what it does not know to ask for."""
        reply = init_reply(message)
        flags = reply.all_flags & ~self._without | self._wanted & self._offered
        return with_init(
            message,
            reply.with_flags(flags)._replace(
                max_background=self._background,
                congestion_threshold=self._background * 3 // 4,
                max_write=min(reply.max_write, self._max_message),
            ),
        )


class Notification(IntEnum):
    """The notifications that the daemon may send to the kernel."""

    INVAL_INODE = 2
    INVAL_ENTRY = 3
    STORE = 4
    RESEND = 7


RESEND = REPLY.pack(REPLY.size, Notification.RESEND, 0)
"""Have the kernel send again what it has no answer to. The numbers of these requests have the highest bit set then."""
_INVAL_INODE = Struct("=IiQ Qqq")
_INVAL_ENTRY = Struct("=IiQ QII")
_EXPIRE_ONLY = 1
"""The name stays in use where it is: a directory that is some program's current one keeps its path."""
_STORE = Struct("=IiQ QQII")
STORE_HEADER = _STORE.size
"""Bytes of a notification before those to store."""
_STORE_CODE = int(Notification.STORE)


def inval_inode(nodeid: int, offset: int = 0, length: int = 0) -> bytes:
    """Drop attributes of an inode, and pages from `offset` on; 0 of length is to the end."""
    size = _INVAL_INODE.size
    return _INVAL_INODE.pack(size, Notification.INVAL_INODE, 0, nodeid, offset, length)


def inval_entry(parent: int, name: bytes) -> bytes:
    """Drop a name, and with it the kernel's listing of the directory."""
    size = _INVAL_ENTRY.size + len(name) + 1
    fixed = _INVAL_ENTRY.pack(size, Notification.INVAL_ENTRY, 0, parent, len(name), 0)
    return fixed + name + b"\0"


def expire_entry(parent: int, name: bytes) -> bytes:
    """Have a name looked up again. Linux before 6.2 drops it, as `inval_entry` does."""
    size = _INVAL_ENTRY.size + len(name) + 1
    fixed = _INVAL_ENTRY.pack(size, Notification.INVAL_ENTRY, 0, parent, len(name), _EXPIRE_ONLY)
    return fixed + name + b"\0"


def store_header(nodeid: int, offset: int, size: int) -> bytes:
    """Begin a notification that goes on with `size` bytes for the page cache of an inode."""
    return _STORE.pack(STORE_HEADER + size, _STORE_CODE, 0, nodeid, offset, size, 0)


def store_messages(
    room: bytearray | memoryview, files: Iterable[tuple[int, int, int]]
) -> Iterator[memoryview]:
    """Make notifications of whole files whose bytes lie in `room`, each in one piece there.

    Args:
        room: The `STORE_HEADER` bytes in front of each file are overwritten when its message is
            asked for; what lies there must not be wanted by then.
        files: Inode, where in `room` its bytes start, and how many there are.
    """
    whole, pack = memoryview(room), _STORE.pack_into
    for nodeid, start, size in files:
        at = start - STORE_HEADER
        pack(room, at, STORE_HEADER + size, _STORE_CODE, 0, nodeid, 0, size, 0)
        yield whole[at : start + size]


def store_pairs(
    data: memoryview, files: Iterable[tuple[int, int, int]]
) -> Iterator[tuple[bytes, memoryview]]:
    """Make notifications of whole files whose bytes lie in `data`, which stays as it is.

    Args:
        data: The bytes.
        files: As in `store_messages`.
    """
    for nodeid, start, size in files:
        yield store_header(nodeid, 0, size), data[start : start + size]
