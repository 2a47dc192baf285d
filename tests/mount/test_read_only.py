"""Any change is refused with EROFS, on objects and inside shards."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mount import zoo
from tests.mount.content import fill, tree_of
from tests.support.mounts import Mount, mounted, run
from tests.support.servers import running_server

pytestmark = pytest.mark.mount
BOTH_WAYS = True


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("readonly")
    inside = fill(base / "in", {"file.txt": b"member", "folder/x": b"x"})
    bucket = fill(base / "store" / "b", {"file.txt": b"object", "folder/x": b"x"})
    zoo.gnu_tar("-C", str(inside), "-cf", str(bucket / "x.tar"), ".")
    return base / "store"


@pytest.fixture(scope="module")
def mount(fastpath: bool, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    place = tmp_path_factory.mktemp("mnt").resolve()
    with (
        running_server(store) as server,
        mounted("ais://b", place, endpoint=server.endpoint, deadline=300) as mount,
    ):
        yield mount


def opened(path: Path, flags: int) -> None:
    os.close(os.open(path, flags, 0o644))


CHANGES: dict[str, Callable[[Path], object]] = {
    "create": lambda folder: opened(folder / "new.txt", os.O_WRONLY | os.O_CREAT),
    "create exclusively": lambda folder: opened(
        folder / "new.txt", os.O_WRONLY | os.O_CREAT | os.O_EXCL
    ),
    "open for writing": lambda folder: opened(folder / "file.txt", os.O_WRONLY),
    "open for both": lambda folder: opened(folder / "file.txt", os.O_RDWR),
    "open for appending": lambda folder: opened(folder / "file.txt", os.O_WRONLY | os.O_APPEND),
    "open truncating": lambda folder: opened(folder / "file.txt", os.O_WRONLY | os.O_TRUNC),
    "truncate": lambda folder: os.truncate(folder / "file.txt", 0),
    "unlink": lambda folder: os.unlink(folder / "file.txt"),
    "mkdir": lambda folder: os.mkdir(folder / "new"),
    "rmdir": lambda folder: os.rmdir(folder / "folder"),
    "rename": lambda folder: os.rename(folder / "file.txt", folder / "other.txt"),
    "rename a directory": lambda folder: os.rename(folder / "folder", folder / "other"),
    "chmod": lambda folder: os.chmod(folder / "file.txt", 0o600),
    "chown": lambda folder: os.chown(folder / "file.txt", 1, 1),
    "utime": lambda folder: os.utime(folder / "file.txt", (1, 1)),
    "symlink": lambda folder: os.symlink("file.txt", folder / "soft"),
    "link": lambda folder: os.link(folder / "file.txt", folder / "hard"),
    "mkfifo": lambda folder: os.mkfifo(folder / "pipe"),
    "setxattr": lambda folder: os.setxattr(folder / "file.txt", "user.x", b"1"),
    "replace an xattr": lambda folder: os.setxattr(folder / "file.txt", "user.ais.version", b"9"),
    "setxattr on a directory": lambda folder: os.setxattr(folder, "user.x", b"1"),
    "removexattr": lambda folder: os.removexattr(folder / "file.txt", "user.x"),
}


@pytest.mark.parametrize("folder", ["", "x.tar.d"], ids=["bucket", "shard"])
@pytest.mark.parametrize("change", sorted(CHANGES))
def test_refused(change: str, folder: str, mount: Mount):
    with pytest.raises(OSError, match="Read-only file system") as caught:
        CHANGES[change](mount.path / folder)
    assert caught.value.errno == errno.EROFS


def test_the_shard_and_its_folder_cannot_be_removed(mount: Mount):
    with pytest.raises(OSError, match="Read-only file system"):
        os.unlink(mount.path / "x.tar")
    with pytest.raises(OSError, match="Read-only file system"):
        os.rmdir(mount.path / "x.tar.d")


def test_tools_are_refused_too(mount: Mount):
    for command in (["touch", "new"], ["rm", "-f", "file.txt"], ["mv", "file.txt", "y"]):
        done = run(*command, cwd=mount.path)
        assert done.returncode != 0, command
        assert b"Read-only file system" in done.stderr


def test_access_says_so(mount: Mount):
    assert os.access(mount.path / "file.txt", os.R_OK)
    assert not os.access(mount.path / "file.txt", os.W_OK)
    assert os.access(mount.path, os.R_OK | os.X_OK)
    assert not os.access(mount.path, os.W_OK)


def test_nothing_changed_at_the_source(mount: Mount, store: Path):
    shown = tree_of(mount.path).contents()
    assert set(shown) == {b"file.txt", b"folder/x", b"x.tar"}
    stored = tree_of(store / "b").contents()
    assert {name: stored[name] for name in shown} == shown
