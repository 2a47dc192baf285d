"""The bucket of indexes: nothing is put beside shards, what lies there is still read, and can be moved."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from aisfs.commands.options import Exit
from tests.mount.content import fill, put
from tests.mount.datasets import encode, sample, tree
from tests.support.mounts import aisfs, mounted
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

ODD = ["a b+c%41.tar", "d/#1?.tar", "d/\x01\n.tar", "d/~/x.tar", "e.idx/y.tar.gz.tar", "ü/é.tar"]
KEYS = ["top.tar", "train/s-0.tar", "train/s-1.tar"]
EACH = 4


def shard(key: str, images: bytes = b"x" * 3000) -> bytes:
    return encode(
        sample(f"{KEYS.index(key) if key in KEYS else 9}-{n}", n, images) for n in range(EACH)
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    root = tmp_path / "store"
    (root / "b").mkdir(parents=True)
    with running_server(root, faulty=True) as running:
        for key in KEYS:
            put(running.endpoint, "b", key, shard(key))
        yield running
        assert "Traceback" not in running.log()


Run = Callable[..., str]


@pytest.fixture
def run(server: RunningServer, tmp_path: Path) -> Run:
    """Runs a command, each time as on another machine; returns what it says."""
    machines = iter(range(100))

    def run(command: str, *words: str | Path, code: int = 0, **more: object) -> str:
        cache = (
            []
            if command in ("pack", "ls", "mb") or "--move" in words
            else ["--cache-dir", f"{tmp_path}/m{next(machines)}"]
        )
        done = aisfs(command, *words, *cache, "--endpoint", server.endpoint, **more)
        assert done.returncode == code, (done.stdout, done.stderr)
        assert b"Traceback" not in done.stderr
        return (done.stdout + done.stderr).decode()

    return run


def stored(server: RunningServer, bucket: str) -> list[str]:
    """The keys of a bucket, as any other client lists them."""
    body = {"action": "list", "name": "", "value": {"props": "name"}}
    url = f"{server.endpoint}/v1/buckets/{bucket}"
    reply = requests.get(url, json=body, timeout=30)
    if reply.status_code == 404:
        return []
    return sorted(entry["name"] for entry in reply.json()["entries"] or [])


def indexes(*keys: str, bucket: str = "ais/b") -> list[str]:
    return sorted(f"{bucket}/{key}.idx" for key in keys)


def beside(run: Run, *sources: str) -> None:
    """Publish beside the shards, as releases before this one did."""
    run("index", "--publish", "--force", *sources, "--index-bucket", "")


def fetched(
    server: RunningServer, mountpoint: Path, *options: str, log: tuple[str, ...] = ()
) -> int:
    """Look at all members on a machine of its own; return the bytes that were fetched."""
    before = server.requests().get("get_bytes", 0)
    fresh = ["--cache-dir", str(mountpoint.parent / f"fresh-{before}-{len(options)}"), *options]
    with mounted(
        "ais://b", mountpoint, endpoint=server.endpoint, options=fresh, expected_log=log
    ) as mount:
        for key in stored(server, "b"):
            if key.endswith(".tar"):
                assert len(os.listdir(mount.path / f"{key}.d")) == 2 * EACH
    return server.requests().get("get_bytes", 0) - before


SCANNED = 3000
"""More than all indexes have; a scan reads more."""


def test_nothing_is_put_beside_the_shards(server: RunningServer, run: Run, mountpoint: Path):
    fill(server.root / "b", {key: shard(key) for key in ODD})
    keys = sorted([*KEYS, *ODD])
    data = fetched(server, mountpoint)
    run("index", "--publish", "ais://b")
    assert stored(server, "b") == keys
    assert stored(server, "aisfs-index") == indexes(*keys)
    assert "0 are not" in run("index", "--check", "ais://b")
    assert "are current" in run("index", "--check", "ais://b/train/s-{0..1}.tar")
    assert fetched(server, mountpoint) < data / 3
    # Another bucket with the same keys has indexes of its own.
    run("mb", "ais://c")
    put(server.endpoint, "c", "top.tar", shard(KEYS[1]))
    run("index", "--publish", "ais://c")
    assert stored(server, "aisfs-index") == sorted([*indexes(*keys), "ais/c/top.tar.idx"])
    assert "0 are not" in run("index", "--check", "ais://b")
    # It is a bucket as any other.
    assert "ais://aisfs-index" in run("ls")
    with mounted(None, mountpoint, endpoint=server.endpoint) as mount:
        assert sorted(os.listdir(mount.path / "ais/aisfs-index/ais/b/train")) == [
            "s-0.tar.idx",
            "s-1.tar.idx",
        ]


def test_the_bucket_can_be_named_and_done_without(
    server: RunningServer, run: Run, mountpoint: Path, tmp_path: Path
):
    run("index", "--publish", "ais://b/train", "--index-bucket", "ais://mine")
    assert stored(server, "mine") == indexes(*KEYS[1:])
    run("index", "--publish", "ais://b/top.tar", env={"AISFS_INDEX_BUCKET": "mine"})
    assert stored(server, "mine") == indexes(*KEYS)
    assert (
        fetched(server, mountpoint, "--index-bucket", "mine")
        < SCANNED
        < fetched(server, mountpoint)
    )
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "x.cls").write_text("1")
    run("pack", tmp_path / "files", "ais://b/packed.tar", "--index-bucket", "mine")
    assert "ais/b/packed.tar.idx" in stored(server, "mine")
    run("index", "--publish", "ais://b/train", "--index-bucket", "")
    assert "train/.aisfs-index/s-0.tar.idx" in stored(server, "b")
    assert stored(server, "aisfs-index") == []


def test_both_places_are_read(server: RunningServer, run: Run, mountpoint: Path):
    data = fetched(server, mountpoint)
    beside(run, "ais://b")
    assert fetched(server, mountpoint) < SCANNED < data
    said = run("index", "--publish", "ais://b")
    assert "0 indexes published, 3 were current" in said
    assert "3 indexes lie beside their shards" in said
    assert "aisfs index --move" in said
    assert stored(server, "aisfs-index") == []
    # Beside is what was published of an older version; the newer one in the bucket wins.
    put(server.endpoint, "b", KEYS[1], shard(KEYS[1], b"new" * 1000))
    run("index", "--publish", "ais://b")
    assert stored(server, "aisfs-index") == indexes(KEYS[1])
    assert fetched(server, mountpoint) < SCANNED
    # And the other way round, as an older release publishes it.
    put(server.endpoint, "b", KEYS[1], shard(KEYS[1], b"old" * 1000))
    beside(run, f"ais://b/{KEYS[1]}")
    warning = r"ais://aisfs-index/ais/b/train/s-0.tar.idx: this published index is not used"
    assert fetched(server, mountpoint, log=(warning,)) < SCANNED
    assert "0 are not" in run("index", "--check", "ais://b")


def test_move(server: RunningServer, run: Run, mountpoint: Path):
    fill(server.root / "b", {key: shard(key) for key in ODD})
    keys = sorted([*KEYS, *ODD])
    beside(run, "ais://b")
    put(server.endpoint, "b", "gone/.aisfs-index/left.tar.idx", b"of a shard that is gone")
    put(server.endpoint, "b", "train/.aisfs-index/README", b"of somebody else")
    put(server.endpoint, "b", KEYS[2], shard(KEYS[2], b"new" * 1000))  # its index is outdated
    before = stored(server, "b")
    said = run("index", "--move", "ais://b", "--dry-run")
    assert f"{len(keys) + 1} indexes would be moved to ais://aisfs-index" in said
    assert "would move ais://b/train/.aisfs-index/s-1.tar.idx" in said
    assert (stored(server, "b"), stored(server, "aisfs-index")) == (before, [])
    said = run("index", "--move", "ais://b/train/*.tar")
    assert "2 indexes moved to ais://aisfs-index" in said
    assert stored(server, "aisfs-index") == indexes(*KEYS[1:])
    said = run("index", "--move", "ais://b")
    assert f"{len(keys) - 1} indexes moved to ais://aisfs-index" in said
    assert stored(server, "b") == sorted([*keys, "train/.aisfs-index/README"])
    assert stored(server, "aisfs-index") == indexes(*keys, "gone/left.tar")
    assert "0 indexes moved" in run("index", "--move", "ais://b")
    said = run("index", "--check", "ais://b", code=1)
    assert f"{len(keys) - 1} indexes are current, 1 are not" in said
    warning = r"s-1.tar.idx: this published index is not used"
    fetched(server, mountpoint, log=(warning,))


def test_a_move_keeps_the_better_one(server: RunningServer, run: Run):
    beside(run, "ais://b")
    run("index", "--publish", "ais://b/top.tar", "--force", "--label", "cls", "--label", "txt")
    newer = (server.root / "aisfs-index" / "ais/b/top.tar.idx").read_bytes()
    put(server.endpoint, "aisfs-index", "ais/b/train/s-0.tar.idx", b"damaged")
    said = run("index", "--move", "ais://b")
    assert "3 indexes moved to ais://aisfs-index; it had 1 of them" in said
    assert (server.root / "aisfs-index" / "ais/b/top.tar.idx").read_bytes() == newer
    assert "0 are not" in run("index", "--check", "ais://b")
    assert stored(server, "b") == KEYS


def test_what_has_no_checksum(server: RunningServer, run: Run, mountpoint: Path):
    """Such shards are known by number and time of their version; see tests/core for buckets made again."""
    fill(server.root / "b", {"bare/x.tar": shard("x")})
    beside(run, "ais://b/bare")
    assert "1 index moved" in run("index", "--move", "ais://b/bare")
    assert "0 are not" in run("index", "--check", "ais://b/bare")
    run("index", "--publish", "ais://b", "--force")
    assert fetched(server, mountpoint) < SCANNED


def test_moves_only_what_is_verified(server: RunningServer, run: Run):
    beside(run, "ais://b")
    before = stored(server, "b")
    lost = {"method": "PUT", "path_contains": "/aisfs-index/ais/b/train"}
    server.faults([{"match": lost, "action": "status", "status": 507, "times": -1}])
    assert "train" in run("index", "--move", "ais://b/train", code=Exit.FAILURE)
    server.faults([])
    assert stored(server, "b") == before
    run("index", "--move", "ais://b/train")
    assert stored(server, "aisfs-index") == indexes(*KEYS[1:])


def test_there_may_be_nowhere_to_move_to(server: RunningServer, run: Run, tmp_path: Path):
    for words in (["ais://b", "--index-bucket", ""], [tmp_path]):
        (line,) = run("index", "--move", *words, code=Exit.USAGE).splitlines()
        assert "there is no bucket for them" in line
    assert "does not exist" in run("index", "--move", "ais://nowhere", code=Exit.NO_SOURCE)
    assert "0 indexes moved" in run("index", "--move", "ais://b/nothing/")


def test_where_it_may_not_be_made_or_written(server: RunningServer, run: Run, tmp_path: Path):
    denied = {"method": "POST", "path_contains": "/v1/buckets/aisfs-index"}
    server.faults([{"match": denied, "action": "status", "status": 403, "times": -1}])
    said = run("index", "--publish", "ais://b", code=Exit.DENIED)
    (line,) = said.splitlines()
    assert "ais://aisfs-index" in line
    assert "--index-bucket" in line
    assert "aisfs mb" in line
    for number in range(30):
        (tmp_path / "files").mkdir(exist_ok=True)
        (tmp_path / "files" / f"{number}.cls").write_text("1")
    said = run("pack", tmp_path / "files", "ais://b/p-{00..}.tar", "--max-count", "1")
    assert "30 shards written" in said
    assert said.count("no index published: ") == 1
    assert "--index-bucket" in said
    assert len(stored(server, "b")) == len(KEYS) + 30


def test_a_mount_does_without_it(server: RunningServer, mountpoint: Path):
    """One request for all shards tells that it is missing, or that it may not be read."""
    rule = {
        "match": {"path_contains": "aisfs-index"},
        "action": "status",
        "status": 403,
        "times": -1,
    }
    for faults in ([{**rule, "times": 0}], [rule]):
        server.faults(faults)
        with mounted(
            "ais://b", mountpoint, endpoint=server.endpoint, options=["--cache-size", "0"]
        ) as mount:
            for key in KEYS:
                assert len(os.listdir(mount.path / f"{key}.d")) == 2 * EACH
            assert mount.log().count("published indexes are not used") == (faults[0]["times"] < 0)
    assert server.struck()[0] <= 2, "the bucket's properties, and a listing"


@pytest.fixture
def writable(server: RunningServer, run: Run, mountpoint: Path, tmp_path: Path) -> Iterator[Path]:
    run("index", "--publish", "ais://b")
    options = ["--writable", "--list-ttl", "0.2", "--staging-dir", str(tmp_path / "staged")]
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options):
        yield mountpoint


def test_directories_are_moved_and_removed_with_their_indexes(
    server: RunningServer, writable: Path
):
    os.rename(writable / "train", writable / "val")
    assert stored(server, "aisfs-index") == indexes("top.tar", "val/s-0.tar", "val/s-1.tar")
    assert len(os.listdir(writable / "val" / "s-0.tar.d")) == 2 * EACH
    with pytest.raises(OSError, match="not empty"):
        os.rmdir(writable / "val")
    shutil.rmtree(writable / "val")
    assert stored(server, "b") == ["top.tar"]
    assert stored(server, "aisfs-index") == indexes("top.tar")
    # As beside: what is left of a shard that was renamed or removed is harmless.
    os.rename(writable / "top.tar", writable / "new.tar")
    assert len(os.listdir(writable / "new.tar.d")) == 2 * EACH
    os.remove(writable / "new.tar")
    assert tree(writable) == []
    assert stored(server, "aisfs-index") == indexes("top.tar")


def test_another_cluster_is_known_by_its_uuid(server: RunningServer, run: Run, tmp_path: Path):
    """Its bucket of the same name has indexes of its own, whatever the cluster is called here."""
    (tmp_path / "far" / "b").mkdir(parents=True)
    with running_server(tmp_path / "far") as far:
        put(far.endpoint, "b", "top.tar", shard("far", b"far" * 1000))
        server.attach("far", far)
        found = requests.get(f"{server.endpoint}/v1/cluster?what=remote", timeout=30).json()["a"]
        uuid = found[0]["uuid"]
        assert "1 index published" in run("index", "--publish", "ais://@far#/b")
        run("index", "--publish", "ais://b")
        own = indexes("top.tar", bucket=f"ais/b@{uuid}#")
        assert stored(server, "aisfs-index") == sorted([*indexes(*KEYS), *own])
        for name in ("far", uuid):
            assert "0 are not" in run("index", "--check", f"ais://@{name}#/b")
