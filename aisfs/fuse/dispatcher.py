"""The fast path: two threads between /dev/fuse and pyfuse3, which answer what needs no waiting.

    /dev/fuse ─▸ dispatcher ─▸ answered at once (`aisfs.fuse.handlers`)
                     ├───────▸ READs that must wait, and, where files can be written, CREATE, FLUSH, FSYNC,
                     │         RELEASE: the trio thread, which writes the replies to the device
                     └───────▸ everything else: a socket pair ─▸ pyfuse3 ─▸ reply thread ─▸ /dev/fuse

A request costs one or two wake-ups, each more expensive than all the code here; through trio and
pyfuse3 it costs several. Three rules hold it together:
- the dispatcher and the reply thread wait only for the kernel and for short locks: never for trio, for
  a notification, or for a lock that is held while one is sent (`aisfs.fuse.notifier` says why);
- each request is in `Pending` from the moment it is forwarded until it is taken out to be answered, so
  each is answered exactly once, even if it is interrupted. The thread that takes it out answers it, and
  no other does: the `pop` of a dict is one step of the interpreter, so this needs no lock;
- if a lookup was counted and the kernel rejects the reply, the count is taken back.

`Interrupts` ends requests whose caller is being ended, so that Ctrl-C ends a program that waits for a cluster. The kernel sends
INTERRUPT for any signal, and the caller then gets what we answer. EINTR is right only for a caller that is being ended. It is
wrong for a signal that the program handles, such as the timer of a profiler: programs do not expect `read` of a file, and never
`stat`, to fail for that, and the kernel does not repeat the call. So we look which signal is pending. The kernel sends INTERRUPT
only once, so requests that were not ended are looked at again (`check`).

Errors become errnos here, too, and each is counted and logged once.
"""

import errno
import logging
import os
import select
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from aisfs.errors import AisfsError
from aisfs.filesystem.errnos import errno_of
from aisfs.fuse import abi
from aisfs.fuse.abi import Negotiation, Opcode, OpenFlag, name_of_opcode
from aisfs.metrics import Metrics, OperationTimes
from aisfs.system.logs import request_log
from aisfs.system.threads import any_thread, start_service_thread


class Observer(Protocol):
    """Observes replies after they were sent.

    Called from the thread that answers requests, or from trio's, perhaps from both at once. Must
    return within microseconds, must not raise, and must never wait for a lock that is held while a
    notification is sent: decide elsewhere, and push from the notifier's thread.
    """

    def was_read(self, ino: int, offset: int, size: int) -> None:
        """A READ of `size` bytes, after cutting at the end of the file, was answered."""
        ...

    def was_listed(self, ino: int) -> None:
        """A directory was listed to its end, so the kernel knows the inodes of its entries."""
        ...


class NullObserver:
    """An observer that does nothing."""

    def was_read(self, ino: int, offset: int, size: int) -> None:
        """See `Observer`."""

    def was_listed(self, ino: int) -> None:
        """See `Observer`."""


log = logging.getLogger(__name__)


@dataclass(slots=True)
class Request:
    """One request under way."""

    unique: int
    opcode: int
    pid: int
    """The process that waits for it; 0 when it is in another namespace."""
    since: float = field(default_factory=time.monotonic)
    cancel: Callable[[], None] | None = None
    """Ends the work on it. Called from any thread."""


class Pending:
    """The requests under way."""

    def __init__(self) -> None:
        """Start with none."""
        self._requests: dict[int, Request] = {}
        self.interrupted: dict[int, int] = {}
        """Requests answered with EINTR whose real answer is still to come, with their opcodes."""

    def __len__(self) -> int:
        return len(self._requests)

    def add(
        self, unique: int, opcode: int, pid: int, cancel: Callable[[], None] | None = None
    ) -> None:
        """Record a request before it is handed on."""
        self._requests[unique] = Request(unique, opcode, pid, cancel=cancel)

    def get(self, unique: int) -> Request | None:
        """Look at a request."""
        return self._requests.get(unique)

    def all(self) -> list[Request]:
        """Return all requests."""
        return list(self._requests.values())

    def take(self, unique: int) -> Request | None:
        """Take a request out to answer it; None when another thread did already."""
        return self._requests.pop(unique, None)

    def oldest(self) -> float | None:
        """Return since when the oldest request waits, in seconds of `time.monotonic`."""
        return min((request.since for request in self.all()), default=None)


