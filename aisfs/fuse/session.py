"""Runs a mount with the fast path, from the descriptor to the last thread.

The watchdog ends what hangs. A message to the kernel that is stuck cannot be ended by a signal, not even by `kill -9`, and
neither can a process that waits for an answer from a thread that hangs. Aborting the connection ends both.
"""

import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from aisfs.errors import MountError
from aisfs.filesystem.filesystem import FileSystem, InstantAnswers
from aisfs.filesystem.writing.setattr import WriteLayer
from aisfs.fuse.abi import Negotiation, Opcode, name_of_opcode
from aisfs.fuse.dispatcher import (
    ASKING,
    LISTING_OPCODES,
    SPIN_SECONDS,
    Buffer,
    Dispatcher,
    Interrupts,
    NullObserver,
    Observer,
    Pending,
    grow,
)
from aisfs.fuse.handlers import Handlers
from aisfs.fuse.mountpoint import Device, mount_device, taken_over
from aisfs.fuse.notifier import Notifier
from aisfs.fuse.operations import Operations, serve_descriptor, terminate
from aisfs.fuse.requests import WaitingReads, WriteHandlers, WriteRequests
from aisfs.fuse.takeover import UnknownNumbers
from aisfs.metrics import Metrics
from aisfs.system.keeping import Keeping
from aisfs.system.threads import any_thread, start_service_thread

log = logging.getLogger(__name__)

STUCK_SECONDS = 10.0
"""Nothing that our own threads do takes a hundredth of it."""
SLOW_SECONDS = 1.0
"""A request that takes longer waits for the cluster, and may have locked a directory or a page."""
INTERVAL = 1.0
SIGHTS = 3
"""How often in a row the same must be seen: all of us may have been stopped, and go on just now."""


