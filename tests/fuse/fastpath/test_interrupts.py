"""Whose requests are ended, and that looking after them never ends the watchdog."""

import logging
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from aisfs.fuse import watchdog
from aisfs.fuse.callers import is_ending
from aisfs.fuse.watchdog import Watchdog

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


def test_the_watchdog_goes_on_after_a_bug_elsewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watchdog, "INTERVAL", 0.001)
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
