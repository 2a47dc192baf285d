"""Shards of shuffled samples on real mounts, read by the programs that read shards."""

import hashlib
import json
import os
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from aisfs.commands.options import Exit
from tests.mount.content import fill, payload, put, sha256
from tests.mount.datasets import WITHOUT_TORCH, encode, sample
from tests.support.archives import make_tar
from tests.support.mounts import Mount, check_refused, mounted, python, succeed
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

SAMPLES = 20
"""Of each of three shards; the first few have the same keys in all of them."""
COMMON = 8
SHUFFLE = ["--view", "shards", "--shuffle", "11"]


def key(shard: int, number: int) -> str:
    return f"{number:04}" if number < COMMON else f"d/{shard}-{number:04}"


def members(shard: int) -> dict[str, bytes]:
    return {
        f"{key(shard, number)}.{extension}": data
        for number in range(SAMPLES)
        for extension, data in (
            ("jpg", payload(20_000 * (number % 4), f"{shard}/{number}")),
            ("cls", b"%d" % number),
            ("shard.txt", b"%d" % shard),
        )
    }


def of_webdataset(shard: int) -> bytes:
    return encode(
        sample(key(shard, number), number, payload(20_000 * (number % 4), f"{shard}/{number}"),
               shard_txt=b"%d" % shard)
        for number in range(SAMPLES)
    )  # fmt: skip


SOURCES = {
    "data/a-0.tar": of_webdataset(0),
    "data/a-1.tar": make_tar(members(1), tarfile.GNU_FORMAT),
    "data/more/b.tar": make_tar(members(2)),
    "data/loose.jpg": b"not in a shard",
}
EXPECTED = Counter(
    (shard, number, hashlib.sha256(payload(20_000 * (number % 4), f"{shard}/{number}")).hexdigest())
    for shard in range(3)
    for number in range(SAMPLES)
)

