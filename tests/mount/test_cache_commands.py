"""`aisfs cache status|verify|clear`, alone and beside daemons at work."""

import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.mount.cache_data import Dataset, dealt, make_shards, shuffled
from tests.mount.cache_tools import (
    DAMAGED,
    MIB,
    READER,
    SETTLED,
    Meter,
    data_files,
    disk_usage,
    job,
    list_folders,
    read,
    readers,
)
from tests.mount.test_mount_errors import MISSING, USAGE, one_line
from tests.support.mounts import MountFailedError, aisfs, mounted
from tests.support.servers import RunningServer

pytestmark = pytest.mark.mount

TINY = 2 * MIB
"""What an empty cache may take: its ledger and the log of that."""


@pytest.fixture(scope="module")
def shards(store: Path) -> Dataset:
    """Ten shards of 2 MiB."""
    return make_shards(store / "shards", 10, 16, 128 * 1024)


@pytest.fixture
def cache(tmp_path: Path, server: RunningServer, shards: Dataset) -> Path:
    """The directory of a warm cache, in use by nobody."""
    mountpoint, cache = tmp_path.resolve() / "warming", tmp_path / "cache"
    mountpoint.mkdir()
    with mounted(
        "ais://shards", mountpoint, endpoint=server.endpoint, options=("--cache-dir", str(cache))
    ) as mount:
        list_folders(mount.path, shards)
        read(mount.path, shards.files)
    return cache


def number_of(name: str, text: str) -> float:
    found = re.search(rf"{name}[a-z ]*?\s([\d.]+)", text)
    assert found, text
    return float(found[1])


def flip(path: Path, place: int = 300_000) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def test_status_of_a_cache_in_use(
    cache: Path, shards: Dataset, server: RunningServer, mountpoint: Path
):
    with mounted(
        "ais://shards", mountpoint, endpoint=server.endpoint,
        options=("--cache-dir", str(cache), "--cache-size", "64MiB"),
    ):  # fmt: skip
        done = aisfs("cache", "status", "--cache-dir", cache)
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode()
    assert 55 <= number_of("limit", text) <= 64, text
    used = number_of("used", text) * MIB
    assert shards.size <= used <= disk_usage(cache) + 2 * MIB, text
    assert number_of("object versions", text) == len(shards.files)


def test_status_of_a_cache_nobody_uses(cache: Path, shards: Dataset):
    done = aisfs("cache", "status", "--cache-dir", cache)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "limit" in done.stdout.decode()
    assert number_of("used", done.stdout.decode()) * MIB >= shards.size


def test_the_default_directory_is_the_users(
    tmp_path: Path, shards: Dataset, server: RunningServer, mountpoint: Path
):
    where = {"XDG_CACHE_HOME": str(tmp_path / "xdg")}
    with mounted("ais://shards", mountpoint, endpoint=server.endpoint, env=where) as mount:
        read(mount.path, shards.files)
        done = aisfs("cache", "status", env=where)
    assert done.returncode == 0, done.stderr
    assert number_of("used", done.stdout.decode()) * MIB >= shards.size
    assert disk_usage(tmp_path / "xdg" / "aisfs") >= shards.size


@pytest.mark.parametrize("command", ["status", "verify", "clear"])
def test_a_directory_that_is_not_there(command: str, tmp_path: Path):
    done = aisfs("cache", command, "--cache-dir", tmp_path / "none")
    assert (done.returncode, done.stdout) == (MISSING, b"")
    assert str(tmp_path / "none") in one_line(done.stderr)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("command", ["status", "verify", "clear"])
def test_a_directory_that_cannot_be(command: str, tmp_path: Path):
    done = aisfs("cache", command, "--cache-dir", tmp_path / ("x" * 300))
    assert (done.returncode, done.stdout) == (MISSING, b"")
    assert "too long" in one_line(done.stderr)


