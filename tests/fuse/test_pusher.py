"""The pusher between threads: nothing it is told waits, and what it stores is right."""

import queue
import random
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace

import pytest

from aisfs.core.archive.tar_scanner import TarScanner
from aisfs.core.names.inodes import directory_number, member_number, split_member
from aisfs.core.views.tree import MembersView
from aisfs.filesystem.filesystem import Members as RealMembers
from aisfs.filesystem.filesystem import OpenShard
from aisfs.fuse import pusher as pushers
from aisfs.fuse.pusher import PIECE, Pusher
from aisfs.metrics import Metrics
from aisfs.model import ByteRange
from tests.support.tars import END, entry

FIRST = 1 << 63
SECOND = FIRST | 1 << 25
GIB = 1 << 30
STORE = struct.Struct("=IiQ QQII")


class Shard:
    """A tar in memory, as `Members` would find it."""

    def __init__(self, sizes: list[int]) -> None:
        chance = random.Random(len(sizes))
        self.contents = [chance.randbytes(size) for size in sizes]
        parts = [entry(b"%06d" % row, data) for row, data in enumerate(self.contents)]
        self.tar = b"".join(parts) + END
        scanner = TarScanner(len(self.tar))
        scanner.feed(memoryview(self.tar))
        self.view = MembersView(scanner.finish())
        self.landed = len(self.tar)
        self.in_memory = False
        self.borders: list[int] = []
        """Where one buffer ends and the next begins."""


class Members:
    """Shards by their first inode; some of their bytes may not be there yet."""

    def __init__(self, *shards: tuple[int, Shard]) -> None:
        self.shards = dict(shards)
        self.told: list[tuple[int, int, bool]] = []
        self.asked: list[ByteRange] = []
        self.expected: list[int] = []
        """Rows of which a READ was said to come."""

    def find(self, ino: int, last: object) -> Shard | None:
        return self.shards.get((split_member(ino) or (0,))[0])

    def in_memory(self, shard: Shard, rows: Sequence[int]) -> bool:
        return shard.in_memory

    def stored(self, shard: Shard, wanted: ByteRange) -> memoryview | None:
        if wanted.stop > shard.landed:
            return None
        self.asked.append(wanted)
        return memoryview(shard.tar)[wanted.start : wanted.stop]

    def border(self, shard: Shard, position: int) -> int:
        return next((at for at in shard.borders if at > position), len(shard.tar))

    def copied(self, shard: Shard, wanted: ByteRange) -> bytearray | None:
        found = self.stored(shard, wanted)
        return None if found is None else bytearray(found)

    def will_be_read(self, shard: Shard, row: int) -> None:
        self.expected.append(row)

    def pushed(
        self, shard: Shard, row: int, last: int, rows: list[int], lacking: list[int]
    ) -> None:
        self.told.append((row, last, bool(lacking)))