WEBDATASET = (
    WITHOUT_TORCH
    + """
import hashlib, json, sys, webdataset
for sample in webdataset.WebDataset(sys.argv[1:], shardshuffle=False):
    image = hashlib.sha256(sample["jpg"]).hexdigest()
    print(json.dumps([sample["__key__"], int(sample["shard.txt"]), int(sample["cls"]), image]))
"""
)
"""In a process of its own, since webdataset leaves shards open."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("shuffled").resolve() / "store"
    fill(root / "data", SOURCES)
    fill(root / "loose", {"x.jpg": b"x"})
    fill(root / "empty", {"x.tar": bytes(10240)})
    fill(root / "packed", {"x.tar": make_tar({"a.jpg": b"1"}), "y.tgz": b"whatever"})
    (root / "changing").mkdir()
    with running_server(root, faulty=True) as server:
        yield server


@pytest.fixture(scope="module")
def mount(fastpath: bool, server: RunningServer, shared_mountpoint: Path) -> Iterator[Mount]:
    with mounted(
        "ais://data", shared_mountpoint, endpoint=server.endpoint, options=SHUFFLE
    ) as mount:
        yield mount


def shards(mount: Mount) -> list[Path]:
    return [mount.path / name for name in os.listdir(mount.path)]


def test_what_tools_read(mount: Mount):
    assert os.listdir(mount.path) == [f"shard-{n:06}.tar" for n in range(3)]
    found = Counter()
    for shard in shards(mount):
        assert len(shard.read_bytes()) == shard.stat().st_size
        with tarfile.open(shard) as tar:
            inside = {member.name: tar.extractfile(member).read() for member in tar}
        assert succeed("tar", "tf", shard).decode().splitlines() == list(inside)
        stems = [name.split(".", 1)[0] for name in inside]
        assert [stem for stem in stems[::3] for _ in range(3)] == stems
        assert len(set(stems)) == SAMPLES
        for stem in stems[::3]:
            texts = (int(inside[f"{stem}.{part}"]) for part in ("shard.txt", "cls"))
            found[*texts, hashlib.sha256(inside[f"{stem}.jpg"]).hexdigest()] += 1
    assert found == EXPECTED
    with pytest.raises(OSError, match="No data available"):
        os.getxattr(mount.path, "user.aisfs.skipped")


def test_webdataset_gives_every_sample_once(mount: Mount):
    found = [json.loads(line) for line in python(WEBDATASET, *shards(mount)).splitlines()]
    assert Counter((shard, number, image) for _, shard, number, image in found) == EXPECTED
    for name, shard, number, _ in found:
        own = key(shard, number)
        assert name == own or name == f"{own}~" + ("a-0", "a-1", "b")[shard]
    assert any("~" in name for name, _, _, _ in found)
    assert len({shard for _, shard, _, _ in found[:SAMPLES]}) == 3


def test_equal_after_a_remount_and_from_everywhere(
    server: RunningServer, mountpoint: Path, tmp_path: Path
):
    sums, numbers, requests = [], [], []
    local = str(server.root / "data")
    for place, seed in (("ais://data", 11), ("ais://data", 11), (local, 11), ("ais://data", 12)):
        options = ["--view", "shards", "--shuffle", str(seed), "--cache-dir", str(tmp_path / "c")]
        with mounted(place, mountpoint, endpoint=server.endpoint, options=options) as mount:
            files = shards(mount)
            sums.append(succeed("sha256sum", *files))
            succeed("cp", *files, tmp_path)
            for file in files:
                assert sha256(tmp_path / file.name) == sha256(file)
            numbers.append([file.stat().st_ino for file in files])
        requests.append(server.requests()["get"])
    assert sums[0] == sums[1] == sums[2] != sums[3]
    assert numbers[0] == numbers[1]
    assert not set(numbers[0]) & set(numbers[3])
    assert requests[0] == requests[1] == requests[3], "what is in the cache is not fetched again"


def test_how_much_goes_into_a_shard(server: RunningServer, mountpoint: Path):
    options = [*SHUFFLE, "--samples-per-shard", "7", "--require", "jpg", "--include", "a-*"]
    with mounted("ais://data", mountpoint, endpoint=server.endpoint, options=options) as mount:
        counts = []
        for shard in shards(mount):
            with tarfile.open(shard) as tar:
                counts.append(len(tar.getnames()) // 3)
        assert counts == [7, 7, 7, 7, 7, 5]
        assert os.getxattr(mount.path, "user.aisfs.skipped") == b"excluded shard: 1"


def big_shard(letter: str) -> bytes:
    """A shard of which the scan need not see all."""
    return make_tar({f"{letter}{n}.bin": payload(3_000_000, f"{letter}{n}") for n in range(3)})


def test_a_shard_that_changes_or_fails_while_mounted(server: RunningServer, mountpoint: Path):
    for letter in "ab":
        put(server.endpoint, "changing", f"{letter}.tar", big_shard(letter))
    options = [*SHUFFLE, "--read-ahead-max", "0", "--cache-size", "0", "--io-timeout", "1"]
    where = {"endpoint": server.endpoint, "options": options}
    log = [r"changing/a\.tar changed since", "the connection ended after", "after 1 s"]
    with mounted("ais://changing", mountpoint, **where, expected_log=log) as mount:
        first, second = shards(mount)
        sizes, number = [first.stat().st_size, second.stat().st_size], first.stat().st_ino
        server.faults([{"match": {"path_contains": ".tar"}, "action": "truncate", "times": -1}])
        with pytest.raises(OSError, match=r"Input/output error|timed out"):
            first.read_bytes()
        server.faults([])
        with tarfile.open(first) as tar:
            for member in tar:
                own = payload(3_000_000, member.name.removesuffix(".bin"))
                assert tar.extractfile(member).read() == own
        put(server.endpoint, "changing", "a.tar", big_shard("c"))
        with pytest.raises(OSError, match="Stale"):
            second.read_bytes()
        assert [first.stat().st_size, second.stat().st_size] == sizes
    with mounted("ais://changing", mountpoint, **where) as mount:
        assert number not in [shard.stat().st_ino for shard in shards(mount)]
        names = b"".join(succeed("tar", "tf", shard) for shard in shards(mount))
        assert sorted(names.split()) == [b"%c%d.bin" % (c, n) for c in b"bc" for n in range(3)]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--shuffle", "1", "ais://data"], Exit.USAGE, "--shuffle needs --view shards"),
        ([*SHUFFLE, "--shuffle", "-1", "ais://data"], Exit.USAGE, "shuffle"),
        ([*SHUFFLE, "--shard-index", "ais://data"], Exit.USAGE, "--shard-index: not with"),
        ([*SHUFFLE, "ais://packed"], Exit.USAGE, "packed/y.tgz: --shuffle takes plain tars only"),
        ([*SHUFFLE, "ais://loose"], Exit.NO_SOURCE, "ais://loose: no shard (X.tar) there"),
        ([*SHUFFLE, "ais://empty"], Exit.NO_SOURCE, "no samples in 1 shard"),
        (
            [*SHUFFLE, "--require", "png", "ais://data/data/a-0.tar"],
            Exit.NO_SOURCE,
            "no samples in 1 shard: 20 incomplete samples",
        ),
    ],
)
def test_what_is_refused(
    arguments: list[str], code: Exit, said: str, server: RunningServer, mountpoint: Path
):
    check_refused(arguments, mountpoint, endpoint=server.endpoint, code=code, said=said)
