"""What hangs in our own threads is ended, though no signal could end it. With a kernel, without pyfuse3."""

import errno
import logging
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aisfs.filesystem.nodes import Attr
from aisfs.fuse import abi, session
from aisfs.fuse.abi import InitFlag, InitReply, Negotiation, Opcode, OpenFlag
from aisfs.fuse.dispatcher import SILENCE, Dispatcher, Interrupts, NullObserver, Pending
from aisfs.fuse.mountpoint import Device, mount_device
from aisfs.fuse.notifier import Notifier
from aisfs.fuse.session import Watchdog
from tests.support.mounts import eventually

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may abort without fusectl mounted"),
]

FILE = 2
READER = "import sys; print(open(sys.argv[1], 'rb').read())"


class Stand:
    """A mount with one file `x`, whose READs are never answered."""

    def __init__(self, device: Device) -> None:
        self.device = device
        ours, self._its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pending = Pending()
        self.notifier = Notifier(device.fd)
        self.hang = threading.Event()
        self.reads = 0
        handlers = {Opcode.LOOKUP: self.lookup, Opcode.GETATTR: self.getattr, Opcode.OPEN: self.open,
                    Opcode.READ: self.read, Opcode.OPENDIR: self.open}  # fmt: skip
        self.lane = Dispatcher(
            device.fd, ours, handlers, self.pending, undo=lambda *_: None, prepare=lambda: None,
            notify=self.notifier.forward, before_sleep=lambda: None, listed_flags=OpenFlag(0),
            negotiation=Negotiation(
                lambda flags: None, without=InitFlag(0), wanted=InitFlag.PARALLEL_DIROPS,
                max_message=1 << 20, background=12,
            ),
            observer=NullObserver(),
            on_fault=lambda _: None,
        )  # fmt: skip
        self.watchdog = Watchdog(
            device, self.lane, self.notifier, self.pending, Interrupts(self.pending)
        )
        self._server = threading.Thread(target=self._serve, daemon=True)

    def start(self) -> None:
        for part in (self._server, self.notifier, self.watchdog):
            part.start()
        self.lane.start(lambda: None)

    def _serve(self) -> None:
        """What pyfuse3 would answer: INIT, and nothing else."""
        while message := self._its.recv(1 << 20):
            _, opcode, unique, *_ = abi.HEADER.unpack_from(message)
            reply = abi.error_reply(unique, errno.ENOSYS)
            if opcode == Opcode.INIT:
                head = memoryview(abi.REPLY.pack(80, 0, unique))
                flags = InitFlag.AUTO_INVAL_DATA | 1 << 22
                init = InitReply(7, 31, 131072, flags, 0, 0, 1 << 20, 1, 256, 0, 0, 0, 0)
                reply = abi.with_init(head, init)
            self._its.send(reply)

    def lookup(self, unique: int, nodeid: int, message: memoryview, pid: int):
        if abi.name_of(message) == b"hang":
            self.hang.wait(60)
        if abi.name_of(message) != b"x":
            return (abi.missing_reply(unique, 0.0),)
        return (abi.entry_reply(unique, attributes(FILE), 100.0),)

    def getattr(self, unique: int, nodeid: int, message: memoryview, pid: int):
        return (abi.attr_reply(unique, attributes(nodeid)),)

    def open(self, unique: int, nodeid: int, message: memoryview, pid: int):
        return (abi.error_reply(unique, errno.ENOSYS),)

    def read(self, unique: int, nodeid: int, message: memoryview, pid: int):
        self.reads += 1
        return SILENCE

    def close(self) -> None:
        self.hang.set()
        self.device.abort()
        self.watchdog.stop()
        self.notifier.close()
        self.lane.stop()
        self._its.close()
        self._server.join(10)
        self.device.unmount()
        self.device.close()


def attributes(ino: int) -> Attr:
    kind = stat.S_IFREG | 0o444 if ino == FILE else stat.S_IFDIR | 0o555
    return Attr(ino, kind, 4096, 0, 0, 0)


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    monkeypatch.setattr(session, "STUCK_SECONDS", 2.0)
    stand = Stand(mount_device(tmp_path.resolve(), {"ro", "fsname=stand", "subtype=aisfs"}))
    try:
        stand.start()
        yield stand
    finally:
        stand.close()


@contextmanager
def reading(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", READER, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def test_a_thread_that_hangs(stand: Stand, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with reading(tmp_path / "hang") as process:
        _, said = process.communicate(timeout=30)
    assert b"Software caused connection abort" in said or b"not connected" in said, said
    assert eventually(lambda: "hangs" in caplog.text)  # the log says whether aborting worked
    assert [record.levelno for record in caplog.records if "hangs" in record.message] == [
        logging.CRITICAL
    ]


def test_a_notification_that_hangs(stand: Stand, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """A READ has the page locked and nobody is going to answer it: a bug that no signal would end."""
    with reading(tmp_path / "x") as process:
        assert eventually(lambda: stand.reads > 0)
        stored: list[bool] = []
        stand.notifier.put(lambda: stored.append(stand.notifier.store(FILE, 0, bytes(4096))))
        _, said = process.communicate(timeout=30)
    assert said, "the reader saw no error"
    assert eventually(lambda: "the notifier hangs" in caplog.text)
    assert eventually(lambda: bool(stored))


def test_a_notification_that_waits_for_slow_requests(stand: Stand, tmp_path: Path):
    """What waits for the cluster may take longer: it ends by itself."""
    os.stat(tmp_path)
    assert eventually(lambda: stand.lane.busy_since == [None, None])
    stand.watchdog.stop()  # which else looks, too
    dog, now = stand.watchdog, time.monotonic()
    try:
        stand.notifier.sending_since = now
        stand.pending.add(77, Opcode.LOOKUP, 0)
        assert dog.stuck(now + 60) is None
        stand.pending.take(77)
        stand.pending.add(78, Opcode.LOOKUP, 0)  # of the program that locked the directory next
        assert dog.stuck(now + 120) is None
        stand.pending.take(78)
        assert dog.stuck(now + 121) is None, "there may be one more"
        assert dog.stuck(now + 130) == ("the notifier", now)
    finally:
        stand.notifier.sending_since = None


def test_a_notification_that_hangs_beside_quick_requests(stand: Stand, tmp_path: Path):
    os.stat(tmp_path)
    assert eventually(lambda: stand.lane.busy_since == [None, None])
    stand.watchdog.stop()
    dog, now = stand.watchdog, time.monotonic()
    try:
        stand.notifier.sending_since = now - 20
        stand.pending.add(77, Opcode.GETATTR, 0)
        assert dog.stuck(now) == ("the notifier", now - 20)
    finally:
        stand.notifier.sending_since = None
        stand.pending.take(77)
