"""Whatever happens to the cache costs time, never data: reads stay right and do not fail."""

import errno
import hashlib
import os
import random
import re
import shutil
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest

from tests.mount.cache_data import Dataset, dealt, make_shards, shuffled
from tests.mount.cache_tools import (
    DAMAGED,
    MIB,
    READER,
    SETTLED,
    SHORT,
    Meter,
    big_directory,
    disk_usage,
    job,
    kill_daemon,
    lines,
    read,
    readers,
    watched_disk,
)
from tests.mount.content import fill, payload, put
from tests.mount.test_mount_errors import USAGE, one_line
from tests.support.mounts import MountFailedError, aisfs, eventually, is_mountpoint, mounted
from tests.support.servers import RunningServer

pytestmark = pytest.mark.mount

LIMIT = 24 * MIB
BYPASSED = r"cache bypassed"
NOT_USED = r"cache not used until the next start"
INDEXES = r"WARNING aisfs\.cache\..* indexes"
STALE = r"\b(ESTALE|[Ss]tale|changed|version)\b"


@pytest.fixture(scope="module")
def store() -> Iterator[Path]:
    with big_directory() as directory:
        fill(directory / "store" / "mutable", {"other.txt": b"other"})
        yield directory / "store"


@pytest.fixture(scope="module")
def shards(store: Path) -> Dataset:
    """Twelve shards of 1.5 MiB."""
    return make_shards(store / "shards", 12, 12, 128 * 1024)


def options(cache: Path, *more: str) -> tuple[str, ...]:
    return ("--cache-dir", str(cache), "--cache-size", "24MiB", *more)


@contextmanager
def tmpfs(path: Path, settings: str) -> Iterator[Path]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", settings, "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


