import os
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from aisfs.errors import AlreadyExists, BucketNotFound, InvalidName, NotFound, Stale
from aisfs.model import Bucket, ObjectInfo, Provider
from aisfs.stores.local import LocalStore
from aisfs.stores.port import BytesContent, Upload


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "shards"
    root.mkdir()
    return root


async def names(store, prefix=""):
    page = await store.list_page(store.bucket, prefix)
    return [info.key for info in page.objects] + page.directories


async def test_the_bucket_is_named_after_the_directory(root):
    store = LocalStore(root)
    assert await store.list_buckets() == [Bucket("shards")]
    assert await store.list_buckets(Provider.AWS) == []
    (root.parent / "link").symlink_to(root)
    assert LocalStore(root.parent / "link").bucket == Bucket("shards")


async def test_messages_name_the_file(root):
    store = LocalStore(root)
    with pytest.raises(NotFound, match=f"^{re.escape(str(root / 'missing.tar'))}"):
        await store.head(store.bucket, "missing.tar")


async def test_attributes(root):
    (root / "a").write_bytes(b"12345")
    os.utime(root / "a", ns=(5, 1_600_000_000_123_456_789))
    info = await LocalStore(root).head(Bucket("shards"), "a")
    assert (info.key, info.size, info.mtime_ns) == ("a", 5, 1_600_000_000_123_456_789)
    assert (info.version, info.checksum) == (
        f"1600000000123456789-{(root / 'a').stat().st_ino}",
        "",
    )


async def test_only_files_and_directories_are_shown(root):
    (root / "file").write_bytes(b"1")
    (root / "dir").mkdir()
    (root / "dir" / "inner").write_bytes(b"12")
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(root / "sock"))
    (root.parent / "secret" / "dir").mkdir(parents=True)
    (root / "inside").symlink_to("dir/inner")
    (root / "outside").symlink_to("../secret/dir")
    (root / "absolute").symlink_to("/etc/passwd")
    if os.geteuid() == 0:  # else the file is that of another user
        os.lchown(root / "absolute", 65534, 65534)
    (root / "dangling").symlink_to("nothing")
    (root / "loop").symlink_to("loop")
    (root / "dirlink").symlink_to("dir")
    store = LocalStore(root)
    for _ in range(2):
        assert await names(store) == ["file", "inside", "dir/"]
        assert store.hidden == 7
    assert (await store.head(store.bucket, "inside")).size == 2
    for name in ("pipe", "sock", "outside", "absolute", "dangling", "loop", "dir", "dirlink/inner"):
        with pytest.raises(NotFound):
            await store.head(store.bucket, name)
    assert await names(store, "dirlink/") == []


async def test_paths_do_not_climb(root):
    (root.parent / "secret").write_bytes(b"s")
    store = LocalStore(root)
    for key in ("../secret", "a/../../secret", ".", "./a", "", "a\0b"):
        with pytest.raises(InvalidName):
            await store.head(store.bucket, key)
    for key in ("/etc/passwd", "a//b", "a/"):
        with pytest.raises(NotFound):
            await store.head(store.bucket, key)
    for prefix in ("/", "//", "a//"):
        assert await names(store, prefix) == []


async def test_directories_sort_as_in_a_bucket(root):
    for name in ("a", "a.txt", "a0"):
        (root / name).write_bytes(b"")
    (root / "a-").mkdir()
    (root / "b").mkdir()
    store = LocalStore(root)
    page = await store.list_page(store.bucket, "")
    listed = sorted([info.key for info in page.objects] + page.directories)
    assert listed == ["a", "a-/", "a.txt", "a0", "b/"]


async def test_a_root_that_went_away(root):
    store = LocalStore(root)
    root.rmdir()
    with pytest.raises(BucketNotFound):
        await store.list_page(store.bucket, "")
    with pytest.raises(BucketNotFound):
        await store.head(store.bucket, "a")


async def test_a_file_that_grows_while_it_is_streamed(root):
    (root / "a").write_bytes(b"x" * 3_000_000)
    store = LocalStore(root)
    info = await store.head(store.bucket, "a")

    def sink(piece):
        with (root / "a").open("ab") as file:
            file.write(b"y")

    with pytest.raises(Stale):
        await store.stream(store.bucket, info, sink)


async def test_a_file_rewritten_with_the_same_size(root):
    (root / "a").write_bytes(b"12345")
    os.utime(root / "a", ns=(0, 1))
    store = LocalStore(root)
    info = await store.head(store.bucket, "a")
    (root / "a").write_bytes(b"54321")
    with pytest.raises(Stale):
        await store.read_range(store.bucket, info, 0, memoryview(bytearray(5)))


async def test_ranges_that_make_no_sense(root):
    store = LocalStore(root)
    for start, length in ((0, 0), (0, 6), (5, 1), (-1, 2)):
        with pytest.raises(ValueError, match="bytes from"):
            await store.read_range(
                store.bucket, ObjectInfo("a", 5), start, memoryview(bytearray(length))
            )


@pytest.mark.parametrize("key", ["there", "new"])
async def test_what_is_written_while_the_disk_is_waited_for_stays(
    key: str, root: Path, monkeypatch: pytest.MonkeyPatch
):
    store = LocalStore(root)
    (root / "there").write_bytes(b"base")
    base = await store.head(store.bucket, "there")
    upload = Upload(store.bucket, key, BytesContent(b"ours"), only_new="ours")
    if key == "there":
        upload = replace(upload, only_new="", replaces=base)
    fsync = os.fsync

    def slowly(descriptor: int) -> None:
        fsync(descriptor)
        (root / key).write_bytes(b"of another program")

    monkeypatch.setattr(os, "fsync", slowly)
    with pytest.raises((Stale, AlreadyExists), match="another client"):
        await store.upload(upload)
    assert (root / key).read_bytes() == b"of another program"
