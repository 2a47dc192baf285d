"""Symbolic links on writable mounts, and empty files that mknod makes: small objects, plain to other clients."""

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.writable import Writable, writable
from tests.support.mounts import Mount, eventually, mounted, succeed
from tests.support.tars import END, entry

pytestmark = pytest.mark.mount

WAYS = {
    "ais": ("ais", []),
    "directory": ("directory", []),
    "write-back": ("ais", ["--write-back", "3600"]),
}


@pytest.fixture(scope="module", params=sorted(WAYS))
def place(request: pytest.FixtureRequest, fastpath: bool, tmp_path_factory: pytest.TempPathFactory):
    backend, options = WAYS[request.param]
    base = tmp_path_factory.mktemp(f"links-{request.param}")
    with writable(base, backend=backend, options=options, deadline=600) as place:
        yield place


@pytest.fixture
def folder(place: Writable, request: pytest.FixtureRequest) -> Path:
    path = place.path / request.node.name.split("[")[0]
    path.mkdir()
    return path


@pytest.fixture
def other(place: Writable, tmp_path: Path) -> Iterator[Mount]:
    """Another mount of the same bucket, which is made after the test has written."""
    mountpoint = tmp_path / "other"
    mountpoint.mkdir()
    source = str(place.files) if place.server is None else f"ais://{place.bucket}"
    endpoint = None if place.server is None else place.server.endpoint
    with mounted(source, mountpoint, endpoint=endpoint) as mount:
        yield mount


def kinds(path: Path) -> dict[str, str]:
    """What a listing alone says of each name; it asks for nothing else."""
    with os.scandir(path) as entries:
        return {
            each.name: "link" if each.is_symlink() else "directory" if each.is_dir() else "file"
            for each in entries
        }


def test_a_link_is_one_for_every_mount_and_a_small_object_for_others(
    place: Writable, folder: Path, other: Mount
):
    (folder / "d").mkdir()
    (folder / "d" / "f").write_bytes(b"content")
    os.symlink("d", folder / "to-d")
    os.symlink("to-d/f", folder / "to-f")
    os.symlink("../nowhere", folder / "dangling")
    succeed(*_flush(place))
    elsewhere = other.path / folder.name
    for path in (folder, elsewhere):
        assert kinds(path) == {
            "d": "directory", "to-d": "link", "to-f": "link", "dangling": "link",
        }  # fmt: skip
        found = os.lstat(path / "to-f")
        assert stat.S_IFMT(found.st_mode) == stat.S_IFLNK
        assert found.st_size == len("to-d/f")
        assert os.readlink(path / "dangling") == "../nowhere"
        assert (path / "to-f").read_bytes() == b"content"
        assert not (path / "dangling").exists()
    assert place.stored(f"{folder.name}/to-f") == b"to-d/f"
    assert place.stored(f"{folder.name}/dangling") == b"../nowhere"


def test_a_link_in_a_bucket_can_be_found_by_name_only(place: Writable, folder: Path, other: Mount):
    """Without a listing of its directory."""
    os.symlink("target of it", folder / "l")
    assert os.readlink(other.path / folder.name / "l") == "target of it"


def test_links_are_made_replaced_renamed_and_removed_as_anywhere(folder: Path):
    (folder / "f").write_bytes(b"x")
    succeed("ln", "-s", "f", folder / "l")
    with pytest.raises(FileExistsError):
        os.symlink("g", folder / "l")
    with pytest.raises(FileExistsError):
        os.symlink("g", folder / "f")
    assert os.readlink(folder / "l") == "f"
    succeed("ln", "-sfn", "g", folder / "l")
    assert os.readlink(folder / "l") == "g"
    os.utime(folder / "l", ns=(0, 10**18), follow_symlinks=False)
    found = os.lstat(folder / "l")
    assert (found.st_mtime_ns, stat.S_ISLNK(found.st_mode)) == (10**18, True)
    os.rename(folder / "l", folder / "m")
    assert os.readlink(folder / "m") == "g"
    os.rename(folder / "m", folder / "f")
    assert kinds(folder) == {"f": "link"}
    os.unlink(folder / "f")
    assert os.listdir(folder) == []
    os.symlink("x" * 4095, folder / "long")
    assert os.readlink(folder / "long") == "x" * 4095
    (folder / "f").write_bytes(b"x")
    os.rename(folder / "f", folder / "long")
    assert (folder / "long").read_bytes() == b"x"


def test_what_others_write_over_a_link_is_a_file(place: Writable, folder: Path, other: Mount):
    os.symlink("f", folder / "l")
    place.put(f"{folder.name}/l", b"g")
    assert kinds(other.path / folder.name) == {"l": "file"}


def test_a_link_with_the_name_of_a_shard_is_no_shard(folder: Path):
    os.symlink("other.tar", folder / "l.tar")
    assert kinds(folder) == {"l.tar": "link"}
    assert not (folder / "l.tar.d").exists()
    assert os.readlink(folder / "l.tar") == "other.tar"


def test_a_link_is_no_shard_of_a_dataset(place: Writable, folder: Path, tmp_path: Path):
    if place.server is None:
        pytest.skip("of one kind of store")
    (folder / "real.tar").write_bytes(entry(b"a.txt", b"content") + END)
    os.symlink("real.tar", folder / "latest.tar")
    succeed(*_flush(place))
    mountpoint = tmp_path / "dataset"
    mountpoint.mkdir()
    source = f"ais://{place.bucket}/{folder.name}/*.tar"
    with mounted(
        source, mountpoint, endpoint=place.server.endpoint, expected_log=["1 not a shard"]
    ) as mount:
        assert os.listdir(mount.path) == ["real"]


