"""One version for each open file, listings that lose nothing, and times after which all is fresh."""

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount import zoo
from tests.mount.content import delete, fill, payload, put
from tests.support.mounts import mounted
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

SHORT = ("--attr-ttl", "1", "--list-ttl", "1", "--negative-ttl", "1")
SETTLED = 2.5
"""Seconds after which nothing older than SHORT may be seen: a listing that was just about to
expire may have filled the kernel's cache for one more second."""
NEVER = ("--attr-ttl", "0", "--list-ttl", "0", "--negative-ttl", "0")
SIZE = 8 << 20
STALE = r"\b(ESTALE|[Ss]tale|changed|version)\b"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    fill(tmp_path / "store" / "b", {"other.txt": b"other"})
    with running_server(tmp_path / "store") as server:
        yield server


def read_at(fd: int, offset: int) -> bytes | None:
    """Some bytes, or None when the object has changed."""
    try:
        return os.pread(fd, 65_536, offset)
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return None


def is_part_of(whole: bytes, data: bytes, offset: int) -> bool:
    """What is still in the page cache may come before the error, as a short read."""
    return bool(data) and whole[offset : offset + len(data)] == data


@pytest.mark.parametrize("new_size", [SIZE, SIZE // 2, SIZE * 2], ids=["same", "half", "double"])
@pytest.mark.parametrize("options", [SHORT, NEVER, ()], ids=["short", "never", "default"])
def test_an_open_file_never_mixes_versions(
    new_size: int, options: tuple[str, ...], server: RunningServer, mountpoint: Path
):
    put(server.endpoint, "b", "x.bin", b"A" * SIZE)
    with mounted(
        "ais://b", mountpoint, endpoint=server.endpoint, options=options, expected_log=[STALE]
    ) as mount:
        fd = os.open(mount.path / "x.bin", os.O_RDONLY)
        try:
            assert os.pread(fd, 4096, 0) == b"A" * 4096
            put(server.endpoint, "b", "x.bin", b"B" * new_size)
            for offset in range(0, SIZE, SIZE // 16):
                data = read_at(fd, offset)
                assert data is None or (data and not data.strip(b"A")), (offset, data[:20])
            if options == SHORT:
                time.sleep(SETTLED)
                for offset in range(0, SIZE, SIZE // 16):
                    data = read_at(fd, offset)
                    assert data is None or not data.strip(b"A"), (offset, data[:20])
        finally:
            os.close(fd)


@pytest.mark.parametrize("options", [SHORT, NEVER], ids=["short", "never"])
@pytest.mark.parametrize("size", [1000, 500, 2000])
def test_a_new_open_sees_the_new_object(
    size: int, options: tuple[str, ...], server: RunningServer, mountpoint: Path
):
    put(server.endpoint, "b", "x.bin", b"A" * 1000)
    with mounted(
        "ais://b", mountpoint, endpoint=server.endpoint, options=options, expected_log=[STALE]
    ) as mount:
        path = mount.path / "x.bin"
        before = os.stat(path)
        assert path.read_bytes() == b"A" * 1000
        put(server.endpoint, "b", "x.bin", b"B" * size)
        if options == SHORT:
            time.sleep(SETTLED)
        assert path.read_bytes() == b"B" * size
        after = os.stat(path)
        assert after.st_size == size
        assert after.st_ino != before.st_ino
        assert [entry.inode() for entry in os.scandir(mount.path) if entry.name == "x.bin"] == [
            after.st_ino
        ]


def test_an_unchanged_object_keeps_its_inode_number(server: RunningServer, mountpoint: Path):
    put(server.endpoint, "b", "x.bin", b"A")
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=SHORT) as mount:
        before = os.stat(mount.path / "x.bin")
        with open(mount.path / "x.bin", "rb") as file:
            time.sleep(SETTLED)
            os.listdir(mount.path)
            assert os.stat(mount.path / "x.bin").st_ino == before.st_ino
            assert os.fstat(file.fileno()).st_ino == before.st_ino
        assert os.stat(mount.path / "x.bin").st_mtime_ns == before.st_mtime_ns


def test_a_deleted_object_disappears(server: RunningServer, mountpoint: Path):
    put(server.endpoint, "b", "x.bin", b"A")
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=SHORT) as mount:
        assert sorted(os.listdir(mount.path)) == ["other.txt", "x.bin"]
        assert (mount.path / "x.bin").read_bytes() == b"A"
        delete(server.endpoint, "b", "x.bin")
        time.sleep(SETTLED)
        assert os.listdir(mount.path) == ["other.txt"]
        with pytest.raises(FileNotFoundError):
            os.stat(mount.path / "x.bin")


def test_a_new_object_appears(server: RunningServer, mountpoint: Path):
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=SHORT) as mount:
        assert os.listdir(mount.path) == ["other.txt"]
        for name in ("new.bin", "folder", "folder/new.bin"):
            assert not (mount.path / name).exists()
        put(server.endpoint, "b", "new.bin", b"new")
        put(server.endpoint, "b", "folder/new.bin", b"inside")
        time.sleep(SETTLED)
        assert (mount.path / "new.bin").read_bytes() == b"new"
        assert (mount.path / "folder" / "new.bin").read_bytes() == b"inside"
        assert sorted(os.listdir(mount.path)) == ["folder", "new.bin", "other.txt"]


def test_a_long_time_to_live_keeps_the_listing(server: RunningServer, mountpoint: Path):
    options = ("--attr-ttl", "1000", "--list-ttl", "1000", "--negative-ttl", "1000")
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        assert os.listdir(mount.path) == ["other.txt"]
        before = server.requests().get("list_page", 0)
        time.sleep(1.5)
        assert os.listdir(mount.path) == ["other.txt"]
        assert server.requests().get("list_page", 0) == before


def shard(tmp_path: Path, generation: int) -> bytes:
    folder = tmp_path / f"in-{generation}"
    names = {f"{number}.bin": payload(200_000, f"{generation}-{number}") for number in range(4)}
    fill(folder, {**names, f"only-in-{generation}.txt": b"x"})
    zoo.gnu_tar("-C", str(folder), "-cf", str(folder) + ".tar", ".")
    return Path(str(folder) + ".tar").read_bytes()


def test_a_rewritten_shard_becomes_a_new_folder(
    server: RunningServer, mountpoint: Path, tmp_path: Path
):
    put(server.endpoint, "b", "x.tar", shard(tmp_path, 1))
    with mounted(
        "ais://b", mountpoint, endpoint=server.endpoint, options=SHORT, expected_log=[STALE]
    ) as mount:
        folder = mount.path / "x.tar.d"
        old = (tmp_path / "in-1" / "0.bin").read_bytes()
        with open(folder / "0.bin", "rb", buffering=0) as held:
            assert held.read(1000) == old[:1000]
            put(server.endpoint, "b", "x.tar", shard(tmp_path, 2))
            for offset in range(0, 200_000, 20_000):
                data = read_at(held.fileno(), offset)
                assert data is None or is_part_of(old, data, offset)
            time.sleep(SETTLED)
            assert "only-in-2.txt" in os.listdir(folder)
            assert "only-in-1.txt" not in os.listdir(folder)
            for number in range(4):
                wanted = (tmp_path / "in-2" / f"{number}.bin").read_bytes()
                assert (folder / f"{number}.bin").read_bytes() == wanted
            data = read_at(held.fileno(), 100_000)
            assert data is None or is_part_of(old, data, 100_000)


def test_a_listing_under_change_neither_repeats_nor_loses(tmp_path: Path, mountpoint: Path):
    stay = {f"stay-{number:04}-{'n' * 40}" for number in range(5000)}
    fill(tmp_path / "store" / "b" / "d", dict.fromkeys(stay, b""))
    fill(tmp_path / "store" / "b" / "d", {f"gone-{number:03}": b"" for number in range(60)})
    fill(tmp_path / "store" / "b" / "d", {f"zone-{number:03}": b"" for number in range(60)})
    with (
        running_server(tmp_path / "store") as server,
        mounted("ais://b", mountpoint, endpoint=server.endpoint, options=NEVER) as mount,
    ):
        seen: list[str] = []
        with os.scandir(mount.path / "d") as entries:
            for entry in entries:
                seen.append(entry.name)
                if len(seen) in (50, 2500):
                    for number in range(0, 60, 2):
                        step = number + (len(seen) == 50)
                        delete(server.endpoint, "b", f"d/gone-{step:03}")
                        delete(server.endpoint, "b", f"d/zone-{step:03}")
                        put(server.endpoint, "b", f"d/aaa-{step:03}", b"")
                        put(server.endpoint, "b", f"d/stay-{step:04}-new", b"")
                    os.listdir(mount.path / "d")  # another reader brings the new listing in
        assert len(seen) == len(set(seen)), "a name was repeated"
        assert stay <= set(seen), "a name was lost"


def test_a_rewound_directory_is_read_anew(server: RunningServer, mountpoint: Path):
    script_names = {f"n{number}" for number in range(10)}
    for name in script_names:
        put(server.endpoint, "b", f"d/{name}", b"")
    with mounted("ais://b", mountpoint, endpoint=server.endpoint) as mount:
        fd = os.open(mount.path / "d", os.O_RDONLY | os.O_DIRECTORY)
        try:
            assert set(os.listdir(fd)) == script_names
            assert set(os.listdir(fd)) == script_names
        finally:
            os.close(fd)
