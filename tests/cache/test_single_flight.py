"""The interleavings of shared fetches."""

import pytest
import trio
import trio.testing

from aisfs.cache.names import SingleFlight
from aisfs.errors import Unavailable


class Work:
    def __init__(self, result="value"):
        self.runs = 0
        self.go = trio.Event()
        self.result = result

    async def __call__(self):
        self.runs += 1
        await self.go.wait()
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


async def test_all_who_wait_get_the_one_result(nursery):
    flights = SingleFlight(nursery)
    work = Work()
    results = []

    async def ask():
        results.append(await flights.fetch("key", work))

    async with trio.open_nursery() as askers:
        for _ in range(5):
            askers.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        work.go.set()
    assert results == ["value"] * 5
    assert work.runs == 1
    assert len(flights) == 0


async def test_first_caller_that_goes_away_takes_nothing_from_the_others(nursery):
    flights = SingleFlight(nursery)
    work = Work()
    async with trio.open_nursery() as askers:
        with trio.CancelScope() as leader:
            askers.start_soon(flights.fetch, "key", work)
            await trio.testing.wait_all_tasks_blocked()
            leader.cancel()
        work.go.set()
        assert await flights.fetch("key", work) == "value"
    assert work.runs == 1


async def test_failure_goes_to_all_who_wait_and_is_forgotten(nursery):
    flights = SingleFlight(nursery)
    failing = Work(Unavailable("injected"))
    failures = []

    async def ask():
        with pytest.raises(Unavailable):
            await flights.fetch("key", failing)
        failures.append(1)

    async with trio.open_nursery() as askers:
        for _ in range(3):
            askers.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        failing.go.set()
    assert len(failures) == 3
    assert failing.runs == 1
    working = Work()
    working.go.set()
    assert await flights.fetch("key", working) == "value"


async def test_keys_do_not_wait_for_each_other(nursery):
    flights = SingleFlight(nursery)
    blocked, free = Work(), Work("free")
    free.go.set()
    nursery.start_soon(flights.fetch, "a", blocked)
    assert await flights.fetch("b", free) == "free"
    blocked.go.set()


async def test_teardown_ends_all_who_wait():
    outcome = []

    async def ask(flights):
        with trio.CancelScope(shield=True), pytest.raises(Unavailable):
            await flights.fetch("key", Work())
        outcome.append("ended")

    async with trio.open_nursery() as askers, trio.open_nursery() as service:
        askers.start_soon(ask, SingleFlight(service))
        await trio.testing.wait_all_tasks_blocked()
        service.cancel_scope.cancel()
    assert outcome == ["ended"]
