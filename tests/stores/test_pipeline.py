import logging
import random

import pytest
import trio
import trio.testing

from aisfs.errors import (
    AlreadyExists,
    DeadlineExceeded,
    NoRanges,
    NotFound,
    Stale,
    Unavailable,
)
from aisfs.model import Bucket
from aisfs.stores.memory import MemoryStore
from aisfs.stores.pipeline import CallPipeline
from tests.support.for_each import for_each

B = Bucket("b")
DATA = random.Random(1).randbytes(20 << 20)


class Failing:
    """A hook that raises the given errors, one a call, and then lets calls pass."""

    def __init__(self, *errors, always=False, delay=0.0):
        self.errors = list(errors)
        self.always = always
        self.delay = delay
        self.times = []

    async def __call__(self, method, bucket, name):
        self.times.append(trio.current_time())
        if self.delay:
            await trio.sleep(self.delay)
        if self.errors:
            raise self.errors[0] if self.always else self.errors.pop(0)


def stores(hook=None, deadline=60.0, inner=MemoryStore):
    memory = inner(hook=hook, sink_in_thread=False, piece_size=1 << 20)
    return memory, CallPipeline(memory, deadline=deadline, rng=random.Random(7))


async def test_transient_errors_are_retried(autojump_clock, caplog):
    caplog.set_level(logging.DEBUG)
    hook = Failing(*[Unavailable(f"no {i}") for i in range(4)])
    memory, store = stores(hook)
    info = memory.put(B, "k", b"12345")
    assert await store.head(B, "k") == info
    assert memory.calls["head"] == 5
    pauses = [later - earlier for earlier, later in zip(hook.times, hook.times[1:], strict=False)]
    for pause, longest in zip(pauses, [0.1, 0.2, 0.4, 0.8], strict=True):
        assert longest / 2 <= pause <= longest
    assert [r.levelname for r in caplog.records] == ["INFO", "DEBUG", "DEBUG", "DEBUG"]


async def test_a_server_is_left_alone_as_long_as_it_wants(autojump_clock):
    busy = Unavailable("too many requests")
    busy.pause = 7.0
    hook = Failing(busy)
    memory, store = stores(hook)
    memory.put(B, "k", b"")
    await store.head(B, "k")
    first, second = hook.times
    assert second - first == pytest.approx(7)


class Whole(MemoryStore):
    """Sends objects only whole, and breaks off now and then."""

    breaks = 0

    async def read_range(self, bucket, expected, start, buffer, arrived=None):
        raise NoRanges("only whole")

    async def stream(self, bucket, expected, sink):
        broken = self.breaks
        self.breaks -= bool(broken)
        taken = 0

        def take(piece):
            nonlocal taken
            taken += len(piece)
            if broken and taken > 3 << 20:
                raise _Broken
            sink(piece)

        try:
            await super().stream(bucket, expected, take)
        except _Broken:
            raise Unavailable("broke off") from None


class _Broken(Exception):
    pass


@pytest.mark.parametrize("known", [False, True])
async def test_a_stream_without_ranges_begins_again_and_gives_each_byte_once(autojump_clock, known):
    memory, store = stores(inner=Whole)
    info = memory.put(B, "k", DATA)
    if known:
        with pytest.raises(NoRanges):
            await store.read_range(B, info, 0, memoryview(bytearray(10)))
    memory.breaks = 3
    pieces = []
    await store.stream(B, info, lambda piece: pieces.append(bytes(piece)))
    assert b"".join(pieces) == DATA
    assert memory.breaks == 0


async def test_what_the_sink_raises_does_not_begin_again(autojump_clock):
    memory, store = stores(inner=Whole)
    info = memory.put(B, "k", DATA)

    def sink(piece):
        raise KeyError

    with pytest.raises(NoRanges):
        await store.read_range(B, info, 0, memoryview(bytearray(10)))
    with pytest.raises(KeyError):
        await store.stream(B, info, sink)
    assert memory.calls["stream"] == 1


@pytest.mark.parametrize("error", [NotFound("no"), Stale("other")])
async def test_permanent_errors_come_out_at_once(autojump_clock, error):
    memory, store = stores(Failing(error))
    memory.put(B, "k", b"")
    with pytest.raises(type(error)) as caught:
        await store.head(B, "k")
    assert caught.value is error
    assert memory.calls["head"] == 1


