"""Requests that the trio thread answers to the device: READs that have to wait, and requests about written files.

The thread that receives the bytes of a READ answers it at once, while they are in the processor's cache and
the rest of their part is still on its way (docs/adr/0034). All other READs become tasks.

None of them passes pyfuse3. It would not pass the inode to `read`, a reply would be copied through a socket that has no room for
large ones, each would cost two wake-ups more (docs/adr/0012, docs/adr/0019), and it does not know FALLOCATE. What need not wait
is done when the thread takes the request; the rest gets a task.

The handles of files that the dispatcher opened say which inode it is, so they are in no table. All others count from 1.

`WriteHandlers` is what the dispatcher answers in a mount that can be written, beyond `aisfs.fuse.handlers`. There the kernel
opens and closes with a message, since an open file may be written. Of a file that is open to read only, the dispatcher answers
both; its reply lets the kernel keep its pages, and not ask at each `close`. It also lets the kernel keep the listing of a
directory, which the kernel drops by itself with each change it makes, until the listing expires.
"""

import errno
import logging
import os
import stat
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Generic, NamedTuple, Protocol, TypeVar

import trio

from aisfs.core.names.inodes import split_member
from aisfs.engine.parts import Data, Received
from aisfs.errors import AisfsError, NotFound, Stale
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.handles import DirectoryHandle, FileHandle, OpenFile
from aisfs.filesystem.nodes import Entry, describe
from aisfs.filesystem.writing.open_files import WRITING, OpenFiles
from aisfs.filesystem.writing.restore import BYPASSES, WRITES
from aisfs.filesystem.writing.setattr import WriteLayer
from aisfs.fuse import abi
from aisfs.fuse.abi import InitFlag, Opcode, OpenFlag
from aisfs.fuse.dispatcher import (
    ANSWERED,
    COUNTED,
    FORWARD,
    SILENCE,
    Handler,
    Observer,
    Pending,
    Reply,
    failure,
)
from aisfs.metrics import Metrics, OperationTimes
from aisfs.system.logs import NETWORK, request_log
from aisfs.system.threads import any_thread

log = logging.getLogger(__name__)


class _Request(Protocol):
    """What all of them have."""

    @property
    def unique(self) -> int: ...

    @property
    def opcode(self) -> Opcode: ...


RequestT = TypeVar("RequestT", bound=_Request)


class TrioRequests(ABC, Generic[RequestT]):
    """Requests on their way from the dispatcher to the trio thread, whose waking costs more than most of them, and back."""

    def __init__(self, pending: Pending, metrics: Metrics) -> None:
        """Begin, in the trio thread, without requests; those in `pending` are answered elsewhere."""
        self._pending = pending
        self._metrics = metrics
        self._token = trio.lowlevel.current_trio_token()
        self._handed_over: deque[RequestT] = deque()
        self._woken = False
        self._nursery: trio.Nursery | None = None
        self._reply: Callable[[int, Reply], None] = lambda *_: None

    def open(self, nursery: trio.Nursery, reply: Callable[[int, Reply], None]) -> None:
        """Begin to take requests; their tasks run in `nursery` and answer with `reply`."""
        self._reply = reply
        self._nursery = nursery

    def close(self) -> None:
        """Take no more; those under way go on."""
        self._nursery = None

    @any_thread
    def _put(self, request: RequestT) -> None:
        """Hand a request over; `tell` delivers it."""
        self._handed_over.append(request)

    @any_thread
    def tell(self) -> None:
        """Wake the trio thread, so that it does what was handed over."""
        if self._handed_over and not self._woken:  # else it has not begun to look, and will find it
            self._woken = True
            try:
                self._token.run_sync_soon(self.take)
            except trio.RunFinishedError:
                self._woken = False
                while self._handed_over:
                    self._refuse(self._handed_over.popleft())

    def take(self) -> None:
        """Do what was handed over so far, in the trio thread. Whatever pyfuse3 has to do came after it."""
        self._woken = False
        while self._handed_over:
            request = self._handed_over.popleft()
            if self._nursery is None:
                self._refuse(request)
            else:
                self._begin(self._nursery, request)

    @abstractmethod
    def _begin(self, nursery: trio.Nursery, request: RequestT) -> None:
        """Do what need not wait; the rest gets a task."""

    @abstractmethod
    def _subject(self, request: RequestT) -> str:
        """Return what a request is about, for the log."""

    @any_thread
    def _refuse(self, request: RequestT) -> None:
        self._answer(request, errno.EIO)

    @any_thread
    def _answer(self, request: RequestT, code: int) -> None:
        self._send(request, abi.error_reply(request.unique, code))

    @any_thread
    def _send(
        self,
        request: RequestT,
        *reply: bytes | bytearray | memoryview,
        times: OperationTimes | None = None,
    ) -> None:
        """Answer a request, unless another thread has."""
        pending = self._pending.take(request.unique)
        if pending is None:
            return
        self._reply(request.opcode, reply)
        name, seconds = request.opcode.name.lower(), time.monotonic() - pending.since
        (times or self._metrics.trio_times).observe(name, seconds)
        if seconds >= request_log.least:
            request_log.answered(log, name, self._subject(request), seconds)

    @any_thread
    def _failure(self, request: RequestT, error: Exception) -> int:
        return failure(self._metrics, request.opcode.name.lower(), error)


