"""The usual tools end with 0 on 10,000 objects and 20 shards, and copy every byte."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount import zoo
from tests.mount.content import fill, payload, tree_of
from tests.support.mounts import Mount, mounted, succeed
from tests.support.servers import running_server

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

FOLDERS, IN_FOLDER, SHARDS, IN_SHARD = 20, 500, 20, 40
NEEDLE = b"needle-in-a-haystack"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each path of the mount must hold: `bucket` as stored, `shards` unpacked."""
    base = tmp_path_factory.mktemp("tools")
    bucket = base / "store" / "bucket"
    for folder in range(FOLDERS):
        names = [f"objects/{folder:02}/{number:04}.txt" for number in range(IN_FOLDER)]
        fill(bucket, {name: name.encode() for name in names})
    (bucket / "objects/07/0123.txt").write_bytes(b"..." + NEEDLE + b"...\n")
    (bucket / "shards").mkdir()
    for shard in range(SHARDS):
        inside = base / "unpacked" / f"{shard:02}.tar.d"
        fill(
            inside, {f"{shard}/{number:03}.bin": payload(900, number) for number in range(IN_SHARD)}
        )
        fill(inside, {f"{shard}/label.txt": NEEDLE + b"\n"})
        zoo.gnu_tar(
            "-C", str(inside), "-cf", str(bucket / "shards" / f"{shard:02}.tar"), f"{shard}"
        )
    return base


@pytest.fixture(scope="module")
def mount(
    source: Path, fastpath: bool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mount]:
    place = tmp_path_factory.mktemp("mnt").resolve()
    with (
        running_server(source / "store") as server,
        mounted("ais://bucket", place, endpoint=server.endpoint, deadline=600) as mount,
    ):
        yield mount


def subset(source: Path) -> Path:
    return source / "store" / "bucket" / "objects" / "07"


def shard_folders(mount: Mount) -> list[Path]:
    return [mount.path / "shards" / f"{shard:02}.tar.d" for shard in range(SHARDS)]


def test_find(mount: Mount):
    files = succeed("find", mount.path, "-type", "f").splitlines()
    assert len(files) == len(set(files)) == FOLDERS * IN_FOLDER + SHARDS
    folders = succeed("find", mount.path, "-mindepth", "1", "-type", "d").splitlines()
    assert len(folders) == FOLDERS + 2


def test_find_by_size_and_time(mount: Mount):
    assert len(succeed("find", mount.path, "-name", "*.tar", "-size", "+1").splitlines()) == SHARDS
    assert succeed("find", mount.path, "-newermt", "2100-01-01") == b""


def test_du(mount: Mount, source: Path):
    lines = succeed("du", "-a", mount.path).splitlines()
    assert len(lines) == FOLDERS * IN_FOLDER + SHARDS + FOLDERS + 3
    stored = tree_of(source / "store" / "bucket").files
    found = succeed("find", mount.path, "-type", "f", "-printf", "%s\n").split()
    assert sum(map(int, found)) == sum(row[0] for row in stored.values())


def test_ls(mount: Mount):
    listed = succeed("ls", "-lR", mount.path)
    assert sum(line.startswith(b"-r--r--r--") for line in listed.splitlines()) == (
        FOLDERS * IN_FOLDER + SHARDS
    )
    assert b"?" not in listed


def test_rsync(mount: Mount, source: Path, tmp_path: Path):
    succeed("rsync", "-a", f"{mount.path}/objects/07/", tmp_path / "copy")
    assert tree_of(tmp_path / "copy").contents() == tree_of(subset(source)).contents()
    again = succeed("rsync", "-ai", f"{mount.path}/objects/07/", tmp_path / "copy")
    assert again == b"", "nothing has changed, so nothing is to be copied"
    checked = succeed("rsync", "-rcni", f"{mount.path}/objects/07/", f"{subset(source)}/")
    assert not [line for line in checked.splitlines() if line.startswith(b">")]


def test_cp(mount: Mount, source: Path, tmp_path: Path):
    succeed("cp", "-r", mount.path / "objects" / "07", tmp_path / "copy")
    assert tree_of(tmp_path / "copy").contents() == tree_of(subset(source)).contents()
    succeed("cp", "-a", mount.path / "shards", tmp_path / "shards")
    stored = source / "store" / "bucket" / "shards"
    assert tree_of(tmp_path / "shards").contents() == tree_of(stored).contents()


def test_tar_of_objects(mount: Mount, source: Path, tmp_path: Path):
    succeed("tar", "-C", mount.path / "objects", "-cf", tmp_path / "packed.tar", "07")
    unpacked = zoo.extract(tmp_path / "packed.tar", tmp_path / "out") / "07"
    assert tree_of(unpacked).contents() == tree_of(subset(source)).contents()


def test_grep(mount: Mount):
    found = succeed("grep", "-rl", NEEDLE, mount.path / "objects" / "07").splitlines()
    assert found == [os.fsencode(mount.path / "objects" / "07" / "0123.txt")]


def test_md5sum(mount: Mount, source: Path):
    names = sorted(os.listdir(subset(source)))
    there = succeed("md5sum", *names, cwd=mount.path / "objects" / "07")
    assert there == succeed("md5sum", *names, cwd=subset(source))
    shards = sorted(os.listdir(source / "store" / "bucket" / "shards"))
    there = succeed("md5sum", *shards, cwd=mount.path / "shards")
    assert there == succeed("md5sum", *shards, cwd=source / "store" / "bucket" / "shards")


def test_tools_on_every_shard_folder(mount: Mount, source: Path, tmp_path: Path):
    folders = shard_folders(mount)
    wanted = tree_of(source / "unpacked")
    assert len(succeed("find", *folders, "-type", "f").splitlines()) == SHARDS * (IN_SHARD + 1)
    succeed("du", "-a", *folders)
    succeed("ls", "-lR", *folders)
    succeed("rsync", "-a", *folders, tmp_path / "rsync")
    succeed("cp", "-r", *folders, (tmp_path / "cp").mkdir() or tmp_path / "cp")
    packed = tmp_path / "packed.tar"
    succeed("tar", "-C", mount.path / "shards", "-cf", packed, *(folder.name for folder in folders))
    zoo.extract(packed, tmp_path / "tar")
    for way in ("rsync", "cp", "tar"):
        assert tree_of(tmp_path / way).contents() == wanted.contents(), way
    found = succeed("grep", "-rl", NEEDLE, *folders).splitlines()
    assert len(found) == SHARDS


def test_one_pass_of_tar_into_a_pipe(mount: Mount, source: Path, tmp_path: Path):
    script = (
        f"set -o pipefail; tar cf - -C '{shard_folders(mount)[3]}' . | tar xf - -C '{tmp_path}'"
    )
    succeed("bash", "-c", script)
    assert tree_of(tmp_path).contents() == tree_of(source / "unpacked" / "03.tar.d").contents()
