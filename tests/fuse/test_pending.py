"""Requests that are handed on are answered once, and counted lookups are taken back if need be."""

import errno
import stat
from types import SimpleNamespace

import pytest

from aisfs.filesystem.handles import ReaddirSnapshots
from aisfs.filesystem.nodes import Attr
from aisfs.fuse import abi, dispatcher
from aisfs.fuse.abi import Opcode
from aisfs.fuse.dispatcher import Interrupts, Pending
from aisfs.fuse.handlers import Handlers

ATTR = Attr(9, stat.S_IFREG | 0o444, 1, 0, 0, 0)


class Replies:
    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes]] = []

    def __call__(self, opcode: int, parts: tuple[bytes, ...]) -> None:
        self.sent.append((opcode, b"".join(parts)))


@pytest.fixture
def pending() -> Pending:
    return Pending()


@pytest.fixture
def replies() -> Replies:
    return Replies()


@pytest.fixture
def interrupting(pending: Pending, replies: Replies) -> Interrupts:
    made = Interrupts(pending)
    made.reply = replies
    return made


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> int:
    """A process that is being ended."""
    monkeypatch.setattr(dispatcher, "is_ending", lambda _: True)
    return 77


def test_an_interrupted_request_is_answered_once(
    pending: Pending, interrupting: Interrupts, replies: Replies, ending: int
):
    cancelled = []
    pending.add(5, Opcode.READ, ending, cancel=lambda: cancelled.append(True))
    interrupting.interrupt(5)
    interrupting.interrupt(5)
    assert replies.sent == [(Opcode.READ, abi.error_reply(5, errno.EINTR))]
    assert cancelled == [True]
    assert pending.take(5) is None
    assert not pending.interrupted


def test_the_late_answer_of_pyfuse3_is_known_by_its_kind(
    pending: Pending, interrupting: Interrupts, ending: int
):
    pending.add(5, Opcode.LOOKUP, ending)
    interrupting.interrupt(5)
    assert pending.interrupted == {5: Opcode.LOOKUP}


def test_an_answered_request_cannot_be_interrupted(
    pending: Pending, interrupting: Interrupts, replies: Replies, ending: int
):
    pending.add(5, Opcode.LOOKUP, ending)
    pending.take(5)
    interrupting.interrupt(5)
    assert not replies.sent
    assert not pending.interrupted


@pytest.mark.parametrize("opcode", [Opcode.WRITE, Opcode.FLUSH, Opcode.OPEN, Opcode.RENAME])
def test_a_change_is_not_interrupted(
    pending: Pending, interrupting: Interrupts, replies: Replies, opcode: Opcode
):
    """It may happen all the same, and who opened a file would never close it."""
    pending.add(5, opcode, 0)
    interrupting.interrupt(5)
    interrupting.check()
    assert not replies.sent
    assert pending.take(5) is not None


def test_a_spared_request_is_looked_at_again(
    pending: Pending,
    interrupting: Interrupts,
    replies: Replies,
    monkeypatch: pytest.MonkeyPatch,
):
    ending = False
    monkeypatch.setattr(dispatcher, "is_ending", lambda pid: ending)
    pending.add(5, Opcode.LOOKUP, 4711)
    interrupting.interrupt(5)
    interrupting.check()
    assert not replies.sent
    ending = True
    interrupting.check()
    assert len(replies.sent) == 1


class Forgetful:
    def __init__(self) -> None:
        self.snapshots = ReaddirSnapshots()
        self.inodes = SimpleNamespace(table=None, validity=None)
        self.forgotten: list[tuple[int, int]] = []

    def forget(self, ino: int, count: int) -> None:
        self.forgotten.append((ino, count))


def test_what_a_lost_reply_counted_is_taken_back():
    tree = Forgetful()
    answers = Handlers(None, tree, None, None, negative_timeout=lambda: 1.0)
    answers.undo(Opcode.LOOKUP, memoryview(abi.entry_reply(1, ATTR, 1.0)))
    assert tree.forgotten == [(9, 1)]
    listed = abi.direntplus(ATTR, b"a", 1, 1.0) + abi.direntplus(ATTR, b"bcdefghij", 2, 1.0)
    answers.undo(Opcode.READDIRPLUS, memoryview(abi.data_header(2, len(listed)) + listed))
    assert tree.forgotten == [(9, 1)] * 3
    answers.undo(Opcode.LOOKUP, memoryview(abi.missing_reply(3, 1.0)))
    answers.undo(Opcode.LOOKUP, memoryview(abi.error_reply(3, errno.ENOENT)))
    assert len(tree.forgotten) == 3
