"""What thread L answers: requests to which `Known` has the answer, on a mount that only reads.

`open`, `opendir` and `flush` are answered with ENOSYS once; from then on the kernel opens and closes
without a word, and keeps listings. A handle is then no more than the inode.
"""

import errno
from typing import NamedTuple

from cachetools import LRUCache

from aisfs.cache.metadata import UNKNOWN
from aisfs.filesystem.attributes import FOREVER, Entry
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.handles import DirectoryHandle, MemberRows
from aisfs.filesystem.known import Known
from aisfs.filesystem.nodes import Node
from aisfs.filesystem.xattrs import PREFIX
from aisfs.fuse import abi
from aisfs.fuse.abi import InitFlag, Opcode
from aisfs.fuse.entries import FilePacker
from aisfs.fuse.interruptions import Interruptions
from aisfs.fuse.lane import FORWARD, LIST_BYTES_MAX, SILENCE, Handler, Reply
from aisfs.fuse.reads import WaitingReads

PAGES_BYTES_MAX = 32 << 20
"""Packed pages of listings that never change: 200,000 entries. The kernel keeps them too, so they
only serve readers whose kernel has let go of them."""


class _Page(NamedTuple):
    """Packed entries of a directory."""

    data: bytes
    counted: list[tuple[int, Node, int]]
    """Lookups to count, and on which inodes."""


