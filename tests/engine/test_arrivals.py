"""Who waits for bytes of a part is told as soon as they are there, or will not come."""

import pytest

from aisfs.engine import parts as part_module
from aisfs.engine.buffers import BufferPool
from aisfs.engine.disk import look
from aisfs.engine.parts import Part
from aisfs.errors import Unavailable
from aisfs.model import ByteRange
from tests.engine.test_fetcher import FakeCache, fetching

MIB = 1 << 20


@pytest.fixture
def part():
    part = Part(ByteRange(100, 200), BufferPool(0))
    part.allocate()[:] = bytes(range(100))
    return part


def test_each_is_told_when_its_bytes_are_there(part):
    told = []
    arrived = part.arriving(0)
    for stop in (150, 110, 200, 250):
        assert part.when_here(ByteRange(100, stop), lambda stop=stop: told.append(stop))
    arrived(9)
    assert told == []
    arrived(50)
    assert told == [150, 110]
    assert not part.when_here(ByteRange(120, 150), lambda: told.append("late"))
    part.finish()
    assert told == [150, 110, 200, 250], "what lies in the part, of a range that leaves it"


def test_bytes_come_in_small_pieces_where_somebody_waits_or_may_have_to_wait_long(
    part, monkeypatch
):
    now = 100.0
    monkeypatch.setattr(part_module.time, "monotonic", lambda: now)
    arrived = part.arriving(0)
    few, many = arrived(1), None
    now += 1
    assert arrived(2) == MIB, "a slow link"
    many = arrived(3)
    assert few == many == 4 * MIB
    part.when_here(ByteRange(100, 150), lambda: None)
    assert arrived(10) == MIB
    assert arrived(60) == MIB, "who read these reads on"
    assert arrived(70) == 4 * MIB


def test_another_attempt_takes_nothing_back(part):
    part.arriving(0)(60)
    part.arriving(0)(10)
    assert part.has(ByteRange(100, 160))
    assert not part.has(ByteRange(100, 161))


def test_a_failure_is_told_to_all_who_wait_and_nobody_waits_after_it(part):
    told = []
    part.arriving(0)(50)
    assert part.when_here(ByteRange(180, 190), lambda: told.append("failed"))
    part.finish(Unavailable("gone"))
    assert told == ["failed"]
    assert not part.has(ByteRange(180, 190))
    assert not part.when_here(ByteRange(180, 190), lambda: told.append("again"))
    assert part.has(ByteRange(100, 150)), "what had come is good"


async def test_a_range_of_two_parts_is_read_when_the_second_has_its_share():
    async with fetching(4 * MIB) as setup:
        opened, pool = setup.opened, BufferPool(0)
        parts = [Part(ByteRange(at * MIB, (at + 1) * MIB), pool) for at in range(2)]
        for part in parts:
            opened.add(part)
            part.allocate()[:] = setup.content[part.range.start : part.range.stop]
        got = []
        wanted = ByteRange(MIB - 10, MIB + 10)
        assert opened.try_read(wanted) is None
        assert not opened.when_here(ByteRange(0, 3 * MIB), got.append), "nobody fetches all of it"
        assert opened.when_here(wanted, got.append)
        parts[0].arriving(0)(MIB)
        assert got == []
        parts[1].arriving(0)(10)
        assert [bytes(data) for data in got] == [setup.content[wanted.start : wanted.stop]]
        assert bytes(opened.try_read(wanted)) == setup.content[wanted.start : wanted.stop]
        assert not opened.when_here(wanted, got.append)


async def test_the_end_of_a_part_without_the_bytes_is_told_with_its_error():
    async with fetching(4 * MIB) as setup:
        part = Part(ByteRange(0, MIB), BufferPool(0))
        setup.opened.add(part)
        got = []
        assert setup.opened.when_here(ByteRange(0, 10), got.append)
        part.finish(error := Unavailable("gone"))
        assert [(type(found), str(found)) for found in got] == [(Unavailable, str(error))]


async def test_bytes_that_came_stay_what_they_are_when_the_rest_comes_another_way():
    """An attempt that began to send ranges breaks off, and the server sends only all of it then."""
    cache = FakeCache()
    async with fetching(2 * MIB, cache=cache) as setup:
        part = Part(ByteRange(0, MIB), BufferPool(64 * MIB))
        setup.opened.add(part)
        part.allocate()[:] = setup.content[:MIB]
        part.arriving(0)(MIB // 2)
        before = setup.opened.try_read(ByteRange(0, 100))
        assert look(part, setup.opened)
        assert setup.opened.try_read(ByteRange(0, 100)) == before == setup.content[:100]
