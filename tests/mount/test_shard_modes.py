"""`--shards file|dir|both`, and the rule that a real key wins over an invented name."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount import zoo
from tests.mount.content import fill, payload
from tests.support.mounts import Mount, mounted
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

INSIDE = {"m/one.bin": payload(5000, 1), "two.txt": b"two"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("modes")
    fill(base / "in", INSIDE)
    bucket = fill(
        base / "store" / "b",
        {
            "plain.txt": b"plain",
            "object.tar.d": b"a real object",
            "prefix.tar.d/real.txt": b"a real prefix",
            "object.tar.raw": b"real raw",
        },
    )
    (bucket / "sub").mkdir()
    for name in ("x.tar", "sub/y.tar", "object.tar", "prefix.tar"):
        zoo.gnu_tar("-C", str(base / "in"), "-cf", str(bucket / name), "m", "two.txt")
    return base / "store"


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[RunningServer]:
    with running_server(store) as server:
        yield server


def mount_with(mode: str | None, server: RunningServer, mountpoint: Path):
    options = ("--shards", mode) if mode else ()
    return mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options)


def is_opened(folder: Path) -> bool:
    found = {
        os.path.relpath(os.path.join(directory, name), folder): Path(directory, name).read_bytes()
        for directory, _, names in os.walk(folder)
        for name in names
    }
    return found == INSIDE


def raw(store: Path, name: str) -> bytes:
    return (store / "b" / name).read_bytes()


def check_real_keys_win(mount: Mount) -> None:
    assert (mount.path / "object.tar.d").read_bytes() == b"a real object"
    assert os.listdir(mount.path / "prefix.tar.d") == ["real.txt"]
    assert (mount.path / "prefix.tar.d" / "real.txt").read_bytes() == b"a real prefix"
    listed = os.listdir(mount.path)
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("mode", [None, "file"])
def test_file(mode: str | None, server: RunningServer, store: Path, mountpoint: Path):
    with mount_with(mode, server, mountpoint) as mount:
        assert sorted(os.listdir(mount.path)) == [
            "object.tar", "object.tar.d", "object.tar.raw", "plain.txt", "prefix.tar",
            "prefix.tar.d", "sub", "x.tar",
        ]  # fmt: skip
        assert os.listdir(mount.path / "sub") == ["y.tar"]
        assert (mount.path / "x.tar").read_bytes() == raw(store, "x.tar")
        assert is_opened(mount.path / "x.tar.d")
        assert is_opened(mount.path / "sub" / "y.tar.d")
        check_real_keys_win(mount)
        with pytest.raises(FileNotFoundError):
            os.stat(mount.path / "x.tar.raw")
        with pytest.raises(NotADirectoryError):
            os.listdir(mount.path / "x.tar")


def test_dir(server: RunningServer, store: Path, mountpoint: Path):
    with mount_with("dir", server, mountpoint) as mount:
        listed = os.listdir(mount.path)
        assert "x.tar" in listed
        assert "x.tar.raw" not in listed
        assert "x.tar.d" not in listed
        assert is_opened(mount.path / "x.tar")
        assert is_opened(mount.path / "sub" / "y.tar")
        assert (mount.path / "x.tar.raw").read_bytes() == raw(store, "x.tar")
        assert (mount.path / "sub" / "y.tar.raw").read_bytes() == raw(store, "sub/y.tar")
        assert (mount.path / "object.tar.raw").read_bytes() == b"real raw"
        check_real_keys_win(mount)


def test_dir_walks_into_shards(server: RunningServer, mountpoint: Path):
    with mount_with("dir", server, mountpoint) as mount:
        found = {
            os.path.relpath(os.path.join(directory, name), mount.path)
            for directory, _, names in os.walk(mount.path)
            for name in names
        }
        for shard in ("x.tar", "sub/y.tar", "object.tar", "prefix.tar"):
            assert {f"{shard}/{name}" for name in INSIDE} <= found


def test_dir_kinds_agree_between_listing_and_stat(server: RunningServer, mountpoint: Path):
    with mount_with("dir", server, mountpoint) as mount:
        for entry in os.scandir(mount.path):
            assert entry.is_dir() == os.path.isdir(entry.path), entry.name
            assert entry.is_file() == os.path.isfile(entry.path), entry.name


def test_both(server: RunningServer, store: Path, mountpoint: Path):
    with mount_with("both", server, mountpoint) as mount:
        assert sorted(os.listdir(mount.path)) == [
            "object.tar", "object.tar.d", "object.tar.raw", "plain.txt", "prefix.tar",
            "prefix.tar.d", "sub", "x.tar", "x.tar.d",
        ]  # fmt: skip
        assert sorted(os.listdir(mount.path / "sub")) == ["y.tar", "y.tar.d"]
        assert (mount.path / "x.tar").read_bytes() == raw(store, "x.tar")
        assert is_opened(mount.path / "x.tar.d")
        check_real_keys_win(mount)


@pytest.mark.parametrize("mode", ["file", "dir", "both"])
def test_a_shard_folder_found_without_a_listing(mode: str, server: RunningServer, mountpoint: Path):
    folder = "sub/y.tar" if mode == "dir" else "sub/y.tar.d"
    with mount_with(mode, server, mountpoint) as mount:
        assert (mount.path / folder / "two.txt").read_bytes() == b"two"


def test_a_local_directory_has_the_same_modes(store: Path, mountpoint: Path):
    with mounted(str(store / "b"), mountpoint, options=("--shards", "dir")) as mount:
        assert is_opened(mount.path / "x.tar")
        assert (mount.path / "x.tar.raw").read_bytes() == raw(store, "x.tar")