class Answers:
    """The handlers of a read-only mount. All methods run in thread L."""

    without = InitFlag.ATOMIC_O_TRUNC
    """What the kernel is not to do."""

    def __init__(
        self,
        known: Known,
        filesystem: FileSystem,
        reads: WaitingReads,
        interruptions: Interruptions,
        *,
        negative_timeout: float,
    ) -> None:
        """Answer from `known`; hand READs that must wait to `reads`."""
        self._known = known
        self._filesystem = filesystem
        self._reads = reads
        self._interruptions = interruptions
        self._negative_timeout = negative_timeout
        self._flags = InitFlag(0)
        self._pages: LRUCache[tuple[int, int, int], tuple[Node, _Page]] = LRUCache(
            PAGES_BYTES_MAX, getsizeof=lambda kept: len(kept[1].data)
        )

    @property
    def handlers(self) -> dict[int, Handler]:
        """Who answers which request."""
        return {
            Opcode.LOOKUP: self.lookup,
            Opcode.GETATTR: self.getattr,
            Opcode.READ: self.read,
            Opcode.READDIRPLUS: self.readdirplus,
            Opcode.FORGET: self.forget,
            Opcode.BATCH_FORGET: self.batch_forget,
            Opcode.OPEN: self.open,
            Opcode.OPENDIR: self.opendir,
            Opcode.FLUSH: self.flush,
            Opcode.GETXATTR: self.getxattr,
            Opcode.IOCTL: self.ioctl,
            Opcode.INTERRUPT: self.interrupt,
        }

    def initialise(self, flags: InitFlag) -> None:
        """Take note of what the kernel can."""
        self._flags = flags

    @property
    def lists_by_inode(self) -> bool:
        """Whether directories are read without being opened."""
        return bool(self._flags & InitFlag.NO_OPENDIR_SUPPORT)

    # names ---------------------------------------------------------------------------------------

    def lookup(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Look up a name; a missing one is an answer too, which the kernel may keep."""
        entry = self._known.entry(nodeid, abi.name_of(message))
        if entry is UNKNOWN:
            return FORWARD
        if entry is None:
            return (abi.missing_reply(unique, self._negative_timeout),)
        return (abi.entry_reply(unique, entry.attr, entry.entry_timeout),)

    def getattr(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Describe an inode."""
        attr = self._known.attr(nodeid)
        return (abi.attr_reply(unique, attr),) if attr is not None else FORWARD

    def forget(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Take back lookups of one inode."""
        self._forget(nodeid, abi.forgotten(message))
        return SILENCE

    def batch_forget(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Take back lookups of many."""
        for ino, count in abi.batch_forgotten(message):
            self._forget(ino, count)
        return SILENCE

    def _forget(self, ino: int, count: int) -> None:
        """Take back lookups; from any thread."""
        self._filesystem.forget(ino, count)

    # files ---------------------------------------------------------------------------------------

    def read(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Give bytes that are there, from where they are; hand on what must be waited for."""
        _, offset, size, *_ = abi.READ.unpack_from(message, abi.BODY)
        data = self._known.read(nodeid, offset, size)
        if data is None:
            self._reads.hand_over(unique, nodeid, offset, size, pid)
            return SILENCE
        return (abi.data_header(unique, len(data)), data)

    def open(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Make the kernel open files by itself. It refuses to write, the mount being read-only."""
        return self._unless_needed(unique, InitFlag.NO_OPEN_SUPPORT)

    def opendir(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Make the kernel open directories by itself and keep what they list."""
        return self._unless_needed(unique, InitFlag.NO_OPENDIR_SUPPORT)

    def _unless_needed(self, unique: int, flag: InitFlag) -> Reply | None:
        return (abi.error_reply(unique, errno.ENOSYS),) if self._flags & flag else FORWARD

    def flush(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """There is nothing to write: the kernel need not ask at every close."""
        return (abi.error_reply(unique, errno.ENOSYS),)

    # directories ---------------------------------------------------------------------------------

    def readdirplus(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Give entries until the kernel's buffer is full."""
        if not self.lists_by_inode:
            return FORWARD
        _, offset, size, *_ = abi.READ.unpack_from(message, abi.BODY)
        page = self._page(nodeid, offset, min(size, LIST_BYTES_MAX))
        if page is None:
            return FORWARD
        for ino, its_node, count in page.counted:
            self._filesystem.remember(ino, its_node, count)
        if not page.data:
            self._filesystem.end(nodeid)
        return (abi.data_header(unique, len(page.data)), page.data)

    def _page(self, ino: int, offset: int, size: int) -> _Page | None:
        node = self._filesystem.inodes.get(ino)
        kept = self._pages.get((ino, offset, size))
        if kept is not None and kept[0] is node:
            return kept[1]
        handle = self._known.directory(ino, offset)
        if handle is None or node is None:
            return None
        page = _pack(handle, offset, size)
        if page is None:
            return None
        if handle.members is not None and len(page.data) < PAGES_BYTES_MAX:
            self._pages[ino, offset, size] = node, page
        return page

    # the rest ------------------------------------------------------------------------------------

    def getxattr(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Say no to all attributes but ours: `ls -l` asks for security labels of every file."""
        if abi.xattr_name(message).startswith(PREFIX):
            return FORWARD
        return (abi.error_reply(unique, errno.ENODATA),)

    def ioctl(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Say that this is no terminal: Python asks so of every file it opens, until 3.14."""
        return (abi.error_reply(unique, errno.ENOTTY),)

    def interrupt(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Perhaps end a request early."""
        self._interruptions.interrupt(abi.interrupted(message))
        return SILENCE

    def undo(self, opcode: int, reply: memoryview) -> None:
        """Take back the lookups that a reply counted which the kernel did not take.

        From any thread.
        """
        _, code = abi.reply_header(reply)
        if code:
            return
        if opcode == Opcode.READDIRPLUS:
            for ino in abi.listed_nodeids(reply):
                self._forget(ino, 1)
        elif ino := abi.entry_nodeid(reply):
            self._forget(ino, 1)


def _pack(handle: DirectoryHandle, offset: int, size: int) -> _Page | None:
    """Pack entries as far as they are known; None when not even the first is."""
    if handle.members is not None:
        return _pack_members(handle.members, offset, size)
    packed: list[bytes] = []
    counted: list[tuple[int, Node, int]] = []
    for following, entry, node in handle.known(offset):
        if entry is None:
            if not packed:
                return None
            break
        one = abi.direntplus(entry.attr, entry.name, following, entry.entry_timeout)
        size -= len(one)
        if size < 0:
            break
        packed.append(one)
        counted.append((entry.attr.ino, node, 1))
    return _Page(b"".join(packed), counted)


def _pack_members(members: MemberRows, offset: int, size: int) -> _Page:
    packer = FilePacker(members.uid, members.gid, FOREVER)
    packed: list[bytes | bytearray] = []
    some, start = 0, offset
    while (listed := members.listed(offset, size // abi.DIRENTPLUS.size)) is not None:
        if isinstance(listed, Entry):
            some = listed.attr.ino
            entries: bytes | bytearray = abi.direntplus(
                listed.attr, listed.name, offset + 1, listed.entry_timeout
            )
            count = int(len(entries) <= size)
        else:
            some = listed.inos[0]
            entries, count = packer.pack(listed, offset, size)
        if not count:
            break
        packed.append(entries)
        size -= len(entries)
        offset += count
    # Members are counted on their shard, so one of them stands for all.
    counted: list[tuple[int, Node, int]] = []
    if packed:
        counted.append((some, members.node, offset - start))
    return _Page(b"".join(packed), counted)
