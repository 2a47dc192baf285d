"""Requests about files that are written, answered to the device by the trio thread.

They do not pass pyfuse3, which would cost two wake-ups more (docs/adr/0019) and does not know FALLOCATE. What need not wait is done
when the thread takes it; the rest gets a task.
"""

import errno
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import trio

from aisfs.filesystem.handles import FileHandle, OpenFile
from aisfs.filesystem.nodes import Entry
from aisfs.filesystem.writing.setattr import WriteLayer
from aisfs.fuse.fastpath.dispatcher import COUNTED, FORWARD, SILENCE, Reply
from aisfs.fuse.fastpath.failures import failure
from aisfs.fuse.fastpath.handle_table import HandleTable
from aisfs.fuse.fastpath.inbox import Inbox
from aisfs.fuse.fastpath.pending import Pending
from aisfs.fuse.wire import abi
from aisfs.fuse.wire.abi import Opcode, OpenFlag
from aisfs.metrics import Metrics
from aisfs.system.logs import request_log

log = logging.getLogger(__name__)

TAKEN = (Opcode.CREATE, Opcode.FALLOCATE, Opcode.FLUSH, Opcode.FSYNC, Opcode.RELEASE)


class CreateArgs(NamedTuple):
    """What a CREATE asks for."""

    parent: int
    name: bytes
    mode: int
    flags: int


class AllocateArgs(NamedTuple):
    """What a FALLOCATE asks for."""

    handle: int
    end: int


class _Asked(NamedTuple):
    unique: int
    opcode: Opcode
    what: CreateArgs | AllocateArgs | int
    """The handle, or more."""


