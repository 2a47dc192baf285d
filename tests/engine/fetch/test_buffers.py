"""Memory for parts and for replies: used again, but never while somebody looks at it."""

import resource

import pytest

from aisfs.engine.fetch.buffers import (
    COPIED_MAX,
    PART_MAX,
    READY_CALLS,
    READY_MAX,
    BufferPool,
    buffer_size,
)

FROM = 64 << 10
MIB = 1 << 20


def test_room_is_nobody_elses_while_there_is_a_view_of_it():
    pool = BufferPool(0)
    lent = []
    for number in range(10):
        room = pool.lend(FROM + number)
        room[:] = bytes([number]) * len(room)
        lent.append(room[:1] if number % 2 else room)
        del room
    assert [view[0] for view in lent] == list(range(10))


def test_room_is_used_again():
    pool = BufferPool(0)
    first = pool.lend(COPIED_MAX).obj
    for _ in range(5):
        assert pool.lend(FROM).obj is first


def test_a_buffer_is_used_again_and_not_while_somebody_looks_at_it():
    pool = BufferPool(64 * MIB)
    first = pool.take(PART_MAX)
    seen = memoryview(first)[:10]
    pool.give_back(first)
    other = pool.take(PART_MAX)
    assert other is not first
    pool.give_back(other)
    del seen
    assert {id(pool.take(PART_MAX)) for _ in range(2)} == {id(first), id(other)}


def test_what_is_free_and_what_is_used_stay_within_the_limit():
    used = 24 * MIB
    pool = BufferPool(32 * MIB, lambda: used)
    for buffer in [pool.take(PART_MAX) for _ in range(4)]:
        pool.give_back(buffer)
    assert pool.free == 8 * MIB


@pytest.mark.parametrize(
    ("length", "size"),
    [
        (1, 1),
        (MIB - 1, MIB - 1),
        (MIB, MIB),
        (MIB + 1, 2 * MIB),
        (4 * MIB, 4 * MIB),
        (PART_MAX - 5, PART_MAX),
        (PART_MAX, PART_MAX),
    ],
)
def test_a_buffer_is_as_long_as_is_counted_for_it(length, size):
    assert buffer_size(length) == size == len(BufferPool(0).take(length))


def test_memory_is_ready_before_it_is_needed_and_none_is_fresh_while_parts_come_and_go():
    def faults():
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    pool = BufferPool(512 * MIB)
    pool.make_ready()
    assert pool.free == READY_MAX
    before = faults()
    for _ in range(100):
        under_way = [pool.take(PART_MAX) for _ in range(8)]
        for buffer in under_way:
            buffer[::4096] = bytes(PART_MAX // 4096)
            pool.give_back(buffer)
    assert pool.free == READY_MAX
    assert faults() - before < 100, "in 6.4 GB that were received there would be 1.6 million"


def test_what_is_ready_goes_when_nobody_reads_for_long():
    pool = BufferPool(512 * MIB)
    pool.make_ready()
    for _ in range(READY_CALLS // 2):
        pool.let_go()
    pool.give_back(pool.take(PART_MAX))
    for _ in range(READY_CALLS - 1):
        pool.let_go()
    assert pool.free == READY_MAX
    for _ in range(3):
        pool.let_go()
    assert pool.free == 0


def test_free_buffers_give_way_to_those_of_another_length():
    used = 0
    pool = BufferPool(32 * MIB, lambda: used)
    for buffer in [pool.take(PART_MAX) for _ in range(4)]:
        pool.give_back(buffer)
    assert pool.free == 32 * MIB
    taken = []
    for _ in range(10):
        used += 3 * MIB  # as `Fetcher` counts a part before it takes a buffer
        taken.append(pool.take(3 * MIB))
        assert pool.free + used <= 32 * MIB
