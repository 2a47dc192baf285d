"""What stays of a written file on the local disk, for its next change."""

from pathlib import Path

import pytest
import trio
from msgspec import structs

from aisfs.engine.writing.staging import StagingArea
from aisfs.engine.writing.uploads import Writer
from aisfs.model import Bucket
from aisfs.stores.memory import MemoryStore

B = Bucket("b")


@pytest.mark.parametrize(("known", "fetched"), [({}, 1), ({"version": "", "checksum": ""}, 2)])
async def test_a_copy_is_used_only_where_the_store_says_that_it_is_still_the_version(
    known: dict[str, str], fetched: int, tmp_path: Path, nursery: trio.Nursery
):
    store, area = MemoryStore(), StagingArea(tmp_path, 1 << 20)
    writer = Writer(store, area, nursery, endpoint="http://x")
    info = structs.replace(store.put(B, "log", b"line"), **known)
    for _ in range(2):
        staged = await writer.load(B, info)
        assert staged.read(0, 4) == b"line"
        writer.let_go(B, info, staged)
    assert store.calls["stream"] == fetched
    area.close()
