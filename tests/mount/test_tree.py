"""Buckets as directories, objects as files: the four sources and what `stat` says."""

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.content import fill, payload, tree_of
from tests.support.mounts import Mount, environment, mounted, python, run, succeed
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount
BOTH_WAYS = True

PETS = {
    "readme.txt": b"hello\n",
    "empty.bin": b"",
    "train/0001.jpg": payload(100_003),
    "train/0002.jpg": payload(131_072),
    "train/deep/er/still.txt": b"deep",
    "training.txt": b"shares a prefix with train/",
    "val/0001.jpg": payload(131_073),
}
PROVIDERS = {"ais", "aws", "s3", "gcp", "gs", "azure", "az", "oci", "oc"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("tree") / "store"
    fill(root / "pets", PETS)
    fill(root / "other", {"x": b"x"})
    fill(root / "nothing", {})
    with running_server(root) as server:
        yield server


@pytest.fixture(scope="module")
def pets(server: RunningServer, shared_mountpoint: Path) -> Iterator[Mount]:
    with mounted("ais://pets", shared_mountpoint, endpoint=server.endpoint, deadline=300) as mount:
        yield mount


def contents(root: Path) -> dict[str, bytes]:
    return {
        os.fsdecode(name): (root / os.fsdecode(name)).read_bytes() for name in tree_of(root).files
    }


def test_one_bucket(pets: Mount):
    assert sorted(os.listdir(pets.path)) == [
        "empty.bin",
        "readme.txt",
        "train",
        "training.txt",
        "val",
    ]
    assert contents(pets.path) == PETS


def test_every_bucket_below_its_provider(server: RunningServer, mountpoint: Path):
    with mounted(None, mountpoint, endpoint=server.endpoint) as mount:
        assert "ais" in os.listdir(mount.path)
        assert set(os.listdir(mount.path)) <= PROVIDERS
        assert sorted(os.listdir(mount.path / "ais")) == ["nothing", "other", "pets"]
        assert contents(mount.path / "ais" / "pets") == PETS
        assert (mount.path / "ais" / "other" / "x").read_bytes() == b"x"
        assert os.listdir(mount.path / "ais" / "nothing") == []
        assert not (mount.path / "ais" / "missing").exists()
        assert not (mount.path / "nonsense").exists()


def test_a_bucket_is_found_before_anything_was_listed(server: RunningServer, mountpoint: Path):
    with mounted(None, mountpoint, endpoint=server.endpoint) as mount:
        assert (mount.path / "ais/pets/train/deep/er/still.txt").read_bytes() == b"deep"


def test_one_prefix(server: RunningServer, mountpoint: Path):
    with mounted("ais://pets/train/", mountpoint, endpoint=server.endpoint) as mount:
        assert sorted(os.listdir(mount.path)) == ["0001.jpg", "0002.jpg", "deep"]
        assert contents(mount.path) == {
            key.removeprefix("train/"): data
            for key, data in PETS.items()
            if key.startswith("train/")
        }


def test_an_empty_bucket(server: RunningServer, mountpoint: Path):
    with mounted("ais://nothing", mountpoint, endpoint=server.endpoint) as mount:
        assert os.listdir(mount.path) == []
        assert stat.S_ISDIR(os.stat(mount.path).st_mode)
        with pytest.raises(FileNotFoundError):
            os.stat(mount.path / "anything")


def test_the_endpoint_comes_from_the_environment(server: RunningServer, mountpoint: Path):
    environment = {"AIS_ENDPOINT": server.endpoint}
    with mounted("ais://pets", mountpoint, env=environment) as mount:
        assert (mount.path / "readme.txt").read_bytes() == b"hello\n"


def test_the_endpoint_option_wins_over_the_environment(server: RunningServer, mountpoint: Path):
    environment = {"AIS_ENDPOINT": "http://127.0.0.1:1"}
    with mounted("ais://pets", mountpoint, endpoint=server.endpoint, env=environment) as mount:
        assert (mount.path / "readme.txt").read_bytes() == b"hello\n"


@pytest.mark.parametrize("key", sorted(PETS))
def test_stat_of_a_file(key: str, pets: Mount):
    status = os.stat(pets.path / key)
    assert status.st_mode == stat.S_IFREG | 0o444
    assert (status.st_uid, status.st_gid) == (os.getuid(), os.getgid())
    assert status.st_size == len(PETS[key])
    assert status.st_blksize == 131_072
    assert status.st_blocks == -(-len(PETS[key]) // 512)
    assert status.st_nlink == 1
    assert status.st_dev == os.stat(pets.path).st_dev
    assert status.st_mtime > 1_000_000_000


def test_stat_of_directories(pets: Mount):
    for path in (pets.path, pets.path / "train", pets.path / "train" / "deep"):
        status = os.stat(path)
        assert status.st_mode == stat.S_IFDIR | 0o555, path
        assert (status.st_uid, status.st_gid) == (os.getuid(), os.getgid())
        assert status.st_nlink >= 1


def test_inode_numbers_agree_with_the_listing(pets: Mount):
    seen = set()
    for directory, _, _ in os.walk(pets.path):
        for entry in os.scandir(directory):
            assert entry.inode() == os.lstat(entry.path).st_ino, entry.path
            seen.add(entry.inode())
    assert len(seen) == len(PETS) + 4  # train, train/deep, train/deep/er, val


def test_reading_does_not_move_the_modification_time(pets: Mount):
    path = pets.path / "train" / "0001.jpg"
    before = os.stat(path).st_mtime_ns
    path.read_bytes()
    succeed("cat", path)
    assert os.stat(path).st_mtime_ns == before


def test_owner_and_modes_can_be_chosen(server: RunningServer, mountpoint: Path):
    options = ("--uid", "1234", "--gid", "2345", "--file-mode", "0640", "--dir-mode", "0750")
    with mounted("ais://pets", mountpoint, endpoint=server.endpoint, options=options) as mount:
        file, folder = os.stat(mount.path / "readme.txt"), os.stat(mount.path / "train")
        assert (file.st_uid, file.st_gid, stat.S_IMODE(file.st_mode)) == (1234, 2345, 0o640)
        assert (folder.st_uid, folder.st_gid, stat.S_IMODE(folder.st_mode)) == (1234, 2345, 0o750)


def test_options_in_the_form_of_fstab(server: RunningServer, mountpoint: Path):
    options = ("-o", "ro,uid=1234,gid=2345")
    with mounted("ais://pets", mountpoint, endpoint=server.endpoint, options=options) as mount:
        status = os.stat(mount.path / "readme.txt")
        assert (status.st_uid, status.st_gid) == (1234, 2345)


def test_repeated_options_and_commas_in_the_form_of_fstab(
    server: RunningServer, mountpoint: Path, tmp_path: Path
):
    log_file = tmp_path / "log"
    options = (
        *("-o", r"exclude=*.tar,include=**/*.{txt\,tar},exclude=**/b*,magic"),
        *("-o", f"include=readme.txt,no_fastpath,log_level=debug,log_file={log_file}"),
    )
    with mounted("ais://pets", mountpoint, endpoint=server.endpoint, options=options) as mount:
        shown = {os.path.relpath(path, mount.path) for path in mount.path.rglob("*.*")}
    with mounted(
        "ais://pets", mountpoint, endpoint=server.endpoint, options=(
            "--exclude", "*.tar", "--include", "**/*.{txt,tar}", "--exclude", "**/b*",
            "--include", "readme.txt", "--magic", "--no-fastpath",
        ),
    ) as mount:  # fmt: skip
        assert shown == {os.path.relpath(path, mount.path) for path in mount.path.rglob("*.*")}
    assert "readme.txt" in shown


def test_a_line_of_fstab(server: RunningServer, mountpoint: Path):
    """As mount(8) calls the helper of FUSE for the type fuse.aisfs."""
    path = f"{Path(sys.executable).parent}:{environment()['PATH']}"
    helper = ["mount.fuse3", "ais://pets", mountpoint, "-t", "fuse.aisfs"]
    options = f"ro,_netdev,nosuid,endpoint={server.endpoint},cache_size=0"
    env = environment({"PATH": path, "AISFS_LOG_FILE": os.devnull})
    done = run(*helper, "-o", options, env=env)
    try:
        assert (done.returncode, done.stderr) == (0, b"")
        assert "readme.txt" in os.listdir(mountpoint)
    finally:
        succeed("umount", mountpoint)
    refused = run(*helper, "-o", f"rw,endpoint={server.endpoint}", env=env)
    assert refused.returncode
    assert b"mounts are read-only without --writable" in refused.stderr


@pytest.mark.parametrize("options", [(), ("--allow-other",), ("-o", "allow_other")])
def test_other_users_only_with_allow_other(
    options: tuple[str, ...], server: RunningServer, open_mountpoint: Path
):
    script = "import os, sys\nos.setgid(65534), os.setuid(65534)\nprint(os.listdir(sys.argv[1]))"
    with mounted("ais://pets", open_mountpoint, endpoint=server.endpoint, options=options) as mount:
        if options:
            assert b"readme.txt" in python(script, mount.path)
        else:
            with pytest.raises(AssertionError, match="PermissionError"):
                python(script, mount.path)


def test_missing_names(pets: Mount):
    for name in ("missing", "train/missing", "missing/below", "tra", "readme.tx"):
        with pytest.raises(FileNotFoundError):
            os.stat(pets.path / name)
    with pytest.raises(NotADirectoryError):
        os.stat(pets.path / "readme.txt" / "below")


def test_a_name_of_more_than_255_bytes(pets: Mount):
    with pytest.raises(OSError, match="File name too long"):
        os.stat(pets.path / ("n" * 256))
    with pytest.raises(FileNotFoundError):
        os.stat(pets.path / ("n" * 255))


def test_a_directory_is_not_read_as_a_file(pets: Mount):
    with pytest.raises(IsADirectoryError):
        (pets.path / "train").read_bytes()
    with pytest.raises(NotADirectoryError):
        os.listdir(pets.path / "readme.txt")


def test_zero_size_objects(pets: Mount):
    assert (pets.path / "empty.bin").read_bytes() == b""
    assert succeed("md5sum", pets.path / "empty.bin").startswith(
        b"d41d8cd98f00b204e9800998ecf8427e"
    )


def test_df(pets: Mount):
    assert os.statvfs(pets.path).f_bsize > 0
    assert os.statvfs(pets.path).f_namemax == 255
    assert run("df", pets.path).returncode == 0
    assert run("df", "-i", pets.path / "readme.txt").returncode == 0


def test_the_file_system_names_itself(pets: Mount):
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    line = next(line for line in lines if line[4] == str(pets.path))
    assert line[line.index("-") + 1].startswith("fuse")
    assert "aisfs" in " ".join(line)
