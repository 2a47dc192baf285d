"""Requests about inode numbers that the kernel has from an earlier daemon of the mount.

What such a number stands for is found out when it is first used, perhaps by asking the store. Its requests wait meanwhile,
and are handled as if they came just then.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio

from aisfs.core.names.inodes import slot_of
from aisfs.filesystem.filesystem import FileSystem
from aisfs.fuse import abi
from aisfs.fuse.abi import Opcode, name_of_opcode
from aisfs.fuse.dispatcher import SILENT, Pending, Reply, failure
from aisfs.metrics import Metrics

_ABOUT_NO_INODE = frozenset({*SILENT, Opcode.INIT, Opcode.DESTROY})
_CLOSES = frozenset({Opcode.FLUSH, Opcode.RELEASE, Opcode.RELEASEDIR})
"""What can be read no more can still be closed."""


class UnknownNumbers:
    """Puts requests aside; `takes` is for the dispatcher, the rest for the trio thread."""

    def __init__(self, filesystem: FileSystem, pending: Pending, metrics: Metrics) -> None:
        """Begin in the trio thread."""
        self._filesystem = filesystem
        self._inodes = filesystem.inodes
        self._pending = pending
        self._metrics = metrics
        self._token = trio.lowlevel.current_trio_token()
        self._waiting: dict[int, list[bytes]] = {}
        """Messages by the number, or by that of its shard."""
        self._resumed: set[int] = set()
        self._nursery: trio.Nursery | None = None
        self._reply: Callable[[int, Reply], None] = lambda *_: None
        self._resume: Callable[[bytes], None] = lambda _: None

    def open(
        self,
        nursery: trio.Nursery,
        reply: Callable[[int, Reply], None],
        resume: Callable[[bytes], None],
    ) -> None:
        """Begin: ask the store in tasks of `nursery`; have requests handled by `resume`, or refused by `reply`."""
        self._nursery, self._reply, self._resume = nursery, reply, resume

    def takes(self, opcode: int, unique: int, nodeid: int, message: memoryview, pid: int) -> bool:
        """Return whether a request is not to be handled now, or not any more."""
        if unique in self._resumed:
            self._resumed.discard(unique)
            # Else it was answered meanwhile, as its caller was ended.
            return self._pending.take(unique) is None
        if opcode in _ABOUT_NO_INODE or not self._inodes.is_earlier(nodeid):
            return False
        self._pending.add(unique, opcode, pid, cancel=lambda: None)
        with suppress(trio.RunFinishedError):  # the dispatcher answers it with an error at the end
            self._token.run_sync_soon(partial(self._put, slot_of(nodeid), bytes(message)))
        return True

    def _put(self, slot: int, message: bytes) -> None:
        waiting = self._waiting.setdefault(slot, [])
        waiting.append(message)
        if len(waiting) == 1 and self._nursery is not None:
            self._nursery.start_soon(self._find_out, slot)

    async def _find_out(self, slot: int) -> None:
        problem: Exception | None = None
        try:
            await self._filesystem.restore(slot)
        except Exception as error:  # noqa: BLE001 - `failure` tells what is a bug
            problem = error
        for message in self._waiting.pop(slot):
            _, opcode, unique, *_ = abi.HEADER.unpack_from(message)
            if problem is None or opcode in _CLOSES:
                self._resumed.add(unique)
                self._resume(message)
            elif self._pending.take(unique) is not None:
                code = failure(self._metrics, name_of_opcode(opcode), problem)
                self._reply(opcode, (abi.error_reply(unique, code),))
