"""Directories that others remove and make again while a file is written into them."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aisfs.errors import NotADirectory, NotFound
from aisfs.stores import local
from aisfs.stores.local import LocalStore
from aisfs.stores.port import BytesContent, Upload

real_mkdir, real_opened = os.mkdir, local.opened


@pytest.fixture
def removals(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let another process remove each directory right after it was made, so many times."""

    def remove(times: float) -> None:
        left = times

        def mkdir(name: bytes, *, dir_fd: int) -> None:
            nonlocal left
            real_mkdir(name, dir_fd=dir_fd)
            if left > 0:
                left -= 1
                os.rmdir(name, dir_fd=dir_fd)

        monkeypatch.setattr(local.os, "mkdir", mkdir)

    return remove


async def test_however_often_a_directory_goes_away_the_file_is_written(
    tmp_path: Path, removals: Callable[[float], None]
) -> None:
    store = LocalStore(tmp_path)
    removals(500)
    await store.upload(Upload(store.bucket, "a/b/new", BytesContent(b"x")))
    assert (tmp_path / "a/b/new").read_bytes() == b"x"
    removals(500)
    await store.rename(store.bucket, "a/b/new", "c/d/moved")
    assert (tmp_path / "c/d/moved").read_bytes() == b"x"
    assert os.listdir(tmp_path) == ["c"]


async def test_one_that_always_goes_away_fails_the_write_in_the_end(
    tmp_path: Path, removals: Callable[[float], None]
) -> None:
    store = LocalStore(tmp_path)
    removals(float("inf"))
    with pytest.raises(NotFound, match="a/b/new: No such file or directory"):
        await store.upload(Upload(store.bucket, "a/b/new", BytesContent(b"x")))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOTDIR])
async def test_one_that_is_being_removed_is_not_taken_for_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The kernel may call it either way: no such directory, or none at all."""
    store = LocalStore(tmp_path)
    (tmp_path / "a").mkdir()
    left = 5

    def opened(root: bytes, folder: bytes) -> object:
        nonlocal left
        if folder == b"a" and left:
            left -= 1
            raise OSError(number, os.strerror(number), folder)
        return real_opened(root, folder)

    monkeypatch.setattr(local, "opened", opened)
    monkeypatch.setattr(local, "opened", opened)
    await store.upload(Upload(store.bucket, "a/new", BytesContent(b"x")))
    assert (tmp_path / "a/new").read_bytes() == b"x"


@pytest.mark.parametrize("key", ["file/new", "file/sub/new", "a/file/new"])
async def test_a_file_in_the_way_is_said_at_the_first_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "a").mkdir()
    for name in ("file", "a/file"):
        (tmp_path / name).write_bytes(b"kept")
    made: list[bytes] = []
    monkeypatch.setattr(local, "_make", lambda root, folder: made.append(folder))
    with pytest.raises(NotADirectory, match=f"{key}: a part of the path is an object"):
        await store.upload(Upload(store.bucket, key, BytesContent(b"x")))
    assert made == []
    assert (tmp_path / "file").read_bytes() == (tmp_path / "a/file").read_bytes() == b"kept"


async def test_a_file_that_is_gone_when_it_is_renamed_makes_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "one").write_bytes(b"x")
    real_check = local.KeyPaths.check_new

    def check_new(self: local.KeyPaths, *args: object) -> None:
        real_check(self, *args)  # type: ignore[arg-type]
        (tmp_path / "one").unlink()

    monkeypatch.setattr(local.KeyPaths, "check_new", check_new)
    with pytest.raises(NotFound):
        await store.rename(store.bucket, "one", "a/b/two")
    assert os.listdir(tmp_path) == []