class Sender:
    """Keeps what is stored; runs jobs in a thread of its own or when told."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.pages: dict[int, bytearray] = {}
        self.closing = False
        self.blocked = threading.Event()
        self.blocked.set()
        self.thread = threading.get_ident()

    def put(self, job: Callable[[], None]) -> None:
        self.jobs.put(job)

    def store(self, ino: int, offset: int, data: memoryview) -> bool:
        assert threading.get_ident() == self.thread, "stored by a thread that must answer"
        self.blocked.wait(20)
        content = self.pages.setdefault(ino, bytearray())
        assert offset == len(content)
        assert len(data) <= PIECE
        content += data
        return True

    def send_all(self, messages: Iterable[memoryview]) -> list[int]:
        for message in messages:
            whole = b"".join(message) if isinstance(message, tuple) else bytes(message)
            length, code, unique, ino, offset, size, _ = STORE.unpack_from(whole)
            assert (length, code, unique, size) == (len(whole), 4, 0, len(whole) - STORE.size)
            self.store(ino, offset, memoryview(whole)[STORE.size :])
        return []

    def run(self) -> None:
        """Do all there is to do."""
        while not self.jobs.empty():
            self.jobs.get()()

    def serve(self) -> None:
        self.thread = threading.get_ident()
        while (job := self.jobs.get()) is not None:
            job()


def make(*shards: tuple[int, Shard], room: int = GIB) -> tuple[Pusher, Sender, Members]:
    sender, members = Sender(), Members(*shards)
    return Pusher(sender, members, lambda: room, Metrics()), sender, members


def check(sender: Sender, first: int, shard: Shard) -> set[int]:
    """Compare every byte stored; returns the rows."""
    rows = set()
    for ino, content in sender.pages.items():
        if (split_member(ino) or (0,))[0] == first:
            row = ino - first
            assert bytes(content) == shard.contents[row], row
            rows.add(row)
    return rows


def read(pusher: Pusher, sender: Sender, ino: int) -> None:
    if ino not in sender.pages:
        pusher.was_read(ino, 0, 1000)


def test_members_of_all_sizes_are_stored_whole():
    sizes = [0, 1, 511, 512, 4096, 110_000, PIECE, PIECE + 1, 3 * PIECE + 5, 9 << 20, 20] * 3
    shard = Shard(sizes)
    pusher, sender, _ = make((FIRST, shard))
    pusher.was_listed(directory_number(FIRST, 0))
    sender.run()
    for row in range(len(sizes)):
        read(pusher, sender, member_number(FIRST, row))
        sender.run()
    rows = check(sender, FIRST, shard)
    assert {sizes[row] for row in rows} >= {1, 511, 512, 4096, PIECE, PIECE + 1, 3 * PIECE + 5}
    assert not {sizes[row] for row in rows} & {0, 9 << 20}


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all that is listed be pushed as large shards are."""
    monkeypatch.setattr(pushers, "LISTED_SHARD_MAX", 0)


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("size", [1000, 50_000, PIECE + 1])
def test_what_a_scan_left_in_memory_is_pushed_when_it_is_listed(size):
    shard = Shard([size] * 300)
    shard.in_memory = True
    pusher, sender, members = make((FIRST, shard))
    pusher.was_listed(directory_number(FIRST, 0))
    sender.run()
    # Two rows tell how far a reader is: one in the middle and the last.
    rows = check(sender, FIRST, shard)
    assert len(rows) == 298
    assert 299 not in rows
    assert members.expected == sorted(set(range(300)) - rows)


def small_shards(number: int) -> list[tuple[int, Shard]]:
    shards = [Shard([1000] * 300) for _ in range(number)]
    for shard in shards:
        shard.in_memory = True
    return [(FIRST | at << 25, shard) for at, shard in enumerate(shards)]


def test_small_shards_are_pushed_when_a_reader_comes_his_first():
    shards = small_shards(4)
    pusher, sender, _ = make(*shards)
    for first, _ in shards:
        pusher.was_listed(directory_number(first, 0))
    assert sender.jobs.empty(), "while folders are listed there is no time for it"
    read(pusher, sender, member_number(SECOND, 0))
    sender.run()
    # Behind a reader who was seen, the row in the middle and the last show how far it is.
    for first, shard in shards:
        assert len(check(sender, first, shard)) >= 297
    order = list(dict.fromkeys((split_member(ino) or (0,))[0] for ino in sender.pages))
    others = [first for first, _ in shards if first != SECOND]
    assert order == [SECOND, *others]


def test_a_reader_of_what_was_listed_is_not_held_up_by_what_the_scan_left_out():
    [(first, shard)] = small_shards(1)
    pusher, sender, members = make((first, shard))
    gap = shard.view.index.data_range(50)
    there = members.stored
    members.stored = lambda shard, wanted: (
        None if wanted.start < gap.stop and gap.start < wanted.stop else there(shard, wanted)
    )
    pusher.was_listed(directory_number(first, 0))
    read(pusher, sender, member_number(first, 0))
    sender.run()
    rows = check(sender, first, shard)
    assert 50 not in rows
    assert len(rows) >= 290


def test_no_more_small_shards_wait_than_memory_is_for(monkeypatch: pytest.MonkeyPatch):
    shards = small_shards(4)
    monkeypatch.setattr(pushers, "LISTED_MAX", 2 * len(shards[0][1].tar))
    pusher, sender, _ = make(*shards)
    pushed = []
    for first, _ in shards:
        pusher.was_listed(directory_number(first, 0))
        sender.run()
        pushed.append([bool(check(sender, *each)) for each in shards].count(True))
    assert pushed == [0, 0, 1, 2]
    assert check(sender, *shards[0])
    assert check(sender, *shards[1])


