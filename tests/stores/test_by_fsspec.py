"""What fsspec opens: versions, and what its file systems do wrong."""

import threading
import time
from typing import ClassVar

import fsspec
import pytest
import trio
from fsspec.implementations.memory import MemoryFileSystem

from aisfs.errors import (
    AccessDenied,
    BucketNotFound,
    ConfigError,
    ProtocolError,
    ReadOnly,
    Stale,
    Unavailable,
    Unsupported,
)
from aisfs.model import Bucket, Provider
from aisfs.stores.by_fsspec import open_fsspec
from aisfs.stores.port import BytesContent, Upload

PETS = Bucket("memory://pets", Provider.FSSPEC)


class Odd(MemoryFileSystem):
    """A file system that does what a test says."""

    protocol = "odd"
    cachable = False
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]
    does: ClassVar[dict] = {}

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("odd://", "memory://"))

    def info(self, path, **kwargs):
        return self.does.get("info", super().info)(path)

    def ls(self, path, detail=True, **kwargs):
        return self.does.get("ls", super().ls)(path, detail)

    def cat_file(self, path, start=None, end=None, **kwargs):
        return self.does.get("cat_file", super().cat_file)(path, start, end)


@pytest.fixture
def odd():
    fsspec.register_implementation("odd", Odd, clobber=True)
    Odd.store.clear()
    Odd.does.clear()
    Odd().pipe_file("/h/k", b"12345")
    bucket = Bucket("odd://h", Provider.FSSPEC)
    return open_fsspec(bucket, 4), bucket


async def read(store, bucket, info):
    buffer = bytearray(info.size)
    await store.read_range(bucket, info, 0, memoryview(buffer))
    return bytes(buffer)


def raises(error):
    def call(*args):
        raise error

    return call


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PermissionError("no"), AccessDenied), (NotImplementedError("no"), Unsupported), (TimeoutError("no"), Unavailable),
        (OSError(5, "no"), Unavailable), (RuntimeError("no"), Unavailable), (ValueError("no"), ProtocolError),
    ],
)  # fmt: skip
async def test_errors_of_any_class(odd, error, kind):
    store, bucket = odd
    info = await store.head(bucket, "k")
    Odd.does |= dict.fromkeys(("info", "ls", "cat_file"), raises(error))
    for call in (store.head(bucket, "k"), store.list_page(bucket, ""), read(store, bucket, info)):
        with pytest.raises(kind, match="no"):
            await call


async def test_fewer_bytes_are_an_error(odd):
    store, bucket = odd
    info = await store.head(bucket, "k")
    Odd.does["cat_file"] = lambda path, start, end: b"1234"
    with pytest.raises(Unavailable, match="4 of 5 bytes"):
        await read(store, bucket, info)


async def test_a_file_that_changes_while_it_is_read_is_stale(odd):
    store, bucket = odd
    info = await store.head(bucket, "k")

    def changing(path, start, end):
        Odd().pipe_file("/h/k", b"54321")
        return b"54321"

    Odd.does["cat_file"] = changing
    with pytest.raises(Stale):
        await read(store, bucket, info)


@pytest.mark.parametrize("name", ["/h/a/b", "/other/k", "h/x/y", "/hh"])
async def test_names_from_elsewhere_are_refused(odd, name):
    store, bucket = odd
    Odd.does["ls"] = lambda path, detail: [{"name": name, "size": 1, "type": "file"}]
    with pytest.raises(ProtocolError, match="not in the directory"):
        await store.list_page(bucket, "")


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ({"ETag": "x", "mtime": 5}, "etag=x"), ({"mtime": 5}, "mtime=5.0"), ({"created": 7.5, "mtime": 5}, "mtime=5.0"),
        ({"modify": "20260102030405"}, "modify=1767323045.0"), ({"md5": "a", "ETag": None}, "md5=a"), ({}, ""), ({"LastModified": "soon"}, "lastmodified=soon"),
    ],
)  # fmt: skip
async def test_versions(odd, said, version):
    store, bucket = odd
    Odd.does["info"] = lambda path: {"name": path, "size": 5, "type": "file", **said}
    assert (await store.head(bucket, "k")).version == version


async def test_a_file_system_serves_one_call_at_a_time_and_none_after_an_error(odd):
    store, bucket = odd
    info = await store.head(bucket, "k")
    used, most = [], []

    def cat_file(path, start, end):
        used.append(threading.get_ident())
        most.append(len(used))
        time.sleep(0.02)
        used.remove(threading.get_ident())
        return b"12345"

    seen = set()
    original = Odd.cat_file

    def counted(self, *args, **kwargs):
        assert id(self) not in seen, "two calls at once"
        seen.add(id(self))
        try:
            return original(self, *args, **kwargs)
        finally:
            seen.discard(id(self))

    Odd.does["cat_file"] = cat_file
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Odd, "cat_file", counted)
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(read, store, bucket, info)
    assert 1 < max(most) <= 4
    kept = len(store._idle)
    Odd.does["cat_file"] = raises(RuntimeError("half an answer"))
    with pytest.raises(Unavailable):
        await read(store, bucket, info)
    assert len(store._idle) == kept - 1
    await store.aclose()
    assert not store._idle


async def test_only_one_host_and_only_to_be_read():
    store = open_fsspec(PETS, 4)
    with pytest.raises(BucketNotFound, match="memory://pets"):
        await store.list_page(Bucket("memory://other", Provider.FSSPEC), "")
    with pytest.raises(ReadOnly):
        await store.upload(Upload(PETS, "k", BytesContent(b"1")))
    for scheme in ("nonsense", "dropbox"):
        with pytest.raises(ConfigError, match=f"fsspec cannot open {scheme}://"):
            open_fsspec(Bucket(f"{scheme}://h", Provider.FSSPEC), 4)
