"""A directory that is replaced by a link while its files are read: nothing outside is ever read."""

import ctypes
import os
import threading
from pathlib import Path

from aisfs.errors import NotFound
from aisfs.model import Bucket
from aisfs.store.local_paths import KeyPaths

AT_FDCWD, EXCHANGE = -100, 2


def exchange(one: Path, other: Path) -> None:
    """Give two names each other's file, at once."""
    libc = ctypes.CDLL(None, use_errno=True)
    paths = os.fsencode(one), os.fsencode(other)
    assert libc.renameat2(AT_FDCWD, paths[0], AT_FDCWD, paths[1], EXCHANGE) == 0


def test_a_link_that_takes_a_directorys_place_is_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder, text in ((root / "dir", "inside"), (outside, "outside")):
        folder.mkdir(parents=True)
        (folder / "file").write_text(text)
    (root / "link").symlink_to(outside)
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            exchange(root / "dir", root / "link")

    swapper = threading.Thread(target=swap)
    swapper.start()
    read = []
    try:
        bucket = Bucket("b")
        paths = KeyPaths(os.fsencode(root), bucket)
        for _ in range(20_000):
            try:
                with paths.open(bucket, "dir/file") as descriptor:
                    read.append(os.read(descriptor, 100))
            except NotFound:
                read.append(b"")
    finally:
        ended.set()
        swapper.join()
    assert set(read) == {b"inside", b""}