@pytest.mark.parametrize("command", ["status", "verify", "clear"])
def test_a_directory_that_is_no_cache_is_left_alone(command: str, tmp_path: Path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.jpg").write_bytes(b"x")
    aisfs("cache", command, "--cache-dir", tmp_path / "pictures")
    assert (tmp_path / "pictures" / "a.jpg").read_bytes() == b"x"


@pytest.mark.parametrize("size", ["-1", "much", "1KiB", "4MiB", "10 apples", "9EiB"])
def test_sizes_that_are_none(size: str, tmp_path: Path, mountpoint: Path, server: RunningServer):
    options = ("--cache-dir", str(tmp_path / "cache"), f"--cache-size={size}")
    with (
        pytest.raises(MountFailedError) as caught,
        mounted("ais://shards", mountpoint, endpoint=server.endpoint, options=options),
    ):
        pass
    assert caught.value.returncode == USAGE
    assert "size" in one_line(caught.value.stderr.encode())


def test_verify_finds_nothing_wrong(cache: Path, shards: Dataset):
    done = aisfs("cache", "verify", "--cache-dir", cache)
    assert done.returncode == 0, done.stderr
    assert f"{shards.size} bytes are good, 0 " in done.stdout.decode()
    assert b"\x1b" not in done.stdout + done.stderr, "escapes for a terminal that is none"


@pytest.mark.parametrize("damaged", [1, 4])
def test_verify_drops_what_is_damaged(
    damaged: int, cache: Path, shards: Dataset, server: RunningServer, mountpoint: Path
):
    before = disk_usage(cache)
    for path in data_files(cache)[:damaged]:
        flip(path)
    done = aisfs("cache", "verify", "--cache-dir", cache)
    assert done.returncode == 1
    assert f", {damaged} segments were damaged" in done.stdout.decode()
    assert len(re.findall(DAMAGED, done.stderr.decode())) == damaged
    one = shards.size // len(shards.files)
    assert disk_usage(cache) < before - damaged * one + MIB
    again = aisfs("cache", "verify", "--cache-dir", cache)
    assert again.returncode == 0, again.stderr
    meter = Meter(server)
    with mounted(
        "ais://shards", mountpoint, endpoint=server.endpoint, options=("--cache-dir", str(cache))
    ) as mount:
        read(mount.path, shards.files)
    assert meter.take()["get_bytes"] == damaged * one


def test_verify_beside_a_daemon_at_work(
    cache: Path, shards: Dataset, server: RunningServer, mountpoint: Path
):
    flip(data_files(cache)[0])
    with mounted(
        "ais://shards", mountpoint, endpoint=server.endpoint, expected_log=[DAMAGED],
        options=("--cache-dir", str(cache), "--cache-size", "15MiB"),
    ) as mount:  # fmt: skip
        parts = [shuffled(shards.members, seed) for seed in range(2)]
        with readers(READER, [job(mount.path, part) for part in parts]) as wait:
            done = aisfs("cache", "verify", "--cache-dir", cache)
            assert wait() == []
        assert done.returncode in (0, 1), done.stderr  # the daemon may have been quicker
        read(mount.path, shards.files)
    assert aisfs("cache", "verify", "--cache-dir", cache).returncode == 0


def test_clear(cache: Path, shards: Dataset, server: RunningServer, mountpoint: Path):
    done = aisfs("cache", "clear", "--cache-dir", cache)
    assert (done.returncode, done.stderr) == (0, b"")
    assert disk_usage(cache) < TINY
    assert data_files(cache) == []
    meter = Meter(server)
    with mounted(
        "ais://shards", mountpoint, endpoint=server.endpoint, options=("--cache-dir", str(cache))
    ) as mount:
        read(mount.path, shards.files)
        assert meter.take()["get_bytes"] == shards.size


def test_clear_forgets_indexes(
    cache: Path, shards: Dataset, server: RunningServer, mountpoint: Path
):
    assert list(cache.rglob("*.aisx"))
    assert aisfs("cache", "clear", "--cache-dir", cache).returncode == 0
    assert not list(cache.rglob("*.aisx"))
    with mounted(
        "ais://shards", mountpoint, endpoint=server.endpoint, options=("--cache-dir", str(cache))
    ) as mount:
        list_folders(mount.path, shards)
    assert list(cache.rglob("*.aisx"))


def test_clear_beside_a_daemon_at_work(
    cache: Path, shards: Dataset, server: RunningServer, mountpoint: Path
):
    settings = ("--cache-dir", str(cache))
    with mounted("ais://shards", mountpoint, endpoint=server.endpoint, options=settings) as mount:
        read(mount.path, shards.files)
        done = aisfs("cache", "clear", "--cache-dir", cache)  # nobody reads: it stays empty
        assert (done.returncode, done.stderr) == (0, b"")
        assert disk_usage(cache) < TINY
        for epoch in range(2):
            parts = dealt(shuffled(shards.members, epoch), 2)
            with readers(READER, [job(mount.path, part) for part in parts]) as wait:
                assert aisfs("cache", "clear", "--cache-dir", cache).returncode == 0
                assert wait() == []
        time.sleep(SETTLED)  # until the daemon has heard of it
        read(mount.path, shards.files)
        meter = Meter(server)
        read(mount.path, shards.files)
        meter.nothing()
    # What landed while it was cleared may be in memory only.
    assert disk_usage(cache) >= 0.9 * shards.size, "after all this it is filled again"


def test_what_is_in_the_directory_is_the_users_alone(cache: Path):
    inside = cache / "v1"
    assert inside.stat().st_mode & 0o077 == 0
    (ledger,) = cache.rglob("ledger.db")
    with closing(sqlite3.connect(ledger)) as books:
        assert books.execute("PRAGMA quick_check").fetchone() == ("ok",)
