"""Replies to READDIRPLUS that the fast path packs: the same entries, however large the kernel's buffer is."""

import struct
from collections.abc import Iterator

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.names.inodes import ROOT
from aisfs.filesystem.filesystem import FileSystem, InstantAnswers
from aisfs.filesystem.handles import DirectoryHandle
from aisfs.fuse import abi
from aisfs.fuse.handlers import Handlers
from aisfs.fuse.listing_pages import AHEAD_SECONDS, _pack
from aisfs.settings import Shards
from tests.filesystem.user import BUCKET, build, new_store

KEYS = ["a", "b" * 255, "c.tar", "c.tar.d", "d/e", "f.tar", "g.tgz/h", "i.zip", "j", "k.tar", "l"]
"""Objects and directories whose other names and neighbours get in the way of each other."""
LEAST = 408
"""Bytes of the longest entry: a smaller buffer ends the listing there."""


def answers_of(filesystem: FileSystem) -> Handlers:
    known = InstantAnswers(filesystem, filesystem._reader)
    return Handlers(known, filesystem, None, None, negative_timeout=lambda: 1.0)


def replies(answers: Handlers, size: int) -> Iterator[memoryview]:
    """Read the root as the kernel does, until a reply is empty."""
    offset = 0
    while True:
        message = bytearray(abi.BODY + abi.READ.size)
        abi.READ.pack_into(message, abi.BODY, 0, offset, size, 0, 0, 0, 0)
        reply = answers.readdirplus(7, ROOT, memoryview(message), 0)
        assert reply is not None, "the directory is known"
        whole = memoryview(b"".join(reply))
        assert len(whole) - abi.REPLY.size <= size
        if len(whole) == abi.REPLY.size:
            return
        answers.prepare()
        yield whole
        *_, (offset, _, _) = entries(whole)


def entries(reply: memoryview) -> Iterator[tuple[int, bytes, bytes]]:
    """Give where to go on, the name and the whole entry of each entry of a reply."""
    at = abi.REPLY.size
    while at < len(reply):
        fixed = at + abi.DIRENTPLUS.size
        offset, length = struct.unpack_from("=QI", reply, fixed - 16)
        end = fixed + (length + 7 & ~7)
        yield offset, bytes(reply[fixed : fixed + length]), bytes(reply[at:end])
        at = end


def timeout(entry: bytes) -> float:
    """How long the kernel may keep a name."""
    seconds, _, nanoseconds = struct.unpack_from("=QQI", entry, 16)
    return seconds + nanoseconds / 1e9


def without_timeout(entry: bytes) -> bytes:
    return entry[:16] + bytes(8) + entry[24:32] + bytes(4) + entry[36:]


@given(
    st.sets(st.sampled_from(KEYS), min_size=1),
    st.sampled_from(list(Shards)),
    st.sampled_from([LEAST, 500, 700, 1500, 65536]),
)
def test_entries_are_the_same_in_replies_of_any_size(keys: set[str], shards: Shards, size: int):
    async def main() -> None:
        store = new_store()
        for key in keys:
            store.put(BUCKET, key, key.encode())
        async with trio.open_nursery() as nursery:
            filesystem = build(store, nursery, shards=shards)
            handle = await filesystem.directory(ROOT, 0)
            expected = {
                entry.name: abi.direntplus(entry.attr, entry.name, offset, entry.entry_timeout)
                for offset, entry, _ in handle.entries(0)
            }
            answers = answers_of(filesystem)
            listed = [found for reply in replies(answers, size) for found in entries(reply)]
            assert len(listed) == len(expected), "no name comes twice"
            for _, name, whole in listed:
                assert without_timeout(whole) == without_timeout(expected[name])
                late = timeout(expected[name]) - timeout(whole)
                assert 0 <= late <= AHEAD_SECONDS + 1e-6, "nothing is believed for too long"
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("times", [1, 2])
async def test_every_entry_is_counted_each_time(nursery: trio.Nursery, times: int):
    store = new_store()
    for number in range(100):
        store.put(BUCKET, f"{number:03}.jpg", b"x")
    filesystem = build(store, nursery)
    await filesystem.directory(ROOT, 0)
    answers = answers_of(filesystem)
    for _ in range(times):
        taken = list(replies(answers, 4096))
    inos = [ino for reply in taken for ino in abi.listed_nodeids(reply)]
    assert len(set(inos)) == 100
    assert {filesystem.inodes.table.lookup_count(ino) for ino in inos} == {times}
    for reply in taken:  # the kernel did not take them after all
        answers.undo(abi.Opcode.READDIRPLUS, reply)
    assert len(filesystem.inodes) == (1 if times == 1 else 101)


async def test_names_listed_before_a_refresh_are_not_kept(nursery: trio.Nursery):
    store = new_store()
    for number in range(100):
        store.put(BUCKET, f"{number:03}.jpg", b"x")
    filesystem = build(store, nursery)
    await filesystem.directory(ROOT, 0)
    pages = replies(answers_of(filesystem), 4096)
    assert all(timeout(whole) for _, _, whole in entries(next(pages)))
    filesystem.inodes.validity.refreshed([ROOT])
    later = [timeout(whole) for page in pages for _, _, whole in entries(page)]
    assert later
    assert not any(later)


def test_the_end_of_names_is_not_the_end():
    """More of a listing under way may come after a READDIR has looked for names."""

    async def more(offset: int) -> DirectoryHandle:
        raise AssertionError("the trio thread waits for it")

    handle = DirectoryHandle(lambda _: iter(()), lambda _: iter(()), more=more)
    assert _pack(handle, 5, 4096) is None
    page = _pack(DirectoryHandle(handle.entries, handle.try_entries), 5, 4096)
    assert page is not None
    assert page.data == b""
