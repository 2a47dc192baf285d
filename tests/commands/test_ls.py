"""What `aisfs ls` makes of the pages of a listing: every name once, in order."""

from collections import Counter
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aisfs.model import Bucket, ObjectInfo, Page
from aisfs.settings import ClusterSettings
from aisfs.stores.ais.client import AISClient
from aisfs.stores.memory import MemoryStore
from aisfs.work.buckets import list_from
from tests.mount.content import fill
from tests.support.servers import running_server

PETS = Bucket("pets")
KEYS = [
    f"{head}{tail}" for head in ("a", "b", "a-b", "a b", "b0") for tail in ("", "-2", " y", "0")
]
KEYS += [f"{key}/x" for key in KEYS[::3]] + [f"d{n:02}/e/{n}" for n in range(40)]
KEYS += [f"f{n:03}" for n in range(80)]


async def listed(store, prefix: str = "", *, recursive: bool = False) -> list[str]:
    found = list_from(store, PETS, prefix, Counter(), recursive=recursive)
    return [entry.path async for batch in found for entry in batch]


class Repeating(MemoryStore):
    """Repeats names that earlier pages had, and does not sort its pages."""

    step = 1

    async def list_page(self, bucket: Bucket, prefix: str, *, token: str = "") -> Page:
        names = sorted({key[: (key.find("/") + 1) or None] for key in self.keys})
        start = int(token or 0)
        page = names[start : start + self.page_size]
        stop = start + self.page_size
        return Page(
            [ObjectInfo(name, 1) for name in page[::-1] if not name.endswith("/")],
            [name for name in page if name.endswith("/")],
            str(stop - self.step) if stop < len(names) else "",
        )


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sets(st.text("ab-/0", min_size=1, max_size=4), max_size=30), st.integers(2, 9), st.data())
def test_pages_that_repeat_names(names, page_size, data):
    keys = {name for name in names if not name.startswith("/") and "//" not in name}
    keys = {key.rstrip("/") for key in keys}
    store = Repeating(page_size=page_size)
    store.add_bucket(PETS)
    store.keys = keys
    for key in keys:
        store.put(PETS, key, b"x")
    store.step = data.draw(st.integers(0, page_size - 1))
    assert trio.run(listed, store) == sorted({key[: (key.find("/") + 1) or None] for key in keys})


@pytest.mark.parametrize("page_size", [0, 12, 50])
async def test_pages_of_a_cluster(page_size: int, tmp_path: Path):
    objects = {key for key in KEYS if not any(each.startswith(f"{key}/") for each in KEYS)}
    fill(tmp_path / "store" / "pets", dict.fromkeys(objects, b""))
    with running_server(tmp_path / "store") as server:
        client = AISClient(ClusterSettings(endpoint=server.endpoint))
        client.page_size = page_size
        try:
            top = sorted({key[: (key.find("/") + 1) or None] for key in objects})
            assert await listed(client) == top
            assert await listed(client, recursive=True) == sorted(objects)
            assert await listed(client, "d07/") == ["e/"]
        finally:
            await client.aclose()