BUFFER = (1 << 20) + 65536
"""Bytes of the largest request: a WRITE of 1 MiB, and its header."""
SPIN_SECONDS = 100e-6
"""How long the device is polled after an answer, before the thread sleeps: see docs/adr/0016."""
NEAR_SECONDS = 2 * SPIN_SECONDS
"""A request that comes this soon after a reply, wake-up included, suggests that another one follows."""
SOCKET_BYTES = 4 << 20
"""Room for messages to pyfuse3 and back: four of the largest."""
MESSAGE_ROOM = 8192
"""Bytes of a message that are not data, and what the kernel adds for its own bookkeeping."""
LIST_BYTES_MAX = 65536
"""Largest reply to READDIRPLUS asked of pyfuse3; the kernel asks again for the rest."""
PATIENT = (Opcode.WRITE, Opcode.CREATE, Opcode.FLUSH)
"""May wait for the local disk, however slow that is: no reason to end the mount."""
OBSERVED = (Opcode.READ, Opcode.READDIRPLUS)
SILENT = (Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT)
"""Requests that have no reply."""
COUNTING = (Opcode.LOOKUP, Opcode.OPENDIR, Opcode.READDIRPLUS)
"""Requests whose successful replies count lookups, or open something."""
_ENDED = (errno.ENODEV, errno.ECONNABORTED)

Buffer = bytes | bytearray | memoryview
Reply = tuple[Buffer, ...]
FORWARD = None
"""Not answered here."""
SILENCE: Reply = ()
"""Handled here: no reply is expected, or another thread sends it."""
ANSWERED: Reply = (b"answered",)
"""The handler has sent the reply, before the rest of its work: the program goes on meanwhile."""
COUNTED: Reply = (b"counted",)
"""The same, and the handler has counted the request."""


class Handler(Protocol):
    """Answers one kind of request, if it can do so without waiting."""

    def __call__(self, unique: int, nodeid: int, message: memoryview, pid: int) -> Reply | None:
        """Return the reply in parts, `FORWARD`, `SILENCE`, `ANSWERED` or `COUNTED`. Must not wait and not raise.

        Args:
            unique: The request's number.
            nodeid: The inode it is about.
            message: All of the request; only valid until the call returns.
            pid: The process that made the request; 0 when it is not known.
        """
        ...


