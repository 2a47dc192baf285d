"""`aisfs warm` fills the cache of a mount ahead of training and says how that went."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import numpy
import pytest

from tests.mount.cache_data import Dataset, dealt, make_objects, make_shards, shuffled
from tests.mount.cache_tools import (
    MIB,
    SETTLED,
    Meter,
    disk_usage,
    list_folders,
    read,
    watch,
)
from tests.mount.content import delete, put
from tests.mount.test_mount_errors import MISSING, USAGE, one_line
from tests.support.for_each import for_each
from tests.support.mounts import COMMAND, Mount, aisfs, environment, eventually, mounted
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

FAILING = r"WARNING|ERROR"


@pytest.fixture(scope="module")
def shards(store: Path) -> Dataset:
    """Eight shards of 2 MiB in a directory."""
    return make_shards(store / "b" / "train", 8, 16, 128 * 1024)


@pytest.fixture(scope="module")
def objects(store: Path) -> Dataset:
    """Three objects of 3 MiB in another."""
    return make_objects(store / "b" / "raw", 3, 3 * MIB)


@pytest.fixture(scope="module")
def server(store: Path, shards: Dataset, objects: Dataset) -> Iterator[RunningServer]:
    with running_server(store, faulty=True) as server:
        yield server


@pytest.fixture
def mount(server: RunningServer, mountpoint: Path, tmp_path: Path) -> Iterator[Mount]:
    options = ("--cache-dir", str(tmp_path / "cache"))
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        yield mount


def faults(server: RunningServer) -> list[dict[str, int]]:
    with urlopen(f"{server.endpoint}/-/faults", timeout=10) as reply:
        return list(json.loads(reply.read()))


def summary(output: bytes) -> tuple[int, int, int]:
    found = re.fullmatch(r"(\d+) shards?, (\d+) objects?, (\d+) bytes read\n", output.decode())
    assert found, output
    return int(found[1]), int(found[2]), int(found[3])


def plain(stderr: bytes) -> str:
    """What a log file would show; a progress bar for a terminal would be a mess there."""
    assert not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", stderr), stderr
    text = stderr.decode()
    assert "Traceback" not in text
    assert len(text.splitlines()) < 30, text
    return text


def test_after_warming_everything_an_epoch_asks_for_no_data(
    mount: Mount, shards: Dataset, objects: Dataset, server: RunningServer
):
    meter = Meter(server)
    done = aisfs("warm", mount.path)
    assert done.returncode == 0, done.stderr
    plain(done.stderr)
    total = shards.size + objects.size
    assert summary(done.stdout) == (8, 3, total)
    assert b"keeps only" not in done.stderr, done.stderr
    assert meter.take()["get_bytes"] == total
    list_folders(mount.path / "train", shards)
    read(mount.path / "train", *dealt(shuffled(shards.members, 0), 2), shards.files)
    read(mount.path / "raw", objects.files)
    meter.nothing()


@pytest.mark.parametrize("jobs", ["1", "8"])
def test_a_directory_and_a_file(
    jobs: str, mount: Mount, shards: Dataset, objects: Dataset, server: RunningServer
):
    name, sha = next(iter(objects.files.items()))
    meter = Meter(server)
    done = aisfs("warm", mount.path / "train", mount.path / "raw" / name, "--jobs", jobs)
    assert done.returncode == 0, done.stderr
    assert summary(done.stdout) == (8, 1, shards.size + 3 * MIB)
    meter.take()
    read(mount.path / "train", shards.members)
    read(mount.path / "raw", {name: sha})
    meter.nothing()
    read(mount.path / "raw", objects.files)
    assert meter.take()["get_bytes"] == objects.size - 3 * MIB


def test_one_shard(mount: Mount, shards: Dataset, server: RunningServer):
    done = aisfs("warm", mount.path / "train" / "shard-0003.tar")
    assert done.returncode == 0, done.stderr
    assert summary(done.stdout) == (1, 0, shards.size // 8)
    meter = Meter(server)
    members = {k: v for k, v in shards.members.items() if k.startswith("shard-0003.tar.d/")}
    read(mount.path / "train", shuffled(members, 0))
    meter.nothing()


def test_the_folder_of_a_shard(mount: Mount, shards: Dataset, server: RunningServer):
    done = aisfs("warm", mount.path / "train" / "shard-0003.tar.d")
    assert done.returncode == 0, done.stderr
    meter = Meter(server)
    members = {k: v for k, v in shards.members.items() if k.startswith("shard-0003.tar.d/")}
    read(mount.path / "train", shuffled(members, 0))
    meter.nothing()


@pytest.mark.parametrize(
    "where",
    [
        "train",
        "train/shard-0003.tar",
        "train/shard-0003.tar.d",
    ],
)
def test_indexes_only(where: str, mount: Mount, shards: Dataset, server: RunningServer):
    meter = Meter(server)
    done = aisfs("warm", "--index-only", mount.path / where)
    assert done.returncode == 0, done.stderr
    plain(done.stderr)
    count = 8 if where == "train" else 1
    assert summary(done.stdout)[0] == count
    assert meter.take()["get_bytes"] <= shards.size * count // 8, "each shard at most once"
    folders = shards.folders if where == "train" else ["shard-0003.tar.d"]
    for folder in folders:
        assert len(os.listdir(mount.path / "train" / folder)) == 32
    meter.nothing()


def test_a_member_has_no_index_of_its_own(mount: Mount):
    """It is left alone, as any file that is no shard."""
    for name in ("train/shard-0003.tar.d/00001.jpg", "raw/object-0001.bin"):
        done = aisfs("warm", "--index-only", mount.path / name)
        assert (done.returncode, summary(done.stdout)) == (0, (0, 0, 0)), done.stderr


def test_indexes_outlast_the_mount(
    shards: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    """Also those of shards of which the cache has no room to keep the bytes."""
    options = ("--cache-dir", str(tmp_path / "cache"), "--cache-size", "8MiB")
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        assert aisfs("warm", "--index-only", mount.path / "train").returncode == 0
    meter = Meter(server)
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        list_folders(mount.path / "train", shards)
        meter.nothing()
    assert disk_usage(tmp_path / "cache") <= 8 * MIB


def test_shards_as_directories(
    shards: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    options = ("--cache-dir", str(tmp_path / "cache"), "--shards", "dir")
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        done = aisfs("warm", mount.path / "train")
        assert done.returncode == 0, done.stderr
        assert summary(done.stdout) == (8, 0, shards.size)
        meter = Meter(server)
        read(
            mount.path / "train",
            {k.replace(".tar.d/", ".tar/"): v for k, v in shards.members.items()},
        )
        meter.nothing()


def test_warming_twice_reads_from_the_cache(mount: Mount, server: RunningServer):
    assert aisfs("warm", mount.path / "train").returncode == 0
    meter = Meter(server)
    assert aisfs("warm", mount.path / "train").returncode == 0
    meter.nothing()


def test_what_the_kernel_has_is_asked_for_again_when_the_cache_was_cleared(
    mount: Mount, shards: Dataset, server: RunningServer, tmp_path: Path
):
    list_folders(mount.path / "train", shards)
    for name in shards.files:
        (mount.path / "train" / name).read_bytes()
    assert aisfs("cache", "clear", "--cache-dir", tmp_path / "cache").returncode == 0
    time.sleep(SETTLED)  # the daemon notices within a second
    meter = Meter(server)
    assert aisfs("warm", mount.path / "train").returncode == 0
    assert meter.take()["get_bytes"] == shards.size


@pytest.mark.parametrize("words", [[], ["--index-only"]])
def test_indexes_in_memory_are_written_again_when_the_cache_was_cleared(
    words: list[str], shards: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    options = ("--cache-dir", str(tmp_path / "cache"))
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        list_folders(mount.path / "train", shards)
        time.sleep(SETTLED)  # an index is written some time after the scan
        assert aisfs("cache", "clear", "--cache-dir", tmp_path / "cache").returncode == 0
        time.sleep(SETTLED)
        done = aisfs("warm", *words, mount.path / "train")
        assert (done.returncode, b"keeps only" in done.stderr) == (0, False), done.stderr
    meter = Meter(server)
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        list_folders(mount.path / "train", shards)
        meter.nothing()


def test_what_an_order_names_is_warmed(
    mount: Mount, shards: Dataset, objects: Dataset, server: RunningServer, tmp_path: Path
):
    some = dict(list(shuffled(shards.members, 3).items())[:20])
    raw, order = next(iter(objects.files)), tmp_path / "order"
    others = ["none", f"raw/{raw}/none", "raw", str(order)]
    order.write_text("\n".join([*(f"train/{name}" for name in some), f"raw/{raw}", *others, ""]))
    (tmp_path / "link").symlink_to(mount.path)
    done = aisfs("warm", "--plan", order, tmp_path / "link")
    assert done.returncode == 0, done.stderr
    assert summary(done.stdout)[:2] == (0, 21)
    assert "4 names left out: there is no such file or sample" in plain(done.stderr)
    meter = Meter(server)
    read(mount.path / "train", some)
    read(mount.path / "raw", {raw: objects.files[raw]})
    meter.nothing()


def test_a_permutation_and_keys_are_warmed(mount: Mount, objects: Dataset, tmp_path: Path):
    numpy.save(tmp_path / "order.npy", numpy.array([2, 0]))
    done = aisfs("warm", "--plan", tmp_path / "order.npy", mount.path / "raw")
    assert summary(done.stdout) == (0, 2, 2 * 3 * MIB)
    keys = {name.partition(".")[0] for name in objects.files}
    (tmp_path / "keys").write_text("\n".join(sorted(keys)))
    done = aisfs("warm", "--plan", tmp_path / "keys", mount.path / "raw")
    assert summary(done.stdout) == (0, 3, objects.size)


def test_a_recorded_order_is_warmed(
    shards: Dataset, objects: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    some = dict(list(shuffled(shards.members, 4).items())[:20])
    record = ("--cache-size", "0", "--record", str(tmp_path / "order"))
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=record) as mount:
        read(mount.path / "train", some)
        read(mount.path / "raw", objects.files)
        for _ in range(2):  # a shard as a file, too
            (mount.path / "train" / next(iter(shards.files))).read_bytes()
    options = ("--cache-dir", str(tmp_path / "cache"))
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        done = aisfs("warm", "--plan", tmp_path / "order", mount.path)
        assert summary(done.stdout)[:2] == (0, 24)
        assert b"left out" not in done.stderr
        meter = Meter(server)
        read(mount.path / "train", some)
        read(mount.path / "raw", objects.files)
        meter.nothing()
        done = aisfs("warm", "--plan", tmp_path / "order", mount.path / "raw")
        assert summary(done.stdout)[:2] == (0, 3)
        assert "21 names left out" in plain(done.stderr)


def test_an_order_is_warmed_until_the_cache_is_full(
    shards: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    """On a line that takes some seconds for all of it."""
    order = tmp_path / "order"
    order.write_text("\n".join(shuffled(shards.members, 5)))
    options = ("--cache-dir", str(tmp_path / "cache"), "--cache-size", "6MiB")
    options = (*options, "--bandwidth-limit", "3MiB", "--prefetch-shards", "0")
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        done = aisfs("warm", "--plan", order, mount.path / "train")
        assert done.returncode == 0, done.stderr
        left = re.search(r"the disk cache takes no more: (\d+) files not read", plain(done.stderr))
        assert left
        assert int(left[1]) + summary(done.stdout)[1] == len(shards.members)


def test_orders_that_make_no_sense(mount: Mount, server: RunningServer, tmp_path: Path):
    order, numbers = tmp_path / "order", tmp_path / "order.npy"
    order.write_text("none\n")
    numpy.save(numbers, numpy.arange(4))
    for words, code, said in (
        ((order, mount.path), USAGE, "it names no file in"),
        ((numbers, mount.path / "raw"), USAGE, "it numbers files up to 3, and there are 3"),
        ((numbers, "ais://b"), USAGE, "give one PATH"),
        ((order, mount.path, mount.path / "raw"), USAGE, "give one PATH"),
        ((order, mount.path, "--index-only"), USAGE, "not with --index-only"),
        ((tmp_path / "none", mount.path), USAGE, "No such file"),
        ((order, mount.path / "none"), MISSING, "no such directory"),
        ((order, tmp_path), MISSING, "not in a mount of aisfs"),
    ):
        done = aisfs("warm", "--plan", *words)
        assert (done.returncode, done.stdout) == (code, b""), done.stderr
        assert said in done.stderr.decode()
    options = ("--cache-size", "0")
    (tmp_path / "other").mkdir()
    endpoint = server.endpoint
    with mounted("ais://b", tmp_path / "other", endpoint=endpoint, options=options) as other:
        done = aisfs("warm", "--plan", numbers, other.path / "raw")
        assert "has no disk cache" in one_line(done.stderr)


@pytest.mark.parametrize("size", ["8MiB", "0"])
def test_what_does_not_fit_the_cache_is_told(
    size: str, shards: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    options = ("--cache-dir", str(tmp_path / "cache"), "--cache-size", size)
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        done = aisfs("warm", mount.path / "train")
    assert done.returncode == 0, done.stderr
    assert summary(done.stdout) == (8, 0, shards.size)
    said = re.search(
        r"^aisfs: the disk cache keeps only (\d+) of (\d+) bytes", plain(done.stderr), re.M
    )
    assert said, done.stderr
    assert int(said[2]) == shards.size
    if size == "0":
        assert int(said[1]) == 0
        assert "and 0 of 8 indexes" in said.string
    else:
        assert 0 < int(said[1]) <= 8 * MIB


def test_what_is_named_twice_is_read_once(mount: Mount, shards: Dataset):
    done = aisfs("warm", mount.path / "train", mount.path / "train" / "shard-0003.tar")
    assert done.returncode == 0, done.stderr
    assert summary(done.stdout) == (8, 0, shards.size)


def test_ctrl_c_ends_it(mount: Mount, shards: Dataset, server: RunningServer):
    """What was not begun by then is not read."""
    counts = watch(server, list(shards.files), seconds=0.3)
    try:
        with subprocess.Popen(
            [*COMMAND, "warm", "--jobs", "1", mount.path / "train"], env=environment(),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            # A test run in the background ignores SIGINT, and what it starts would do so too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process:  # fmt: skip
            assert eventually(lambda: counts()["shard-0000.tar"] > 0, 20)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=20)
        assert (process.returncode, out) == (130, b""), err
        plain(err)
        assert counts()["shard-0007.tar"] == 0, counts()
    finally:
        server.faults([])


def test_a_cluster_that_does_not_answer(server: RunningServer, mountpoint: Path, tmp_path: Path):
    options = ("--cache-dir", str(tmp_path / "cache"), "--io-timeout", "1")
    with mounted(
        "ais://b", mountpoint, endpoint=server.endpoint, options=options, expected_log=[FAILING]
    ) as mount:
        server.faults([{"match": {}, "action": "status", "status": 500, "times": -1}])
        try:
            done = aisfs("warm", mount.path / "train" / "shard-0000.tar")
        finally:
            server.faults([])
    assert (done.returncode, done.stdout) == (MISSING, b"")
    assert str(mount.path / "train") in one_line(done.stderr)


def test_an_object_that_is_deleted_meanwhile(
    server: RunningServer, mountpoint: Path, tmp_path: Path
):
    """Found in the listing and gone when it is looked at: the others are warmed."""
    for name in ("a", "b", "z"):
        put(server.endpoint, "b", f"going/{name}", b"x" * 1000)
    options = ("--cache-dir", str(tmp_path / "cache"), "--list-ttl", "0", "--attr-ttl", "0")
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        match = {"path_contains": "going/a"}
        server.faults([{"match": match, "action": "stall", "seconds": 4, "times": 1}])
        with subprocess.Popen(
            [*COMMAND, "warm", mount.path / "going"], env=environment(),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            assert eventually(lambda: faults(server)[0]["held_most"] == 1)
            delete(server.endpoint, "b", "going/z")
            output, errors = process.communicate(timeout=60)
        assert (process.returncode, summary(output)) == (1, (0, 2, 2000)), errors
        assert "going/z: No such file" in plain(errors)


def test_a_shard_that_cannot_be_read(
    shards: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    """The others are warmed, one line names it, and the exit code is 1."""
    options = ("--cache-dir", str(tmp_path / "cache"), "--io-timeout", "3")
    server.faults(
        [
            {
                "match": {"method": "GET", "path_contains": "shard-0005.tar", "marked": True},
                "action": "status", "status": 500, "times": -1,
            }
        ]
    )  # fmt: skip
    try:
        with mounted(
            "ais://b", mountpoint, endpoint=server.endpoint, options=options,
            expected_log=[FAILING],
        ) as mount:  # fmt: skip
            done = aisfs("warm", mount.path / "train")
            assert done.returncode == 1
            assert summary(done.stdout) == (7, 0, shards.size // 8 * 7)
            said = [line for line in plain(done.stderr).splitlines() if "shard-0005" in line]
            assert len(said) == 1, done.stderr
            assert "Input/output error" in said[0] or "timed out" in said[0], said
            meter = Meter(server)
            rest = {k: v for k, v in shards.files.items() if k != "shard-0005.tar"}
            read(mount.path / "train", rest)
            meter.nothing()
    finally:
        server.faults([])


@pytest.mark.parametrize("place", ["elsewhere", "missing", "missing in the mount", "one of two"])
def test_a_path_that_is_not_in_a_mount(place: str, mount: Mount, tmp_path: Path):
    paths = {
        "elsewhere": [tmp_path],
        "missing": [tmp_path / "none"],
        "missing in the mount": [mount.path / "none"],
        "one of two": [mount.path / "raw", tmp_path],
    }[place]
    done = aisfs("warm", *paths)
    assert (done.returncode, done.stdout) == (MISSING, b"")
    assert str(paths[-1]) in one_line(done.stderr)


@for_each("words", [[], ["--jobs", "0", "."], ["--jobs", "many", "."]])
def test_words_that_make_no_sense(words: list[str]):
    done = aisfs("warm", *words)
    assert done.returncode == USAGE
    one_line(done.stderr)


def test_a_path_relative_to_the_working_directory(mount: Mount, shards: Dataset):
    done = aisfs("warm", "train", cwd=mount.path)
    assert done.returncode == 0, done.stderr
    assert summary(done.stdout) == (8, 0, shards.size)
