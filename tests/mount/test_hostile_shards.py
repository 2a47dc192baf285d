"""Nothing outside a shard's folder can be reached through what the shard says."""

import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.content import fill, tree_of
from tests.support.mounts import Mount, mounted, succeed
from tests.support.servers import running_server

pytestmark = pytest.mark.mount

CLIMBING = (
    "../up.txt",
    "a/../../c",
    "../../../../../../etc/aisfs-evil",
    "..",
    "sub/..",
    "x/../../../y",
)
HARMLESS = {
    "./dotted.txt": "dotted.txt",
    "e//f.txt": "e/f.txt",
    "/absolute/file.txt": "absolute/file.txt",
    "plain.txt": "plain.txt",
    "dir/./inner.txt": "dir/inner.txt",
}
LINKS = {
    "to-passwd": "/etc/passwd",
    "to-root": "/",
    "climbs": "../../../../../../../../etc/passwd",
    "one-up": "..",
    "out-by-one": "../outside.txt",
    "dir/two-up": "../../outside.txt",
    "dir/hidden-climb": "inner.txt/../../../outside.txt",
    "to-proc": "/proc/self/root/etc/passwd",
    "loop-a": "loop-b",
    "loop-b": "loop-a",
    "self": "self",
    "missing": "nowhere.txt",
}
HARD_LINKS = {
    "hard-passwd": "/etc/passwd",
    "hard-up": "../outside.txt",
    "hard-missing": "nowhere.txt",
    "hard-self": "hard-self",
}
OUTSIDE = b"this is not part of the shard"


def add(tar: tarfile.TarFile, name: str, data: bytes = b"", **fields: object) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    tar.addfile(info, io.BytesIO(data))


def hostile() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in CLIMBING:
            add(tar, name, b"climbing " + name.encode())
        for name in HARMLESS:
            add(tar, name, b"harmless " + name.encode())
        for name, target in LINKS.items():
            add(tar, name, type=tarfile.SYMTYPE, linkname=target)
        for name, target in HARD_LINKS.items():
            add(tar, name, type=tarfile.LNKTYPE, linkname=target)
        add(tar, "null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)
        add(tar, "disk", type=tarfile.BLKTYPE, devmajor=8, devminor=0)
        add(tar, "pipe", type=tarfile.FIFOTYPE)
        add(tar, "escape", type=tarfile.SYMTYPE, linkname="/tmp")
        add(tar, "escape/evil.txt", b"through a link")
        add(tar, "setuid", b"#!/bin/sh\n", mode=0o6777, uid=0, gid=0, uname="root")
        add(tar, "last.txt", b"last")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def mount(fastpath: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    root = tmp_path_factory.mktemp("hostile") / "store"
    fill(root / "b", {"x.tar": hostile(), "outside.txt": OUTSIDE})
    place = tmp_path_factory.mktemp("mnt").resolve()
    with (
        running_server(root) as server,
        mounted(
            "ais://b", place, endpoint=server.endpoint, deadline=300, expected_log=[r"x\.tar"]
        ) as mount,
    ):
        yield mount


def entries(folder: Path) -> Iterator[Path]:
    for directory, folders, files in os.walk(folder, followlinks=False):
        yield from (Path(directory, name) for name in folders + files)


def test_only_files_directories_and_links_appear(mount: Mount):
    tree = tree_of(mount.path / "x.tar.d")
    assert not tree.others
    assert not {b"null", b"disk", b"pipe"} & (set(tree.files) | set(tree.links))


def test_harmless_names_are_tidied(mount: Mount):
    for name, shown in HARMLESS.items():
        data = (mount.path / "x.tar.d" / shown).read_bytes()
        assert data == b"harmless " + name.encode()
    assert (mount.path / "x.tar.d" / "last.txt").read_bytes() == b"last"


def test_no_component_is_a_dot(mount: Mount):
    for path in entries(mount.path / "x.tar.d"):
        assert path.name not in ("", ".", "..")


def test_no_link_leads_out(mount: Mount):
    folder = mount.path / "x.tar.d"
    for path in entries(folder):
        if path.is_symlink():
            assert not os.readlink(path).startswith("/"), path
            assert Path(os.path.realpath(path)).is_relative_to(folder), path


@pytest.mark.parametrize("name", [*LINKS, *HARD_LINKS])
def test_following_a_link_gives_nothing_from_outside(name: str, mount: Mount):
    path = mount.path / "x.tar.d" / name
    with pytest.raises(OSError, match=r"No such file|Too many levels|Input/output"):
        path.read_bytes()


def test_hidden_links_do_not_break_a_walk_that_follows(mount: Mount):
    for seen, _ in enumerate(os.walk(mount.path / "x.tar.d", followlinks=True)):
        assert seen < 1000, "the walk does not end"
    succeed("find", mount.path / "x.tar.d")


def test_climbing_members_stay_inside(mount: Mount):
    assert sorted(os.listdir(mount.path)) == ["outside.txt", "x.tar"]
    assert (mount.path / "outside.txt").read_bytes() == OUTSIDE
    assert not os.path.exists("/etc/aisfs-evil")
    assert not os.path.exists("/tmp/evil.txt")
    known = {b"climbing " + name.encode() for name in CLIMBING}
    known |= {b"harmless " + name.encode() for name in HARMLESS}
    known |= {b"through a link", b"#!/bin/sh\n", b"last"}
    for name in tree_of(mount.path / "x.tar.d").files:
        assert (mount.path / "x.tar.d" / os.fsdecode(name)).read_bytes() in known


def test_a_member_below_a_link_is_no_way_out(mount: Mount):
    folder = mount.path / "x.tar.d"
    inner = folder / "escape" / "evil.txt"
    assert Path(os.path.realpath(inner)).is_relative_to(folder)
    if inner.exists():
        assert inner.read_bytes() == b"through a link"


def test_no_special_mode_bits(mount: Mount):
    for path in entries(mount.path / "x.tar.d"):
        status = os.lstat(path)
        assert not status.st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX), path
        assert not status.st_mode & 0o222 or stat.S_ISLNK(status.st_mode), path


def test_the_mount_refuses_devices_and_setuid(mount: Mount):
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    options = next(line[5] for line in lines if line[4] == str(mount.path)).split(",")
    assert {"nosuid", "nodev"} <= set(options)


def test_the_shard_says_that_something_was_left_out(mount: Mount):
    assert os.getxattr(mount.path / "x.tar.d", "user.aisfs.skipped").strip()