class Dispatcher:
    """Reads requests, answers or forwards them, and passes pyfuse3's replies to the kernel."""

    def __init__(
        self,
        device: int,
        pyfuse: socket.socket,
        handlers: dict[int, Handler],
        pending: Pending,
        *,
        undo: Callable[[int, memoryview], None],
        prepare: Callable[[], None],
        notify: Callable[[bytes], None],
        before_sleep: Callable[[], None],
        listed_flags: OpenFlag,
        negotiation: Negotiation,
        observer: Observer,
        on_fault: Callable[[Buffer], None],
        times: OperationTimes | None = None,
        describe: Callable[[int], str] = str,
        spin: float = SPIN_SECONDS,
        on_agreed: Callable[[bytes], None] = lambda _: None,
        init: bytes | None = None,
        puts_aside: Callable[[int, int, int, memoryview, int], bool] | None = None,
    ) -> None:
        """Work on a mounted device once `start` is called.

        Args:
            device: Non-blocking; stays open until `stop` has returned.
            pyfuse: Our end of the socket pair that pyfuse3 serves.
            handlers: The handler of each opcode; called in the dispatcher.
            pending: Requests that are answered elsewhere.
            undo: Takes back what a reply (opcode, message) counted or opened, if the kernel rejects it.
            prepare: Prepares the next part of a listing, after one was sent.
            notify: Hands a notification of pyfuse3 to the thread that sends it.
            before_sleep: Called in the dispatcher when there is nothing to do.
            listed_flags: What the kernel may do with a directory that pyfuse3 opened.
            negotiation: Changes what the kernel and pyfuse3 agree on in INIT.
            observer: Told of the reads and listings that were answered here.
            on_fault: Told of bytes that the kernel could not read. Must not wait.
            times: Where it is counted, by opcode, how long requests took that were answered here.
            describe: Says which file or directory an inode is, for the log.
            spin: Seconds to poll the device after a reply; 0 turns polling off.
            on_agreed: Given the kernel's INIT once it has been answered.
            init: What another daemon has agreed on in INIT, if this one goes on with its mount.
            puts_aside: Returns whether a request (opcode, unique, inode, message, process) comes back through
                `resume`, once it is known what the inode is.
        """
        self._on_agreed = on_agreed
        self._init = init
        self._puts_aside = puts_aside
        self._resumed: deque[bytes] = deque()
        self._offered = b""
        self._describe = describe
        self._times = times or OperationTimes()
        self._device = device
        self._socket = pyfuse
        self._handlers = handlers
        self._pending = pending
        self._undo = undo
        self._prepare = prepare
        self._notify = notify
        self._on_end: Callable[[], None] = lambda: None
        self._before_sleep = before_sleep
        self._listed_flags = listed_flags
        self._negotiation = negotiation
        self._observer = observer
        self._on_fault = on_fault
        self._spin = spin
        self._stopping = False
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._backlog: deque[bytes] = deque()
        """Requests that the socket had no room for; the kernel limits how many there can be."""
        self._threads: list[threading.Thread] = []
        self._refusing = False
        self.answered: Counter[int] = Counter()
        """Requests answered in the dispatcher, by opcode."""
        self.busy_since: list[float | None] = [None, None]
        """When the dispatcher and the reply thread began what they do, by `time.monotonic`; None if idle."""
        self.alone = False
        """Whether there was no other request just before the one that is being handled."""

    def start(self, on_end: Callable[[], None]) -> None:
        """Begin to serve; `on_end` is called from a thread when the mount is gone."""
        self._on_end = on_end
        for name, work in (
            ("aisfs dispatcher", self._dispatch),
            ("aisfs reply", self._return_all),
        ):
            self._threads.append(start_service_thread(name, work))

    def refuse(self) -> None:
        """Refuse what would be forwarded from now on, and what was forwarded but not answered yet."""
        self._refusing = True
        for request in self._pending.all():
            if self._pending.take(request.unique) is not None:
                self.reply(request.opcode, (abi.error_reply(request.unique, errno.EIO),))

    @any_thread
    def resume(self, message: bytes) -> None:
        """Take a request again that was put aside."""
        self._resumed.append(message)
        self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # it is going to wake up for what is in the pipe
            os.write(self._wake_writer, b"x")

    def stop(self) -> None:
        """End both threads and free what they used."""
        self._stopping = True
        self._wake()
        with suppress(OSError):  # the other end is closed
            self._socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        os.close(self._wake_reader)
        os.close(self._wake_writer)
        self._socket.close()

    # the dispatcher thread -----------------------------------------------------------------------

    def _dispatch(self) -> None:
        try:
            if self._init is not None:
                self._go_on(self._init)
            self._receive_all()
        finally:
            self._before_sleep()
            self._finish_backlog()
            self._on_end()

    def _go_on(self, init: bytes) -> None:
        """Tell pyfuse3 what the kernel has agreed on, and the kernel to send what the daemon before has not answered."""
        _, opcode, unique, nodeid, *_ = abi.HEADER.unpack_from(init)
        self._forward(opcode, unique, nodeid, memoryview(init), 0)
        with suppress(OSError):  # it is unmounted, which is noticed next
            os.write(self._device, abi.RESEND)

    def _receive_all(self) -> None:
        buffer = bytearray(BUFFER)
        view = memoryview(buffer)
        parts = [buffer]
        unpack = abi.HEADER.unpack_from
        hot, replied = False, 0.0
        while not self._stopping and (length := self._receive(parts, hot=hot)) is not None:
            _, opcode, unique, nodeid, _, _, pid, _, _ = unpack(buffer)
            now = time.monotonic()
            self.busy_since[0] = None if opcode in PATIENT else now
            handler = self._handlers.get(opcode)
            message = view[:length]
            aside = self._puts_aside
            if aside is not None and aside(opcode, unique, nodeid, message, pid):
                self.busy_since[0] = None
                continue
            if request_log.detailed:
                request_log.begin()
            try:
                reply = handler(unique, nodeid, message, pid) if handler is not None else FORWARD
            except AisfsError:  # pyfuse3's handler will run into it too, and say so
                reply = FORWARD
            except Exception:
                log.exception("request %d: this is a bug in aisfs, please report it", opcode)
                reply = FORWARD
            if reply is FORWARD:
                self._forward(opcode, unique, nodeid, message, pid)
            elif reply and reply is not COUNTED:
                if reply is not ANSWERED:
                    self.reply(opcode, reply)
                self._count(opcode, nodeid, message, reply, now)
            elif opcode in SILENT:
                self.answered[opcode] += 1
            # Polling takes processor time from the pusher, so poll only where requests follow quickly:
            # after one that did, and after a RELEASE, since a program that closed a file that it wrote
            # probably creates the next one.
            near = bool(reply) and now - replied < NEAR_SECONDS
            hot = near or opcode == Opcode.RELEASE
            replied = time.monotonic()
            self.busy_since[0] = None

    def _count(
        self, opcode: int, nodeid: int, message: memoryview, reply: Reply, began: float
    ) -> None:
        """Count a request that was answered here, and notify its observers."""
        self.answered[opcode] += 1
        self._times.observe(opcode, seconds := time.monotonic() - began)
        if seconds >= request_log.least:
            name = abi.name_of(message) if opcode == Opcode.LOOKUP else b""
            subject = self._describe(nodeid) + os.fsdecode(name)
            request_log.answered(log, name_of_opcode(opcode), subject, seconds)
        if opcode in OBSERVED:
            self._observe(opcode, nodeid, message, reply)

    def _observe(self, opcode: int, nodeid: int, message: memoryview, reply: Reply) -> None:
        _, offset, *_ = abi.READ.unpack_from(message, abi.BODY)
        size = len(reply[-1])
        if opcode == Opcode.READ:
            self._observer.was_read(nodeid, offset, size)
            return
        if not size:
            self._observer.was_listed(nodeid)
        self._prepare_next()

    def _prepare_next(self) -> None:
        try:
            self._prepare()
        except AisfsError:  # the request will run into it too
            return
        except Exception:
            log.exception("a listing: this is a bug in aisfs, please report it")

    def _receive(self, parts: list[bytearray], *, hot: bool) -> int | None:
        """Wait for a request; return its length, or None when the mount has ended.

        Args:
            parts: The buffers to read it into.
            hot: Whether the next request is expected soon.
        """
        patience = time.monotonic() + self._spin if hot and self._spin else 0.0
        device = self._device
        self.alone = False
        while True:
            if self._resumed:
                message = self._resumed.popleft()
                parts[0][: len(message)] = message
                return len(message)
            try:
                return os.readv(device, parts)
            except BlockingIOError:
                if patience and time.monotonic() < patience:
                    self.alone = True
                    continue
            except OSError as error:
                if error.errno in _ENDED:
                    return None
                if error.errno != errno.ENOENT:  # the request was taken back meanwhile
                    raise
                continue
            patience, self.alone = 0.0, False  # others may ask until this thread runs again
            if not self._sleep():
                return None

    def _sleep(self) -> bool:
        """Wait until there is something to do; return False if the thread is to end."""
        self._before_sleep()
        poll = select.poll()
        poll.register(self._device, select.POLLIN)
        poll.register(self._wake_reader, select.POLLIN)
        if self._backlog:
            poll.register(self._socket, select.POLLOUT)
        ready = dict(poll.poll())
        if self._socket.fileno() in ready:
            self._send_backlog()
        if self._wake_reader in ready:
            os.read(self._wake_reader, 4096)
        return not self._stopping

    @any_thread
    def reply(self, opcode: int, parts: Reply) -> None:
        """Answer a request. The caller must be the only one to answer it."""
        try:
            os.writev(self._device, parts)
        except OSError as error:
            if error.errno == errno.EFAULT:  # the kernel has ended the request; it reads again
                self._on_fault(parts[-1])
            elif error.errno not in (errno.ENOENT, *_ENDED):
                log.error("the kernel refused a reply to request %d: %s", opcode, error.strerror)
                _, _, unique = abi.REPLY.unpack_from(parts[0])
                with suppress(OSError):  # the caller must not hang
                    os.write(self._device, abi.error_reply(unique, errno.EIO))
            if opcode in COUNTING:
                self._undo(opcode, memoryview(b"".join(parts)))

    def _forward(
        self, opcode: int, unique: int, nodeid: int, message: memoryview, pid: int
    ) -> None:
        if opcode == Opcode.INIT:
            self._negotiation.offered(message)
            self._offered = bytes(message)
        elif opcode in (Opcode.READDIR, Opcode.READDIRPLUS):
            abi.set_handle(message, nodeid, LIST_BYTES_MAX)
        self._pending.add(unique, opcode, pid)
        if self._refusing:  # checked after adding, so that `refuse` or this sees it
            if self._pending.take(unique) is not None:
                self.reply(opcode, (abi.error_reply(unique, errno.EIO),))
            return
        self._backlog.append(bytes(message))
        self._send_backlog()

    def _finish_backlog(self) -> None:
        """Forward what came before the end: a file that was closed by then must still be stored."""
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        poll.register(self._socket, select.POLLOUT)
        while self._backlog and not self._stopping:
            if self._wake_reader in dict(poll.poll()):
                os.read(self._wake_reader, 4096)
            self._send_backlog()

    def _send_backlog(self) -> None:
        while self._backlog:
            try:
                self._socket.send(self._backlog[0], socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError as error:  # pyfuse3 has ended: so will the mount
                log.info("a request came too late: %s", error.strerror)
            self._backlog.popleft()

    # the reply thread ------------------------------------------------------------------------------------

    def _return_all(self) -> None:
        buffer = bytearray(SOCKET_BYTES)
        view = memoryview(buffer)
        while length := self._receive_reply(buffer):
            self.busy_since[1] = time.monotonic()
            self._return(view[:length])
            self.busy_since[1] = None

    def _receive_reply(self, buffer: bytearray) -> int:
        try:
            return self._socket.recv_into(buffer)
        except ConnectionResetError:  # pyfuse3 ended and left requests unread
            return 0

    def _return(self, message: memoryview) -> None:
        unique, code = abi.reply_header(message)
        if not unique:
            self._notify(bytes(message))
            return
        request = self._pending.take(unique)
        if request is None:
            opcode = self._pending.interrupted.pop(unique, None)
            if opcode in COUNTING and not code:
                self._undo(opcode, message)
            return
        if request.opcode == Opcode.INIT and not code:
            agreed = self._negotiation.agreed(message)
            if self._init is None:  # else the kernel has its reply
                self.reply(Opcode.INIT, (agreed,))
                self._on_agreed(self._offered)
            return
        if request.opcode == Opcode.OPENDIR and not code:
            abi.set_open_flags(message, self._listed_flags)
        elif request.opcode == Opcode.READDIRPLUS and not code:
            abi.strip_bare(message)
        self.reply(request.opcode, (message,))


def grow(end: socket.socket) -> int:
    """Enlarge the buffer of a socket; return how many bytes of data one message may carry."""
    for option in (_SO_SNDBUFFORCE, socket.SO_SNDBUF):
        try:
            end.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
            break
        except PermissionError:
            continue
    size = end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    return (size // 2 - MESSAGE_ROOM) // 4096 * 4096


_SO_SNDBUFFORCE = 32


_HARMLESS = {
    signal.SIGCHLD,
    signal.SIGCONT,
    signal.SIGSTOP,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGURG,
    signal.SIGWINCH,
}
"""Signals that end no program that neither handles nor ignores them: signal(7)."""
_FATAL = (1 << 64) - 1 & ~sum(1 << (number - 1) for number in _HARMLESS)
_PENDING = (b"SigPnd:", b"ShdPnd:")
_SURVIVED = (b"SigBlk:", b"SigIgn:", b"SigCgt:")


def is_ending(pid: int) -> bool | None:
    """Return whether a signal that will end the program waits for a thread; None if that cannot be seen.

    A signal that the program handles ends nothing, whichever it is. Of most fatal signals the kernel
    makes a SIGKILL for each thread at once.

    `pid` names the thread. It may be hidden in /proc, or belong to another PID namespace.
    """
    try:
        # Bytes: its first line is the name of the program, in whatever encoding that is.
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return None
    pending = survived = 0
    for line in status.splitlines():
        if line.startswith(_PENDING):
            pending |= int(line.split()[1], 16)
        elif line.startswith(_SURVIVED):
            survived |= int(line.split()[1], 16)
    return bool(pending & ~survived & _FATAL)


LISTING_OPERATIONS = frozenset({"opendir", "readdir"})
"""Requests that list a directory. ENOENT is no answer to these: the C library takes it for the end
of the directory, and `rsync --delete` then empties the copy."""


def failure(metrics: Metrics, operation: str, error: Exception) -> int:
    """Count and log a failed request; returns the errno the table says."""
    if isinstance(error, AisfsError):
        code, level = errno_of(error)
        if code == errno.ENOENT and operation in LISTING_OPERATIONS:
            code = errno.ESTALE
        log.log(level, "%s failed: %s", operation, error)
    else:
        code = errno.EIO
        bug = "%s failed: this is a bug in aisfs, please report it"
        log.error(bug, operation, exc_info=error)
    metrics.failures.labels(operation, errno.errorcode[code]).inc()
    return code


ASKING = frozenset(
    {
        Opcode.LOOKUP,
        Opcode.GETATTR,
        Opcode.READLINK,
        Opcode.READ,
        Opcode.STATFS,
        Opcode.GETXATTR,
        Opcode.LISTXATTR,
        Opcode.OPENDIR,
        Opcode.READDIR,
        Opcode.READDIRPLUS,
        Opcode.ACCESS,
    }
)
"""Requests that leave nothing behind. Any other may happen although its caller got EINTR."""
LISTING_OPCODES = frozenset({Opcode.OPENDIR, Opcode.READDIR, Opcode.READDIRPLUS})
UNSEEN_SECONDS = 10.0
"""How long after a signal the request of a program is answered whose signals cannot be seen, since it
is in another PID namespace. A program that handles the signal nearly always has its answer by then; one
that was killed waits this long."""


class Interrupts:
    """Ends requests early."""

    def __init__(self, pending: Pending) -> None:
        """Look after the requests in `pending`."""
        self._pending = pending
        self._spared: dict[int, float] = {}
        """Requests that were interrupted and go on, and since when, in seconds of `time.monotonic`."""
        self.reply: Callable[[int, Reply], None] = lambda *_: None
        """Answers a request; set before the first one comes."""
        self.listing_left: Callable[[], None] = lambda: None
        """Told when a reader of a directory waits no more; likewise."""

    def interrupt(self, unique: int) -> None:
        """End a request if its caller is being ended, and else keep an eye on it. From the dispatcher."""
        self._look_at(unique, time.monotonic())

    def _look_at(self, unique: int, since: float) -> None:
        request = self._pending.get(unique)
        if request is None or request.opcode not in ASKING:
            return
        ending = is_ending(request.pid) if request.pid else None
        if ending is None:
            ending = time.monotonic() - since >= UNSEEN_SECONDS
        if not ending:
            self._spared[unique] = since
            return
        opcode = request.opcode
        if request.cancel is None:  # pyfuse3 will answer all the same, and may have counted
            self._pending.interrupted[unique] = opcode
        if self._pending.take(unique) is None:
            self._pending.interrupted.pop(unique, None)
            return
        self.reply(opcode, (abi.error_reply(unique, errno.EINTR),))
        if request.cancel is not None:
            request.cancel()
        if opcode in LISTING_OPCODES:
            self.listing_left()

    def check(self) -> None:
        """Look again at requests that were interrupted and go on; not in the dispatcher."""
        for unique in list(self._spared):
            self._look_at(unique, self._spared.pop(unique))
