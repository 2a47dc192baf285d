"""Every way to read gives the bytes of the source: objects, shards and members."""

import hashlib
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount import zoo
from tests.mount.content import fill, payload, sha256
from tests.support.mounts import COMMAND_LIMIT, Mount, mounted, python, succeed
from tests.support.servers import running_server

pytestmark = pytest.mark.mount
BOTH_WAYS = True

BIG = (20 << 20) + 12_345
EDGES = (0, 1, 511, 512, 4095, 4096, 4097, 131_071, 131_072, 131_073, 1 << 20, (1 << 20) + 1)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bytes, laid out as they appear in the mount."""
    base = tmp_path_factory.mktemp("reading")
    inside = fill(base / "in", {f"edge-{size:07}": payload(size, "edge") for size in EDGES})
    fill(inside, {"big.bin": payload(6 << 20, "member")})
    bucket = fill(base / "store" / "b", {"big.bin": payload(BIG), "empty": b""})
    fill(bucket, {f"edge-{size:07}": payload(size, "object") for size in EDGES})
    zoo.gnu_tar("-C", str(inside), "-cf", str(bucket / "x.tar"), ".")
    view = base / "view"
    view.mkdir()
    for path in bucket.iterdir():
        os.link(path, view / path.name)
    inside.rename(view / "x.tar.d")
    return view


@pytest.fixture(scope="module", params=["cluster", "local"])
def mount(
    request, fastpath: bool, source: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mount]:
    store = source.parent / "store"
    place = tmp_path_factory.mktemp("mnt").resolve()
    if request.param == "local":
        with mounted(str(store / "b"), place, deadline=300) as mount:
            yield mount
        return
    with (
        running_server(store) as server,
        mounted("ais://b", place, endpoint=server.endpoint, deadline=300) as mount,
    ):
        yield mount


FILES = (
    "big.bin",
    "x.tar",
    "x.tar.d/big.bin",
    "x.tar.d/edge-0131073",
    "edge-0131073",
    "edge-0000001",
)


@pytest.mark.parametrize("name", FILES)
def test_pread_anywhere(name: str, mount: Mount, source: Path):
    chance = random.Random(name)
    wanted = (source / name).read_bytes()
    fd = os.open(mount.path / name, os.O_RDONLY)
    try:
        for _ in range(150):
            offset = chance.randrange(len(wanted) + 5000)
            length = chance.choice((1, 100, 4096, 65_537, 131_072, 400_000))
            data = os.pread(fd, length, offset)
            assert data == wanted[offset : offset + length], (offset, length)
    finally:
        os.close(fd)


@pytest.mark.parametrize("folder", ["", "x.tar.d"])
@pytest.mark.parametrize("size", EDGES)
def test_whole_files_of_every_size(size: int, folder: str, mount: Mount, source: Path):
    name = f"{folder}/edge-{size:07}".lstrip("/")
    assert (mount.path / name).read_bytes() == (source / name).read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_md5sum(name: str, mount: Mount, source: Path):
    wanted = hashlib.md5((source / name).read_bytes()).hexdigest()
    assert succeed("md5sum", mount.path / name).split()[0].decode() == wanted


@pytest.mark.parametrize("name", FILES)
def test_past_the_end(name: str, mount: Mount, source: Path):
    size = os.stat(source / name).st_size
    fd = os.open(mount.path / name, os.O_RDONLY)
    try:
        assert os.pread(fd, 100, size) == b""
        assert os.pread(fd, 100, size + (1 << 30)) == b""
        assert len(os.pread(fd, 100, size - 1)) == 1
        assert os.lseek(fd, 0, os.SEEK_END) == size
        assert os.read(fd, 10) == b""
    finally:
        os.close(fd)


@pytest.mark.parametrize("name", ["big.bin", "x.tar.d/big.bin", "edge-0004097"])
def test_mmap(name: str, mount: Mount, source: Path):
    script = (
        "import hashlib, mmap, random, sys\n"
        "with open(sys.argv[1], 'rb') as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as m:\n"
        "    other = open(sys.argv[2], 'rb').read()\n"
        "    for _ in range(100):\n"
        "        start = random.randrange(len(m))\n"
        "        assert m[start : start + 5000] == other[start : start + 5000], start\n"
        "    print(hashlib.sha256(m).hexdigest())\n"
    )
    printed = python(script, mount.path / name, source / name)
    assert printed.decode().strip() == sha256(source / name)


@pytest.mark.parametrize("name", ["big.bin", "x.tar.d/big.bin"])
def test_sendfile_to_a_file(name: str, mount: Mount, source: Path, tmp_path: Path):
    size = os.stat(source / name).st_size
    with open(mount.path / name, "rb") as reader, open(tmp_path / "copy", "wb") as writer:
        done = 0
        while done < size:
            sent = os.sendfile(writer.fileno(), reader.fileno(), done, size - done)
            assert sent > 0
            done += sent
    assert sha256(tmp_path / "copy") == sha256(source / name)


def test_sendfile_to_a_socket(mount: Mount, source: Path):
    wanted = (source / "edge-0131073").read_bytes()
    left, right = socket.socketpair()
    with left, right, open(mount.path / "edge-0131073", "rb") as reader:
        right.settimeout(30)
        received = b""
        while len(received) < len(wanted):
            sent = os.sendfile(left.fileno(), reader.fileno(), len(received), 16_384)
            assert sent > 0
            received += right.recv(sent, socket.MSG_WAITALL)
    assert received == wanted


@pytest.mark.parametrize("name", ["big.bin", "x.tar.d/big.bin", "edge-0000511"])
def test_direct_reads(name: str, mount: Mount, source: Path):
    script = (
        "import mmap, os, sys\n"
        "wanted = open(sys.argv[2], 'rb').read()\n"
        "fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)\n"
        "buffer = mmap.mmap(-1, 1 << 20)\n"
        "for offset in range(0, len(wanted) + 1, 1 << 20):\n"
        "    count = os.preadv(fd, [buffer], offset)\n"
        "    part = wanted[offset : offset + (1 << 20)]\n"
        "    assert buffer[:count] == part[:count] and (count == len(part)), (offset, count)\n"
    )
    python(script, mount.path / name, source / name)


def test_eight_processes_at_once(mount: Mount, source: Path):
    script = (
        "import os, random, sys\n"
        "folder, source, seed = sys.argv[1:]\n"
        "chance = random.Random(seed)\n"
        "for name in ('big.bin', 'x.tar', 'x.tar.d/big.bin'):\n"
        "    wanted = open(f'{source}/{name}', 'rb').read()\n"
        "    with open(f'{folder}/{name}', 'rb', buffering=0) as file:\n"
        "        for _ in range(40):\n"
        "            offset = chance.randrange(len(wanted))\n"
        "            assert os.pread(file.fileno(), 100_000, offset) == wanted[offset : offset + 100_000]\n"
        "        assert file.readall() == wanted\n"
    )
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(mount.path), str(source), str(seed)],
            stderr=subprocess.DEVNULL,
        )
        for seed in range(8)
    ]
    try:
        assert [reader.wait(COMMAND_LIMIT) for reader in readers] == [0] * 8
    finally:
        for reader in readers:
            reader.kill()
            reader.wait(20)


def test_small_steps_through_a_file(mount: Mount, source: Path):
    printed = succeed("dd", f"if={mount.path / 'x.tar.d' / 'big.bin'}", "bs=1000", "status=none")
    assert printed == (source / "x.tar.d" / "big.bin").read_bytes()


def test_tail_head_and_cmp(mount: Mount, source: Path):
    wanted = (source / "big.bin").read_bytes()
    assert succeed("tail", "-c", "70000", mount.path / "big.bin") == wanted[-70_000:]
    assert succeed("head", "-c", "70000", mount.path / "big.bin") == wanted[:70_000]
    succeed("cmp", mount.path / "big.bin", source / "big.bin")