def test_nothing_follows_a_link_for_a_program(place: Writable, folder: Path, tmp_path: Path):
    """What it leads to outside is opened by the program, with the program's rights, and by nobody else."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    os.symlink(secret, folder / "l")
    assert (folder / "l").read_bytes() == b"secret"
    assert place.stored(f"{folder.name}/l") == os.fsencode(secret)


def test_programs(folder: Path, tmp_path: Path):
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "d" / "f").write_bytes(b"content")
    os.symlink("d/f", source / "l")
    os.symlink("/nonexistent/absolute", source / "absolute")
    os.utime(source / "l", ns=(0, 10**18), follow_symlinks=False)
    succeed("tar", "-cf", tmp_path / "all.tar", "-C", source, ".")
    (folder / "tar").mkdir()
    succeed("tar", "-xf", tmp_path / "all.tar", "-C", folder / "tar")
    succeed("cp", "-a", source, folder / "cp")
    succeed("rsync", "-a", f"{source}/", folder / "rsync")
    for name in ("tar", "cp", "rsync"):
        assert os.readlink(folder / name / "absolute") == "/nonexistent/absolute"
        assert (folder / name / "l").read_bytes() == b"content"
        assert os.lstat(folder / name / "l").st_mtime_ns == 10**18
    again = subprocess.run(
        ["rsync", "-ai", "--exclude=d/", f"{source}/", folder / "rsync"],
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    assert again.stdout == b""


def test_a_virtual_environment_of_python(folder: Path):
    succeed(sys.executable, "-m", "venv", "--symlinks", "--without-pip", folder / "v")
    assert (folder / "v" / "bin" / "python").is_symlink()
    done = subprocess.run(
        [folder / "v" / "bin" / "python", "-c", "import sys; print(sys.prefix)"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.strip() == str(folder / "v")


def test_mknod_makes_an_empty_file(place: Writable, folder: Path):
    """As the kernel's servers of NFS and SMB do, before they open it."""
    os.mknod(folder / "f", stat.S_IFREG | 0o640)
    found = os.stat(folder / "f")
    assert (found.st_size, stat.S_IMODE(found.st_mode)) == (0, 0o640)
    with pytest.raises(FileExistsError):
        os.mknod(folder / "f", stat.S_IFREG | 0o640)
    with open(folder / "f", "r+b") as file:
        file.write(b"hello")
    succeed("sync", folder / "f")
    assert place.stored(f"{folder.name}/f") == b"hello"
    with pytest.raises(OSError, match="not supported"):
        os.setxattr(folder / "f", "user.DOSATTRIB", b"0x20")


def test_mknod_alone_is_in_the_store(place: Writable, folder: Path):
    os.mknod(folder / "f", stat.S_IFREG | 0o640)
    succeed(*_flush(place))
    assert place.stored(f"{folder.name}/f") == b""


def _flush(place: Writable) -> list[str]:
    return [sys.executable, "-m", "aisfs", "flush", str(place.path)]


SPECIAL = {
    "chmod": lambda file: os.chmod(file, 0o4755),
    "sticky": lambda file: os.chmod(file, 0o1644),
    "open": lambda file: os.close(os.open(f"{file}2", os.O_WRONLY | os.O_CREAT, 0o4755)),
    "mknod": lambda file: os.mknod(f"{file}2", stat.S_IFREG | 0o2755),
}


@pytest.mark.parametrize("way", sorted(SPECIAL))
def test_special_bits_of_files_are_refused(place: Writable, way: str):
    folder = place.path / f"special {way}"
    folder.mkdir()
    (folder / "f").write_bytes(b"x")
    os.chmod(folder / "f", 0o755)
    with pytest.raises(PermissionError):
        SPECIAL[way](folder / "f")
    assert os.listdir(folder) == ["f"]
    assert stat.S_IMODE(os.stat(folder / "f").st_mode) == 0o755


def test_special_bits_of_directories_last_as_long_as_the_mount(folder: Path):
    os.mkdir(folder / "d", 0o1777)
    os.chmod(folder / "d", 0o2775)
    assert stat.S_IMODE(os.stat(folder / "d").st_mode) == 0o2775


def test_ignored_refusals_drop_special_bits(tmp_path: Path):
    with writable(tmp_path, backend="directory", options=["--ignore-attr-changes"]) as place:
        (place.path / "f").write_bytes(b"x")
        os.chmod(place.path / "f", 0o4755)
        assert stat.S_IMODE(os.stat(place.path / "f").st_mode) == 0o755


def test_members_of_shards_are_made_by_writing_them(place: Writable, folder: Path):
    (folder / "s.tar.d").mkdir()
    with pytest.raises(PermissionError):
        os.symlink("x", folder / "s.tar.d" / "l")
    with pytest.raises(PermissionError):
        os.mknod(folder / "s.tar.d" / "f", stat.S_IFREG | 0o644)
    assert os.listdir(folder / "s.tar.d") == []


def test_a_link_is_safe_when_it_was_made(tmp_path: Path):
    """With --write-back, too: whether the bucket can keep it is known only from the store."""
    with writable(tmp_path, options=["--write-back", "3600"]) as place:
        os.symlink("target", place.path / "l")
        assert place.stored("l") == b"target"
        assert os.readlink(place.path / "l") == "target"


def test_of_two_that_make_a_link_one_wins(tmp_path: Path):
    with (
        writable(tmp_path) as one,
        writable(tmp_path, server=one.server, name="two") as two,
    ):
        assert os.listdir(two.path) == []
        os.symlink("first", one.path / "l")
        with pytest.raises(OSError, match="exists") as caught:
            os.symlink("second", two.path / "l")
        assert caught.value.errno == errno.EEXIST
        assert one.stored("l") == b"first"
        assert eventually(lambda: os.readlink(two.path / "l") == "first")