@pytest.mark.parametrize("share", [0.1, 0.6])
def test_killed_while_filling(
    share: float, shards: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    cache = tmp_path / "cache"
    start = server.requests().get("get_bytes", 0)
    with (
        watched_disk(cache) as seen,
        mounted(
            "ais://shards", mountpoint, endpoint=server.endpoint, options=options(cache)
        ) as mount,
        readers(READER, [job(mount.path, part) for part in dealt(shards.files, 4)]) as wait,
    ):
        wanted = start + share * shards.size
        assert eventually(lambda: server.requests().get("get_bytes", 0) >= wanted)
        kill_daemon(mount)
        wait()
    meter = Meter(server)
    settings = options(cache)
    with (
        watched_disk(cache) as later,
        mounted("ais://shards", mountpoint, endpoint=server.endpoint, options=settings) as mount,
    ):
        read(mount.path, *dealt(shards.files, 2), shuffled(shards.members, 0))
        assert meter.take()["get_bytes"] <= shards.size
        read(mount.path, shards.files)
        meter.nothing()
    assert max(seen.peak, later.peak) <= LIMIT, (seen, later)


def test_killed_many_times(
    shards: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    """What killed daemons leave does not pile up."""
    cache = tmp_path / "cache"
    chance = random.Random("killed")
    with watched_disk(cache) as seen:
        for _ in range(3):
            parts = dealt(shuffled(shards.members, chance.random()), 2)
            with (
                mounted(
                    "ais://shards", mountpoint, endpoint=server.endpoint,
                    options=("--cache-dir", str(cache), "--cache-size", "10MiB"),
                ) as mount,
                readers(READER, [job(mount.path, part) for part in parts]) as wait,
            ):  # fmt: skip
                time.sleep(chance.uniform(0.2, 1.0))
                kill_daemon(mount)
                wait()
    assert seen.peak <= 10 * MIB, seen
    with mounted(
        "ais://shards", mountpoint, endpoint=server.endpoint, options=options(cache)
    ) as mount:
        read(mount.path, shards.files)


def test_a_full_disk_is_bypassed(
    shards: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    with (
        tmpfs(tmp_path / "tiny", "size=12m") as disk,
        mounted(
            "ais://shards", mountpoint, endpoint=server.endpoint, options=options(disk / "cache"),
            expected_log=[BYPASSED, INDEXES],
        ) as mount,
    ):  # fmt: skip
        for epoch in range(2):
            read(mount.path, *dealt(shuffled(shards.members, epoch), 2), shards.files)
        log = mount.log()
        assert 1 <= len(lines(log, "bypassed")) <= 3, log
        assert disk_usage(disk) > 2 * MIB


def test_a_disk_that_is_full_before_the_mount(
    shards: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    """It is mounted without a cache; and the cache, which may be what fills the disk, can be cleared."""
    with tmpfs(tmp_path / "tiny", "size=20m") as disk:
        settings = ("--cache-dir", str(disk / "cache"), "--cache-size", "12MiB")
        with mounted(
            "ais://shards", mountpoint, endpoint=server.endpoint, options=settings
        ) as mount:
            read(mount.path, shards.files)
        subprocess.run(["cp", "/dev/zero", disk / "other"], check=False, capture_output=True)
        assert shutil.disk_usage(disk).free == 0
        with mounted(
            "ais://shards", mountpoint, endpoint=server.endpoint, options=settings,
            expected_log=["no disk cache"],
        ) as mount:  # fmt: skip
            read(mount.path, shards.files, shuffled(shards.members, 0))
        done = aisfs("cache", "clear", "--cache-dir", disk / "cache")
        assert done.returncode == 0, done.stderr
        assert disk_usage(disk / "cache") < 2 * MIB


@pytest.mark.parametrize(
    ("full", "spare", "in_use"),
    [
        ("size=20m", 0, False),
        ("size=20m", 2, True),
        ("size=40m,nr_inodes=60", 0, False),
        ("size=40m,nr_inodes=60", 0, True),
    ],
)
def test_clear_works_on_a_full_disk(
    full: str, spare: int, in_use: bool, shards: Dataset, server: RunningServer,
    mountpoint: Path, tmp_path: Path,
):  # fmt: skip
    """With no room at all, or so little that the ledger can be opened and not be changed."""
    with tmpfs(tmp_path / "tiny", full) as disk:
        settings = ("--cache-dir", str(disk / "cache"), "--cache-size", "12MiB")
        with ExitStack() as stack:
            mount = stack.enter_context(
                mounted(
                    "ais://shards", mountpoint, endpoint=server.endpoint, options=settings,
                    expected_log=[BYPASSED, NOT_USED, INDEXES],
                )
            )  # fmt: skip
            read(mount.path, shards.files)
            if not in_use:
                stack.close()
            fill_disk(disk, spare)
            for _ in range(2):
                done = aisfs("cache", "clear", "--cache-dir", disk / "cache")
                assert done.returncode == 0, done.stderr
                assert disk_usage(disk / "cache") < 2 * MIB
                fill_disk(disk, spare)
            if in_use:
                read(mount.path, shards.files, shuffled(shards.members, 0))
        for path in disk.glob("other*"):
            path.unlink()
        meter = Meter(server)
        with mounted(
            "ais://shards", mountpoint, endpoint=server.endpoint, options=settings,
            expected_log=[BYPASSED],
        ) as mount:  # fmt: skip
            read(mount.path, shards.files)
            meter.take()


def fill_disk(disk: Path, spare: int) -> None:
    """Leave so many blocks, and so many files if there is a limit to them."""
    with suppress(OSError), (disk / f"other{uuid4()}").open("wb", buffering=0) as file:
        with suppress(OSError):
            while file.write(bytes(4096)):
                pass
        file.truncate(max(0, file.tell() - 4096 * spare))
    for _ in range(max(0, min(100, os.statvfs(disk).f_ffree - spare))):
        with suppress(OSError):
            (disk / f"other{uuid4()}").touch()


def test_what_is_cached_does_not_count_against_the_default_limit(
    shards: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    limits = []
    with tmpfs(tmp_path / "disk", "size=200m") as disk:
        cache = disk / "cache"
        for _ in range(2):
            with mounted(
                "ais://shards", mountpoint, endpoint=server.endpoint,
                options=("--cache-dir", str(cache)),
            ) as mount:  # fmt: skip
                read(mount.path, shards.files)
                said = aisfs("cache", "status", "--cache-dir", cache).stdout.decode()
            found = re.search(r"limit\s+([\d.]+) MiB", said)
            assert found, said
            limits.append(float(found[1]))
        assert disk_usage(cache) > 10 * MIB
    assert limits[1] == pytest.approx(limits[0], rel=0.03)


@pytest.mark.parametrize("inodes", [4, 20])
def test_a_disk_without_inodes_is_bypassed(
    inodes: int, shards: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    with tmpfs(tmp_path / "tiny", f"size=100m,nr_inodes={inodes}") as disk, ExitStack() as stack:
        if inodes == 4:  # not enough for the cache itself
            stack.enter_context(pytest.raises(MountFailedError, match=rf"ended with {USAGE}: "))
        mount = stack.enter_context(
            mounted(
                "ais://shards",
                mountpoint,
                endpoint=server.endpoint,
                options=options(disk / "cache"),
                expected_log=[BYPASSED, INDEXES, "ERROR aisfs.commands.mount"],
            )
        )
        read(mount.path, shards.files, shuffled(shards.members, 0))


@pytest.mark.parametrize("deleted", ["everything", "the data", "the ledger"])
def test_deleted_while_mounted(
    deleted: str, shards: Dataset, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    cache = tmp_path / "cache"
    victims = {"everything": ".", "the data": "v1/data", "the ledger": "v1/ledger.db"}
    with mounted(
        "ais://shards", mountpoint, endpoint=server.endpoint, options=options(cache),
        expected_log=[NOT_USED, BYPASSED, INDEXES, DAMAGED],
    ) as mount:  # fmt: skip
        read(mount.path, dict(list(shards.files.items())[:6]))
        with readers(READER, [job(mount.path, p) for p in dealt(shards.members, 2)]) as wait:
            time.sleep(0.1)
            victim = cache / victims[deleted]
            if victim.is_dir():
                shutil.rmtree(victim, ignore_errors=True)
            else:
                victim.unlink()
            assert wait() == []
        time.sleep(SETTLED)
        read(mount.path, shards.files, shuffled(shards.members, 0))


@pytest.mark.parametrize("mounted_meanwhile", [True, False])
def test_a_ledger_that_makes_no_sense(
    mounted_meanwhile: bool,
    shards: Dataset,
    server: RunningServer,
    mountpoint: Path,
    tmp_path: Path,
):
    """Somebody wrote into it; sqlite finds nothing wrong with that."""
    cache = tmp_path / "cache"

    def write() -> None:
        with closing(sqlite3.connect(cache / "v1" / "ledger.db")) as ledger, ledger:
            ledger.execute(
                "UPDATE segments SET key = id, changed = (SELECT changes + 1 FROM totals)"
            )
            ledger.execute("UPDATE totals SET changes = changes + 1")

    with mounted(
        "ais://shards", mountpoint, endpoint=server.endpoint, options=options(cache),
        expected_log=[NOT_USED],
    ) as mount:  # fmt: skip
        read(mount.path, dict(list(shards.files.items())[:6]))
        if mounted_meanwhile:
            write()
            assert eventually(lambda: "not used" in mount.log())
        read(mount.path, shards.files, shuffled(shards.members, 0))
    if not mounted_meanwhile:
        write()
    with mounted(
        "ais://shards", mountpoint, endpoint=server.endpoint, options=options(cache),
        expected_log=["starts empty"],
    ) as mount:  # fmt: skip
        assert "starts empty" in mount.log()
        read(mount.path, shards.files, shuffled(shards.members, 0))
        meter = Meter(server)
        read(mount.path, shards.files)
        meter.nothing()


@pytest.mark.parametrize("place", ["a file", "below a file", "read-only", "no directory v1"])
def test_a_cache_directory_that_cannot_be_used(
    place: str, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    (tmp_path / "file").write_bytes(b"x")
    with tmpfs(tmp_path / "fixed", "ro") as fixed:
        (tmp_path / "odd").mkdir()
        (tmp_path / "odd" / "v1").write_bytes(b"x")
        directory = {
            "a file": tmp_path / "file",
            "below a file": tmp_path / "file" / "cache",
            "read-only": fixed / "cache",
            "no directory v1": tmp_path / "odd",
        }[place]
        with (
            pytest.raises(MountFailedError) as caught,
            mounted(
                "ais://shards", mountpoint, endpoint=server.endpoint, options=options(directory),
                expected_log=["ERROR aisfs.commands.mount"],
            ),
        ):  # fmt: skip
            pass
        assert caught.value.returncode == USAGE
        assert str(directory) in one_line(caught.value.stderr.encode())
        assert not is_mountpoint(mountpoint)


@pytest.mark.parametrize("size", [20 * MIB, 3 * MIB + 17])
def test_an_object_overwritten_while_it_is_cached(
    size: int, server: RunningServer, mountpoint: Path, tmp_path: Path
):
    """A reader sees one version as a whole or an error; and the new one when the times are over."""
    versions = [payload(size, f"version {number}") for number in range(4)]
    known = {hashlib.sha256(data).hexdigest(): at for at, data in enumerate(versions)}
    put(server.endpoint, "mutable", "x.bin", versions[0])
    ended = threading.Event()

    def overwrite() -> None:
        for data in versions[1:]:
            time.sleep(0.8)
            put(server.endpoint, "mutable", "x.bin", data)
        ended.set()

    with mounted(
        "ais://mutable", mountpoint, endpoint=server.endpoint,
        options=options(tmp_path / "cache", *SHORT), expected_log=[STALE],
    ) as mount:  # fmt: skip
        path = mount.path / "x.bin"
        writer = threading.Thread(target=overwrite, daemon=True)
        writer.start()
        seen = []
        while not ended.is_set():
            try:
                data = path.read_bytes()
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                continue
            if len(data) == size:  # a short read may come before the error
                seen.append(known[hashlib.sha256(data).hexdigest()])
        writer.join(20)
        assert seen == sorted(seen), "an older version came back"
        assert len(set(seen)) > 1, seen
        time.sleep(SETTLED)
        assert path.read_bytes() == versions[-1]
