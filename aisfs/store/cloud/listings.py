"""Listings of one cloud through obstore, as pages.

obstore gives a directory whole, however many requests that takes. So one that takes long goes on while
empty pages are handed out, and no deadline of a single call ends it.

obstore's paths have no slash at their end, and none but single ones: a marker `dir/` looks like an
object `dir` in the directory itself and is left out, and a key with `//` makes it refuse the listing.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import obstore
import trio

from aisfs.core.namespace.keys import never_below
from aisfs.model import Bucket, Keys, Page
from aisfs.store.cloud.clients import Client
from aisfs.store.cloud.errors import cloud_errors
from aisfs.store.cloud.futures import Futures, settled
from aisfs.store.cloud.objects import described

_PATIENCE = 10.0
"""Seconds until a page is given although it is empty; well below any deadline of a call."""
_FORGOTTEN = 120.0
"""Seconds until a listing that nobody asks for any more is cancelled."""
_PAGE = 1000
"""Entries that a request brings, in S3; others bring up to five times as many."""

Count = Callable[[str, int], None]
"""Told the class of requests and their number."""


class Listings:
    """Lists buckets; knows the listings that are under way."""

    def __init__(self, futures: Futures, count: Count) -> None:
        self._futures = futures
        self._count = count
        self._numbers = itertools.count(1)
        self._pending: dict[str, tuple[asyncio.Future[Any], float]] = {}
        self._has_etags: dict[Bucket, bool] = {}

    async def has_etags(self, client: Client, bucket: Bucket) -> bool:
        """Return whether listings of a bucket have ETags; AIStore's do not."""
        if bucket not in self._has_etags:
            await self.first_keys(client, bucket, "", 1)
        return self._has_etags.get(bucket, True)

    def _note(self, bucket: Bucket, objects: Sequence[Any]) -> None:
        if objects:
            self._has_etags[bucket] = bool(objects[0]["e_tag"])

    async def page(self, client: Client, bucket: Bucket, prefix: str, token: str) -> Page:
        """Return a page of a directory; see `ObjectStore.list_page`."""
        if never_below(prefix):
            return Page([], [], "")
        self._forget_old()
        if token in self._pending:
            future, _ = self._pending.pop(token)
        else:
            with cloud_errors(f"{bucket}/{prefix}"):
                future = self._futures.begin(
                    obstore.list_with_delimiter_async, client, prefix or None
                )
        with trio.move_on_after(_PATIENCE):
            await settled(future, keep=True)
        if not future.done():
            token = f"listing-{next(self._numbers)}"
            self._pending[token] = future, trio.current_time()
            return Page([], [], token)
        with cloud_errors(f"{bucket}/{prefix}"):
            found = future.result()
        objects, directories = found["objects"], found["common_prefixes"]
        self._count("list", 1 + (len(objects) + len(directories)) // _PAGE)
        self._note(bucket, objects)
        return Page(
            [described(meta) for meta in objects if meta["path"].startswith(prefix)],
            [f"{path}/" for path in directories if path and path.startswith(prefix)],
            "",
        )

    async def first_keys(self, client: Client, bucket: Bucket, prefix: str, most: int) -> Keys:
        """Return the first keys below a directory; see `ObjectStore.first_keys`."""
        if never_below(prefix):
            return Keys([], complete=True)
        wanted = most + 1
        with cloud_errors(f"{bucket}/{prefix}"):
            stream = obstore.list(client, prefix or None, chunk_size=wanted)
            try:
                found: Sequence[Any] = await self._futures.wait(stream.__anext__)
            except StopAsyncIteration:
                found = ()
        self._count("list", 1 + len(found) // _PAGE)
        self._note(bucket, found)
        marker = prefix.removesuffix("/")
        keys = [prefix if meta["path"] == marker else meta["path"] for meta in found]
        return Keys(keys[:most], len(keys) <= most)

    def close(self) -> None:
        """Cancel the listings that are under way."""
        for future, _ in self._pending.values():
            future.cancel()
        self._pending.clear()

    def _forget_old(self) -> None:
        now = trio.current_time()
        for token, (future, since) in list(self._pending.items()):
            if now - since > _FORGOTTEN:
                future.cancel()
                del self._pending[token]