class _Read(NamedTuple):
    unique: int
    ino: int
    offset: int
    size: int
    scope: trio.CancelScope
    opcode: Opcode = Opcode.READ


class WaitingReads(TrioRequests[_Read]):
    """Takes READs from the dispatcher; at most as many at once as the kernel sends."""

    def __init__(
        self, filesystem: FileSystem, pending: Pending, metrics: Metrics, observer: Observer
    ) -> None:
        """Read from `filesystem`, and tell `observer` of it."""
        super().__init__(pending, metrics)
        self._filesystem = filesystem
        self._observer = observer
        self._by_receiver = metrics.operations.labels("read", "receiver")
        self._answering: set[int] = set()
        """Threads that receive bytes and answer a READ with them just now."""

    def hand_over(
        self,
        unique: int,
        ino: int,
        offset: int,
        size: int,
        pid: int,
        when_here: Callable[[Callable[[Received], None]], bool],
    ) -> None:
        """Hand a READ to the thread that receives its bytes, or to trio's. For the dispatcher.

        Args:
            unique: The request's number.
            ino: What to read.
            offset: Where.
            size: How much.
            pid: The process that made the request; 0 when it is not known.
            when_here: See `InstantAnswers.when_here`, for this range.
        """
        scope = trio.CancelScope()
        self._pending.add(
            unique, Opcode.READ, pid, cancel=lambda: self._token.run_sync_soon(scope.cancel)
        )
        read = _Read(unique, ino, offset, size, scope)
        if self._nursery is None:  # what is in `pending` by then is refused with all others
            self._refuse(read)
        elif not when_here(partial(self._received, read)):
            self._to_trio(read)

    @any_thread
    def _to_trio(self, read: _Read) -> None:
        self._put(read)
        self.tell()

    @any_thread
    def _received(self, read: _Read, got: Received) -> None:
        """Answer a READ whose bytes have come, or have failed to."""
        if got is None or isinstance(got, Stale | NotFound):  # which a task knows what to do about
            self._to_trio(read)
        elif isinstance(got, Exception):
            self._answer(read, self._failure(read, got))
        else:
            self._answer_received(read, got)

    def _answer_received(self, read: _Read, data: Data) -> None:
        self._by_receiver.inc()
        request_log.begin()
        request_log.note(NETWORK)
        self._answering.add(me := threading.get_ident())
        try:
            reply = (abi.data_header(read.unique, len(data)), data)
            self._send(read, *reply, times=self._metrics.receiver_times)
        finally:
            self._answering.discard(me)
        self._observer.was_read(read.ino, read.offset, len(data))

    @property
    def answering(self) -> bool:
        """Whether a thread that receives bytes may be writing to the device. None begins to after `refuse`."""
        return bool(self._answering)

    def _begin(self, nursery: trio.Nursery, read: _Read) -> None:
        nursery.start_soon(self._serve, read)

    def _subject(self, read: _Read) -> str:
        return self._filesystem.describe(read.ino)

    async def _serve(self, read: _Read) -> None:
        """Read and answer, whatever happens."""
        self._metrics.operations.labels("read", "trio").inc()
        request_log.begin()
        reply: Reply = (abi.error_reply(read.unique, errno.EIO),)
        data: Data | None = None
        try:
            with read.scope:
                data = await self._filesystem.read_at(read.ino, read.offset, read.size)
                reply = (abi.data_header(read.unique, len(data)), data)
        except Exception as error:  # noqa: BLE001 - logged there
            reply = (abi.error_reply(read.unique, self._failure(read, error)),)
        finally:
            self._send(read, *reply)
        if data is not None:
            self._observer.was_read(read.ino, read.offset, len(data))


