"""A mount with a keeper goes on when its daemon dies."""

import hashlib
import os
import signal
from pathlib import Path

import pytest

from tests.support.mounts import Mount, mounted, python

pytestmark = pytest.mark.timeout(300)

RESTARTED = r"this daemon goes on with the mount \(restart \d+\): process \d+ was killed by SIGKILL"


def kill(mount: Mount) -> int:
    """Kill the daemon; return its number."""
    pid = mount.daemon_now()
    os.kill(pid, signal.SIGKILL)
    return pid


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    (root / "deep" / "er").mkdir(parents=True)
    for at in range(30):
        (root / f"{at}.bin").write_bytes(hashlib.sha256(b"%d" % at).digest() * 5000)
    (root / "deep" / "er" / "last").write_bytes(b"last")
    return root


def test_what_was_open_or_known_is_read_on(data: Path, mountpoint: Path) -> None:
    with mounted(str(data), mountpoint, keeper=True, expected_log=[RESTARTED]) as mount:
        python(
            """if 1:
            import os, signal, sys, time
            mnt, data, *pids = sys.argv[1:]
            opened = [os.open(f"{mnt}/{at}.bin", os.O_RDONLY) for at in range(5)]
            os.chdir(f"{mnt}/deep/er")
            names = os.listdir(mnt)
            first = os.pread(opened[0], 100, 0)
            for pid in pids:
                os.kill(int(pid), signal.SIGKILL)
            for at, fd in enumerate(opened):
                assert os.pread(fd, 1 << 20, 0) == open(f"{data}/{at}.bin", "rb").read(), at
            assert os.listdir(".") == ["last"] and os.getcwd() == f"{mnt}/deep/er"
            assert open("last").read() == "last"
            assert sorted(os.listdir(mnt)) == sorted(names)
            assert open(f"{mnt}/29.bin", "rb").read() == open(f"{data}/29.bin", "rb").read()
            """,
            mountpoint,
            data,
            mount.daemon_now(),
        )
        assert mount.daemon_now() != mount.pid