def test_what_is_listed_while_somebody_reads_waits_for_the_next_read():
    shards = small_shards(2)
    pusher, sender, _ = make(*shards)
    read(pusher, sender, member_number(FIRST, 0))
    pusher.was_listed(directory_number(SECOND, 0))
    sender.run()
    assert not check(sender, *shards[1])
    read(pusher, sender, member_number(FIRST, 200))
    sender.run()
    assert check(sender, *shards[1])


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("size", [1000, 50_000])
def test_of_two_buffers_only_the_member_that_lies_in_both_is_put_together(size):
    shard = Shard([size] * 300)
    shard.in_memory = True
    shard.borders = [shard.view.index.data_range(row).start + size // 2 for row in (100, 200)]
    pusher, sender, members = make((FIRST, shard))
    pusher.was_listed(directory_number(FIRST, 0))
    sender.run()
    assert len(check(sender, FIRST, shard)) == 298
    across = [
        wanted
        for wanted in members.asked
        if any(wanted.start < border < wanted.stop for border in shard.borders)
    ]
    assert len(across) == 2
    assert all(len(wanted) < size + 512 for wanted in across), across


@pytest.mark.usefixtures("no_waiting")
def test_rows_that_are_not_in_memory_are_not_waited_for():
    shard = Shard([50_000] * 300)
    shard.in_memory = True
    shard.landed = len(shard.tar) // 2
    pusher, sender, _ = make((FIRST, shard))
    pusher.was_listed(directory_number(FIRST, 0))
    sender.run()
    assert 140 < len(check(sender, FIRST, shard)) <= 150
    pusher.landed()
    assert sender.jobs.empty(), "nobody waits for bytes because of a listing"
    shard.landed = len(shard.tar)
    for row in (150, 151, 152, 153):  # their reader asks for the rest, and is followed
        read(pusher, sender, member_number(FIRST, row))
        sender.run()
    assert len(check(sender, FIRST, shard)) > 155


@pytest.mark.usefixtures("no_waiting")
def test_listings_take_no_room_from_readers():
    first, second = Shard([50_000] * 100), Shard([50_000] * 100)
    first.in_memory = second.in_memory = True
    pusher, sender, _ = make((FIRST, first), (SECOND, second), room=60 * 53_248)
    pusher.was_listed(directory_number(FIRST, 0))
    sender.run()
    pushed = len(check(sender, FIRST, first))
    assert 50 < pushed <= 60
    pusher.was_listed(directory_number(SECOND, 0))
    sender.run()
    assert len(check(sender, FIRST, first)) == pushed
    assert not check(sender, SECOND, second)


def test_directories_and_other_inodes_do_not_matter():
    pusher, sender, _ = make((FIRST, Shard([10] * 10)))
    pusher.was_read(5, 0, 10)
    pusher.was_listed(1)
    pusher.was_read(directory_number(FIRST, 0), 0, 10)
    pusher.was_read(member_number(SECOND, 3), 0, 10)  # not open
    pusher.was_read(member_number(FIRST, 99), 0, 10)  # no such row
    sender.run()
    assert not sender.pages


def test_whoever_tells_never_waits_for_a_store():
    shard = Shard([1000] * 2000)
    pusher, sender, _ = make((FIRST, shard))
    thread = threading.Thread(target=sender.serve)
    thread.start()
    try:
        sender.blocked.clear()  # the kernel does not let the first message through
        pusher.was_listed(directory_number(FIRST, 0))
        done = threading.Event()

        def tell() -> None:
            for row in range(2000):
                pusher.was_read(member_number(FIRST, row), 0, 1000)
            pusher.landed()
            done.set()

        teller = threading.Thread(target=tell)
        teller.start()
        assert done.wait(20)
        teller.join()
    finally:
        sender.blocked.set()
        sender.jobs.put(None)
        thread.join(20)
    assert not thread.is_alive()


def test_threads_at_once_lose_no_event_and_store_only_what_is_right():
    one, two = Shard([1000] * 3000), Shard([2000] * 500)
    pusher, sender, _ = make((FIRST, one), (SECOND, two))
    worker = threading.Thread(target=sender.serve)
    worker.start()

    def tell(first: int, count: int, start: int) -> None:
        pusher.was_listed(directory_number(first, 0))
        for row in range(start, count, 2):
            read(pusher, sender, member_number(first, row))
            pusher.landed()
            time.sleep(0.0002)  # as every reader does something, so that pushing has a chance

    tellers = [
        threading.Thread(target=tell, args=args)
        for args in ((FIRST, 3000, 0), (FIRST, 3000, 1), (SECOND, 500, 0), (SECOND, 500, 1))
    ]
    for teller in tellers:
        teller.start()
    for teller in tellers:
        teller.join(60)
    sender.jobs.put(None)
    worker.join(60)
    assert not worker.is_alive()
    sender.thread = threading.get_ident()
    sender.run()
    assert len(check(sender, FIRST, one)) + len(check(sender, SECOND, two)) > 100


def test_readers_wait_for_bytes_and_order_hears_of_it():
    shard = Shard([1000] * 500)
    shard.landed = 40 * 1536
    pusher, sender, members = make((FIRST, shard))
    pusher.was_listed(directory_number(FIRST, 0))
    sender.run()
    for row in range(40):
        read(pusher, sender, member_number(FIRST, row))
        sender.run()
    assert max(check(sender, FIRST, shard)) < 40
    assert members.told[-1][2]
    shard.landed = len(shard.tar)
    pusher.landed()
    sender.run()
    assert max(check(sender, FIRST, shard)) >= 40
    assert not members.told[-1][2]


def test_bytes_that_land_while_the_pusher_finds_them_missing_are_not_forgotten():
    shard = Shard([1000] * 500)
    shard.landed = 40 * 1536
    pusher, sender, members = make((FIRST, shard))

    def stored(shard: Shard, wanted: ByteRange) -> memoryview | None:
        found = Members.stored(members, shard, wanted)
        if found is None:
            shard.landed = len(shard.tar)
            pusher.landed()
        return found

    members.stored = stored  # type: ignore[method-assign]
    pusher.was_listed(directory_number(FIRST, 0))
    sender.run()
    for row in range(40):
        read(pusher, sender, member_number(FIRST, row))
        sender.run()
    assert max(check(sender, FIRST, shard)) >= 40


def test_the_reader_not_seen_for_longest_makes_room():
    one, two = Shard([4000] * 500), Shard([4000] * 500)
    pusher, sender, _ = make((FIRST, one), (SECOND, two), room=20 * 4096)
    for first, shard in ((FIRST, one), (SECOND, two)):
        pusher.was_listed(directory_number(first, 0))
        for row in range(60):
            read(pusher, sender, member_number(first, row))
            sender.run()
        assert len(check(sender, first, shard)) > 20


def test_closing_ends_the_jobs():
    pusher, sender, _ = make((FIRST, Shard([1000] * 500)))
    pusher.was_listed(directory_number(FIRST, 0))
    sender.closing = True
    sender.run()
    assert not sender.pages


def test_too_many_events_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pushers, "EVENTS_MAX", 5)
    sender, members, metrics = Sender(), Members((FIRST, Shard([1000] * 500))), Metrics()
    pusher = Pusher(sender, members, lambda: GIB, metrics)
    with pusher._books:  # another thread is at work
        for row in range(8):
            pusher.was_read(member_number(FIRST, row), 0, 1000)
    assert b"aisfs_push_dropped_events_total 3.0" in metrics.text()


