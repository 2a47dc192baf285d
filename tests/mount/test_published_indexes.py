"""Published indexes: what a mount reads of shards whose indexes lie beside them."""

import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from aisfs.core.index.published import ScanRules, encode_published
from aisfs.core.names.listing import published_key
from aisfs.core.views.spec import LabelRule, LabelSource
from aisfs.model import ObjectInfo
from tests.mount.content import put
from tests.mount.datasets import encode, sample, tree
from tests.support.mounts import aisfs, mounted
from tests.support.publishing import publish, scanned
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

SHARDS, EACH = 20, 10
TAR = 1536
"""What the reply to a batch adds for each object: a header, padding, its part of the end."""
SOURCE = "ais://pets/train/"
CLS = LabelRule(LabelSource.CONTENT, "cls")
IMAGE = b"\xff\xd8\xff" + bytes(40_000)
DATA = {
    f"train/s-{number:02}.tar": encode(
        sample(f"s{number:02}-{at:02}", at % 3, IMAGE + b"%d" % at) for at in range(EACH)
    )
    for number in range(SHARDS)
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("published").resolve() / "store"
    (root / "pets").mkdir(parents=True)
    with running_server(root) as server:
        for key, data in DATA.items():
            put(server.endpoint, "pets", key, data)
            publish(server.endpoint, "pets", key, data, CLS)
        yield server


class Counted:
    """Requests since the last look."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._before = server.requests()

    def take(self) -> dict[str, int]:
        now = self._server.requests()
        before, self._before = self._before, now
        return {kind: now[kind] - before.get(kind, 0) for kind in now}


def test_a_second_machine_reads_no_byte_of_the_shards_before_the_first_picture(
    server, mountpoint, tmp_path
):
    published = sum(
        path.stat().st_size for path in (server.root / "pets/train/.aisfs-index").iterdir()
    )
    seen = []
    for machine in ("one", "two"):
        options = ["--view", "class", "--cache-dir", str(tmp_path / machine)]
        counted = Counted(server)
        with mounted(SOURCE, mountpoint, endpoint=server.endpoint, options=options):
            seen.append(tree_of(mountpoint))
            listed = counted.take()
            with open(mountpoint / "0" / "s07-00.jpg", "rb") as picture:
                assert picture.read() == IMAGE + b"0"
            assert counted.take()["get"]
        assert listed["get_bytes"] <= published + SHARDS * TAR, "nothing else was read"
        assert listed.get("get", 0) + listed["batch"] <= 13 < SHARDS
    assert seen[0] == seen[1]
    assert len(seen[0]) == SHARDS * EACH

    # The same as without them, which reads all of the shards.
    options = ["--view", "class", "--cache-dir", str(tmp_path / "three"), "--no-published-index"]
    counted = Counted(server)
    with mounted(SOURCE, mountpoint, endpoint=server.endpoint, options=options):
        assert tree_of(mountpoint) == seen[0]
        assert counted.take()["get_bytes"] > SHARDS * EACH * len(IMAGE) // 2


def tree_of(root: Path) -> list[tuple[str, int, int]]:
    found = []
    for name in tree(root):
        facts = os.stat(root / name)
        found.append((name, facts.st_size, facts.st_mtime_ns))
    return found


def test_a_remount_asks_for_no_index_again(server, mountpoint, tmp_path):
    options = ["--view", "class", "--cache-dir", str(tmp_path / "cache")]
    for again in (False, True):
        counted = Counted(server)
        with mounted(SOURCE, mountpoint, endpoint=server.endpoint, options=options):
            assert len(tree(mountpoint)) == SHARDS * EACH
            asked = counted.take()
        assert bool(asked.get("get_bytes", 0)) is not again


def test_what_was_kept_of_them_is_not_used_without_them(server, mountpoint, tmp_path):
    with_them = ["--view", "class", "--cache-dir", str(tmp_path / "cache"), "--cache-size", "1GiB"]
    without = [*with_them, "--no-published-index"]
    for options, reads_shards in ((with_them, False), (without, True), (without, False)):
        counted = Counted(server)
        with mounted(SOURCE, mountpoint, endpoint=server.endpoint, options=options):
            assert len(tree(mountpoint)) == SHARDS * EACH
            asked = counted.take()
        assert (asked.get("get_bytes", 0) > SHARDS * EACH * len(IMAGE) // 2) is reads_shards


def test_folders_of_shards_cost_their_own_index(server, mountpoint, tmp_path):
    counted = Counted(server)
    options = ["--cache-dir", str(tmp_path / "cache")]
    with mounted(SOURCE, mountpoint, endpoint=server.endpoint, options=options):
        assert sorted(os.listdir(mountpoint)) == [f"s-{at:02}.tar" for at in range(SHARDS)]
        counted.take()
        assert len(os.listdir(mountpoint / "s-03.tar.d")) == 2 * EACH
        asked = counted.take()
        assert asked["get"] == 1
        assert asked["get_bytes"] < 1000


def test_inspect_uses_them(server, tmp_path):
    found = []
    for options, most in (([], 400_000), (["--no-published-index"], 1 << 40)):
        counted = Counted(server)
        done = aisfs(
            "inspect", SOURCE, "--endpoint", server.endpoint, "--json",
            "--cache-dir", tmp_path / f"cache{most}", *options,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        asked = counted.take()
        found.append(json.loads(done.stdout)["labels"])
        assert asked["get_bytes"] < most
        assert options or asked.get("get", 0) + asked["batch"] <= 13 < SHARDS, (
            "not the labels one by one"
        )
        assert (asked["get_bytes"] > SHARDS * EACH * len(IMAGE) // 2) is bool(options)
    assert found[0] == found[1] != []


def test_bad_indexes_are_told_and_the_shards_scanned(server, mountpoint, tmp_path):
    url = f"{server.endpoint}/v1/objects/odd/"
    requests.post(f"{server.endpoint}/v1/buckets/odd", json={"action": "create-bck"}, timeout=30)
    for name in ("lost", "new", "newer", "good"):
        data = encode([sample(name, 1)])
        put(server.endpoint, "odd", f"{name}.tar", data)
        good = publish(server.endpoint, "odd", f"{name}.tar", data, CLS)
        if name == "lost":
            bad = bytes(at ^ 1 for at in good)
            requests.put(f"{url}.aisfs-index/{name}.tar.idx", data=bad, timeout=30)
        elif name != "good":  # replaced after it was indexed
            put(server.endpoint, "odd", f"{name}.tar", encode([sample(name, 1), sample("b", 2)]))
    warnings = [
        r"ais://odd/.aisfs-index/lost.tar.idx: this published index is not used, the shard is scan",
        r"new.*another version of the shard|new.*is of a shard of",
    ]
    with mounted(
        "ais://odd", mountpoint, endpoint=server.endpoint, expected_log=warnings,
        options=["--cache-dir", str(tmp_path / "cache")],
    ) as mount:  # fmt: skip
        assert sorted(os.listdir(mountpoint)) == ["good.tar", "lost.tar", "new.tar", "newer.tar"]
        for name, count in (("good", 2), ("lost", 2), ("new", 4), ("newer", 4)):
            assert len(os.listdir(mountpoint / f"{name}.tar.d")) == count
        log = mount.log()
    assert log.count("WARNING") + log.count("level=warn") == 2, "once for all that are outdated"
    assert "aisfs index --publish" in log


WRITABLE = ["--writable", "--list-ttl", "0.2"]
BUCKETS = itertools.count()
OUTDATED = r"d/.aisfs-index/x.tar.idx: this published index is not used, .* publish it anew"


@pytest.fixture(params=["ais", "local"])
def writable(request, server, mountpoint, tmp_path) -> Iterator[Path]:
    """A writable mount of a directory of two shards, of which one has an index, and its store."""
    data = encode([sample("a", 1)])
    kept = ["--cache-dir", str(tmp_path / "cache"), "--staging-dir", str(tmp_path / "staged")]
    if request.param == "ais":
        bucket = f"written-{next(BUCKETS)}"
        (server.root / bucket).mkdir()
        for key in ("d/x.tar", "d/y.tar", "other.tar"):
            put(server.endpoint, bucket, key, data)
        publish(server.endpoint, bucket, "d/x.tar", data, CLS)
        source, root = f"ais://{bucket}", server.root / bucket
        endpoint = server.endpoint
    else:
        root = tmp_path / "local"
        for key in ("d/x.tar", "d/y.tar", "other.tar"):
            (root / key).parent.mkdir(parents=True, exist_ok=True)
            (root / key).write_bytes(data)
        facts = (root / "d/x.tar").stat()
        publish_file(root, "d/x.tar", facts)
        source, endpoint = str(root), None
    options = [*WRITABLE, *kept]
    with mounted(
        source, mountpoint, endpoint=endpoint, options=options, expected_log=[OUTDATED]
    ) as mount:
        yield root
        replaced = "replaced" in request.node.name
        assert bool(re.search(OUTDATED, mount.log())) is replaced


def publish_file(root: Path, key: str, facts: os.stat_result) -> None:
    version = f"{facts.st_mtime_ns}-{facts.st_ino}"
    info = ObjectInfo(key, facts.st_size, version, mtime_ns=facts.st_mtime_ns)
    index, labels = scanned((root / key).read_bytes(), CLS)
    place = root / published_key(key)
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(encode_published(info, index, labels, ScanRules()))


def stored(root: Path) -> list[str]:
    return [name for name in tree(root) if not name.startswith(".")]


def test_indexes_are_found_by_name_and_not_listed(writable, mountpoint):
    assert sorted(os.listdir(mountpoint / "d")) == ["x.tar", "y.tar"]
    assert tree(mountpoint) == ["d/x.tar", "d/y.tar", "other.tar"]
    place = mountpoint / "d/.aisfs-index"
    assert os.listdir(place) == ["x.tar.idx"]
    assert (place / "x.tar.idx").read_bytes() == (
        writable / "d/.aisfs-index/x.tar.idx"
    ).read_bytes()
    assert not (mountpoint / ".aisfs-index").exists()
    assert sorted(os.listdir(mountpoint / "d/x.tar.d")) == ["a.cls", "a.jpg"]


def test_directories_are_moved_and_removed_with_their_indexes(writable, mountpoint):
    os.rename(mountpoint / "d", mountpoint / "e")
    assert stored(writable) == ["e/.aisfs-index/x.tar.idx", "e/x.tar", "e/y.tar", "other.tar"]
    assert sorted(os.listdir(mountpoint)) == ["e", "other.tar"]
    assert sorted(os.listdir(mountpoint / "e")) == ["x.tar", "y.tar"]
    assert sorted(os.listdir(mountpoint / "e/x.tar.d")) == ["a.cls", "a.jpg"]
    with pytest.raises(OSError, match="not empty"):
        os.rmdir(mountpoint / "e")
    assert "e/.aisfs-index/x.tar.idx" in stored(writable)
    shutil.rmtree(mountpoint / "e")
    assert os.listdir(mountpoint) == ["other.tar"]
    assert stored(writable) == ["other.tar"]


def test_what_is_left_of_a_shard_that_was_replaced_is_harmless(writable, mountpoint):
    assert sorted(os.listdir(mountpoint / "d/x.tar.d")) == ["a.cls", "a.jpg"]
    (mountpoint / "d/x.tar").write_bytes(encode([sample("b", 1), sample("c", 2)]))
    assert len(os.listdir(mountpoint / "d/x.tar.d")) == 4
    os.rename(mountpoint / "d/x.tar", mountpoint / "d/z.tar")
    assert len(os.listdir(mountpoint / "d/z.tar.d")) == 4
    (mountpoint / "d/z.tar").unlink()
    assert os.listdir(mountpoint / "d") == ["y.tar"]
    assert "d/.aisfs-index/x.tar.idx" in stored(writable)
