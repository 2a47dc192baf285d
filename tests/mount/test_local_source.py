"""A directory on this machine as the bucket: nothing else is needed."""

import os
import stat
from pathlib import Path

import pytest

from tests.mount import zoo
from tests.mount.content import fill, payload, sha256, tree_of
from tests.support.mounts import aisfs, is_mountpoint, mounted, succeed

pytestmark = pytest.mark.mount

FILES = {
    "a.txt": b"a",
    "sub/b.bin": payload(300_000),
    "sub/deeper/c": b"",
    "d.bin": payload(131_072),
}


def test_a_path(tmp_path: Path, mountpoint: Path):
    fill(tmp_path / "data", FILES)
    with mounted(str(tmp_path / "data"), mountpoint) as mount:
        assert tree_of(mount.path).contents() == tree_of(tmp_path / "data").contents()
        assert stat.S_IMODE(os.stat(mount.path / "a.txt").st_mode) == 0o444
        assert os.stat(mount.path / "d.bin").st_blksize == 131_072


def test_a_relative_path(tmp_path: Path, mountpoint: Path):
    fill(tmp_path / "data", FILES)
    with mounted("./data", mountpoint, cwd=tmp_path) as mount:
        assert tree_of(mount.path).contents() == tree_of(tmp_path / "data").contents()


def test_a_relative_mountpoint(tmp_path: Path, mountpoint: Path):
    fill(tmp_path / "data", FILES)
    try:
        done = aisfs("mount", "./data", "./mnt", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert is_mountpoint(mountpoint)
        assert succeed("cat", mountpoint / "a.txt") == b"a"
    finally:
        done = aisfs("umount", "./mnt", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not is_mountpoint(mountpoint)


def test_times_and_sizes_are_those_of_the_files(tmp_path: Path, mountpoint: Path):
    fill(tmp_path / "data", FILES)
    for number, key in enumerate(FILES):
        os.utime(tmp_path / "data" / key, (1_500_000_000, 1_600_000_000 + number))
    with mounted(str(tmp_path / "data"), mountpoint) as mount:
        for number, (key, data) in enumerate(FILES.items()):
            status = os.stat(mount.path / key)
            assert (status.st_size, int(status.st_mtime)) == (len(data), 1_600_000_000 + number)


def test_an_empty_directory(tmp_path: Path, mountpoint: Path):
    (tmp_path / "data").mkdir()
    with mounted(str(tmp_path / "data"), mountpoint) as mount:
        assert os.listdir(mount.path) == []


def test_a_shard(tmp_path: Path, mountpoint: Path):
    fill(tmp_path / "in", FILES)
    (tmp_path / "data").mkdir()
    zoo.gnu_tar("-C", str(tmp_path / "in"), "-cf", str(tmp_path / "data" / "x.tar"), ".")
    with mounted(str(tmp_path / "data"), mountpoint) as mount:
        assert tree_of(mount.path / "x.tar.d").contents() == tree_of(tmp_path / "in").contents()
        assert sha256(mount.path / "x.tar") == sha256(tmp_path / "data" / "x.tar")
        assert os.listdir(mount.path) == ["x.tar"]


def test_the_source_stays_untouched(tmp_path: Path, mountpoint: Path):
    fill(tmp_path / "data", FILES)
    zoo.gnu_tar("-C", str(tmp_path / "data"), "-cf", str(tmp_path / "data" / "x.tar"), "a.txt")
    before = tree_of(tmp_path / "data")
    with mounted(str(tmp_path / "data"), mountpoint) as mount:
        tree_of(mount.path)
        tree_of(mount.path / "x.tar.d")
    assert tree_of(tmp_path / "data") == before
