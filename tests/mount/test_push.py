"""Members are in the page cache before they are read: the daemon is asked for few of them."""

import hashlib
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.mount.content import payload, put
from tests.mount.test_status import status
from tests.support.mounts import Mount, eventually, mounted, python
from tests.support.servers import RunningServer, running_server
from tests.support.tars import END, entry

pytestmark = pytest.mark.mount

MEMBERS = 1500
LARGE = [5, 4096, 4097, 110_000, 1 << 20, (1 << 20) + 1, 3_000_001, 9_000_000] * 2
SHORT = ("--attr-ttl", "1", "--list-ttl", "1")
# In a process of its own: a reader that hangs can be killed.
READER = """
import hashlib, sys
digest = hashlib.sha256()
for path in open(sys.argv[1]).read().splitlines():
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
print(digest.hexdigest())
"""


def small(row: int, version: int = 0) -> bytes:
    return payload(100 + row % 3000, f"{row} {version}")


def shard(contents: Iterable[bytes]) -> bytes:
    parts = (entry(f"{row:05}".encode(), data) for row, data in enumerate(contents))
    return b"".join(parts) + END


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("push") / "store"
    (root / "b").mkdir(parents=True)
    (root / "b/small.tar").write_bytes(shard(map(small, range(MEMBERS))))
    (root / "b/large.tar").write_bytes(shard(payload(size, row) for row, size in enumerate(LARGE)))
    with running_server(root) as server:
        yield server


@pytest.fixture
def mount(server: RunningServer, mountpoint: Path, tmp_path: Path) -> Iterator[Mount]:
    options = ["--cache-dir", str(tmp_path / "cache"), *SHORT]
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        yield mount


