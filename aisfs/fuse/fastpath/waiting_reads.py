"""READs that have to wait: for bytes under way, or for a task of trio; whoever has them answers to the device.

The thread that receives the bytes of a READ answers it at once, while they are in the processor's cache and
the rest of their part is still on its way (docs/adr/0034). All other READs become tasks.

They do not pass pyfuse3. It would not tell `read` the inode, a reply would be copied through a socket
that has no room for large ones, and each would cost two wake-ups more (docs/adr/0012).
"""

import errno
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import trio

from aisfs.engine.parts import Data, Received
from aisfs.errors import NotFound, Stale
from aisfs.filesystem.filesystem import FileSystem
from aisfs.fuse.fastpath.dispatcher import Reply
from aisfs.fuse.fastpath.failures import failure
from aisfs.fuse.fastpath.inbox import Inbox
from aisfs.fuse.fastpath.observer import Observer
from aisfs.fuse.fastpath.pending import Pending
from aisfs.fuse.wire import abi
from aisfs.fuse.wire.abi import Opcode
from aisfs.metrics import Metrics, OperationTimes
from aisfs.system.logs import NETWORK, request_log
from aisfs.system.threads import any_thread

log = logging.getLogger(__name__)


class _Read(NamedTuple):
    unique: int
    ino: int
    offset: int
    size: int
    scope: trio.CancelScope


class WaitingReads:
    """Takes READs from the dispatcher; at most as many at once as the kernel sends."""

    def __init__(
        self, filesystem: FileSystem, pending: Pending, metrics: Metrics, observer: Observer
    ) -> None:
        """Read from `filesystem`, in tasks of the nursery that `open` gives."""
        self._filesystem = filesystem
        self._pending = pending
        self._metrics = metrics
        self._observer = observer
        self._token = trio.lowlevel.current_trio_token()
        self._inbox: Inbox[_Read] = Inbox(self._begin, self._refuse)
        self._reply: Callable[[int, Reply], None] = lambda *_: None
        self._by_receiver = metrics.operations.labels("read", "receiver")
        self._answering: set[int] = set()
        """Threads that receive bytes and answer a READ with them just now."""

    def open(self, nursery: trio.Nursery, reply: Callable[[int, Reply], None]) -> None:
        """Begin to take READs; their tasks run in `nursery` and answer with `reply`."""
        self._reply = reply
        self._inbox.open(nursery)

    def close(self) -> None:
        """Take no more; those under way go on."""
        self._inbox.close()

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
        if self._inbox.closed:  # what is in `pending` by then is refused with all others
            self._refuse(read)
        elif not when_here(partial(self._received, read)):
            self._to_trio(read)

    @any_thread
    def _to_trio(self, read: _Read) -> None:
        self._inbox.put(read)
        self._inbox.tell()

    @any_thread
    def _received(self, read: _Read, got: Received) -> None:
        """Answer a READ whose bytes have come, or have failed to."""
        if got is None or isinstance(got, Stale | NotFound):  # which a task knows what to do about
            self._to_trio(read)
        elif isinstance(got, Exception):
            self._answer_with(
                read, abi.error_reply(read.unique, failure(self._metrics, "read", got))
            )
        else:
            self._answer_received(read, got)

    def _answer_received(self, read: _Read, data: Data) -> None:
        self._by_receiver.inc()
        request_log.begin()
        request_log.note(NETWORK)
        self._answering.add(me := threading.get_ident())
        try:
            reply = (abi.data_header(read.unique, len(data)), data)
            self._answer_with(read, *reply, times=self._metrics.receiver_times)
        finally:
            self._answering.discard(me)
        self._observer.was_read(read.ino, read.offset, len(data))

    @property
    def answering(self) -> bool:
        """Whether a thread that receives bytes may be writing to the device. None begins to after `refuse`."""
        return bool(self._answering)

    def _begin(self, nursery: trio.Nursery, read: _Read) -> None:
        nursery.start_soon(self._serve, read)

    def _refuse(self, read: _Read) -> None:
        self._answer_with(read, abi.error_reply(read.unique, errno.EIO))

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
            reply = (abi.error_reply(read.unique, failure(self._metrics, "read", error)),)
        finally:
            self._answer_with(read, *reply)
        if data is not None:
            self._observer.was_read(read.ino, read.offset, len(data))

    def _answer_with(
        self,
        read: _Read,
        *reply: bytes | bytearray | memoryview,
        times: OperationTimes | None = None,
    ) -> None:
        request = self._pending.take(read.unique)
        if request is None:
            return
        self._reply(Opcode.READ, reply)
        seconds = time.monotonic() - request.since
        (times or self._metrics.trio_times).observe("read", seconds)
        if seconds >= request_log.least:
            request_log.answered(log, "read", self._filesystem.describe(read.ino), seconds)
