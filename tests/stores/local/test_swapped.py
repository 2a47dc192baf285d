"""A directory that is replaced by a link while its files are used: nothing outside is read or changed."""

import ctypes
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from aisfs.errors import NotADirectory, NotFound
from aisfs.model import Bucket
from aisfs.stores.local import KeyPaths, Links, LocalStore
from aisfs.stores.port import BytesContent, Upload

AT_FDCWD, EXCHANGE = -100, 2


def exchange(one: Path, other: Path) -> None:
    """Give two names each other's file, at once."""
    libc = ctypes.CDLL(None, use_errno=True)
    paths = os.fsencode(one), os.fsencode(other)
    assert libc.renameat2(AT_FDCWD, paths[0], AT_FDCWD, paths[1], EXCHANGE) == 0


@contextmanager
def swapping(one: Path, other: Path) -> Iterator[None]:
    """Exchange two names all the time."""
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            exchange(one, other)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        yield
    finally:
        ended.set()
        swapper.join()


def test_a_link_that_takes_a_directorys_place_is_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder, text in ((root / "dir", "inside"), (outside, "outside")):
        folder.mkdir(parents=True)
        (folder / "file").write_text(text)
    (root / "link").symlink_to(outside)
    bucket = Bucket("b")
    paths = KeyPaths(Links(os.fsencode(root)), bucket)
    read = []
    with swapping(root / "dir", root / "link"):
        for _ in range(20_000):
            try:
                with paths.open(bucket, "dir/file") as descriptor:
                    read.append(os.read(descriptor, 100))
            except NotFound:
                read.append(b"")
    assert set(read) == {b"inside", b""}


async def attempt(store: LocalStore, work: Callable[[Bucket], Awaitable[object]]) -> int:
    """Return 1 if it was done, 0 if the directory was a link just then."""
    try:
        await work(store.bucket)
    except (NotFound, NotADirectory):
        return 0
    return 1


async def test_nothing_is_written_where_a_link_took_a_directorys_place(tmp_path: Path) -> None:
    """Not even for a moment: what is made or removed in a directory changes its time."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "dir", outside):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"as it was")
        (folder / "kept").write_bytes(b"as it was")
    (outside / "empty").mkdir()
    before = [outside.stat().st_mtime_ns, (outside / "empty").stat().st_mtime_ns]
    (root / "link").symlink_to(outside)
    store = LocalStore(root)
    content = BytesContent(b"new")
    done = 0
    with swapping(root / "dir", root / "link"):
        for _ in range(400):
            done += await attempt(store, lambda b: store.upload(Upload(b, "dir/file", content)))
            done += await attempt(
                store, lambda b: store.upload(Upload(b, "dir/empty/new", content))
            )
            done += await attempt(store, lambda b: store.rename(b, "dir/file", "dir/empty/new"))
            done += await attempt(store, lambda b: store.remove(b, "dir/empty/new"))
            done += await attempt(store, lambda b: store.remove(b, "dir/file"))
    assert done > 0
    assert [outside.stat().st_mtime_ns, (outside / "empty").stat().st_mtime_ns] == before
    assert {path.name for path in outside.iterdir()} == {"file", "kept", "empty"}
    assert (outside / "file").read_bytes() == b"as it was"
    assert not [path for path in root.rglob("*") if path.name.startswith(".aisfs-upload-")]


async def test_directories_that_come_and_go_with_their_files_fail_no_write(tmp_path: Path) -> None:
    """Each file is the only one at times, and then the directories go with it, whoever needs them."""
    store = LocalStore(tmp_path)

    async def write_and_remove(name: str) -> None:
        for _ in range(200):
            await store.upload(Upload(store.bucket, f"a/b/c/{name}", BytesContent(b"x")))
            await store.rename(store.bucket, f"a/b/c/{name}", f"a/d/{name}")
            await store.remove(store.bucket, f"a/d/{name}")

    async with trio.open_nursery() as nursery:
        for name in "1234":
            nursery.start_soon(write_and_remove, name)
    assert os.listdir(tmp_path) == []