def read(paths: list[Path]) -> str:
    """Read files one after the other in another process; gives the SHA-256 of all their bytes."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("\n".join(map(str, paths)))
        file.flush()
        return python(READER, file.name).decode().strip()


def sha256(contents: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for data in contents:
        digest.update(data)
    return digest.hexdigest()


def pushed(mount: Mount) -> int:
    members = status(mount.path, "--fastpath-stats")["push"]["members"]
    assert isinstance(members, int)
    return members


def reads(mount: Mount) -> int:
    found = status(mount.path)["requests"].get("read", 0)
    assert isinstance(found, int)
    return found


def into_the_cache(mount: Mount, name: str) -> None:
    """Make all bytes of a shard be there, and only then list it."""
    assert (mount.path / name).read_bytes()


def test_reading_in_order_asks_for_few(mount: Mount, fastpath: bool):
    into_the_cache(mount, "small.tar")
    folder = mount.path / "small.tar.d"
    names = sorted(os.listdir(folder))
    before = reads(mount)
    assert read([folder / name for name in names]) == sha256(map(small, range(MEMBERS)))
    asked = reads(mount) - before
    if not fastpath:
        assert (asked, pushed(mount)) == (MEMBERS, 0)
        return
    assert asked < MEMBERS // 4
    assert pushed(mount) > MEMBERS // 2
    found = status(mount.path, "--fastpath-stats")["push"]
    assert found["used"] > MEMBERS // 2
    assert found["bytes"] > MEMBERS // 2 * 100


def test_cold_reading_is_pushed_as_it_lands(mount: Mount, fastpath: bool):
    folder = mount.path / "small.tar.d"
    names = sorted(os.listdir(folder))
    assert read([folder / name for name in names]) == sha256(map(small, range(MEMBERS)))
    assert (pushed(mount) > MEMBERS // 2) == fastpath


def test_reading_at_random_pushes_the_shard(mount: Mount, fastpath: bool):
    into_the_cache(mount, "small.tar")
    folder = mount.path / "small.tar.d"
    names = sorted(os.listdir(folder))
    random.Random(1).shuffle(names)
    first, rest = names[:200], names[200:]
    assert read([folder / name for name in first]) == sha256(small(int(name)) for name in first)
    if fastpath:
        assert eventually(lambda: pushed(mount) > MEMBERS - 400)
    assert read([folder / name for name in rest]) == sha256(small(int(name)) for name in rest)


def test_large_members_are_right(mount: Mount, fastpath: bool):
    into_the_cache(mount, "large.tar")
    folder = mount.path / "large.tar.d"
    names = sorted(os.listdir(folder))
    assert read([folder / name for name in names]) == sha256(map(payload, LARGE, range(len(LARGE))))
    assert (pushed(mount) > 0) == fastpath


def test_names_that_were_not_listed_are_not_pushed(mount: Mount):
    into_the_cache(mount, "small.tar")
    folder = mount.path / "small.tar.d"
    paths = [folder / f"{row:05}" for row in range(100)]
    assert read(paths) == sha256(map(small, range(100)))
    assert pushed(mount) == 0


def test_the_next_epoch_asks_for_nothing(mount: Mount, fastpath: bool):
    """Kernels drop single pages at times, so of several epochs the best one counts."""
    folder = mount.path / "small.tar.d"
    paths = [folder / name for name in sorted(os.listdir(folder))]
    wanted = sha256(map(small, range(MEMBERS)))
    asked = []
    for _ in range(4):
        before = reads(mount)
        assert read(paths) == wanted
        asked.append(reads(mount) - before)
    assert min(asked[1:]) == 0


def test_a_new_version_is_pushed_as_it_is(
    server: RunningServer, mountpoint: Path, tmp_path: Path, fastpath: bool
):
    put(server.endpoint, "b", "changing.tar", shard(small(row, 0) for row in range(500)))
    options = ["--cache-dir", str(tmp_path / "cache"), *SHORT]
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        for version in range(3):
            put(server.endpoint, "b", "changing.tar", shard(small(r, version) for r in range(500)))
            time.sleep(2.5)  # nothing older may be seen after that
            folder = mount.path / "changing.tar.d"
            paths = [folder / name for name in sorted(os.listdir(folder))]
            assert read(paths) == sha256(small(row, version) for row in range(500))


def test_readers_outlive_a_daemon_that_is_stopped_while_it_pushes(
    server: RunningServer, mountpoint: Path, tmp_path: Path, fastpath: bool
):
    """A thread may be in the kernel with a page that a reader waits for, or the other way round."""
    content = [payload(size, row) for row, size in enumerate([*LARGE, *(3000,) * 300] * 4)]
    put(server.endpoint, "b", "stopped.tar", shard(content))
    options = ["--cache-dir", str(tmp_path / "cache")]
    chance = random.Random("stopped")
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        folder = mount.path / "stopped.tar.d"
        paths = [folder / name for name in sorted(os.listdir(folder))]
        with ThreadPoolExecutor(3) as pool:
            found = [pool.submit(read, paths) for _ in range(3)]
            for seconds in (2, *(0.1,) * 20):
                time.sleep(chance.random() / 20)
                os.kill(mount.pid, signal.SIGSTOP)
                time.sleep(seconds)
                os.kill(mount.pid, signal.SIGCONT)
        assert {each.result() for each in found} == {sha256(content)}
        assert (pushed(mount) > 0) == fastpath


def test_a_local_directory_is_pushed_too(tmp_path: Path, mountpoint: Path, fastpath: bool):
    source = tmp_path / "source"
    source.mkdir()
    (source / "x.tar").write_bytes(shard(map(small, range(1000))))
    with mounted(str(source), mountpoint) as mount:
        folder = mount.path / "x.tar.d"
        paths = [folder / name for name in sorted(os.listdir(folder))]
        assert read(paths) == sha256(map(small, range(1000)))
        assert (pushed(mount) > 300) == fastpath


@pytest.mark.parametrize("size", [4000, 60_000])
@pytest.mark.parametrize("cached", [True, False])
def test_what_listing_a_folder_fetched_is_there_when_it_is_read(
    tmp_path: Path, mountpoint: Path, size: int, cached: bool
):
    """As ImageFolder does: all folders are listed first, and read only then."""
    shards, members = 3, 400
    (tmp_path / "store" / "b").mkdir(parents=True)
    contents = [[payload(size, f"{n} {row}") for row in range(members)] for n in range(shards)]
    for number, data in enumerate(contents):
        (tmp_path / "store" / "b" / f"{number}.tar").write_bytes(shard(data))
    options = ["--cache-dir", str(tmp_path / "cache"), *([] if cached else ["--cache-size", "0"])]
    with (
        running_server(tmp_path / "store") as server,
        mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount,
    ):
        paths = [
            mountpoint / f"{number}.tar.d" / name
            for number in range(shards)
            for name in sorted(os.listdir(mountpoint / f"{number}.tar.d"))
        ]
        if size == 4000:  # small shards wait for a reader of any of them
            assert not pushed(mount)
            paths[0].read_bytes()
        assert eventually(lambda: pushed(mount) > shards * members * 0.95), pushed(mount)
        before = reads(mount)
        assert read(paths) == sha256(data for each in contents for data in each)
        # Of each shard a row in the middle and the last tell how far the reader is.
        assert reads(mount) - before <= shards * members * 0.05
        fetched = server.requests()["get_bytes"]
        assert fetched <= 1.02 * shards * (members * (size + 1024) + 10240) + (64 << 10) * shards
