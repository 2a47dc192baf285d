"""Small objects that are wanted together, fetched with one request for many of them.

Only this module decides whether that is worth it. Each object stays a part of its own to the fetcher: it is kept and handed to
its readers by itself, and what a batch did not bring is read singly. So the worst a batch can be is useless; a store whose first
batches are useless gets no more of them.
"""

import logging
from collections.abc import Iterator, Sequence

from aisfs.engine.parts import OpenObject, Part, Retained
from aisfs.errors import AccessDenied, AisfsError, ProtocolError, Unsupported
from aisfs.model import Bucket
from aisfs.stores.port import ObjectStore

log = logging.getLogger(__name__)

LEAST = 8
"""Objects for which a batch is worth its redirect and its work on every target of the cluster."""
MOST = 64
"""Objects of one batch: its reader waits for all of them."""
SIZE_MAX = 256 * 1024
"""Bytes of an object in a batch at most; larger ones keep a connection busy by themselves."""


class Gathering:
    """Parts that begin together."""

    def __init__(self) -> None:
        """Start without any."""
        self._parts: dict[Bucket, list[Retained]] = {}

    def take(self, part: Part, opened: OpenObject) -> bool:
        """Take a part; returns whether it can be in a batch, as a whole object that is not too large."""
        if len(part.range) != opened.info.size or len(part.range) > SIZE_MAX:
            return False
        self._parts.setdefault(opened.bucket, []).append((part, opened))
        return True

    def batches(self) -> Iterator[list[Retained]]:
        """Yield the parts, those for one request together."""
        for parts in self._parts.values():
            for start in range(0, len(parts), MOST):
                yield parts[start : start + MOST]


class Batches:
    """Reads many small objects with one request, as long as the store does that."""

    def __init__(self, store: ObjectStore) -> None:
        """Ask `store`."""
        self._store = store
        self.given_up = False
        """Whether all objects are read singly from now on."""

    async def read(self, bucket: Bucket, parts: Sequence[Retained]) -> list[bool]:
        """Fill whole objects; return which hold their bytes now, as `ObjectStore.read_many` does."""
        wanted = [(opened.info, part.content) for part, opened in parts]
        try:
            filled = await self._store.read_many(bucket, wanted)
        except (Unsupported, AccessDenied, ProtocolError) as error:
            self._give_up(str(error))
        except AisfsError as error:
            log.debug("a batch failed, its objects are read one by one: %s", error)
        else:
            if not any(filled):
                self._give_up(f"a batch brought none of {len(filled)} objects; it takes checksums")
            return filled
        return [False] * len(parts)

    def _give_up(self, reason: str) -> None:
        if not self.given_up:
            log.info("objects are read one by one from now on: %s", reason)
        self.given_up = True
