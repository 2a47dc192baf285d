"""Virtual shards on real mounts, read by the programs that read shards."""

import errno
import hashlib
import io
import json
import os
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aisfs.commands.options import Exit
from tests.mount.content import delete, fill, payload, put, sha256
from tests.mount.datasets import WITHOUT_TORCH
from tests.support.mounts import Mount, check_refused, mounted, python, succeed
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

SAMPLES = 25
BIG = "big/z.bin"
NAMES = {f"{n % 3}/{n:04}": n for n in range(SAMPLES)}
OBJECTS = {
    f"data/{name}.{extension}": data
    for name, n in NAMES.items()
    for extension, data in (("jpg", payload(50_000 * (n % 4), n)), ("cls", b"%d" % n))
} | {f"data/{BIG}": payload(3_000_000), f"data/{'long' * 40}.é.txt": b"x"}
OTHERS = {"data/old.tar": bytes(10240), "data/.hidden": b"", "other.txt": b"elsewhere"}
SMALL = {f"{n:04}.bin": payload(500 + n, n) for n in range(160)}
SPLIT = ["--view", "shards", "--samples-per-shard", "10"]
IN_SHARDS = {key.removeprefix("data/"): data for key, data in OBJECTS.items()}

WEBDATASET = (
    WITHOUT_TORCH
    + """
import hashlib, json, sys, webdataset
for sample in webdataset.WebDataset(sys.argv[1:], shardshuffle=False):
    if "cls" in sample:
        image = hashlib.sha256(sample["jpg"]).hexdigest()
        print(json.dumps([sample["__key__"], sample["cls"].decode(), image]))
"""
)
"""In a process of its own, since webdataset leaves shards open."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("virtual").resolve() / "store"
    fill(root / "loose", OBJECTS | OTHERS)
    (root / "changing").mkdir()
    (root / "small").mkdir()
    with running_server(root, faulty=True) as server:
        for key, data in SMALL.items():  # a batch takes a checksum, which comes with an upload
            put(server.endpoint, "small", key, data)
        yield server


@pytest.fixture(params=["ais", "local"])
def source(request: pytest.FixtureRequest, server: RunningServer) -> str:
    return "ais://loose/data" if request.param == "ais" else str(server.root / "loose" / "data")


@pytest.fixture
def mount(source: str, server: RunningServer, mountpoint: Path) -> Iterator[Mount]:
    with mounted(source, mountpoint, endpoint=server.endpoint, options=SPLIT) as mount:
        yield mount


def shards(mount: Mount) -> list[Path]:
    return [mount.path / name for name in os.listdir(mount.path)]


def test_what_tools_read(mount: Mount):
    names = [f"shard-{n:06}.tar" for n in range(3)]
    assert os.listdir(mount.path) == names
    found = {}
    for shard in shards(mount):
        status = shard.stat()
        data = shard.read_bytes()
        assert len(data) == status.st_size
        assert status.st_size % 10240 == 0
        with tarfile.open(shard) as tar:
            inside = {member.name: tar.extractfile(member).read() for member in tar}
        listed = succeed("tar", "tf", shard).count(b"\n")
        assert listed == len(inside)
        assert not found.keys() & inside.keys()
        found |= inside
    assert found == IN_SHARDS
    skipped = os.getxattr(mount.path, "user.aisfs.skipped")
    assert skipped == b"hidden: 1\nshard: 1"


def test_the_bytes_are_those_of_tarfile(mount: Mount):
    shard = shards(mount)[0]
    with tarfile.open(shard) as tar:
        names = tar.getnames()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(IN_SHARDS[name]), 0o444
            tar.addfile(info, io.BytesIO(IN_SHARDS[name]))
    assert shard.read_bytes() == buffer.getvalue()


def test_equal_twice_and_after_a_remount_and_from_everywhere(
    server: RunningServer, mountpoint: Path, tmp_path: Path
):
    sums, numbers = [], []
    local = str(server.root / "loose" / "data")
    for place in ("ais://loose/data", "ais://loose/data/", local):
        options = [*SPLIT, "--cache-dir", str(tmp_path / "cache")]
        with mounted(place, mountpoint, endpoint=server.endpoint, options=options) as mount:
            files = shards(mount)
            sums.append(succeed("sha256sum", *files))
            succeed("cp", *files, tmp_path)
            for file in files:
                assert sha256(tmp_path / file.name) == sha256(file)
            sums.append(succeed("sha256sum", *files))
            numbers.append([file.stat().st_ino for file in files])
    assert len(set(sums)) == 1
    assert numbers[0] == numbers[1]


def test_webdataset_gives_every_sample_once(mount: Mount):
    found = [json.loads(line) for line in python(WEBDATASET, *shards(mount)).splitlines()]
    assert len(found) == SAMPLES
    assert {key: int(label) for key, label, _ in found} == NAMES
    for key, _, image in found:
        assert image == hashlib.sha256(OBJECTS[f"data/{key}.jpg"]).hexdigest()


def test_any_range_equals_that_of_the_whole(source: str, server: RunningServer, mountpoint: Path):
    with mounted(source, mountpoint, endpoint=server.endpoint, options=SPLIT) as mount:
        whole = {shard.name: shard.read_bytes() for shard in shards(mount)}
    picks = random.Random(7)
    with mounted(source, mountpoint, endpoint=server.endpoint, options=SPLIT) as mount:
        for shard in shards(mount):
            data = whole[shard.name]
            descriptor = os.open(shard, os.O_RDONLY)
            try:
                for _ in range(40):
                    start, length = picks.randrange(len(data)), picks.randrange(1, 300_000)
                    assert os.pread(descriptor, length, start) == data[start : start + length]
                assert os.pread(descriptor, 10, len(data)) == b""
            finally:
                os.close(descriptor)


def test_shards_of_a_size(source: str, server: RunningServer, mountpoint: Path):
    options = ["--view", "shards", "--shard-size", "500KiB"]
    with mounted(source, mountpoint, endpoint=server.endpoint, options=options) as mount:
        found = {}
        for shard in shards(mount):
            with tarfile.open(shard) as tar:
                names = tar.getnames()
            assert shard.stat().st_size <= 500 * 1024 or names == [BIG]
            found |= dict.fromkeys(names)
        assert found.keys() == IN_SHARDS.keys()


def test_only_what_is_read_is_fetched(server: RunningServer, mountpoint: Path):
    options = [*SPLIT, "--read-ahead-max", "0", "--cache-size", "0"]
    with mounted(
        "ais://loose/data", mountpoint, endpoint=server.endpoint, options=options
    ) as mount:
        before = server.requests()
        with open(shards(mount)[0], "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            assert file.read(100)
        fetched = server.requests()["get"] - before.get("get", 0)
        assert 1 <= fetched < 6, "the kernel asks for a few pages, in which small objects lie"


def small_objects(mount: Mount) -> dict[str, bytes]:
    found = {}
    for shard in shards(mount):
        with tarfile.open(fileobj=io.BytesIO(shard.read_bytes())) as tar:
            found |= {member.name: tar.extractfile(member).read() for member in tar}
    return found


def test_small_objects_take_far_fewer_requests_than_there_are(
    server: RunningServer, mountpoint: Path
):
    options = ["--view", "shards", "--samples-per-shard", "80"]
    with mounted("ais://small", mountpoint, endpoint=server.endpoint, options=options) as mount:
        before = server.requests()
        assert small_objects(mount) == SMALL
        after = server.requests()
    asked = sum(after.get(kind, 0) - before.get(kind, 0) for kind in ("get", "redirect", "batch"))
    assert asked < len(SMALL) / 8


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"action": "truncate"}, 0),
        ({"action": "status", "status": 503}, 0),
        ({"action": "status", "status": 501}, 1),
        ({"action": "status", "status": 404}, 1),
    ],
    ids=["cut", "503", "501", "404"],
)
def test_a_batch_that_fails_costs_nothing_but_requests(
    fault: dict[str, object], told: int, server: RunningServer, mountpoint: Path
):
    options = [*SPLIT[:2], "--samples-per-shard", "80", "--cache-size", "0"]
    match = {"path_contains": "/v1/ml", "marked": fault["action"] == "truncate"}
    with mounted("ais://small", mountpoint, endpoint=server.endpoint, options=options) as mount:
        server.faults([{"match": match, "times": -1, **fault}])
        try:
            assert small_objects(mount) == SMALL
        finally:
            server.faults([])
        assert mount.log().count("one by one from now on") == told


def test_an_object_that_changes_while_mounted(server: RunningServer, mountpoint: Path):
    for n in range(4):
        put(server.endpoint, "changing", f"{n}.bin", payload(400_000, n))
    options = ["--view", "shards", "--samples-per-shard", "2", "--read-ahead-max", "0"]
    where = {"endpoint": server.endpoint, "options": options}
    stale = [r"changing/0\.bin changed since"]
    with mounted("ais://changing", mountpoint, **where, expected_log=stale) as mount:
        first, second = shards(mount)
        old, number = first.stat().st_size, first.stat().st_ino
        untouched = hashlib.sha256(second.read_bytes()).digest()
        put(server.endpoint, "changing", "0.bin", payload(500_000, "new"))
        with pytest.raises(OSError, match="Stale") as caught:
            first.read_bytes()
        assert caught.value.errno == errno.ESTALE
        assert first.stat().st_size == old
        assert hashlib.sha256(second.read_bytes()).digest() == untouched
    with mounted("ais://changing", mountpoint, **where) as mount:
        first, second = shards(mount)
        assert first.stat().st_ino != number
        with tarfile.open(first) as tar:
            assert tar.extractfile("0.bin").read() == payload(500_000, "new")
        assert hashlib.sha256(second.read_bytes()).digest() == untouched
    gone = [r"changing/3\.bin changed since"]
    options += ["--cache-size", "0"]
    with mounted("ais://changing", mountpoint, **where, expected_log=gone) as mount:
        delete(server.endpoint, "changing", "3.bin")
        with pytest.raises(OSError, match="Stale"):
            shards(mount)[1].read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ["--samples-per-shard", "5", "ais://loose"],
            Exit.USAGE,
            "--samples-per-shard needs --view shards",
        ),
        (
            ["--view", "flat", "--shard-size", "1MiB", "ais://loose"],
            Exit.USAGE,
            "--shard-size needs --view shards",
        ),
        (
            [*SPLIT, "--shard-size", "1MiB", "ais://loose"],
            Exit.USAGE,
            "--samples-per-shard and --shard-size: give one of them",
        ),
        (
            ["--view", "shards", "--samples-per-shard", "0", "ais://loose"],
            Exit.USAGE,
            "--samples-per-shard: ",
        ),
        ([*SPLIT, "--label", "txt", "ais://loose"], Exit.USAGE, "--label needs --view class"),
        ([*SPLIT, "ais://loose/data", "ais://loose"], Exit.USAGE, "takes one bucket"),
        ([*SPLIT, "ais://loose/*.jpg"], Exit.USAGE, "takes one bucket"),
        ([*SPLIT, "ais://loose/nowhere"], Exit.NO_SOURCE, "no loose objects there"),
        (
            [*SPLIT, "--include", "*.tar", "ais://loose/data"],
            Exit.NO_SOURCE,
            "no loose objects there to make shards of: 53 excluded objects, 1 shard",
        ),
        (
            [*SPLIT, "--require", "nothing", "ais://loose/data"],
            Exit.NO_SOURCE,
            "27 incomplete samples",
        ),
    ],
)
def test_what_is_refused(
    arguments: list[str], code: Exit, said: str, server: RunningServer, mountpoint: Path
):
    check_refused(arguments, mountpoint, endpoint=server.endpoint, code=code, said=said)
