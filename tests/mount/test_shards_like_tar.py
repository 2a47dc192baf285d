"""A shard's folder shows what GNU tar extracts: names, sizes, times and every byte."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount import zoo
from tests.mount.content import sha256, tree_of
from tests.mount.datasets import WITHOUT_TORCH
from tests.support.mounts import Mount, mounted, succeed
from tests.support.servers import running_server

pytestmark = pytest.mark.mount


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("shards")
    zoo.build(base / "zoo")
    (base / "store").mkdir()
    return (base / "zoo").rename(base / "store" / "zoo")


@pytest.fixture(scope="module")
def extracted(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("extracted")
    for name in zoo.MAKERS:
        zoo.extract(shards / name, root / name)
    return root


@pytest.fixture(scope="module")
def mount(
    shards: Path, fastpath: bool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mount]:
    place = tmp_path_factory.mktemp("mnt").resolve()
    with (
        running_server(shards.parent) as server,
        mounted("ais://zoo", place, endpoint=server.endpoint, deadline=300) as mount,
    ):
        yield mount


@pytest.mark.parametrize("name", sorted(zoo.MAKERS))
def test_the_folder_holds_what_gnu_tar_extracts(name: str, mount: Mount, extracted: Path):
    wanted = tree_of(extracted / name)
    found = tree_of(mount.path / f"{name}.d")
    assert found.files == wanted.files
    assert found.directories == wanted.directories
    assert found.links == wanted.links
    assert not found.others


@pytest.mark.parametrize("name", sorted(zoo.MAKERS))
def test_the_shard_itself_stays_a_file(name: str, mount: Mount, shards: Path):
    assert sha256(mount.path / name) == sha256(shards / name)
    assert os.stat(mount.path / name).st_size == os.stat(shards / name).st_size


@pytest.mark.parametrize("name", sorted(zoo.MAKERS))
def test_gnu_tar_packs_the_folder(name: str, mount: Mount, extracted: Path, tmp_path: Path):
    packed = tmp_path / "packed.tar"
    succeed("tar", "-C", mount.path / f"{name}.d", "-cf", packed, ".")
    again = tree_of(zoo.extract(packed, tmp_path / "again"))
    wanted = tree_of(extracted / name)
    assert again.files == wanted.files
    assert again.directories == wanted.directories
    assert again.links == wanted.links


def test_folders_are_found_by_name_and_not_listed(mount: Mount):
    assert sorted(os.listdir(mount.path)) == sorted(zoo.MAKERS)
    assert (mount.path / "ustar.tar.d").is_dir()
    assert (mount.path / "ustar.tar").is_file()


def test_no_folder_where_there_is_no_shard(mount: Mount):
    for name in ("missing.tar.d", "ustar.d", "ustar.tar.d.d", ".d", ".tar.d"):
        assert not (mount.path / name).exists(), name


def test_a_nested_shard_is_a_plain_member(mount: Mount):
    assert (mount.path / "nested.tar.d" / "inner.tar").is_file()
    assert os.listdir(mount.path / "nested.tar.d").count("inner.tar") == 1


def test_hard_links_are_one_inode(mount: Mount):
    folder = mount.path / "links.tar.d"
    numbers = {
        os.stat(folder / name).st_ino for name in ("data/first.bin", "data/second.bin", "third.bin")
    }
    assert len(numbers) == 1
    assert os.stat(folder / "other.txt").st_ino not in numbers


def test_symlinks_inside_lead_to_their_target(mount: Mount):
    folder = mount.path / "links.tar.d"
    assert (folder / "soft.txt").read_bytes() == b"other"
    assert (folder / "data" / "up.txt").read_bytes() == b"other"
    assert sorted(os.listdir(folder / "folder")) == sorted(os.listdir(folder / "data"))


def test_inode_numbers_differ_between_members(mount: Mount):
    folder = mount.path / "webdataset.tar.d" / "train"
    entries = list(os.scandir(folder))
    assert len(entries) == 150
    assert len({entry.inode() for entry in entries}) == 150
    assert all(entry.inode() == os.lstat(entry.path).st_ino for entry in entries)


def test_members_have_the_modes_of_the_mount(mount: Mount):
    folder = mount.path / "ustar.tar.d"
    assert os.stat(folder).st_mode & 0o7777 == 0o555
    assert os.stat(folder / "dir").st_mode & 0o7777 == 0o555
    assert os.stat(folder / "dir" / "b.txt").st_mode & 0o7777 == 0o444
    assert os.stat(folder / "dir" / "b.txt").st_uid == os.getuid()


def test_the_empty_shard_is_an_empty_directory(mount: Mount):
    assert os.listdir(mount.path / "empty.tar.d") == []


def test_a_local_directory_shows_the_same(shards: Path, extracted: Path, mountpoint: Path):
    with mounted(str(shards), mountpoint) as local:
        for name in zoo.MAKERS:
            wanted = tree_of(extracted / name)
            found = tree_of(local.path / f"{name}.d")
            assert (found.files, found.links) == (wanted.files, wanted.links), name


def test_webdataset_reads_the_mounted_shard(mount: Mount):
    script = WITHOUT_TORCH + (
        "import sys, warnings; warnings.simplefilter('ignore'); import webdataset as wds\n"
        "rows = list(wds.WebDataset(sys.argv[1], shardshuffle=False))\n"
        "print(len(rows), rows[7]['__key__'], len(rows[7]['jpg']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(mount.path / "webdataset.tar")],
        capture_output=True, check=True, timeout=90,
    )  # fmt: skip
    assert done.stdout.split() == [b"50", b"train/00007", b"3007"]
