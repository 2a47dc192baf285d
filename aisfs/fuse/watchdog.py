"""The thread that ends what hangs.

A message to the kernel that is stuck cannot be ended by a signal, not even by `kill -9`, and neither
can a process that waits for an answer from a thread that hangs. Aborting the connection ends both.
"""

import logging
import threading
import time

from aisfs.fuse.fastpath.dispatcher import Dispatcher
from aisfs.fuse.fastpath.interrupts import Interrupts
from aisfs.fuse.fastpath.pending import Pending
from aisfs.fuse.mounting.device import Device
from aisfs.fuse.notifier import Notifier
from aisfs.system.threads import start_service_thread

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
    ) -> None:
        """Watch over all of these once `start` is called."""
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
                log.exception("looking after interrupted requests failed: please report it")
            stuck = self.stuck(time.monotonic())
            sights = sights + 1 if stuck == last else 1
            last = stuck
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