class Watchdog:
    """Looks once a second."""

    def __init__(
        self,
        device: Device,
        dispatcher: Dispatcher,
        notifier: Notifier,
        pending: Pending,
        interruptions: Interrupts,
        *,
        kept: bool = False,
    ) -> None:
        """Watch over all of these once `start` is called.

        With `kept` another daemon goes on with the mount when this one ends.
        """
        self._kept = kept
        self._device = device
        self._dispatcher = dispatcher
        self._notifier = notifier
        self._pending = pending
        self._interruptions = interruptions
        self._slow_until = 0.0
        """When a slow request was last seen, in seconds of `time.monotonic`."""
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._thread = start_service_thread("aisfs watchdog", self._run)

    def stop(self) -> None:
        """Watch no more."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        last: tuple[str, float] | None = None
        sights = 0
        while not self._end.wait(INTERVAL):
            try:
                self._interruptions.check()
            except Exception:
                # What hangs must be noticed all the same.
                log.exception("checking interrupted requests failed: please report it")
            stuck = self.stuck(time.monotonic())
            sights = sights + 1 if stuck == last else 1
            last = stuck
            if stuck is not None and sights >= SIGHTS and self._kept:
                log.critical("%s hangs: another daemon goes on; please report it", stuck[0])
                os.abort()  # with a traceback of all threads
            if stuck is not None and sights >= SIGHTS:
                done = self._device.abort()
                outcome = "aborted the connection" if done else "could not abort the connection"
                log.critical("%s hangs: %s; please report it", stuck[0], outcome)
                return

    def stuck(self, now: float) -> tuple[str, float] | None:
        """Name what seems to hang, and since when."""
        names = ("the dispatcher", "the reply thread")
        for name, since in zip(names, self._dispatcher.busy_since, strict=True):
            if since is not None and now - since > STUCK_SECONDS:
                return name, since
        # The kernel may make it wait for a request, that for others, and all of them for the cluster:
        # programs that create files in one directory, for example, do so one after the other.
        oldest = self._pending.oldest()
        if oldest is not None and now - oldest > SLOW_SECONDS:
            self._slow_until = now
        since = self._notifier.sending_since
        if since is None or now - max(since, self._slow_until) <= STUCK_SECONDS:
            return None
        return "the notifier", since


LAST_CHANGES_SECONDS = 0.01
"""How often it is looked, at the end, whether the last change was made."""


class FastPathSession:
    """Serves one mount."""

    def __init__(
        self,
        operations: Operations,
        filesystem: FileSystem,
        answers: InstantAnswers,
        write: WriteLayer | None,
        metrics: Metrics,
        *,
        background: int,
        spin: float = SPIN_SECONDS,
        observe: Callable[[Notifier], Observer] = lambda notifier: NullObserver(),
        on_fault: Callable[[Buffer], None] = lambda _: None,
        keeping: Keeping | None = None,
    ) -> None:
        """Put the fast path before `operations`.

        Args:
            operations: Answers what the dispatcher forwards.
            filesystem: The tree of both.
            answers: What of it can be answered at once.
            write: What changes it; None in a mount that is only read.
            metrics: Where requests are counted.
            background: Requests that the kernel may send without waiting for answers.
            spin: See `Dispatcher`.
            observe: Makes the observer of reads and listings, which may send notifications.
            on_fault: Told of bytes that the kernel could not read. Must not wait.
            keeping: What another daemon would go on with the mount by, or this one does.
        """
        self._keeping = keeping
        self._takeover = keeping.takeover if keeping is not None else None
        self._operations = operations
        self._filesystem = filesystem
        self._answers = answers
        self._write = write
        self._metrics = metrics
        self._background = background
        self._spin = spin
        self._observe = observe
        self._on_fault = on_fault
        self._token = trio.lowlevel.current_trio_token()
        self._serving = False
        self._stopped = False

    def terminate(self) -> None:
        """Make `serve` return when requests under way are answered."""
        self._stopped = True
        if self._serving:
            terminate()

    async def serve(self, mountpoint: Path, options: set[str]) -> None:
        """Mount, answer until unmounted or `terminate` is called, and unmount.

        Args:
            mountpoint: An empty directory.
            options: Mount options as of `mount -o`.

        Raises:
            MountError: the kernel, fusermount3 or libfuse refused.
        """
        if self._takeover is not None:
            device = taken_over(self._takeover.device, mountpoint)
        else:
            device = await trio.to_thread.run_sync(mount_device, mountpoint, options)
        guardian = device.guarded(self._keeping.keeper if self._keeping is not None else None)
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        threads = self._make(device, ours, its)
        refused: MountError | None = None
        try:
            async with trio.open_nursery() as nursery:
                self._start(threads, nursery)
                self._serving = True
                try:
                    if not self._stopped:
                        await serve_descriptor(self._operations, its.detach())
                except MountError as error:  # out of the nursery it would come in a group
                    refused = error
                finally:
                    self._serving = False
                    threads.reads.close()
                    if threads.requests is not None:
                        threads.requests.close()
                while threads.has_reads:  # noqa: ASYNC110 - those that wait for bytes are no tasks
                    await trio.sleep(LAST_CHANGES_SECONDS)
        finally:
            its.close()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(threads.take_down)
                await trio.to_thread.run_sync(guardian.dismiss)
        if refused is not None:
            raise refused

    def _make(self, device: Device, ours: socket.socket, its: socket.socket) -> "_Threads":
        pending = Pending()
        interruptions = Interrupts(pending)
        notifier = Notifier(device.fd, self._on_fault)
        observer = self._observe(notifier)
        reads = WaitingReads(self._filesystem, pending, self._metrics, observer)
        requests = None
        if self._write is not None:
            handles, describe = self._operations.handles, self._filesystem.describe
            requests = WriteRequests(
                self._write,
                handles,
                pending,
                self._metrics,
                describe,
                self._filesystem.inodes.opened_by,
            )
            self._operations.before_each = requests.take
        handlers = self._handlers(reads, interruptions, requests)
        unknown, inodes = None, self._filesystem.inodes
        if self._takeover is not None and (len(inodes.earlier) or inodes.unsettled):
            unknown = UnknownNumbers(self._filesystem, pending, self._metrics)
        negotiation = Negotiation(
            handlers.initialise,
            without=handlers.without,
            wanted=handlers.wanted,
            max_message=min(grow(ours), grow(its)),
            background=self._background,
        )
        dispatcher = Dispatcher(
            device.fd,
            ours,
            handlers.handlers,
            pending,
            undo=handlers.undo,
            prepare=handlers.prepare,
            notify=notifier.forward,
            before_sleep=handlers.before_sleep,
            listed_flags=handlers.listed_flags,
            negotiation=negotiation,
            observer=observer,
            on_fault=self._on_fault,
            times=self._metrics.lane_times,
            describe=self._filesystem.describe,
            spin=self._spin,
            on_agreed=partial(self._agreed, device),
            init=self._takeover.init if self._takeover is not None else None,
            puts_aside=unknown.takes if unknown is not None else None,
        )
        self._metrics.lane_times.name_of = name_of_opcode
        interruptions.reply = dispatcher.reply
        interruptions.listing_left = partial(self._listing_left, pending)
        self._operations.lists_by_inode = True
        self._filesystem.kernel = notifier
        self._metrics.before_text.append(
            partial(_count, dispatcher.answered, Counter(), self._metrics)
        )
        watchdog = Watchdog(
            device, dispatcher, notifier, pending, interruptions, kept=self._keeping is not None
        )
        return _Threads(
            device,
            dispatcher,
            notifier,
            watchdog,
            reads,
            requests,
            pending,
            unknown,
            self._keeping,
        )

    @any_thread
    def _agreed(self, device: Device, init: bytes) -> None:
        if self._keeping is not None:
            self._keeping.mounted(device.fd, init)

    @any_thread
    def _listing_left(self, pending: Pending) -> None:
        """End what lists directories once no request waits for it."""

        def end() -> None:
            if not any(request.opcode in LISTING_OPCODES for request in pending.all()):
                self._operations.end_listings()

        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(end)

    def _handlers(
        self, reads: WaitingReads, interruptions: Interrupts, requests: WriteRequests | None
    ) -> Handlers:
        writes = None
        if self._write is not None and requests is not None:
            writes = WriteHandlers(self._filesystem, self._write.files, requests)
        return Handlers(
            self._answers,
            self._filesystem,
            reads,
            interruptions,
            negative_timeout=lambda: self._operations.negative_timeout,
            writes=writes,
        )

    def _start(self, threads: "_Threads", nursery: trio.Nursery) -> None:
        dispatcher, device = threads.dispatcher, threads.device
        threads.reads.open(nursery, dispatcher.reply)
        if threads.requests is not None:
            threads.requests.others_ask = lambda: not dispatcher.alone and device.has_request()
            threads.requests.open(nursery, dispatcher.reply)
        if threads.unknown is not None:
            threads.unknown.open(nursery, dispatcher.reply, dispatcher.resume)
        threads.notifier.start()
        end = partial(self._ended, threads.pending, nursery)
        threads.dispatcher.start(lambda: self._token.run_sync_soon(end))
        threads.watchdog.start()

    def _ended(self, pending: Pending, nursery: trio.Nursery) -> None:
        """The kernel is gone: no caller waits for an answer any more, but changes are to be made."""
        if self._serving:
            nursery.start_soon(self._end, pending, nursery)
        else:
            nursery.cancel_scope.cancel()

    async def _end(self, pending: Pending, nursery: trio.Nursery) -> None:
        def under_way() -> bool:
            return any(request.opcode not in ASKING for request in pending.all())

        while self._serving and under_way():  # noqa: ASYNC110 - threads take them out
            await trio.sleep(LAST_CHANGES_SECONDS)
        if self._serving:
            terminate()
        nursery.cancel_scope.cancel()


@dataclass(frozen=True, slots=True)
class _Threads:
    """All threads of a mount, and what they share."""

    device: Device
    dispatcher: Dispatcher
    notifier: Notifier
    watchdog: Watchdog
    reads: WaitingReads
    requests: WriteRequests | None
    """On a mount that can be written."""
    pending: Pending
    unknown: UnknownNumbers | None
    """Where another daemon served the mount before."""
    keeping: Keeping | None

    @property
    def has_reads(self) -> bool:
        """Whether READs are under way."""
        return any(request.opcode == Opcode.READ for request in self.pending.all())

    def take_down(self) -> None:
        """End them in the order that leaves none stuck; then unmount, and let go of the device.

        The notifier may wait inside the kernel for any request to be answered. So first it is
        ended, while the dispatcher still answers: whatever it cannot answer by itself, with an error.
        """
        self.watchdog.stop()
        self.dispatcher.refuse()
        if not self.notifier.close():
            aborted = self.device.abort()
            log.error(
                "a notification hangs; the connection was %saborted", "" if aborted else "not "
            )
        self.dispatcher.stop()
        while self.reads.answering:
            time.sleep(0.001)  # noqa: TID251 - a worker thread; they copy into the kernel's memory
        self.device.unmount()
        if self.keeping is not None:
            self.keeping.ended()
        self.device.close()


def _count(answered: Counter[int], told: Counter[int], metrics: Metrics) -> None:
    """Bring what the dispatcher counted into the metrics."""
    for opcode, count in dict(answered).items():
        metrics.operations.labels(name_of_opcode(opcode), "lane").inc(count - told[opcode])
        told[opcode] = count
