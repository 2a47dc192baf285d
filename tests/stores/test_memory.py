import pytest

from aisfs.errors import Unavailable
from aisfs.model import Bucket
from aisfs.stores.memory import MemoryStore

B = Bucket("b")


async def test_versions_count_up_even_over_a_delete():
    store = MemoryStore()
    first = store.put(B, "k", b"x")
    second = store.put(B, "k", b"x")
    store.delete(B, "k")
    third = store.put(B, "k", b"x")
    assert [info.version for info in (first, second, third)] == ["1", "2", "3"]
    assert first.mtime_ns < second.mtime_ns < third.mtime_ns


async def test_calls_and_bytes_are_counted():
    store = MemoryStore()
    info = store.put(B, "k", b"12345")
    await store.read_range(B, info, 1, memoryview(bytearray(2)))
    await store.stream(B, info, lambda piece: None)
    await store.list_page(B, "")
    assert store.calls == {"read_range": 1, "stream": 1, "list_page": 1}
    assert store.bytes_read == 7


async def test_hook():
    seen = []

    async def hook(method, bucket, name):
        seen.append((method, bucket, name))
        raise Unavailable("now")

    store = MemoryStore(hook=hook)
    store.put(B, "k", b"")
    with pytest.raises(Unavailable):
        await store.head(B, "k")
    assert seen == [("head", B, "k")]
