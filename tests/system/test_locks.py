"""Locks with ranks: what is out of order is noticed, what cannot deadlock is not."""

import threading

import pytest

from aisfs.system import locks
from aisfs.system.locks import Rank, RankedLock, ranked_lock, ranked_rlock

OUTER, INNER = Rank.NAMESPACE, Rank.METADATA


def test_the_order_is_checked_in_the_tests():
    assert isinstance(ranked_lock(OUTER), RankedLock)


def test_without_tests_they_are_the_locks_of_python(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(locks, "_checking", False)
    assert type(ranked_lock(OUTER)) is type(threading.Lock())
    assert type(ranked_rlock(OUTER)) is type(threading.RLock())


def test_the_other_order_is_noticed_and_logged(caplog: pytest.LogCaptureFixture):
    outer, inner = ranked_lock(OUTER), ranked_lock(INNER)
    with inner, pytest.raises(AssertionError, match="NAMESPACE waited for while METADATA"):
        outer.acquire()
    assert "locks out of order" in caplog.text
    with outer:  # it was not taken
        pass


def test_two_of_one_rank_are_noticed():
    one, other = ranked_lock(INNER), ranked_lock(INNER)
    with one, pytest.raises(AssertionError, match="METADATA waited for while METADATA"):
        other.acquire()


def test_one_may_be_taken_again_also_below_others():
    outer, inner = ranked_rlock(OUTER), ranked_lock(INNER)
    with outer, inner, outer:
        pass
    assert _free_for_others(outer)


def test_without_waiting_any_order_is_allowed():
    outer, inner = ranked_lock(OUTER), ranked_lock(INNER)
    with inner:
        assert outer.acquire(blocking=False)
        outer.release()
    assert _free_for_others(outer)


def test_each_thread_holds_its_own():
    outer, inner = ranked_lock(OUTER), ranked_lock(INNER)
    with inner:
        assert _free_for_others(outer)
    with inner:
        assert not _free_for_others(inner)


def _free_for_others(lock: locks.Lock) -> bool:
    taken = []

    def take() -> None:
        taken.append(lock.acquire(blocking=False))
        if taken[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return taken[0]
