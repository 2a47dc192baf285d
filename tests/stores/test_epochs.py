"""Several stores as the directories of one."""

import pytest

from aisfs.errors import NotFound
from aisfs.model import Bucket
from aisfs.stores.epochs import EpochStore, epoch_of, in_epoch
from aisfs.stores.memory import MemoryStore
from tests.support.for_each import for_each

B = Bucket("b")


@for_each(
    "path, found",
    [
        ("epoch-0/", 0),
        ("epoch-2/a/epoch-1/", 2),
        ("epoch-3/", None),
        ("epoch-02/a", None),
        ("epoch-2", None),
        ("epoch--1/", None),
        ("a/epoch-1/", None),
        ("", None),
    ],
)
def test_paths_of_epochs(path, found):
    assert epoch_of(path, 3) == found


def test_filters_apply_within_epochs():
    assert in_epoch(None) is None
    wanted = in_epoch(lambda path: path.startswith("a"))
    assert [path for path in ("epoch-1/", "epoch-1/a", "epoch-1/b", "a") if wanted(path)] == [
        "epoch-1/",
        "epoch-1/a",
        "a",
    ]


@pytest.mark.parametrize("base", ["", "train/"])
async def test_each_store_has_a_directory(base):
    stores = [MemoryStore(), MemoryStore()]
    for number, inner in enumerate(stores):
        inner.put(B, f"{base}d/a", b"%d" % number)
        inner.put(B, "table", b"t%d" % number)
    store = EpochStore(stores, base)
    for page in (await store.list_page(B, base), await store.peek_page(B, base)):
        assert page.names == [f"{base}epoch-0/", f"{base}epoch-1/"]
    for number in range(2):
        prefix = f"{base}epoch-{number}/"
        assert (await store.list_page(B, prefix)).directories == [f"{prefix}d/"]
        [info] = (await store.list_page(B, f"{prefix}d/")).objects
        assert info == await store.head(B, f"{prefix}d/a")
        assert info.key == f"{prefix}d/a"
        assert (await store.first_keys(B, prefix, 1)).found == [info.key]
        buffer, streamed = bytearray(1), bytearray()
        await store.read_range(B, info, 0, memoryview(buffer))
        await store.stream(B, info, streamed.extend)
        assert buffer == streamed == b"%d" % number
    assert (await store.head(B, "table")).size == 2
    with pytest.raises(NotFound):
        await store.head(B, f"{base}epoch-2/d/a")
    await store.aclose()
