"""What finding the members of shards costs, and what of it need not be paid again."""

import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounts import aisfs, mounted
from tests.support.servers import RunningServer, running_server

MIB = 1 << 20
LARGE, SMALL = 4, 3
"""Shards of each kind."""


def write_shard(path: Path, members: dict[str, int | bytes]) -> None:
    """Write a tar; a number makes a member of so many zeros that take no room on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for name, content in members.items():
            header = tarfile.TarInfo(name)
            header.size = content if isinstance(content, int) else len(content)
            file.write(header.tobuf(tarfile.GNU_FORMAT))
            start = file.tell()
            if isinstance(content, bytes):
                file.write(content)
            file.seek(start + -(-header.size // 512) * 512)
        file.truncate(file.tell() + 1024)


def pixels(shard: int, number: int) -> bytes:
    return bytes([shard, number, shard ^ number, 255]) * 5000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("store")
    for shard in range(LARGE):
        members: dict[str, int | bytes] = {}
        for number in range(20):
            members[f"{shard}{number:03}.bin"] = 8 * MIB
            members[f"{shard}{number:03}.cls"] = b"%d" % (number % 3)
        write_shard(root / "videos" / f"s-{shard}.tar", members)
    for shard in range(SMALL):
        pictures = {f"{shard}{n:03}.jpg": pixels(shard, n) for n in range(200)}
        write_shard(root / "pictures" / f"s-{shard}.tar", {**pictures})
    with running_server(root) as server:
        yield server


class Meter:
    """What the server has sent since the last look."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._before = server.requests()

    def take(self) -> tuple[int, int]:
        """Give the number of GETs and their bytes."""
        now, before = self._server.requests(), self._before
        self._before = now
        return tuple(now.get(kind, 0) - before.get(kind, 0) for kind in ("get", "get_bytes"))


def sizes(server: RunningServer, bucket: str) -> int:
    return sum(path.stat().st_size for path in (server.root / bucket).iterdir())


@pytest.mark.parametrize("options", [["--cache-size", "0"], ["--scan", "headers"]], ids=str)
def test_class_view_reads_headers_and_labels_only(
    server: RunningServer, mountpoint: Path, tmp_path: Path, options: list[str]
):
    total = sizes(server, "videos")
    assert total > LARGE * 160 * MIB
    options = ["--view", "class", "--image", "bin", "--cache-dir", str(tmp_path / "c"), *options]
    meter = Meter(server)
    with mounted("ais://videos", mountpoint, endpoint=server.endpoint, options=options) as mount:
        assert sorted(os.listdir(mountpoint)) == ["0", "1", "2"]
        found = [name for label in "012" for name in os.listdir(mountpoint / label)]
        assert len(found) == LARGE * 20
        gets, data = meter.take()
        assert data < total // 100, "of each picture no more than a glance at its neighbours"
        assert gets < 3 * LARGE * 20
        assert "skipped data of more than" in mount.log()
        with (mountpoint / "0" / "0000.bin").open("rb") as file:
            assert file.read(100) == bytes(100)


def test_data_that_fits_the_disk_cache_is_streamed_and_read_from_there(
    server: RunningServer, mountpoint: Path, tmp_path: Path
):
    total = sizes(server, "pictures")
    options = ["--cache-dir", str(tmp_path / "c"), "--cache-size", "64MiB"]
    meter = Meter(server)
    with mounted("ais://pictures", mountpoint, endpoint=server.endpoint, options=options):
        check_pictures(mountpoint)
        _, data = meter.take()
        assert data == total
        assert "skipped" not in (aisfs("status", mountpoint).stdout.decode())


@pytest.mark.parametrize("scan", ["auto", "headers", "stream"])
def test_without_a_disk_cache_listing_and_then_reading_in_order_downloads_once(
    server: RunningServer, mountpoint: Path, scan: str
):
    total = sizes(server, "pictures")
    options = ["--cache-size", "0", "--memory-limit", "32MiB", "--scan", scan]
    meter = Meter(server)
    with mounted("ais://pictures", mountpoint, endpoint=server.endpoint, options=options):
        check_pictures(mountpoint)
        _, data = meter.take()
    assert total * 0.99 < data <= total


def check_pictures(mountpoint: Path) -> None:
    """List all shards, then read all members in order."""
    folders = [mountpoint / f"s-{shard}.tar.d" for shard in range(SMALL)]
    listed = [sorted(os.listdir(folder)) for folder in folders]
    for shard, (folder, names) in enumerate(zip(folders, listed, strict=True)):
        assert len(names) == 200
        for number, name in enumerate(names):
            assert (folder / name).read_bytes() == pixels(shard, number)


def test_inspect_tells_how_it_read_and_why(server: RunningServer, tmp_path: Path):
    words = ["--cache-dir", tmp_path / "c", "--endpoint", server.endpoint, "--labels", "0"]
    done = aisfs("inspect", "ais://videos", "--scan", "headers", "--json", *words)
    assert done.returncode == 0, done.stderr
    scans = json.loads(done.stdout)["scans"]
    assert (scans["walked"], scans["streamed"]) == (LARGE, 0)
    assert scans["walked_size"] == sizes(server, "videos")
    assert 0 < scans["walked_read"] < scans["walked_size"] // 100
    assert scans["latency"] > 0
    assert scans["even"] > 0
    other = ["--cache-dir", tmp_path / "d", *words[2:]]
    told = aisfs("inspect", "ais://videos", "--scan", "headers", *other).stdout.decode()
    assert "headers read" in told
    assert f"{LARGE} shards" in told
    told = aisfs("inspect", "ais://pictures", *other).stdout.decode()
    assert "streamed" in told
    refused = aisfs("inspect", "ais://pictures", "--scan", "sideways", *other)
    assert refused.returncode == 2
    assert b"sideways" in refused.stderr
