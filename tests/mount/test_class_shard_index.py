"""A class view of shards that AIStore has indexed: what it fetches, and when that index is used."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from aisfs.commands.options import Exit
from tests.mount.datasets import sample, tree, write_shard
from tests.support.mounts import Mount, aisfs, mounted
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

SHARDS, EACH, CLASSES = 4, 24, 5
PICTURE = 100_000
SOURCE = "ais://b/d/s-{0..3}.tar"
VIEW = ["--view", "class"]
WRITTEN_NS = 1_700_000_000_250_000_000
"""The time of all members."""


def pictures(shard: int) -> list[dict]:
    numbers = range(shard * EACH, (shard + 1) * EACH)
    return [
        sample(f"p{n:04}", n % CLASSES, bytes([n % 251]) * PICTURE, txt=b"a caption")
        for n in numbers
    ]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A cluster whose job has indexed all shards; most indexes are not where their names would have them."""
    root = tmp_path_factory.mktemp("indexed").resolve() / "store"
    for number in range(SHARDS):
        write_shard(root / "b" / "d" / f"s-{number}.tar", pictures(number))
    with running_server(root, faulty=True, targets=3) as server:
        index(server)
        yield server


@pytest.fixture
def indexed(served: RunningServer) -> RunningServer:
    served.faults([])
    return served


def index(server: RunningServer) -> None:
    for number in range(SHARDS):  # an index belongs to a checksum, which uploads have
        data = (server.root / "b" / "d" / f"s-{number}.tar").read_bytes()
        requests.put(f"{server.endpoint}/v1/objects/b/d/s-{number}.tar", data).raise_for_status()
    message = {"action": "index-shard", "value": {}}
    requests.post(f"{server.endpoint}/v1/buckets/b", json=message).raise_for_status()
    folder = server.root / ".sys-shardidx" / "ais" / "@#" / "b" / "d"
    deadline = time.monotonic() + 60
    while not all((folder / f"s-{number}.tar.idx").is_file() for number in range(SHARDS)):
        assert time.monotonic() < deadline, "the job did not end"
        time.sleep(0.05)


def size_of(server: RunningServer) -> int:
    return sum(path.stat().st_size for path in (server.root / "b").rglob("*.tar"))


def check(mount: Mount) -> None:
    """Everything is where it belongs, and is what was packed."""
    assert tree(mount.path) == sorted(f"{n % CLASSES}/p{n:04}.jpg" for n in range(SHARDS * EACH))


def check_pictures(mount: Mount) -> None:
    for n in (0, 31, SHARDS * EACH - 1):
        content = (mount.path / f"{n % CLASSES}" / f"p{n:04}.jpg").read_bytes()
        assert content == bytes([n % 251]) * PICTURE


def struck(server: RunningServer) -> int:
    return sum(rule["struck"] for rule in requests.get(f"{server.endpoint}/-/faults").json())


def test_nothing_but_indexes_and_labels_is_fetched(
    indexed: RunningServer, mountpoint: Path, tmp_path: Path
):
    options = [*VIEW, "--cache-dir", str(tmp_path / "cache")]
    before = indexed.requests()
    with mounted(SOURCE, mountpoint, endpoint=indexed.endpoint, options=options) as mount:
        check(mount)
        first = {kind: n - before.get(kind, 0) for kind, n in indexed.requests().items()}
        assert first["get_bytes"] < size_of(indexed) // 20
        # The first batch shows whether ranges come; afterwards one for each shard.
        assert (first["get"], first["batch"]) == (SHARDS, SHARDS + 1)
        place = mount.path / "0" / "p0000.jpg"
        assert place.stat().st_mtime_ns != WRITTEN_NS, "AIStore's index knows no times"
        check_pictures(mount)
    with mounted(SOURCE, mountpoint, endpoint=indexed.endpoint, options=options) as mount:
        before = indexed.requests()
        check(mount)
        again = indexed.requests()
        assert [again[kind] - before[kind] for kind in ("get", "batch")] == [0, 0], "both were kept"
    # What was kept has no times, so views that show them do not use it.
    with mounted(
        SOURCE, mountpoint, endpoint=indexed.endpoint, options=["--view", "members", *options[2:]]
    ) as mount:
        member = next(mount.path.rglob("p0000.jpg"))
        assert member.stat().st_mtime_ns == WRITTEN_NS


def test_a_cluster_without_batches_gets_ranges(indexed: RunningServer, mountpoint: Path):
    refused = {
        "action": "status",
        "status": 501,
        "times": -1,
        "match": {"path_contains": "/v1/ml/"},
    }
    indexed.faults([refused])
    before = indexed.requests().get("get_bytes", 0)
    with mounted(SOURCE, mountpoint, endpoint=indexed.endpoint, options=VIEW) as mount:
        check(mount)
        assert indexed.requests()["get_bytes"] - before < size_of(indexed) // 20
        assert struck(indexed) == 1
        check_pictures(mount)


def test_who_may_not_read_the_index_is_refused_once(indexed: RunningServer, mountpoint: Path):
    denied = {
        "action": "status",
        "status": 403,
        "times": -1,
        "match": {"path_contains": "shardidx"},
    }
    indexed.faults([denied])
    with mounted(SOURCE, mountpoint, endpoint=indexed.endpoint, options=VIEW) as mount:
        check(mount)
        assert struck(indexed) == 2, "the bucket's properties, and a listing"
        assert (mount.path / "0" / "p0000.jpg").stat().st_mtime_ns == WRITTEN_NS
    expected = ["shard indexes cannot be read"]
    options = [*VIEW, "--shard-index"]
    with mounted(
        SOURCE, mountpoint, endpoint=indexed.endpoint, options=options, expected_log=expected
    ) as mount:
        check(mount)
        assert "cannot be read, shards are scanned" in mount.log()


@pytest.mark.parametrize(
    ("options", "used"),
    [
        (VIEW, True),
        (["--view", "flat"], True),
        (["--view", "members"], False),
        (["--view", "samples", "--shard-index"], True),
        (["--view", "members", "-o", "shard_index"], True),
        ([*VIEW, "-o", "shard_index=never"], False),
    ],
)
def test_when_the_index_is_used(
    options: list[str], used: bool, indexed: RunningServer, mountpoint: Path
):
    with mounted(SOURCE, mountpoint, endpoint=indexed.endpoint, options=options) as mount:
        member = next(mount.path.rglob("p0041.jpg"))
        assert (member.stat().st_mtime_ns != WRITTEN_NS) == used
        assert member.read_bytes() == bytes([41]) * PICTURE


def test_the_words_of_the_option(indexed: RunningServer, mountpoint: Path):
    words = ["mount", *VIEW, "--endpoint", indexed.endpoint, "--shard-index"]
    bare = aisfs(*words, "ais://b/no-{0..3}.tar", str(mountpoint))
    assert b"ais://b/no-{0..3}.tar" in bare.stderr, "what follows is a source, since it is no value"
    wrong = aisfs("mount", "--shard-index=often", "ais://b", str(mountpoint))
    assert wrong.returncode == Exit.USAGE
    assert not os.listdir(mountpoint)
