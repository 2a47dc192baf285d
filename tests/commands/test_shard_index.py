"""Have a cluster index shards, and count what is indexed then."""

import io
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import requests
import trio
from rich.console import Console

from aisfs.errors import BucketNotFound, ConfigError, SourceMissing, Unsupported
from aisfs.work.jobs import build_shard_indexes, prefixes_of
from aisfs.work.shards import read_cluster_shards
from tests.support.archives import make_tar
from tests.support.for_each import for_each
from tests.support.servers import RunningServer, running_server

DEADLINE = 60.0


def tar_of(names: Sequence[str]) -> bytes:
    return make_tar({name: os.urandom(100) for name in names})


@pytest.fixture(params=[1, 3])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    root = tmp_path / "served"
    (root / "b").mkdir(parents=True)
    with running_server(root, targets=request.param) as running:
        with requests.Session() as http:
            for key in [*(f"p/s-{n}.tar" for n in range(6)), "q/x.tar"]:
                put(http, running, key, tar_of(["a.jpg", "a.cls", "b.jpg"]))
            put(http, running, "p/note.txt", b"text")
        yield running
        assert "Traceback" not in running.log()


def put(http: requests.Session, server: RunningServer, key: str, data: bytes) -> None:
    http.put(f"{server.endpoint}/v1/objects/b/{key}", data=data).raise_for_status()


async def until(condition: Callable[[], Any]) -> None:
    with trio.fail_after(DEADLINE):
        while not await trio.to_thread.run_sync(condition):  # noqa: ASYNC110 - others do it
            await trio.sleep(0.02)


def console() -> tuple[Console, io.StringIO]:
    shown = io.StringIO()
    return Console(file=shown, width=200), shown


async def test_indexes_are_built_and_counted(server: RunningServer) -> None:
    to, shown = console()
    source = ["ais://b/p/s-{0..5}.tar"]
    before = await build_shard_indexes(source, {}, server.endpoint, to, build=False)
    assert (before.shards, before.current, len(before.without)) == (6, 0, 6)
    done = await build_shard_indexes(source, {}, server.endpoint, to)
    assert (done.shards, done.current, done.complete) == (6, 6, True)
    assert not done.errors
    assert "indexing shards: 6 of 6" in shown.getvalue()
    assert len(done.jobs) == 1
    assert done.jobs[0].counts["index"] == 6
    assert not list(server.root.glob(".sys-shardidx/**/x.tar.idx"))
    with requests.Session() as http:
        put(http, server, "p/s-3.tar", tar_of(["other.jpg"]))
        put(http, server, "p/s-6.tar", b"no tar" * 1000)
        put(http, server, "p/s-7.tar", tar_of(["c.jpg"]))
    stale = await build_shard_indexes(["ais://b/p/"], {}, server.endpoint, to, build=False)
    assert (stale.current, stale.stale) == (5, ["ais://b/p/s-3.tar"])
    assert sorted(stale.without) == ["ais://b/p/s-6.tar", "ais://b/p/s-7.tar"]
    again = await build_shard_indexes(["ais://b/p/"], {}, server.endpoint, to)
    assert (again.shards, again.current, again.without) == (8, 7, ["ais://b/p/s-6.tar"])
    assert "p/s-6.tar" in again.errors[0]
    assert again.jobs[0].counts["skip-indexed"] == 5


async def test_what_cannot_be_indexed(tmp_path: Path) -> None:
    (tmp_path / "served" / "b").mkdir(parents=True)
    (tmp_path / "served" / "b" / "x.tar").write_bytes(tar_of(["a.jpg"]))
    shutil.copytree(tmp_path / "served" / "b", tmp_path / "served" / "c")
    elsewhere = '{"shardlist": [{"url": "ais://c/x.tar"}]}'
    (tmp_path / "served" / "b" / "list.json").write_text(elsewhere)
    with running_server(tmp_path / "served", without_jobs=["index-shard"]) as server:
        for words, kind, reason in [
            (["ais://b"], Unsupported, "aisfs index SOURCE --publish"),
            (["ais://none"], BucketNotFound, "no such bucket"),
            (["ais://b/p/"], SourceMissing, "no shard"),
            ([str(tmp_path)], ConfigError, "aisfs index --publish"),
            (["ais://b/list.json"], ConfigError, "ais://c/x.tar is in another"),
        ]:
            with pytest.raises(kind, match=reason):
                await build_shard_indexes(words, {}, server.endpoint, console()[0])


@for_each(
    "words, prefixes",
    [
        (["ais://b"], [""]),
        (["ais://b/p/x.tar"], ["p/x.tar"]),
        (["ais://b/p/x-{0..5}.tar"], ["p/"]),
        (["ais://b/p/*.tar", "ais://b/p/q/", "ais://b/r/"], ["p/", "r/"]),
        (["ais://b/a/", "ais://b"], [""]),
    ],
)
def test_one_job_for_each_directory(words: list[str], prefixes: list[str]) -> None:
    assert prefixes_of(read_cluster_shards(words, {}, "")) == prefixes