_MEMBER = 0
"""Any member of a shard: which one does not matter."""
_OBJECT = 1 << 63
"""Added to the number of an object, which is less."""


def handle_of(ino: int) -> int:
    """Return the handle of an open file."""
    return _MEMBER if ino & _OBJECT else ino | _OBJECT


def is_fastpath_handle(handle: int) -> bool:
    """Return whether the dispatcher opened it."""
    return handle == _MEMBER or bool(handle & _OBJECT)


def object_of(handle: int) -> int | None:
    """Return the inode of an object that the dispatcher opened; None for any other handle."""
    return handle ^ _OBJECT if handle & _OBJECT else None


Opened = DirectoryHandle | FileHandle | OpenFile


class HandleTable:
    """Handles by their numbers. For the trio thread, and for the dispatcher, which opens and closes files, too."""

    def __init__(
        self,
        files: OpenFiles | None,
        note: Callable[[int, int, int, int, int], None] = lambda *_: None,
    ) -> None:
        """Start with none; `files` can be written, if any can.

        `note` learns of each that begins or ends, see `Inodes.handle`.
        """
        self._files = files
        self._note = note
        self._opened: dict[int, Opened] = {}
        self._numbers = count(1)

    def keep(self, opened: Opened, unique: int = 0) -> int:
        """Return something open a number; `unique` is the request that opens it."""
        number = next(self._numbers)
        self._opened[number] = opened
        if isinstance(opened, OpenFile):
            flags = WRITES if opened.file is not None else 0
            flags |= BYPASSES if opened.bypasses_pages else 0
            self._note(number, opened.ino, unique & ~abi.RESENT, flags, 1)
        return number

    def keep_reader(self, ino: int) -> int:
        """Return the number of a file that the dispatcher has opened to read."""
        number = handle_of(ino)
        if number != _MEMBER:
            self._note(number, ino, 0, 0, 1)
        return number

    def unopen(self, number: int | None) -> None:
        """Close what a daemon before has opened, and the kernel knows nothing of."""
        opened = self._opened.get(number) if number is not None else None
        if number is not None and isinstance(opened, OpenFile) and self._files is not None:
            self._files.end(opened)
            self.drop(number)

    def restore(self, number: int, opened: OpenFile) -> None:
        """Know again what a daemon before has opened."""
        if object_of(number) is None:
            self._opened[number] = opened
            self._numbers = count(max(self._opened) + 1)

    def get(self, number: int) -> Opened | None:
        """Return what has a number; the dispatcher may have opened it."""
        ino = object_of(number)
        return self._opened.get(number) if ino is None else OpenFile(ino, None)

    def directory(self, number: int) -> DirectoryHandle:
        """Return the open directory that has a number."""
        opened = self.get(number)
        assert isinstance(opened, DirectoryHandle), "the kernel reads a directory it opened"
        return opened

    def file(self, number: int) -> FileHandle | OpenFile:
        """Return the open file that has a number."""
        opened = self.get(number)
        if opened is None:  # a member that a daemon before has opened: it is read by its inode
            return OpenFile(0, None)
        assert isinstance(opened, FileHandle | OpenFile), "the kernel uses a file it opened"
        return opened

    def describe(self, number: int, of_inode: Callable[[int], str]) -> str:
        """Return which file has a number, for the log.

        Args:
            number: A handle.
            of_inode: Says which file an inode is.
        """
        opened = self.get(number)
        if isinstance(opened, OpenFile):
            return of_inode(opened.ino)
        if not isinstance(opened, FileHandle):
            return f"handle {number}"
        member = opened.member
        inside = f"/{os.fsdecode(member.index.name(member.row))}" if member is not None else ""
        return describe(opened.node) + inside

    def drop(self, number: int) -> None:
        """Forget a number."""
        opened = self._opened.pop(number, None)
        ino = opened.ino if isinstance(opened, OpenFile) else object_of(number)
        if ino is not None:
            self._note(number, ino, 0, 0, -1)

    # closing for good ----------------------------------------------------------------------------

    async def release(self, number: int) -> None:
        """Close a file for good."""
        opened = self.get(number)
        try:
            if self._files is not None and isinstance(opened, OpenFile):
                await self._files.release(opened)
        finally:
            self.drop(number)  # not before: another daemon would be asked again to close it

    def try_release(self, number: int) -> bool:
        """Do so if that need not wait; return whether it was done."""
        opened, files = self.get(number), self._files
        if files is not None and isinstance(opened, OpenFile) and not files.try_release(opened):
            return False
        self.drop(number)
        return True

    def try_release_in_thread(self, number: int) -> bool:
        """Do so in the dispatcher, if nobody writes to the file, or it waits for its upload."""
        opened, files = self.get(number), self._files
        if files is None or not isinstance(opened, OpenFile):
            return False
        done = files.try_release_in_thread(opened)
        if done:
            self.drop(number)
        return done


