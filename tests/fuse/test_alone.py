"""The dispatcher knows whether it is the only request that it works on."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from aisfs.fuse.abi import OpenFlag
from aisfs.fuse.dispatcher import Dispatcher, NullObserver, Pending


@pytest.fixture
def ends() -> Iterator[tuple[Dispatcher, int]]:
    """A dispatcher that polls for a minute, and where its requests come from."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    unused: Any = None
    dispatcher = Dispatcher(
        reader, ours, {}, Pending(), undo=unused, prepare=unused, notify=unused,
        before_sleep=lambda: None, listed_flags=OpenFlag(0), negotiation=unused,
        observer=NullObserver(), on_fault=unused, spin=60,
    )  # fmt: skip
    yield dispatcher, writer
    dispatcher.stop()
    its.close()
    os.close(reader)
    os.close(writer)


def receive(dispatcher: Dispatcher, *, hot: bool) -> int | None:
    return dispatcher._receive([bytearray(10)], hot=hot)


def later(writer: int) -> None:
    def write() -> None:
        time.sleep(0.05)
        os.write(writer, b"x")

    threading.Thread(target=write).start()


def test_a_request_that_was_polled_for_is_alone(ends: tuple[Dispatcher, int]):
    dispatcher, writer = ends
    later(writer)
    assert receive(dispatcher, hot=True) == 1
    assert dispatcher.alone


def test_others_may_have_come_with_one_that_was_there_already(ends: tuple[Dispatcher, int]):
    dispatcher, writer = ends
    dispatcher.alone = True
    os.write(writer, b"x")
    assert receive(dispatcher, hot=True) == 1
    assert not dispatcher.alone


def test_others_may_have_come_while_the_thread_slept(ends: tuple[Dispatcher, int]):
    dispatcher, writer = ends
    later(writer)
    assert receive(dispatcher, hot=False) == 1
    assert not dispatcher.alone
