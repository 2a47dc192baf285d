"""The lock of a written file: tasks wait for each other and for the thread, which waits for nobody."""

import threading

import pytest
import trio

from aisfs.filesystem.written import ContentLock


async def test_the_thread_does_not_get_what_a_task_has():
    lock = ContentLock()
    async with lock:
        assert not lock.take_in_thread()
    assert lock.take_in_thread()


async def test_a_task_waits_for_the_thread_and_no_thread_comes_in_before(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
):
    lock, entered = ContentLock(), trio.Event()

    async def enter() -> None:
        async with lock:
            entered.set()

    assert lock.take_in_thread()
    nursery.start_soon(enter)
    await trio.testing.wait_all_tasks_blocked()
    assert not entered.is_set()
    assert not lock.take_in_thread(), "the task comes first"
    await trio.to_thread.run_sync(lock.leave_in_thread)
    await entered.wait()
    assert lock.take_in_thread()


async def test_who_stops_waiting_for_the_thread_leaves_the_lock_free(
    autojump_clock: trio.testing.MockClock,
):
    lock = ContentLock()
    assert lock.take_in_thread()
    with trio.move_on_after(1):
        async with lock:
            pytest.fail("the thread has it")
    lock.leave_in_thread()
    assert lock.take_in_thread()
    lock.leave_in_thread()
    async with lock:
        pass


async def test_thread_and_tasks_are_never_in_at_once():
    lock, inside, both, done = ContentLock(), [], [], threading.Event()
    taken = 0

    def hold(who: str) -> None:
        inside.append(who)
        if len(inside) > 1:
            both.append(tuple(inside))
        inside.remove(who)

    def work() -> None:
        nonlocal taken
        while not done.is_set():
            if lock.take_in_thread():
                taken += 1
                hold("thread")
                lock.leave_in_thread()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        entered = 0
        while entered < 200 or not taken:
            async with lock:
                hold("task")
            entered += 1
            await trio.sleep(0.0001)
    finally:
        done.set()
        thread.join()
    assert not both
