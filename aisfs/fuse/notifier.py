"""The thread that sends the kernel what it did not ask for: names that changed, bytes to keep.

Such a message may wait inside the kernel for a request under way: for a READ that has the page
locked, for a LOOKUP in the same directory. So no thread that answers requests sends one, nor a thread that such a thread could
wait for; and none waits for this one, except a task of trio that waits for a while (`invalidated`).
"""

import errno
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain

import trio

from aisfs.fuse import abi
from aisfs.system.threads import any_thread, start_service_thread

log = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
"""How long the last message may take at the end. Requests are still answered meanwhile."""
INVALIDATE_SECONDS = 1.0
"""A look-up that is under way in the directory takes milliseconds; longer is a circle of waits."""
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENOTCONN, errno.EPERM, errno.ENOTEMPTY)
"""The kernel does not know the inode or the name any more, or the mount is ending."""

Buffer = bytes | bytearray | memoryview


class Notifier:
    """Sends notifications, one after the other."""

    def __init__(self, fd: int, on_fault: Callable[[Buffer], None] = lambda _: None) -> None:
        """Write to the device `fd`, which must stay open until `close`.

        `on_fault` is called for data that the kernel could not read, and must not wait.
        """
        self._fd = fd
        self._on_fault = on_fault
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closing = False
        self._thread: threading.Thread | None = None
        self.sending_since: float | None = None
        """When the message under way was begun, in seconds of `time.monotonic`."""

    def start(self) -> None:
        """Begin to send."""
        self._thread = start_service_thread("aisfs notify", self._serve)

    # for threads that have a notification -------------------------------------------------------------

    @any_thread
    def put(self, job: Callable[[], None]) -> None:
        """Run `job` in the thread; it may call `send` and `store`, and should look at `closing`."""
        if not self._closing:
            self._jobs.put(job)

    @any_thread
    def forward(self, message: bytes) -> None:
        """Send a message as it is."""
        self.put(lambda: self._send_alone(message))

    @any_thread
    def invalidate_entry(self, parent: int, name: bytes) -> None:
        """Make the kernel look `name` up again."""
        self.forward(abi.inval_entry(parent, name))

    @any_thread
    def invalidate_inode(self, ino: int) -> None:
        """Make the kernel ask for attributes, and for entries or bytes, of an inode again."""
        self.forward(abi.inval_inode(ino))

    @any_thread
    def drop_pages(self, inodes: Iterable[int]) -> None:
        """Make the kernel ask for the content of files again."""

        def drop() -> None:
            for ino in inodes:
                if self._closing:
                    return
                self.send(abi.inval_inode(ino))

        self.put(drop)

    async def expire(
        self, entries: Iterable[tuple[int, bytes]], directories: Iterable[int]
    ) -> None:
        """Make the kernel ask for names, attributes and listings again; see `Kernel`."""
        told = trio.Event()
        token = trio.lowlevel.current_trio_token()
        names = (abi.expire_entry(parent, name) for parent, name in entries)
        inodes = (abi.inval_inode(ino) for ino in directories)

        def tell() -> None:
            for message in chain(names, inodes):
                if self._closing:
                    break
                self.send(message)
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(told.set)

        self.put(tell)
        while not (told.is_set() or self._closing):
            with trio.move_on_after(INVALIDATE_SECONDS):
                await told.wait()

    async def invalidated(self, parent: int, name: bytes) -> None:
        """Make the kernel look `name` up again, and wait until it knows, a second at most.

        The holder of the directory's lock may wait for the request that waits here.
        """
        told = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def tell() -> None:
            self.send(abi.inval_entry(parent, name))
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(told.set)

        self.put(tell)
        with trio.move_on_after(0 if self._closing else INVALIDATE_SECONDS):
            await told.wait()

    @property
    def closing(self) -> bool:
        """Whether jobs should come to an end."""
        return self._closing

    # In the thread -------------------------------------------------------------------------------

    def store(self, ino: int, offset: int, data: Buffer) -> bool:
        """Put bytes into the page cache of an inode; returns whether the kernel knew it."""
        return self.send(abi.store_header(ino, offset, len(data)), data)

    def send_all(self, messages: Iterable[Buffer | tuple[Buffer, Buffer]]) -> list[int]:
        """Send messages, in one piece or two; returns the places of those refused."""
        refused = []
        fd, write, writev = self._fd, os.write, os.writev
        self.sending_since = time.monotonic()  # of the first: all take a millisecond or two
        try:
            for place, message in enumerate(messages):
                try:
                    if isinstance(message, tuple):
                        writev(fd, message)
                    else:
                        write(fd, message)
                except OSError as error:
                    self._refused(error, message[-1] if isinstance(message, tuple) else message)
                    refused.append(place)
        finally:
            self.sending_since = None
        return refused

    def send(self, *message: Buffer) -> bool:
        """Send one message; returns whether the kernel took it."""
        self.sending_since = time.monotonic()
        try:
            os.writev(self._fd, message)
        except OSError as error:
            self._refused(error, message[-1])
            return False
        finally:
            self.sending_since = None
        return True

    def _refused(self, error: OSError, data: Buffer) -> None:
        if error.errno == errno.EFAULT:
            self._on_fault(data)
        elif error.errno not in _GONE:
            log.warning("the kernel refused a notification: %s", error.strerror)

    def _send_alone(self, message: bytes) -> None:
        self.send(message)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._closing:
                continue
            try:
                job()
            except Exception:
                log.exception(
                    "notifying the kernel failed: this is a bug in aisfs, please report it"
                )

    def close(self) -> bool:
        """End after the message under way, which must still be able to get through.

        Returns:
            False if it is stuck.
        """
        self._closing = True
        self._jobs.put(None)
        if self._thread is None:
            return True
        self._thread.join(CLOSE_SECONDS)
        return not self._thread.is_alive()
