"""File handles, which a server of NFS gives to its clients, hold while the object is the same."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounts import aisfs, mounted, python
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

HANDLES = """if 1:
    import ctypes, json, os, sys
    libc = ctypes.CDLL(None, use_errno=True)
    class Handle(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("h", ctypes.c_ubyte * 128)]
    what, mnt, file, *paths = sys.argv[1:]
    if what == "take":
        taken = {}
        for path in paths:
            handle, mount = Handle(128, 0), ctypes.c_int()
            place = os.fsencode(f"{mnt}/{path}")
            assert not libc.name_to_handle_at(-100, place, ctypes.byref(handle), ctypes.byref(mount), 0)
            taken[path] = bytes(handle).hex()
        json.dump(taken, open(file, "w"))
    else:
        root = os.open(mnt, os.O_RDONLY)
        for path, taken in json.load(open(file)).items():
            handle = Handle.from_buffer_copy(bytes.fromhex(taken))
            fd = libc.open_by_handle_at(root, ctypes.byref(handle), os.O_RDONLY)
            if fd < 0:
                print(path, os.strerror(ctypes.get_errno()))
            elif os.path.isdir(f"/proc/self/fd/{fd}"):
                print(path, os.readlink(f"/proc/self/fd/{fd}").removeprefix(mnt), *sorted(os.listdir(fd)))
            else:
                print(path, os.read(fd, 100).decode())
    """
PATHS = ["deep/er/x", "deep/er", "s.tar.d/in/m", "s.tar.d/in", "s.tar.d"]
OPENED = """\
deep/er/x content of x
deep/er /deep/er x
s.tar.d/in/m content of m
s.tar.d/in /s.tar.d/in m
s.tar.d /s.tar.d in
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    bucket = tmp_path / "buckets" / "b"
    (bucket / "deep" / "er").mkdir(parents=True)
    (bucket / "deep" / "er" / "x").write_bytes(b"content of x")
    with tarfile.open(bucket / "s.tar", "w") as tar:
        member = tarfile.TarInfo("in/m")
        member.size = 12
        tar.addfile(member, io.BytesIO(b"content of m"))
    with running_server(tmp_path / "buckets") as server:
        yield server


def use(mountpoint: Path, file: Path) -> str:
    return python(HANDLES, "use", mountpoint, file).decode()


@pytest.mark.parametrize("options", [(), ("--writable",)], ids=["read-only", "writable"])
def test_handles_last(
    server: RunningServer, mountpoint: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    if options:
        options = (*options, "--staging-dir", str(tmp_path / "staging"))
    file = tmp_path / "handles"
    # The kernel looks for the name of a directory in the listing above.
    cache = ["--cache-dir", str(tmp_path / "cache"), "--shards", "both"]
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=[*options, *cache]):
        python(HANDLES, "take", mountpoint, file, *PATHS)
        assert use(mountpoint, file) == OPENED
        assert aisfs("refresh", mountpoint).returncode == 0
        assert use(mountpoint, file) == OPENED
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=[*options, *cache]):
        assert use(mountpoint, file) == OPENED
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=[*options, *cache]):
        python("import os, sys; os.listdir(sys.argv[1])", mountpoint)
    (server.root / "b" / "deep" / "er" / "x").write_bytes(b"something else")
    with mounted(
        "ais://b",
        mountpoint,
        endpoint=server.endpoint,
        options=[*options, *cache],
        expected_log=["lookup failed: x changed"],
    ):
        said = use(mountpoint, file)
        assert said.startswith("deep/er/x Stale file handle\n"), "it is another version"
        assert said.partition("\n")[2] == OPENED.partition("\n")[2]
