"""Which descriptors can be served as a mount that somebody else made."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from aisfs.errors import ConfigError, MountError
from aisfs.fuse.mountpoint import (
    MNT_DETACH,
    check_descriptor,
    connection_of,
    descriptor_of,
    umount2,
)
from tests.support.for_each import for_each

OPTIONS = "rootmode=40000,user_id=0,group_id=0"


@pytest.fixture
def device() -> Iterator[int]:
    fd = os.open("/dev/fuse", os.O_RDWR)
    yield fd
    os.close(fd)


def refusal(fd: int) -> str:
    with pytest.raises(MountError) as caught:
        check_descriptor(fd, ())
    return str(caught.value)


@for_each(
    "path, fd",
    [("/dev/fd/7", 7), ("/dev/fd/", None), ("/dev/fd/x", None), ("/mnt/dev/fd/7", None)],
)
def test_a_path_may_stand_for_a_descriptor(path: str, fd: int | None):
    assert descriptor_of(Path(path)) == fd


def test_what_is_no_fuse_device_is_refused(tmp_path: Path):
    with open(tmp_path / "file", "w+") as file:
        assert "file, not /dev/fuse" in refusal(file.fileno())
    with open("/dev/null", "rb+") as null:
        assert "/dev/null, not /dev/fuse" in refusal(null.fileno())
    assert "standard stream" in refusal(0)
    assert "Bad file descriptor" in refusal(99_999)


def test_a_device_has_to_be_open_for_both_ways():
    fd = os.open("/dev/fuse", os.O_RDONLY)
    try:
        assert "not open for reading and writing" in refusal(fd)
    finally:
        os.close(fd)


@pytest.mark.mount
def test_a_device_is_taken_while_it_is_mounted(tmp_path: Path, device: int):
    assert "is not mounted" in refusal(device)
    options = f"fd={device},{OPTIONS}"
    mount = ["mount", "-i", "-t", "fuse.aisfs", "-o", options, "x", tmp_path]
    subprocess.run(mount, check=True, pass_fds=[device])
    try:
        check_descriptor(device, ())
        assert connection_of(device) in (None, os.minor(_device_of(tmp_path)))
        with pytest.raises(ConfigError, match=r"-o allow_other: .* is mounted already"):
            check_descriptor(device, {"allow_other"})
    finally:
        umount2(tmp_path, MNT_DETACH)  # umount(8) would wait for an answer
    assert "unmounted again" in refusal(device)


def _device_of(mountpoint: Path) -> int:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    (device,) = (line.split()[2] for line in lines if line.split()[4] == str(mountpoint))
    major, _, minor = device.partition(":")
    return os.makedev(int(major), int(minor))
