"""READs that have to wait: tasks of trio, which answer to the device themselves.

They do not pass pyfuse3. It would not tell `read` the inode, a reply would be copied through a socket
that has no room for large ones, and each would cost two wake-ups more (docs/adr/0012).
"""

import errno
import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import trio

from aisfs.engine.fetch.part import Data
from aisfs.filesystem.filesystem import FileSystem
from aisfs.fuse.fastpath.dispatcher import Reply
from aisfs.fuse.fastpath.failures import failure
from aisfs.fuse.fastpath.inbox import Inbox
from aisfs.fuse.fastpath.observer import Observer
from aisfs.fuse.fastpath.pending import Pending
from aisfs.fuse.wire import abi
from aisfs.fuse.wire.abi import Opcode
from aisfs.metrics import Metrics
from aisfs.process.request_log import request_log

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

    def open(self, nursery: trio.Nursery, reply: Callable[[int, Reply], None]) -> None:
        """Begin to take READs; their tasks run in `nursery` and answer with `reply`."""
        self._reply = reply
        self._inbox.open(nursery)

    def close(self) -> None:
        """Take no more; those under way go on."""
        self._inbox.close()

    def hand_over(self, unique: int, ino: int, offset: int, size: int, pid: int) -> None:
        """Hand a READ to the trio thread. For the dispatcher."""
        scope = trio.CancelScope()
        self._pending.add(
            unique, Opcode.READ, pid, cancel=lambda: self._token.run_sync_soon(scope.cancel)
        )
        self._inbox.put(_Read(unique, ino, offset, size, scope))
        self._inbox.tell()

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

    def _answer_with(self, read: _Read, *reply: bytes | bytearray | memoryview) -> None:
        request = self._pending.take(read.unique)
        if request is None:
            return
        self._reply(Opcode.READ, reply)
        seconds = time.monotonic() - request.since
        self._metrics.trio_times.observe("read", seconds)
        if seconds >= request_log.least:
            request_log.answered(log, "read", self._filesystem.describe(read.ino), seconds)
