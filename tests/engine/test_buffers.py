"""Memory for parts and for replies: used again, but never while somebody looks at it."""

import resource

from aisfs.engine.buffers import (
    COPIED_MAX,
    PART_MAX,
    READY_CALLS,
    READY_MAX,
    WHOLE_PART_MAX,
    BufferPool,
    buffer_size,
)
from aisfs.model import ByteRange
from tests.support.for_each import for_each

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


@for_each(
    "length, size",
    [
        (1, 1),
        (MIB - 1, MIB - 1),
        (MIB, MIB),
        (MIB + 1, 2 * MIB),
        (4 * MIB, 4 * MIB),
        (PART_MAX - 5, PART_MAX),
        (PART_MAX, PART_MAX),
        (9 * MIB, 16 * MIB),
        (WHOLE_PART_MAX, WHOLE_PART_MAX),
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
        under_way = [pool.take(size) for size in [WHOLE_PART_MAX] * 3 + [PART_MAX] * 6]
        for buffer in under_way:
            buffer[::4096] = bytes(len(buffer) // 4096)
            pool.give_back(buffer)
    assert pool.free == READY_MAX
    assert faults() - before < 100, "in 10 GB that were received there would be 2.4 million"


def test_what_is_ready_goes_when_nobody_reads_for_long():
    pool = BufferPool(512 * MIB)
    pool.make_ready()
    for _ in range(READY_CALLS // 2):
        pool.let_go()
    for size in (PART_MAX, WHOLE_PART_MAX):
        pool.give_back(pool.take(size))
    for _ in range(READY_CALLS - 1):
        pool.let_go()
    assert pool.free == READY_MAX
    assert not pool.wants_ready
    for _ in range(3):
        pool.let_go()
    assert pool.free == 0
    assert pool.wants_ready  # once there is a reader again
    pool.make_ready()
    assert pool.free == READY_MAX


def test_less_memory_counts_at_once():
    pool = BufferPool(512 * MIB)
    pool.make_ready()
    pool.limit_to(16 * MIB)
    assert pool.free <= 16 * MIB
    assert (pool.longest, pool.ahead) == (2 * MIB, 2 * MIB)
    pool.limit_to(512 * MIB)
    assert pool.longest == WHOLE_PART_MAX


def test_free_buffers_give_way_to_those_of_another_length():
    used = 0
    pool = BufferPool(32 * MIB, lambda: used)
    for buffer in [pool.take(PART_MAX) for _ in range(4)]:
        pool.give_back(buffer)
    assert pool.free == 32 * MIB
    taken = []
    for _ in range(8):
        used += buffer_size(3 * MIB)  # as `Fetcher` counts a part before it takes a buffer
        taken.append(pool.take(3 * MIB))
        assert pool.free + used <= 32 * MIB


@for_each(
    "size, limit, near, lengths",
    [
        (0, 512 * MIB, False, []),
        (1000, 512 * MIB, False, [1000]),
        (5 * MIB, 512 * MIB, False, [MIB] * 5),
        (24 * MIB, 512 * MIB, False, [8 * MIB] * 3),
        (53 * MIB, 512 * MIB, False, [16 * MIB] * 3 + [5 * MIB]),
        (1000 * MIB, 512 * MIB, False, [16 * MIB] * 62 + [8 * MIB]),
        (53 * MIB, 64 * MIB, False, [8 * MIB] * 6 + [5 * MIB]),
        (53 * MIB, 16 * MIB, False, [2 * MIB] * 26 + [MIB]),
        # A few MiB come from a near store with one request.
        (0, 512 * MIB, True, []),
        (1000, 512 * MIB, True, [1000]),
        (7 * MIB, 512 * MIB, True, [7 * MIB]),
        (7 * MIB, 16 * MIB, True, [2 * MIB] * 3 + [MIB]),
        (20 * MIB, 512 * MIB, True, [8 * MIB] * 2 + [4 * MIB]),
        (53 * MIB, 512 * MIB, True, [16 * MIB] * 3 + [5 * MIB]),
    ],
)
def test_what_is_of_use_only_as_a_whole_comes_in_few_parts_of_little_of_the_memory(
    size, limit, near, lengths
):
    parts = list(BufferPool(limit).parts(ByteRange(0, size), as_whole=True, near=near))
    assert [len(part) for part in parts] == lengths
    assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