async def test_deadline_names_and_chains_the_last_error(autojump_clock):
    last = Unavailable("HTTP 503")
    hook = Failing(last, always=True)
    _, store = stores(hook, deadline=30)
    started = trio.current_time()
    with pytest.raises(DeadlineExceeded, match=r"b/k: given up after 30 s.*HTTP 503") as caught:
        await store.head(B, "k")
    assert caught.value.__cause__ is last
    assert not caught.value.transient
    assert 20 < trio.current_time() - started <= 30
    assert max(b - a for a, b in zip(hook.times, hook.times[1:], strict=False)) <= 5


async def test_a_call_that_hangs_ends_at_the_deadline(autojump_clock):
    memory, store = stores(Failing(delay=1e6), deadline=30)
    memory.put(B, "k", b"12345")
    started = trio.current_time()
    with pytest.raises(DeadlineExceeded, match="no answer at all"):
        await store.list_page(B, "")
    assert trio.current_time() - started == 30


async def test_the_kernels_repeat_of_what_ran_into_its_deadline_fails_at_once(autojump_clock):
    """The kernel asks a second time after an error; the program is to wait for one deadline only,
    and its next question, which may come at once, is a new one."""
    memory, store = stores(Failing(delay=1e6), deadline=30)
    info = memory.put(B, "k", b"12345")
    buffer = memoryview(bytearray(5))
    questions = [
        lambda: store.head(B, "k"),
        lambda: store.peek_page(B, ""),
        lambda: store.read_range(B, info, 0, buffer),
    ]
    for ask in questions:
        with pytest.raises(DeadlineExceeded, match="given up after 30 s"):
            await ask()
        began = trio.current_time()
        with pytest.raises(DeadlineExceeded, match="not asked again at once"):
            await ask()
        assert trio.current_time() == began
        with pytest.raises(DeadlineExceeded, match="given up after 30 s"):
            await ask()
    with pytest.raises(DeadlineExceeded, match="given up after 30 s"):
        await store.head(B, "other")
    memory.hook = None
    await trio.sleep(1.01)
    for ask in questions:
        await ask()


async def test_a_batch_that_ran_into_its_deadline_is_not_followed_by_single_reads(autojump_clock):
    memory, store = stores(Failing(delay=1e6), deadline=30)
    infos = [memory.put(B, name, b"12345") for name in "ab"]
    with pytest.raises(DeadlineExceeded):
        await store.read_many(B, [(info, memoryview(bytearray(5))) for info in infos])
    with pytest.raises(DeadlineExceeded, match="not asked again at once"):
        await store.read_range(B, infos[1], 0, memoryview(bytearray(5)))


async def test_cancellation_is_no_deadline(autojump_clock):
    _, store = stores(Failing(delay=1e6), deadline=30)
    with trio.move_on_after(1) as scope:
        await store.head(B, "k")
    assert scope.cancelled_caught


async def test_jitter_keeps_clients_apart(autojump_clock):
    seen = set()
    for seed in range(5):
        hook = Failing(Unavailable("no"))
        memory = MemoryStore(hook=hook)
        memory.put(B, "k", b"")
        await CallPipeline(memory, deadline=9, rng=random.Random(seed)).head(B, "k")
        seen.add(round(hook.times[1] - hook.times[0], 6))
    assert len(seen) == 5


async def test_a_batch_is_tried_once(autojump_clock):
    hook = Failing(Unavailable("no"))
    memory, store = stores(hook)
    memory.batches = True
    info = memory.put(B, "k", DATA[:5])
    wanted = [(info, memoryview(bytearray(5)))]
    with pytest.raises(Unavailable):
        await store.read_many(B, wanted)
    assert memory.calls["read_many"] == 1
    assert await store.read_many(B, wanted) == [True]
    assert wanted[0][1] == DATA[:5]


# Streams


class Breaking(MemoryStore):
    """Streams break after some bytes, with some error."""

    break_at = 0
    error: Exception = Unavailable("cut")
    reads: list = []  # noqa: RUF012

    async def stream(self, bucket, expected, sink):
        taken = 0

        def cut(piece):
            nonlocal taken
            room = self.break_at - taken
            if room <= 0:
                raise self.error
            sink(piece[:room])
            taken += len(piece[:room])
            if room < len(piece):
                raise self.error

        await super().stream(bucket, expected, cut)

    async def read_range(self, bucket, expected, start, buffer, arrived=None):
        self.reads = [*self.reads, (start, start + len(buffer))]
        await super().read_range(bucket, expected, start, buffer)


