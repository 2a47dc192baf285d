"""Several stores of the same objects as one, each below a directory of its own: `epoch-0/`, `epoch-1/`, ….

To everything above, the objects of two epochs are different objects of the bucket: they have different keys. So inode
numbers, caches and listings know nothing of epochs, and nothing of one can be taken for the other.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from msgspec import structs

from aisfs.model import Bucket, Keys, ObjectInfo, Page, Provider
from aisfs.stores.port import Arrived, ObjectStore, ReadOnlyStore, Sink

_DIRECTORY = re.compile(r"epoch-(0|[1-9][0-9]*)/")


def epoch_directory(epoch: int) -> str:
    """Return the prefix below which an epoch is."""
    return f"epoch-{epoch}/"


def epoch_of(path: str, count: int) -> int | None:
    """Return which of so many epochs a path is below; None for none."""
    found = _DIRECTORY.match(path)
    epoch = int(found[1]) if found is not None else count
    return epoch if epoch < count else None


def in_epoch(wanted: Callable[[str], bool] | None) -> Callable[[str], bool] | None:
    """Return the test for paths below the directories of epochs which `wanted` is for the paths in them."""
    if wanted is None:
        return None

    def test(path: str) -> bool:
        found = _DIRECTORY.match(path)
        rest = path[found.end() :] if found is not None else path
        return not rest or wanted(rest)

    return test


class EpochStore(ReadOnlyStore):
    """In each bucket, or below a prefix: a directory for each of some stores. All other keys are those of the first."""

    def __init__(self, stores: Sequence[ObjectStore], base: str) -> None:
        """Show `stores`, of which closing the first closes all, below `base`, which is empty or ends in `/`."""
        self._stores = stores
        self._base = base

    def _inner(self, key: str) -> tuple[ObjectStore, str, str]:
        """Return the store of a key or prefix, what it is there, and the directory that is left out."""
        path = key.removeprefix(self._base)
        epoch = epoch_of(path, len(self._stores)) if key.startswith(self._base) else None
        if epoch is None:
            return self._stores[0], key, ""
        directory = epoch_directory(epoch)
        return self._stores[epoch], self._base + path[len(directory) :], directory

    def _outer(self, key: str, directory: str) -> str:
        return self._base + directory + key[len(self._base) :] if directory else key

    def _shown(self, info: ObjectInfo, directory: str) -> ObjectInfo:
        return structs.replace(info, key=self._outer(info.key, directory)) if directory else info

    def _page(self, page: Page, directory: str) -> Page:
        def outer(keys: Sequence[str]) -> list[str]:
            return [self._outer(key, directory) for key in keys]

        return replace(
            page,
            objects=[self._shown(info, directory) for info in page.objects],
            directories=outer(page.directories),
            unusable=outer(page.unusable),
        )

    def _top(self) -> Page:
        return Page([], [self._base + epoch_directory(at) for at in range(len(self._stores))], "")

    async def list_buckets(self, provider: Provider | None = None) -> list[Bucket]:
        """See `ObjectStore`."""
        return await self._stores[0].list_buckets(provider)

    async def first_keys(
        self, bucket: Bucket, prefix: str, most: int, *, sure: bool = False
    ) -> Keys:
        """See `ObjectStore`."""
        store, inner, directory = self._inner(prefix)
        keys = await store.first_keys(bucket, inner, most, sure=sure)
        return replace(keys, found=[self._outer(key, directory) for key in keys.found])

    async def list_page(self, bucket: Bucket, prefix: str, *, token: str = "") -> Page:
        """See `ObjectStore`."""
        if prefix == self._base:
            return self._top()
        store, inner, directory = self._inner(prefix)
        return self._page(await store.list_page(bucket, inner, token=token), directory)

    async def peek_page(self, bucket: Bucket, prefix: str) -> Page:
        """See `ObjectStore`."""
        if prefix == self._base:
            return self._top()
        store, inner, directory = self._inner(prefix)
        return self._page(await store.peek_page(bucket, inner), directory)

    async def head(self, bucket: Bucket, key: str, *, latest: bool = False) -> ObjectInfo:
        """See `ObjectStore`."""
        store, inner, directory = self._inner(key)
        return self._shown(await store.head(bucket, inner, latest=latest), directory)

    async def sized(self, bucket: Bucket, info: ObjectInfo) -> ObjectInfo:
        """See `ObjectStore`."""
        store, inner, directory = self._inner(info.key)
        made = await store.sized(bucket, structs.replace(info, key=inner))
        return self._shown(made, directory)

    async def read_range(
        self,
        bucket: Bucket,
        expected: ObjectInfo,
        start: int,
        buffer: memoryview,
        arrived: Arrived | None = None,
    ) -> None:
        """See `ObjectStore`."""
        store, inner, _ = self._inner(expected.key)
        await store.read_range(bucket, structs.replace(expected, key=inner), start, buffer, arrived)

    async def stream(self, bucket: Bucket, expected: ObjectInfo, sink: Sink) -> None:
        """See `ObjectStore`."""
        store, inner, _ = self._inner(expected.key)
        await store.stream(bucket, structs.replace(expected, key=inner), sink)

    async def aclose(self) -> None:
        """Close all."""
        await self._stores[0].aclose()