class WriteRequests:
    """Takes requests from the dispatcher; at most as many at once as the kernel sends."""

    def __init__(
        self,
        write: WriteLayer,
        handles: HandleTable,
        pending: Pending,
        metrics: Metrics,
        describe: Callable[[int], str],
    ) -> None:
        """Take what the dispatcher does not answer.

        Args:
            write: Changes the mount.
            handles: What is open, as for pyfuse3.
            pending: Requests that are answered elsewhere.
            metrics: Where requests are counted.
            describe: Says which file or directory an inode is, for the log.
        """
        self._describe = describe
        self._write = write
        self._handles = handles
        self._pending = pending
        self._metrics = metrics
        self._counts = {
            opcode: metrics.operations.labels(opcode.name.lower(), "trio") for opcode in TAKEN
        }
        self._journal_count = metrics.operations.labels("flush", "journal")
        self._inbox: Inbox[_Asked] = Inbox(self._begin, self._refuse)
        self._reply: Callable[[int, Reply], None] = lambda *_: None
        self._others_ask: Callable[[], bool] = lambda: True

    def open(
        self,
        nursery: trio.Nursery,
        reply: Callable[[int, Reply], None],
        others_ask: Callable[[], bool],
    ) -> None:
        """Begin to take requests; their tasks run in `nursery` and answer with `reply`.

        `others_ask` returns whether the kernel may have another request to hand out.
        """
        self._reply, self._others_ask = reply, others_ask
        self._inbox.open(nursery)

    def close(self) -> None:
        """Take no more; those under way go on."""
        self._inbox.close()

    # the dispatcher thread -----------------------------------------------------------------------

    def hand_over(
        self, unique: int, opcode: Opcode, what: CreateArgs | AllocateArgs | int, pid: int
    ) -> None:
        """Hand a request to the trio thread. RELEASE has no waiter: it goes with the next request."""
        self._pending.add(unique, opcode, pid)
        self._inbox.put(_Asked(unique, opcode, what))
        if opcode != Opcode.RELEASE:
            self.tell()

    def try_create(self, unique: int, what: CreateArgs) -> bool:
        """Make a file whose name is known to be free, and reply; return False if that must wait."""

        def made(entry: Entry, opened: OpenFile) -> None:
            self._reply(Opcode.CREATE, self._created(unique, entry, opened))

        return self._write.creator.try_create(*what, made)

    def try_acknowledge(self, unique: int, handle: int, pid: int) -> Reply | None:
        """Have the close of a file answered once it is safe on the local disk, or return `FORWARD`.

        If it is not answered at once, the journal's thread answers, or hands the request on if the disk
        has refused.
        """
        acknowledger, opened = self._write.acknowledger, self._handles.get(handle)
        if acknowledger is None or not isinstance(opened, OpenFile) or opened.file is None:
            return FORWARD
        self._pending.add(unique, Opcode.FLUSH, pid)
        told = partial(self._acknowledged, unique, handle)
        # While others wait for an answer here, the journal's thread waits for the disk.
        if acknowledger.try_begin(opened.file, told, may_wait=not self._others_ask()):
            return SILENCE if self._pending.get(unique) is not None else COUNTED
        # Not taken: it was interrupted, and answered.
        return FORWARD if self._pending.take(unique) is not None else SILENCE

    def try_release(self, handle: int) -> bool:
        """Close a file for good that waits for its upload; return whether it does."""
        opened = self._handles.get(handle)
        waits = isinstance(opened, OpenFile) and self._write.files.try_release_waiting(opened)
        if waits:
            self._handles.drop(handle)
        return waits

    def _acknowledged(self, unique: int, handle: int, safe: bool) -> None:
        """Answer a close. In the journal's thread, or in the dispatcher."""
        if not safe:
            self._inbox.put(_Asked(unique, Opcode.FLUSH, handle))
            self.tell()
            return
        request = self._pending.take(unique)
        if request is not None:
            self._reply(Opcode.FLUSH, (abi.error_reply(unique, 0),))
            self._journal_count.inc()
            self._metrics.journal_times.observe("flush", time.monotonic() - request.since)

    def tell(self) -> None:
        """Wake the trio thread, so that it does what was handed over."""
        self._inbox.tell()

    # the trio thread -----------------------------------------------------------------------------

    def take(self) -> None:
        """Do what was handed over so far. Whatever pyfuse3 has to do came after it."""
        self._inbox.take()

    def _begin(self, nursery: trio.Nursery, asked: _Asked) -> None:
        self._counts[asked.opcode].inc()
        request_log.begin()
        if not self._done_at_once(asked):
            nursery.start_soon(self._serve, asked)

    def _refuse(self, asked: _Asked) -> None:
        self._answer(asked, errno.EIO)

    def _done_at_once(self, asked: _Asked) -> bool:
        """Do what need not wait; returns whether that was all."""
        try:
            if asked.opcode == Opcode.RELEASE and isinstance(asked.what, int):
                handle = self._handles.file(asked.what)
                if not self._write.files.try_release(handle):
                    return False
                self._handles.drop(asked.what)
                self._answer(asked, 0)
                return True
        except Exception as error:  # noqa: BLE001 - logged there
            self._answer(asked, self._failure(asked, error))
            return True
        return False

    async def _serve(self, asked: _Asked) -> None:
        """Do and answer, whatever happens."""
        code = errno.EIO
        try:
            if isinstance(asked.what, CreateArgs):
                self._answer_created(asked, *await self._write.creator.create(*asked.what))
            elif isinstance(asked.what, AllocateArgs):
                handle, end = asked.what
                await self._write.files.allocate(self._handles.file(handle), end)
            elif asked.opcode == Opcode.RELEASE:
                opened = self._handles.file(asked.what)
                self._handles.drop(asked.what)
                await self._write.files.release(opened)
            else:
                sync = asked.opcode == Opcode.FSYNC
                await self._write.files.flush(self._handles.file(asked.what), sync=sync)
            code = 0
        except Exception as error:  # noqa: BLE001 - logged there
            code = self._failure(asked, error)
        finally:
            self._answer(asked, code)

    def _failure(self, asked: _Asked, error: Exception) -> int:
        return failure(self._metrics, asked.opcode.name.lower(), error)

    def _answer_created(self, asked: _Asked, entry: Entry, opened: OpenFile | FileHandle) -> None:
        (reply,) = self._created(asked.unique, entry, opened)
        self._send(asked, reply)

    def _created(self, unique: int, entry: Entry, opened: OpenFile | FileHandle) -> tuple[bytes]:
        handle = self._handles.keep(opened)
        bypasses = isinstance(opened, OpenFile) and opened.bypasses_pages
        flags = OpenFlag.DIRECT_IO if bypasses else OpenFlag.KEEP_CACHE
        return (abi.create_reply(unique, entry.attr, entry.entry_timeout, handle, flags),)

    def _answer(self, asked: _Asked, code: int) -> None:
        self._send(asked, abi.error_reply(asked.unique, code))

    def _send(self, asked: _Asked, reply: bytes) -> None:
        request = self._pending.take(asked.unique)
        if request is None:
            return
        self._reply(asked.opcode, (reply,))
        name, seconds = asked.opcode.name.lower(), time.monotonic() - request.since
        self._metrics.trio_times.observe(name, seconds)
        if seconds >= request_log.least:
            request_log.answered(log, name, self._subject(asked.what), seconds)

    def _subject(self, what: CreateArgs | AllocateArgs | int) -> str:
        if isinstance(what, CreateArgs):
            return f"{self._describe(what.parent)}{os.fsdecode(what.name)}"
        handle = what.handle if isinstance(what, AllocateArgs) else what
        return self._handles.describe(handle, self._describe)