def test_few_shards_are_kept_in_mind(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pushers, "ROWS_MAX", 100)
    shards = [(FIRST | number << 25, Shard([1000] * 40)) for number in range(5)]
    pusher, sender, _ = make(*shards)
    for first, _ in shards:
        pusher.was_listed(directory_number(first, 0))
        sender.run()
    assert len(pusher._shards) == 2
    assert pusher._rows == 80


def test_a_listing_with_a_hardlink_to_what_lies_before_is_no_fault(caplog):
    """Its content lies in front of the first member of its folder."""
    members = [entry(b"a/a", b"1" * 5000), entry(b"b/b", b"2" * 9_000_000)]
    members.append(entry(b"b/c", b"", kind=b"1", target=b"a/a"))
    shard = Shard([1])
    shard.tar = b"".join(members) + END
    scanner = TarScanner(len(shard.tar))
    scanner.feed(memoryview(shard.tar))
    view = MembersView(scanner.finish())
    rows = next(
        view.directory(number).rows for number in range(3) if len(view.directory(number).rows) == 2
    )
    opened = SimpleNamespace(in_memory=lambda wanted: len(wanted))
    found = OpenShard(None, view, SimpleNamespace(opened=opened))
    assert RealMembers.in_memory(None, found, rows) is False


def test_a_fault_in_an_event_does_not_reach_the_thread_that_answers(caplog):
    shard = Shard([1000] * 10)
    pusher, sender, members = make((FIRST, shard))
    members.in_memory = None
    pusher.was_listed(directory_number(FIRST, 0))
    assert "this is a bug in aisfs" in caplog.text
    caplog.clear()
    del members.in_memory
    pusher.was_listed(directory_number(FIRST, 0))
    sender.run()
    assert check(sender, FIRST, shard)