class CreateArgs(NamedTuple):
    """What a CREATE asks for."""

    parent: int
    name: bytes
    mode: int
    flags: int


class OpenArgs(NamedTuple):
    """What an OPEN asks for."""

    ino: int
    flags: int


class AllocateArgs(NamedTuple):
    """What a FALLOCATE asks for."""

    handle: int
    end: int


class AgainArgs(NamedTuple):
    """What a change of names asks for that a daemon before has not answered."""

    parent: int
    numbers: tuple[int, ...]
    names: list[bytes]


TAKEN = (
    Opcode.OPEN, Opcode.CREATE, Opcode.FALLOCATE, Opcode.FLUSH, Opcode.FSYNC, Opcode.RELEASE, *abi.NAME_CHANGES,
)  # fmt: skip
_What = CreateArgs | OpenArgs | AllocateArgs | AgainArgs | int


class _Asked(NamedTuple):
    unique: int
    opcode: Opcode
    what: _What
    """The handle, or more."""


class WriteRequests(TrioRequests[_Asked]):
    """Takes requests from the dispatcher; at most as many at once as the kernel sends."""

    def __init__(
        self,
        write: WriteLayer,
        handles: HandleTable,
        pending: Pending,
        metrics: Metrics,
        describe: Callable[[int], str],
        opened_by: Callable[[int], int | None] = lambda _: None,
    ) -> None:
        """Take what the dispatcher does not answer.

        Args:
            write: Changes the mount.
            handles: What is open, as for pyfuse3.
            pending: Requests that are answered elsewhere.
            metrics: Where requests are counted.
            describe: Says which file or directory an inode is, for the log.
            opened_by: See `Inodes`.
        """
        self._opened_by = opened_by
        super().__init__(pending, metrics)
        self._describe = describe
        self._write = write
        self.handles = handles
        self._counts = {
            opcode: metrics.operations.labels(opcode.name.lower(), "trio") for opcode in TAKEN
        }
        self._journal_count = metrics.operations.labels("flush", "journal")
        self.others_ask: Callable[[], bool] = lambda: True
        """Returns whether the kernel may have another request to hand out."""

    # the dispatcher thread -----------------------------------------------------------------------

    def hand_over(self, unique: int, opcode: Opcode, what: _What, pid: int) -> None:
        """Hand a request to the trio thread. RELEASE has no waiter: it goes with the next request."""
        self._pending.add(unique, opcode, pid)
        self._put(_Asked(unique, opcode, what))
        if opcode != Opcode.RELEASE:
            self.tell()

    def try_create(self, unique: int, what: CreateArgs) -> bool:
        """Make a file whose name is known to be free, and reply; return False if that must wait."""

        def made(entry: Entry, opened: OpenFile) -> None:
            self._reply(Opcode.CREATE, (self._created(unique, entry, opened),))

        return self._write.creator.try_create(*what, made)

    def try_acknowledge(self, unique: int, handle: int, pid: int) -> Reply | None:
        """Have the close of a file answered once it is safe on the local disk, or return `FORWARD`.

        If it is not answered at once, the journal's thread answers, or hands the request on if the disk
        has refused.
        """
        acknowledger, opened = self._write.acknowledger, self.handles.get(handle)
        if acknowledger is None or not isinstance(opened, OpenFile) or opened.file is None:
            return FORWARD
        self._pending.add(unique, Opcode.FLUSH, pid)
        told = partial(self._acknowledged, unique, handle)
        # While others wait for an answer here, the journal's thread waits for the disk.
        if acknowledger.try_begin(opened.file, told, may_wait=not self.others_ask()):
            return SILENCE if self._pending.get(unique) is not None else COUNTED
        # Not taken: it was interrupted, and answered.
        return FORWARD if self._pending.take(unique) is not None else SILENCE

    def try_release(self, handle: int) -> bool:
        """Close a file for good if that takes no more than to count it; return whether it was done."""
        return handle == _MEMBER or self.handles.try_release_in_thread(handle)

    def _acknowledged(self, unique: int, handle: int, safe: bool) -> None:
        """Answer a close. In the journal's thread, or in the dispatcher."""
        if not safe:
            self._put(_Asked(unique, Opcode.FLUSH, handle))
            self.tell()
            return
        request = self._pending.take(unique)
        if request is not None:
            self._reply(Opcode.FLUSH, (abi.error_reply(unique, 0),))
            self._journal_count.inc()
            self._metrics.journal_times.observe("flush", time.monotonic() - request.since)

    # the trio thread -----------------------------------------------------------------------------

    def _begin(self, nursery: trio.Nursery, asked: _Asked) -> None:
        self._counts[asked.opcode].inc()
        request_log.begin()
        if not self._done_at_once(asked):
            nursery.start_soon(self._serve, asked)

    def _done_at_once(self, asked: _Asked) -> bool:
        """Do what need not wait; returns whether that was all."""
        if asked.opcode != Opcode.RELEASE or not isinstance(asked.what, int):
            return False
        code = 0
        try:
            if not self.handles.try_release(asked.what):
                return False
        except Exception as error:  # noqa: BLE001 - logged there
            code = self._failure(asked, error)
        self._answer(asked, code)
        return True

    async def _serve(self, asked: _Asked) -> None:
        """Do and answer, whatever happens."""
        code = errno.EIO
        try:
            if isinstance(asked.what, AgainArgs):
                self._send(asked, await self._again(asked.unique, asked.opcode, asked.what))
            elif isinstance(asked.what, OpenArgs):
                self._unopen(asked.unique)
                opened = await self._write.files.open(*asked.what)
                self._send(asked, self._opened(asked.unique, opened))
            elif isinstance(asked.what, CreateArgs) and asked.unique & abi.RESENT:
                self._unopen(asked.unique)
                once = await self._write.again.create(*asked.what)
                self._send(asked, self._created(asked.unique, *once))
            elif isinstance(asked.what, CreateArgs):
                made = await self._write.creator.create(*asked.what)
                self._send(asked, self._created(asked.unique, *made))
            elif isinstance(asked.what, AllocateArgs):
                handle, end = asked.what
                await self._write.files.allocate(self.handles.file(handle), end)
            elif asked.opcode == Opcode.RELEASE:
                await self.handles.release(asked.what)
            else:
                closed, sync = self.handles.file(asked.what), asked.opcode == Opcode.FSYNC
                await self._write.files.flush(closed, sync=sync)
            code = 0
        except Exception as error:  # noqa: BLE001 - logged there
            code = self._failure(asked, error)
        finally:
            self._answer(asked, code)

    async def _again(self, unique: int, opcode: Opcode, what: AgainArgs) -> bytes:
        """Do what a daemon before has not answered; return the reply."""
        again, parent = self._write.again, what.parent
        name, second, *_ = what.names
        match opcode:
            case Opcode.MKDIR:
                entry = await again.mkdir(parent, name, what.numbers[0])
            case Opcode.SYMLINK:
                entry = await again.make_file(parent, name, 0, second)
            case Opcode.MKNOD if stat.S_ISREG(what.numbers[0]):
                mode = stat.S_IMODE(what.numbers[0])
                entry = await again.make_file(parent, name, mode, None)
            case Opcode.MKNOD:
                return abi.error_reply(unique, errno.EPERM)
            case _:
                if opcode == Opcode.UNLINK:
                    await again.unlink(parent, name)
                elif opcode == Opcode.RMDIR:
                    await again.rmdir(parent, name)
                else:
                    new_parent, flags, *_ = (*what.numbers, 0)
                    await again.rename(parent, name, new_parent, second, flags)
                return abi.error_reply(unique, 0)
        return abi.entry_reply(unique, entry.attr, entry.entry_timeout)

    def _unopen(self, unique: int) -> None:
        if unique & abi.RESENT:
            self.handles.unopen(self._opened_by(unique & ~abi.RESENT))

    def _opened(self, unique: int, opened: OpenFile | FileHandle) -> bytes:
        bypasses = isinstance(opened, OpenFile) and opened.bypasses_pages
        flags = OpenFlag.DIRECT_IO | OpenFlag.KEEP_CACHE if bypasses else OpenFlag.KEEP_CACHE
        return abi.open_reply(unique, self.handles.keep(opened, unique), flags)

    def _created(self, unique: int, entry: Entry, opened: OpenFile | FileHandle) -> bytes:
        handle = self.handles.keep(opened, unique)
        bypasses = isinstance(opened, OpenFile) and opened.bypasses_pages
        flags = OpenFlag.DIRECT_IO if bypasses else OpenFlag.KEEP_CACHE
        return abi.create_reply(unique, entry.attr, entry.entry_timeout, handle, flags)

    def _subject(self, asked: _Asked) -> str:
        what = asked.what
        if isinstance(what, CreateArgs):
            return f"{self._describe(what.parent)}{os.fsdecode(what.name)}"
        if isinstance(what, OpenArgs):
            return self._describe(what.ino)
        if isinstance(what, AgainArgs):
            return f"{self._describe(what.parent)}{os.fsdecode(what.names[0])}"
        handle = what.handle if isinstance(what, AllocateArgs) else what
        return self.handles.describe(handle, self._describe)


