"""A directory on this machine as the bucket: nothing else is needed."""

import os
import re
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


def link(path: Path, target: str | Path, *, of_another: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    if of_another and os.geteuid() == 0:
        os.lchown(path, 65534, 65534)


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A directory with links of all kinds; `/etc/passwd` is no file of a usual user."""
    root = tmp_path / "data"
    fill(root, {"sub/1.jpg": b"one"})
    fill(tmp_path / "blobs", {"deadbeef": b"blob", "deeper/3.jpg": b"three"})
    link(root / "inside.jpg", "sub/1.jpg")
    link(root / "sub" / "2.jpg", "../../blobs/deadbeef")
    link(root / "foreign.txt", "/etc/passwd", of_another=True)
    link(root / "nowhere.jpg", "nothing")
    link(root / "disk", tmp_path / "blobs" / "deeper")
    link(root / "sub" / "up", "..")
    link(tmp_path / "blobs" / "deeper" / "round", tmp_path / "data" / "sub")
    return root


FOLLOWED = ["inside.jpg", "sub/1.jpg", "sub/2.jpg"]
ALL_LINKS = [*FOLLOWED, "disk/3.jpg", "disk/round/1.jpg", "disk/round/2.jpg", "foreign.txt"]
"""Without what repeats itself: `sub/up` is a directory above, and so is `disk/round/up`."""


def files_in(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_links_are_followed_where_all_is_the_users_own(linked: Path, mountpoint: Path):
    said = [r"data/\S+: a symbolic link that is not followed"]
    with mounted(str(linked), mountpoint, expected_log=said) as mount:
        assert files_in(mount.path) == FOLLOWED
        assert (mount.path / "sub" / "2.jpg").read_bytes() == b"blob"
        assert not (mount.path / "foreign.txt").exists()
        left = "a link that is not followed, or no file"
        for path, count in ((mount.path, 3), (mount.path / "sub", 1)):
            skipped = os.getxattr(path, "user.aisfs.skipped").decode()
            assert skipped == f"{left}: {count}"
        assert mount.log().count("WARNING") == 1
    listed = aisfs("ls", "-R", linked)
    assert listed.stdout.decode().splitlines() == FOLLOWED
    assert f"4 names are not listed, as in a mount: {left}" in listed.stderr.decode()


def test_pack_follows_the_links_of_a_mount(linked: Path, tmp_path: Path, mountpoint: Path):
    shard = tmp_path / "out" / "x.tar"
    done = aisfs("pack", linked, shard)
    assert done.returncode == 1
    for name, why in (
        ("foreign.txt", "a link that is not followed; --follow-links follows all"),
        ("nowhere.jpg", "No such file or directory"),
        ("disk", "a link that is not followed; --follow-links follows all"),
        ("sub/up", "a link that is not followed; --follow-links follows all"),
    ):
        assert f"left out: {linked}/{name}: {why}" in done.stderr.decode()
    assert succeed("tar", "-tf", shard).decode().split() == FOLLOWED
    assert aisfs("pack", linked, shard, "--follow-links", "--replace").returncode == 1
    assert sorted(succeed("tar", "-tf", shard).decode().split()) == sorted(ALL_LINKS)


def test_all_links_are_followed_on_demand(linked: Path, mountpoint: Path):
    said = [r"data/\S+: a symbolic link that is not followed"]
    options = ["--follow-links"]
    with mounted(str(linked), mountpoint, options=options, expected_log=said) as mount:
        assert files_in(mount.path) == sorted(ALL_LINKS)
        assert (mount.path / "disk" / "round" / "2.jpg").read_bytes() == b"blob"
        assert (mount.path / "foreign.txt").read_bytes() == Path("/etc/passwd").read_bytes()
    listed = aisfs("ls", "-R", "--follow-links", linked)
    assert sorted(listed.stdout.decode().splitlines()) == sorted(ALL_LINKS)


def test_a_link_that_was_typed_is_followed(tmp_path: Path, mountpoint: Path):
    """Like the cache of huggingface_hub, also where somebody else made the link."""
    fill(tmp_path / "in", {"1.jpg": b"one", "1.cls": b"3"})
    (tmp_path / "hub" / "blobs").mkdir(parents=True)
    blob = tmp_path / "hub" / "blobs" / "deadbeef"
    zoo.gnu_tar("-C", str(tmp_path / "in"), "-cf", str(blob), "1.jpg", "1.cls")
    place = tmp_path / "hub" / "snapshots" / "abc" / "data"
    link(place / "x-0.tar", blob, of_another=True)
    link(place / "x-1.tar", blob)
    if os.geteuid() != 0:
        os.chmod(blob, 0o444)
    for source in (f"{place}/x-0.tar", f"{place}/x-{{0..0}}.tar"):
        with mounted(source, mountpoint, options=["--view", "class"]) as mount:
            assert files_in(mount.path) == ["3/1.jpg"]
        for command in (["inspect", "--json"], ["ls"]):
            done = aisfs(*command, source)
            assert (done.returncode, done.stderr) == (0, b"")
            assert re.search(rb"x-0.tar|\"shards\": 1\b", done.stdout)
    out = tmp_path / "unpacked"
    assert aisfs("unpack", f"{place}/x-0.tar", out).returncode == 0
    assert files_in(out) == ["1.cls", "1.jpg"]
