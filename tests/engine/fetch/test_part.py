"""Memory that is lent for replies: used again, but never while somebody looks at it."""

from aisfs.engine.fetch.part import COPIED_MAX, BufferPool

FROM = 64 << 10


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