FALLOC_FL_KEEP_SIZE = 1  # as of fallocate(2)
CHANGEABLE = (
    Opcode.LOOKUP,
    Opcode.GETATTR,
    Opcode.READDIRPLUS,
    Opcode.OPEN,
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
        again: dict[int, Handler] = {
            code: partial(self.change_names, code) for code in abi.NAME_CHANGES
        }
        return {
            **again,
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
        flags_asked = abi.open_flags(message)
        if flags_asked & WRITING or not self._files.try_open(nodeid):
            return self._hand_over(unique, Opcode.OPEN, OpenArgs(nodeid, flags_asked), pid)
        flags = OpenFlag.KEEP_CACHE | OpenFlag.NOFLUSH
        return (abi.open_reply(unique, self._requests.handles.keep_reader(nodeid), flags),)

    def write(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Write to what is staged, from where the kernel put the data."""
        offset, data = abi.written(message)
        if not self._files.try_write(nodeid, offset, data):
            return FORWARD
        return (abi.write_reply(unique, len(data)),)

    def create(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Make a file, or hand that to the trio thread, which also reports errors."""
        what = CreateArgs(nodeid, *abi.created(message))
        if unique & abi.RESENT:
            return self._hand_over(unique, Opcode.CREATE, what, pid)
        self._filesystem.inodes.begins(nodeid)
        try:
            if self._requests.try_create(unique, what):
                return ANSWERED
        except AisfsError:  # the trio thread runs into it too, and reports it
            pass
        return self._hand_over(unique, Opcode.CREATE, what, pid)

    def change_names(
        self, opcode: Opcode, unique: int, nodeid: int, message: memoryview, pid: int
    ) -> Reply | None:
        """Forward a change of names, but have it found out whether a daemon before has made it."""
        what = AgainArgs(nodeid, *abi.name_change(opcode, message))
        if not unique & abi.RESENT:
            renamed = opcode in (Opcode.RENAME, Opcode.RENAME2)
            self._filesystem.inodes.begins(nodeid, *what.numbers[:renamed])
            return FORWARD
        return self._hand_over(unique, opcode, what, pid)

    def release(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Close for good what nobody writes to, or waits for its upload; have the rest closed."""
        handle, lock = abi.handle(message), self._files.namespace_lock
        if unique & abi.RESENT and not self._filesystem.inodes.has_handle(handle):
            return (abi.error_reply(unique, 0),)  # a daemon before has closed it
        if lock.acquire(blocking=False):  # else the trio thread closes it after its change
            try:
                if self._requests.try_release(handle):
                    return (abi.error_reply(unique, 0),)
            finally:
                lock.release()
        return self._hand_over(unique, Opcode.RELEASE, handle, pid)

    def flush(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Do nothing for what was opened here; a kernel before 5.16 asks all the same."""
        handle = abi.handle(message)
        if is_fastpath_handle(handle):
            return (abi.error_reply(unique, 0),)
        reply = self._requests.try_acknowledge(unique, handle, pid)
        if reply is not FORWARD:
            return reply
        return self._hand_over(unique, Opcode.FLUSH, handle, pid)

    def fsync(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Do nothing for what was opened here, unless it is written by others."""
        handle = abi.handle(message)
        if is_fastpath_handle(handle) and self._files.is_stored(nodeid):
            return (abi.error_reply(unique, 0),)
        return self._hand_over(unique, Opcode.FSYNC, handle, pid)

    def fallocate(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Hand a preallocation to the trio thread; refuse holes and moved ranges.

        Without a change of the size there is nothing to do: it is by their sizes that files have room.
        """
        handle, end, mode = abi.allocated(message)
        if mode:
            code = 0 if mode == FALLOC_FL_KEEP_SIZE else errno.EOPNOTSUPP
            return (abi.error_reply(unique, code),)
        return self._hand_over(unique, Opcode.FALLOCATE, AllocateArgs(handle, end), pid)

    def _hand_over(self, unique: int, opcode: Opcode, what: _What, pid: int) -> Reply:
        self._requests.hand_over(unique, opcode, what, pid)
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
