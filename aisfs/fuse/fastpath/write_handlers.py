"""What the dispatcher answers in a mount that can be written, and not in one that is only read.

The kernel opens and closes with a message here, since an open file may be written. Of a file that
is open to read only, the dispatcher answers both; the kernel is told to keep its pages and not to say at each
`close` that there is nothing to write. It is told to keep the listing of a directory, which it drops
by itself with each change it makes, until the listing expires.
"""

import errno
from collections import deque
from contextlib import suppress

import trio

from aisfs.core.names.inodes import split_member
from aisfs.errors import AisfsError
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.writing.create import WRITING, OpenFiles
from aisfs.fuse.fastpath.dispatcher import ANSWERED, FORWARD, SILENCE, Handler, Reply
from aisfs.fuse.fastpath.handle_codes import handle_of, is_fastpath_handle
from aisfs.fuse.fastpath.write_requests import AllocateArgs, CreateArgs, WriteRequests
from aisfs.fuse.wire import abi
from aisfs.fuse.wire.abi import InitFlag, Opcode, OpenFlag
from aisfs.system.threads import any_thread

FALLOC_FL_KEEP_SIZE = 1  # as of fallocate(2)
CHANGEABLE = (
    Opcode.LOOKUP,
    Opcode.GETATTR,
    Opcode.READDIRPLUS,
    Opcode.OPEN,
    Opcode.RELEASE,
)
"""Requests whose answers a change may touch."""


class WriteHandlers:
    """The handlers of a mount that can be written. All methods run in the dispatcher, but `forget`."""

    # No file here has setuid or setgid, since only permissions are kept: there is nothing to take.
    wanted = InitFlag.HANDLE_KILLPRIV_V2 | InitFlag.INIT_EXT | InitFlag.DIRECT_IO_ALLOW_MMAP

    def __init__(self, filesystem: FileSystem, files: OpenFiles, requests: WriteRequests) -> None:
        """Answer from `files`; hand to `requests` what must wait. To be made in the trio thread."""
        self._filesystem = filesystem
        self._files = files
        self._requests = requests
        self._token = trio.lowlevel.current_trio_token()
        self._forgotten: deque[tuple[int, int]] = deque()
        self._told = False

    @property
    def handlers(self) -> dict[int, Handler]:
        """The handler of each request that is answered here."""
        return {
            Opcode.OPEN: self.open,
            Opcode.FLUSH: self.flush,
            Opcode.CREATE: self.create,
            Opcode.WRITE: self.write,
            Opcode.RELEASE: self.release,
            Opcode.FSYNC: self.fsync,
            Opcode.FALLOCATE: self.fallocate,
        }

    def initialise(self, flags: InitFlag) -> None:
        """Remember what the kernel can; before Linux 6.6 all writes go through the page cache."""
        self._files.may_bypass_pages = bool(flags & InitFlag.DIRECT_IO_ALLOW_MMAP)

    def unless_changing(
        self, handler: Handler, unique: int, nodeid: int, message: memoryview, pid: int
    ) -> Reply | None:
        """Answer while nothing changes; the trio thread answers after its change."""
        lock = self._files.namespace_lock
        if not lock.acquire(blocking=False):
            return FORWARD
        try:
            return handler(unique, nodeid, message, pid)
        finally:
            lock.release()

    # files ---------------------------------------------------------------------------------------

    def open(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Open what is to be read, and has not been written since the kernel knows it."""
        if abi.open_flags(message) & WRITING or not self._files.try_open(nodeid):
            return FORWARD
        flags = OpenFlag.KEEP_CACHE | OpenFlag.NOFLUSH
        return (abi.open_reply(unique, handle_of(nodeid), flags),)

    def write(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Write to what is staged, from where the kernel put the data."""
        offset, data = abi.written(message)
        if not self._files.try_write(nodeid, offset, data):
            return FORWARD
        return (abi.write_reply(unique, len(data)),)

    def create(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Make a file, or hand that to the trio thread, which also reports errors."""
        what = CreateArgs(nodeid, *abi.created(message))
        try:
            if self._requests.try_create(unique, what):
                return ANSWERED
        except AisfsError:  # the trio thread runs into it too, and reports it
            pass
        self._requests.hand_over(unique, Opcode.CREATE, what, pid)
        return SILENCE

    def release(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Close for good what was opened here; have the rest closed."""
        handle = abi.handle(message)
        if not is_fastpath_handle(handle):
            if self._requests.try_release(handle):
                return (abi.error_reply(unique, 0),)
            self._requests.hand_over(unique, Opcode.RELEASE, handle, pid)
            return SILENCE
        return (abi.error_reply(unique, 0),) if self._files.try_close(nodeid) else FORWARD

    def flush(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Do nothing for what was opened here; a kernel before 5.16 asks all the same."""
        handle = abi.handle(message)
        if is_fastpath_handle(handle):
            return (abi.error_reply(unique, 0),)
        reply = self._requests.try_acknowledge(unique, handle, pid)
        if reply is not FORWARD:
            return reply
        return self._commit(unique, Opcode.FLUSH, handle, pid)

    def fsync(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Do nothing for what was opened here, unless it is written by others."""
        handle = abi.handle(message)
        if is_fastpath_handle(handle) and self._files.is_stored(nodeid):
            return (abi.error_reply(unique, 0),)
        return self._commit(unique, Opcode.FSYNC, handle, pid)

    def _commit(self, unique: int, opcode: Opcode, handle: int, pid: int) -> Reply:
        self._requests.hand_over(unique, opcode, handle, pid)
        return SILENCE

    def fallocate(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Hand a preallocation to the trio thread; refuse holes and moved ranges.

        Without a change of the size there is nothing to do: it is by their sizes that files have room.
        """
        handle, end, mode = abi.allocated(message)
        if mode:
            code = 0 if mode == FALLOC_FL_KEEP_SIZE else errno.EOPNOTSUPP
            return (abi.error_reply(unique, code),)
        self._requests.hand_over(unique, Opcode.FALLOCATE, AllocateArgs(handle, end), pid)
        return SILENCE

    def before_sleep(self) -> None:
        """Wake the trio thread for what was handed over since the last time."""
        self._requests.tell()

    # lookup counts -------------------------------------------------------------------------------

    @any_thread
    def forget(self, ino: int, count: int) -> None:
        """Take back lookups, those of a written file in the trio thread."""
        if split_member(ino) is not None:
            self._filesystem.forget(ino, count)
            return
        self._forgotten.append((ino, count))
        if not self._told:  # else it has not begun to look, and will find this one too
            self._told = True
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._take_back)

    def _take_back(self) -> None:
        self._told = False
        while self._forgotten:
            self._filesystem.forget(*self._forgotten.popleft())
