"""What becomes of a job when the user presses Ctrl-C, once or twice, early or late."""

import io
import signal
from dataclasses import replace

import pytest
import trio
import trio.testing
from rich.console import Console

from aisfs.stores.ais.jobs import Job, JobState
from aisfs.work.jobs import Display, run_to_end

RUNNING = Job(
    id="j1",
    kind="dsort",
    state=JobState.RUNNING,
    source="ais://b",
    target="",
    started=None,
    ended=None,
    counts={},
    step="reading shards",
)


class FakeJobs:
    """One job, which ends when it is stopped, unless it is stubborn."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self.job = RUNNING
        self.stubborn = stubborn
        self.asked = trio.Event()
        self.stopping = trio.Event()
        self.failure: Exception | None = None

    async def describe(self, uuid: str) -> Job:
        assert uuid == "j1"
        if self.failure:
            raise self.failure
        await trio.lowlevel.checkpoint()
        self.asked.set()
        return self.job

    async def stop(self, uuid: str) -> None:
        self.stopping.set()
        if self.stubborn:
            await trio.sleep_forever()
        self.job = replace(RUNNING, state=JobState.ABORTED)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def shown() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def display(shown: io.StringIO) -> Display:
    return Display(Console(file=shown, width=200), total=10)


async def started() -> str:
    return "j1"


async def test_ctrl_c_before_the_job_is_there_stops_it_then(display, shown):
    jobs = FakeJobs()

    async def start() -> str:
        press()
        await trio.testing.wait_all_tasks_blocked()
        return "j1"

    ended = await run_to_end(jobs, start, display)
    assert ended.stopped
    assert "asking the cluster to stop job j1" in shown.getvalue()


async def test_a_second_ctrl_c_ends_the_waiting(display, shown):
    jobs = FakeJobs(stubborn=True)

    async def user() -> None:
        await jobs.asked.wait()
        press()
        await jobs.stopping.wait()
        press()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(user)
        ended = await run_to_end(jobs, started, display)
    assert ended.stopped
    assert not ended.job.over
    assert "not waiting any more" in shown.getvalue()


async def test_twice_before_the_job_is_there(display):
    async def start() -> str:
        press()
        await trio.testing.wait_all_tasks_blocked()
        press()
        return await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        await run_to_end(FakeJobs(), start, display)