async def collect(store, info, sink=None):
    pieces = []
    await store.stream(B, info, sink or (lambda piece: pieces.append(bytes(piece))))
    return b"".join(pieces)


@for_each("break_at", [1, 5 << 20, (5 << 20) + 1, len(DATA) - 1])
async def test_a_cut_stream_goes_on_where_it_broke(break_at):
    memory, store = stores(inner=Breaking)
    memory.break_at = break_at
    info = memory.put(B, "k", DATA)
    assert await collect(store, info) == DATA
    assert memory.calls["stream"] == 1
    assert memory.reads[0][0] == break_at
    assert memory.reads[-1][1] == len(DATA)
    assert sum(stop - start for start, stop in memory.reads) == len(DATA) - break_at


async def test_a_stream_that_never_began_is_started_again(autojump_clock):
    memory, store = stores(Failing(Unavailable("no"), Unavailable("no")))
    info = memory.put(B, "k", DATA[:5])
    assert await collect(store, info) == DATA[:5]
    assert memory.calls["stream"] == 3


async def test_a_cut_stream_of_a_changed_object_is_stale():
    memory, store = stores(inner=Breaking)
    memory.break_at = 1 << 20
    info = memory.put(B, "k", DATA)
    got = []

    def sink(piece):
        got.append(bytes(piece))
        memory.put(B, "k", DATA[::-1])

    with pytest.raises(Stale):
        await collect(store, info, sink)
    assert b"".join(got) == DATA[: 1 << 20]


async def test_errors_of_the_sink_are_not_the_stores():
    memory, store = stores()
    info = memory.put(B, "k", DATA)
    raised = Unavailable("the sink's own")
    calls = []

    def sink(piece):
        calls.append(len(piece))
        raise raised

    with pytest.raises(Unavailable) as caught:
        await collect(store, info, sink)
    assert caught.value is raised
    assert len(calls) == 1


class Slow(MemoryStore):
    async def stream(self, bucket, expected, sink):
        data = memoryview(DATA)
        for start in range(0, len(data), 1 << 20):
            await trio.sleep(4)
            sink(data[start : start + (1 << 20)])


async def test_a_long_stream_outlives_the_deadline(autojump_clock):
    # The resumed part waits for real threads; time may jump then, but nothing is timed there.
    memory, store = stores(deadline=30, inner=Slow)
    info = memory.put(B, "k", DATA)
    assert await collect(store, info) == DATA
    assert memory.calls["read_range"] == 2  # 7 MiB in 30 s, the rest in pieces of 8


async def test_close_reaches_the_inner_store():
    memory, store = stores()
    await store.aclose()
    assert memory.closed


async def test_a_bucket_that_a_try_without_answer_made_is_made():
    memory, bucket = MemoryStore(), Bucket("new")

    async def lose_the_answer(method, *_):
        memory.hook = None
        memory.add_bucket(bucket)
        raise Unavailable("no answer")

    memory.hook = lose_the_answer
    store = CallPipeline(memory, deadline=60)
    await store.create_bucket(bucket)
    with pytest.raises(AlreadyExists):
        await store.create_bucket(bucket)


async def test_downloads_take_turns_within_their_limit(autojump_clock):
    memory = MemoryStore(sink_in_thread=False)
    store = CallPipeline(memory, deadline=5, download_limit=1 << 20)
    info = memory.put(B, "k", DATA)
    done = []

    async def read(size, name):
        await store.read_range(B, info, 0, memoryview(bytearray(size)))
        done.append((name, trio.current_time() - began))

    async with trio.open_nursery() as nursery:
        began = trio.current_time()
        for number, size in enumerate([8 << 20, 1 << 20, 2 << 20]):
            nursery.start_soon(read, size, number)
            await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(3):  # gives up its turn
            await read(10 << 20, "cancelled")
        await store.head(B, "k")  # waits for none of them
        assert trio.current_time() - began == pytest.approx(3)
        await read(1 << 20, "last")
    assert [name for name, _ in done] == [0, 1, 2, "last"]
    assert [at for _, at in done] == pytest.approx([0, 8, 9, 11])


async def test_a_limited_stream_takes_turns_and_its_deadline_only_for_itself(autojump_clock):
    memory = MemoryStore(sink_in_thread=False)
    store = CallPipeline(memory, deadline=5, download_limit=1 << 20)
    info = memory.put(B, "k", DATA)
    got = bytearray()
    began = trio.current_time()
    await store.stream(B, info, got.extend)
    assert bytes(got) == DATA
    assert trio.current_time() - began == pytest.approx(16)
