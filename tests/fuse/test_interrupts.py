"""Whose requests are ended, and that looking after them never ends the watchdog."""

import errno
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from aisfs.fuse import abi, dispatcher, session
from aisfs.fuse.abi import Opcode
from aisfs.fuse.dispatcher import UNSEEN_SECONDS, Interrupts, Pending, Reply, is_ending
from aisfs.fuse.session import Watchdog
from tests.support.for_each import for_each

NAMED = r"""
import sys
open("/proc/self/comm", "wb").write(b"\xff\xfe\xe9")
print("named", flush=True)
sys.stdin.read()
"""
BLOCKING = r"""
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
print("blocked", flush=True)
sys.stdin.read()
"""


def test_the_name_of_a_program_may_be_any_bytes() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", NAMED], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == b"named\n"
        assert is_ending(process.pid) is False
        process.stdin.close()


def test_a_blocked_signal_ends_nothing() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BLOCKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == b"blocked\n"
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert is_ending(process.pid) is False
        process.stdin.close()
    assert is_ending(process.pid) is None


DISPOSED = r"""
import signal, sys, threading
def do_nothing(*_): pass
handler = {"handled": do_nothing, "ignored": signal.SIG_IGN, "default": signal.SIG_DFL}[sys.argv[1]]
signal.signal(int(sys.argv[2]), handler)
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("disposed", flush=True)
sys.stdin.read()
"""


@contextmanager
def stopped(how: str, number: int) -> Iterator[subprocess.Popen[bytes]]:
    """A stopped program of two threads, which takes no signals but fatal ones: as in a wait for us."""
    arguments = [sys.executable, "-c", DISPOSED, how, str(number)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"disposed\n"
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        try:
            yield process
        finally:
            process.kill()


@for_each(
    "number",
    [signal.SIGALRM, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGPROF],
)
@for_each("how", ["handled", "ignored"])
def test_a_signal_that_a_program_survives_ends_nothing(how: str, number: int) -> None:
    with stopped(how, number) as process:
        threads = sorted(int(name) for name in os.listdir(f"/proc/{process.pid}/task"))
        assert len(threads) == 2
        process.send_signal(number)
        assert [is_ending(thread) for thread in threads] == [False, False]


@for_each("number", [signal.SIGCHLD, signal.SIGWINCH, signal.SIGTSTP])
def test_what_ends_no_program_ends_nothing(number: int) -> None:
    with stopped("default", number) as process:
        process.send_signal(number)
        assert is_ending(process.pid) is False


@for_each("number", [signal.SIGQUIT, signal.SIGABRT, signal.SIGSYS])
def test_a_signal_that_ends_a_program_shows_while_it_waits(number: int) -> None:
    with stopped("default", number) as process:
        process.send_signal(number)
        assert is_ending(process.pid) is True


@pytest.mark.parametrize("pid", [0, 2**30], ids=["another namespace", "hidden"])
def test_a_program_that_cannot_be_seen_gets_its_answer_or_can_be_killed(
    pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(dispatcher, "time", SimpleNamespace(monotonic=lambda: clock.now))
    pending, replies = Pending(), []
    ended = threading.Event()
    interruptions = Interrupts(pending)

    def reply(opcode: int, parts: Reply) -> None:
        replies.append((opcode, *abi.reply_header(memoryview(parts[0]))))

    interruptions.reply = reply
    pending.add(7, Opcode.READ, pid, cancel=ended.set)
    pending.add(8, Opcode.WRITE, pid)
    for unique in (7, 8):
        interruptions.interrupt(unique)
    for clock.now in (0.0, UNSEEN_SECONDS / 2, UNSEEN_SECONDS - 1):
        interruptions.check()
        assert pending.get(7), "the signal may be one that the program handles"
    clock.now = UNSEEN_SECONDS
    interruptions.check()
    assert [(opcode, unique) for opcode, unique, _ in replies] == [(Opcode.READ, 7)]
    assert abs(replies[0][2]) == errno.EINTR
    assert ended.is_set()
    assert pending.get(8), "a change happens or not, whoever waits"


def test_the_watchdog_goes_on_after_a_bug_elsewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session, "INTERVAL", 0.001)
    aborted = threading.Event()

    def check() -> None:
        raise ValueError("a bug")

    def abort() -> bool:
        aborted.set()
        return True

    stuck: Any = SimpleNamespace(busy_since=(0.0, None))
    idle: Any = SimpleNamespace(sending_since=None)
    device: Any = SimpleNamespace(abort=abort)
    interruptions: Any = SimpleNamespace(check=check)
    nothing: Any = SimpleNamespace(oldest=lambda: None)
    dog = Watchdog(device, stuck, idle, nothing, interruptions)
    with caplog.at_level(logging.ERROR):
        dog.start()
        assert aborted.wait(20)
        dog.stop()
    assert "please report it" in caplog.text
