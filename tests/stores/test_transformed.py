"""Transformed objects as a store: over a store in memory, and the error that AIStore appends to content."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from aisfs.errors import (
    AccessDenied,
    ConfigError,
    NotFound,
    Stale,
    TransformBroken,
    TransformFailed,
    Unavailable,
)
from aisfs.metrics import Metrics
from aisfs.model import FAILURE, Bucket
from aisfs.stores.ais.etls import EtlTransformer
from aisfs.stores.ais.replies import MOST_APPENDED, appended_error
from aisfs.stores.memory import MemoryStore
from aisfs.stores.pipeline import all_of
from aisfs.stores.results import Results, clear
from aisfs.stores.transformed import (
    FAILED_SIZE,
    CommandTransformer,
    TransformedStore,
    parse_command,
    result_of,
)
from tests.support.for_each import for_each
from tests.support.mounts import eventually

B = Bucket("b")


class Upper:
    """A transformer that makes letters capitals, unless a test says otherwise."""

    at_once = 4

    def __init__(self) -> None:
        self.text, self.runs, self.most, self._now = "upper", 0, 0, 0
        self.change: Callable[[bytes], bytes] = bytes.upper
        self.errors: list[Exception] = []

    async def definition(self):
        return self.text

    async def transform(self, store, bucket, source, out):
        self.runs, self._now = self.runs + 1, self._now + 1
        self.most = max(self.most, self._now)
        try:
            await trio.sleep(0.01)
            if self.errors:
                raise self.errors.pop(0)
            data = bytearray()
            await store.stream(bucket, source, data.extend)
            out.write(self.change(bytes(data)))
            return self.text
        finally:
            self._now -= 1

    def close(self):
        pass


async def made(store, key):
    return await store.sized(B, await store.head(B, key))


class Setup:
    """A store, what transforms its objects, and their results."""

    def __init__(self, cache: Path) -> None:
        self.memory, self.upper, self.metrics = MemoryStore(), Upper(), Metrics()
        self.cache, self.limit = cache, 1 << 20
        self.again()

    def again(self):
        """Begin as another mount."""
        self.results = Results(self.cache, self.limit)
        self.store = TransformedStore(
            self.memory,
            self.upper,
            self.results,
            wanted=lambda key: not key.endswith(".md"),
            deadline=0.5,
            metrics=self.metrics,
        )

    async def listed(self):
        """Return all objects with their sizes, which are made side by side."""
        objects = (await self.store.list_page(B, "")).objects
        found = {}

        async def size(info):
            found[info.key] = await self.store.sized(B, info)

        await all_of((partial(size, info) for info in objects), self.upper.at_once)
        return found

    async def head(self, key):
        return await made(self.store, key)

    async def read(self, info):
        buffer = bytearray(info.size)
        await self.store.read_range(B, info, 0, memoryview(buffer))
        streamed = bytearray()
        await self.store.stream(B, info, streamed.extend)
        assert streamed == buffer
        return bytes(buffer)

    def files(self):
        return sorted(os.listdir(self.cache / "v1/transformed/data"))


@pytest.fixture
def setup(tmp_path):
    return Setup(tmp_path)


async def test_results_are_plain_objects(setup):
    setup.upper.change = lambda data: data.upper() * 3
    source = setup.memory.put(B, "a", b"abc")
    setup.memory.put(B, "d/x", b"x")
    plain = setup.memory.put(B, "read.md", b"text")
    listed = await setup.listed()
    assert (listed["a"].size, listed["a"].checksum) == (9, "")
    assert listed["a"].mtime_ns == source.mtime_ns
    assert listed["read.md"] == plain
    assert await setup.read(listed["a"]) == b"ABCABCABC"
    assert await setup.read(plain) == b"text"
    assert await setup.head("a") == listed["a"]
    assert setup.upper.runs == 1
    buffer = bytearray(2)
    await setup.store.read_range(B, listed["a"], 4, memoryview(buffer))
    assert buffer == b"BC"
    with pytest.raises(NotFound):
        await setup.head("no")


async def test_sizes_outlive_the_mount_and_the_files(setup):
    setup.memory.put(B, "a", b"abc")
    setup.memory.put(B, "empty", b"")
    listed = await setup.listed()
    await setup.store.aclose()
    setup.again()
    assert await setup.listed() == listed
    assert setup.upper.runs == 2
    for name in setup.files():
        (setup.cache / "v1/transformed/data" / name).unlink()
    assert await setup.listed() == listed
    assert setup.upper.runs == 2
    assert await setup.read(listed["a"]) == b"ABC"
    assert setup.upper.runs == 3


async def test_a_damaged_file_is_made_again(setup):
    setup.memory.put(B, "a", b"abc")
    info = (await setup.listed())["a"]
    await setup.store.aclose()
    (name,) = setup.files()
    (setup.cache / "v1/transformed/data" / name).write_bytes(b"abd")
    setup.again()
    assert await setup.read(info) == b"ABC"
    assert setup.upper.runs == 2


async def test_a_result_that_comes_out_differently_is_another_version(setup):
    setup.memory.put(B, "a", b"abc")
    info = (await setup.listed())["a"]
    for name in setup.files():
        (setup.cache / "v1/transformed/data" / name).unlink()
    setup.upper.change = lambda data: b"XYZ"
    for _ in range(2):
        with pytest.raises(Stale):
            await setup.read(info)
    now = await setup.head("a")
    assert now.version != info.version
    assert await setup.read(now) == b"XYZ"
    assert setup.upper.runs == 2


@pytest.mark.parametrize("more", [-1, 1])
@pytest.mark.parametrize("is_made", [False, True])
async def test_a_size_that_somebody_else_said_wrongly(setup, more, is_made):
    """No reader gets the bytes of another size, and the next look-up has the right one."""
    setup.memory.put(B, "a", b"abc")
    source = await setup.head("a")
    digest, result = result_of(source)
    if not is_made:
        clear(setup.cache)
        setup.again()
    setup.results.learn({digest: (3 + more, result.content)})
    setup.results._db.execute("update results set size = ?", (3 + more,))
    info = await setup.head("a")
    assert info.size == 3 + more
    with pytest.raises(Stale):
        await setup.store.stream(B, info, lambda _: None)
    with pytest.raises(Stale):
        await setup.store.read_range(B, info, 0, memoryview(bytearray(2)))
    assert await setup.read(await setup.head("a")) == b"ABC"
    assert setup.upper.runs == (1 if is_made else 2)


async def test_results_are_compared_of_one_source_and_definition(setup):
    async def gives_again(change=lambda: None):
        setup.memory.put(B, "a", b"abc")
        shown = await setup.head("a")
        change()
        return await setup.store.gives_again(B, shown)

    assert await gives_again()
    assert not await gives_again(lambda: setattr(setup.upper, "change", bytes.lower))
    assert len(setup.files()) == 2
    with pytest.raises(Stale):
        await gives_again(lambda: setup.memory.put(B, "a", b"other"))
    with pytest.raises(Stale):
        await gives_again(lambda: setattr(setup.upper, "text", "lower"))


async def test_other_sources_and_definitions_are_other_versions(setup):
    setup.memory.put(B, "a", b"abc")
    first = (await setup.listed())["a"]
    setup.memory.put(B, "a", b"xyz")
    second = (await setup.listed())["a"]
    assert await setup.read(second) == b"XYZ"
    setup.upper.text = "lower"
    setup.upper.change = bytes.lower
    third = await setup.head("a")
    assert await setup.read(third) == b"xyz"
    assert len({info.version for info in (first, second, third)}) == 3
    for name in setup.files():
        (setup.cache / "v1/transformed/data" / name).unlink()
    for old in (first, second):
        with pytest.raises(Stale):
            await setup.read(old)


async def test_a_source_that_changes_meanwhile_is_transformed_again(setup):
    setup.memory.put(B, "a", b"abc")

    async def change(method, bucket, name):
        if method == "stream":
            setup.memory.hook = None
            setup.memory.put(B, "a", b"changed")

    setup.memory.hook = change
    info = (await setup.listed())["a"]
    assert await setup.read(info) == b"CHANGED"


async def test_what_fails_is_listed_and_cannot_be_read(setup, mock_clock):
    mock_clock.rate = 1.0  # one that jumps by itself would do so while a thread works
    setup.memory.sink_in_thread = False
    setup.memory.put(B, "a", b"abc")
    setup.memory.put(B, "b", b"abc")
    setup.upper.at_once = 1
    setup.upper.errors = [TransformFailed("no picture")]
    listed = await setup.listed()
    assert (listed["a"].size, listed["a"].custom) == (FAILED_SIZE, {FAILURE: "no picture"})
    assert listed["b"].size == 3
    with pytest.raises(TransformFailed, match="no picture"):
        await setup.read(listed["a"])
    assert setup.upper.runs == 2
    mock_clock.jump(100)  # then it is tried again
    with pytest.raises(Stale):
        await setup.read(listed["a"])
    assert await setup.read(await setup.head("a")) == b"ABC"


async def test_what_breaks_off_is_tried_some_times(setup):
    setup.memory.put(B, "a", b"abc")
    setup.upper.errors = [TransformBroken("cut")] * 2
    assert (await setup.listed())["a"].size == 3
    setup.memory.put(B, "a", b"abcd")
    setup.upper.errors = [TransformBroken("cut")] * 3
    assert (await setup.listed())["a"].custom == {FAILURE: "cut"}
    assert setup.upper.runs == 6


async def test_without_a_transformer_the_listing_fails_and_nothing_is_missing(setup):
    for key in "abcdefgh":
        setup.memory.put(B, key, b"abc")
    setup.upper.errors = [Unavailable("does not run") for _ in range(1000)]
    with pytest.raises(Unavailable, match="does not run"):
        await setup.listed()
    with pytest.raises(Unavailable, match="does not run"):
        await setup.head("a")
    setup.upper.errors = []
    assert {info.size for info in (await setup.listed()).values()} == {3}


async def test_names_cost_no_transformation(setup):
    for key in "abc":
        setup.memory.put(B, key, b"abc")
    source = await setup.memory.head(B, "a")
    for page in (await setup.store.list_page(B, ""), await setup.store.peek_page(B, "")):
        assert [info.key for info in page.objects] == ["a", "b", "c"]
        assert [info.is_sized for info in page.objects] == [False] * 3
        assert page.objects[0].source == source
    info = await setup.store.head(B, "a")
    assert (info.size < 0, setup.upper.runs) == (True, 0)
    assert (await setup.store.sized(B, info)).size == 3
    assert (await setup.store.list_page(B, "")).objects[0] == await setup.store.head(B, "a")
    assert setup.upper.runs == 1
    # A source that has changed meanwhile is transformed as it is now, and one that is gone is gone.
    setup.memory.put(B, "b", b"other")
    assert (await setup.store.sized(B, page.objects[1])).size == 5
    await setup.memory.remove(B, "c")
    with pytest.raises(NotFound):
        await setup.store.sized(B, page.objects[2])


async def test_one_run_for_all_that_wait(setup):
    for number in range(20):
        setup.memory.put(B, f"{number:02}", b"abc")
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(setup.listed)
    assert (setup.upper.runs, setup.upper.most) == (20, 4)
    setup.memory.put(B, "00", b"other")
    with trio.move_on_after(0):
        await setup.listed()
    assert (await setup.listed())["00"].size == 5


async def test_files_are_bounded(setup):
    setup.limit = 4 * 4096
    await setup.store.aclose()
    setup.again()
    for number in range(8):
        setup.memory.put(B, str(number), b"%d" % number * 3000)
    setup.memory.put(B, "large", b"x" * 16385)
    listed = await setup.listed()
    assert 0 < len(setup.files()) <= 4
    assert "there is room for 16384" in listed.pop("large").custom[FAILURE]
    for key, info in listed.items():
        assert await setup.read(info) == key.encode() * 3000
    assert 0 < len(setup.files()) <= 4


def test_a_damaged_table_is_no_error(tmp_path):
    Results(tmp_path, 1000).close()
    clear(tmp_path)
    (tmp_path / "v1/transformed/results.db").write_bytes(b"x" * 10_000)
    results = Results(tmp_path, 1000)
    assert results.find([b"x"]) == {}
    results.close()
    with pytest.raises(ConfigError):
        Results(tmp_path / "v1/transformed/results.db", 1000)


def test_definitions_outlive_the_mount(tmp_path):
    results = Results(tmp_path, 1000)
    assert results.definition("a") == ""
    for said in ("one", "two"):
        results.note_definition("a", said)
    results.close()
    results = Results(tmp_path, 1000)
    assert (results.definition("a"), results.definition("b")) == ("two", "")
    results.close()


async def test_a_cluster_that_does_not_tell_definitions(caplog):
    etls = EtlTransformer(None, ["upper-etl"], "", deadline=1)

    async def refuse(name):
        raise AccessDenied("only administrators")

    etls._etls.details = refuse
    await etls.ask()
    await etls.ask()
    assert "would not be noticed: only administrators" in caplog.text
    assert len(caplog.records) == 1
    other = EtlTransformer(None, ["upper-etl"], "x", deadline=1)
    other._etls.details = refuse
    assert await other.definition() != await etls.definition()


# Commands -----------------------------------------------------------------------------------------


@pytest.fixture
def by_command(setup):
    """Makes stores whose objects a command transforms."""
    transformers = []

    def make(text, most=1 << 20):
        transformer = CommandTransformer(
            parse_command(text), most=most, scratch=setup.results.scratch
        )
        transformers.append(transformer)
        return TransformedStore(
            setup.memory,
            transformer,
            setup.results,
            wanted=lambda _: True,
            deadline=5,
            metrics=setup.metrics,
        )

    yield make
    for each in transformers:
        each.close()


@for_each(
    "command, said",
    [
        ("sh -c 'echo one >&2; echo two >&2; exit 3'", "(exit code 3): two"),
        ("sh -c 'cat; kill -9 $$'", "(ended by SIGKILL)"),
        ("sh -c 'cat; exit 1'", "(exit code 1)"),
        ("python:json:nothing", "has no attribute 'nothing'"),
    ],
)
async def test_a_command_that_fails(setup, by_command, command, said):
    setup.memory.put(B, "a", b"abc")
    info = await made(by_command(command), "a")
    assert said in info.custom[FAILURE]


async def test_commands(setup, by_command, tmp_path, monkeypatch):
    setup.memory.put(B, "a", b"abc")
    setup.memory.put(B, "empty", b"")
    setup.store = by_command("tr a-z A-Z")
    listed = await setup.listed()
    assert await setup.read(listed["a"]) == b"ABC"
    assert listed["empty"].size == 0
    setup.store = by_command("python:gzip:compress")
    assert (await setup.read(await setup.head("a")))[:2] == b"\x1f\x8b"
    monkeypatch.chdir(tmp_path)
    filter_ = tmp_path / "filter"
    filter_.write_text("#!/bin/sh\ncat; pwd")
    filter_.chmod(0o755)
    setup.store = by_command("./filter")
    monkeypatch.chdir("/")
    before = await setup.head("a")
    assert await setup.read(before) == b"abc" + os.fsencode(tmp_path) + b"\n"
    filter_.write_text("#!/bin/sh\ncat; echo longer")
    assert (await setup.head("a")).size == 10


async def test_a_command_writes_no_more_than_there_is_room_for(setup, by_command):
    setup.memory.put(B, "a", b"abc")
    store = by_command("cat /dev/zero", most=5000)
    assert FAILURE in (await made(store, "a")).custom


async def test_a_command_ends_with_those_that_wait_for_it(setup, by_command, tmp_path):
    setup.memory.put(B, "a", b"abc")
    pid = tmp_path / "pid"
    store = by_command(f"sh -c 'echo $$ > {pid}; exec sleep 1000'")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made, store, "a")
        assert await trio.to_thread.run_sync(eventually, lambda: pid.exists() and pid.read_text())
        nursery.cancel_scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@for_each("text", ["no-such-program x", "'", "", "python:x", "python::y"])
def test_no_commands(text):
    with pytest.raises(ConfigError):
        parse_command(text)


# What AIStore appends -------------------------------------------------------------------------------

PATH = "/v1/objects/eb/big"


def error_of(path=PATH, message="context deadline exceeded", **more):
    told = {"tcode": "timeoutError", "message": message, "method": "GET", "url_path": path}
    told |= {"remote_addr": "1:2", "caller": "", "node": "t[x]", "status": 400, **more}
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


@given(st.binary(), st.text(st.characters(codec="utf-8")))
def test_an_appended_error_is_found(content, message):
    found = appended_error((content + error_of(message=message))[-MOST_APPENDED:], PATH)
    assert found.endswith("(HTTP 400)")


@given(st.binary(), st.integers(1, 20))
def test_other_content_is_content(content, cut):
    assert appended_error(content, PATH) == ""
    whole = content + error_of()
    assert appended_error(whole[:-cut], PATH) == ""
    assert appended_error(whole + b"\n", PATH) == ""
    assert appended_error(content + error_of(path="/v1/objects/eb/other"), PATH) == ""
    assert appended_error(content + error_of(status=200), PATH) == ""


@for_each(
    "path, told",
    [
        ("/v1/objects/eb/a%20%C3%A4", "/v1/objects/eb/a ä"),
        ("/v1/objects/eb/a%0Ab", "/v1/objects/eb/a b"),
        ("/v1/objects/eb/a%FFb", "/v1/objects/eb/a\ufffdb"),
        ("/v1/objects/eb/a%7B%22b", '/v1/objects/eb/a{"b'),
    ],
)
def test_odd_names_in_appended_errors(path, told):
    assert appended_error(b"content" + error_of(path=told), path)
