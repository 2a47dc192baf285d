"""The bucket that has the published indexes of all others; see `core.names.listing`.

A reader does without it: where it is missing, or may not be read, one request tells so for all shards.
"""

import logging
from collections.abc import Awaitable, Callable

import trio

from aisfs.core.names.listing import IndexPlace, place_in
from aisfs.errors import AccessDenied, AisfsError
from aisfs.model import Bucket

log = logging.getLogger(__name__)


class IndexBucket:
    """That bucket, as far as it can be used."""

    def __init__(self, bucket: Bucket, by_uuid: Callable[[Bucket], Awaitable[Bucket]]) -> None:
        """Ask nothing yet.

        Args:
            bucket: Its name.
            by_uuid: Returns a bucket of another cluster under the name that this has everywhere.
        """
        self.bucket = bucket
        self._by_uuid = by_uuid
        self._places: dict[Bucket, IndexPlace] = {}
        self._unusable_until = 0.0
        self._denied = False

    async def place(self, bucket: Bucket) -> IndexPlace:
        """Return where the indexes of a bucket's shards are.

        Raises:
            AisfsError: the cluster does not say which other cluster has the bucket.
        """
        known = self._places.get(bucket)
        if known is None:
            named = await self._by_uuid(bucket) if bucket.cluster else bucket
            known = self._places[bucket] = place_in(self.bucket, named)
        return known

    @property
    def usable(self) -> bool:
        """Whether it may be there."""
        return trio.current_time() >= self._unusable_until

    def leave(self, error: AisfsError, seconds: float) -> None:
        """Do without it for a while, since it is missing or may not be read; say the latter once."""
        self._unusable_until = trio.current_time() + seconds
        level = logging.DEBUG
        if isinstance(error, AccessDenied) and not self._denied:
            level, self._denied = logging.INFO, True
        log.log(level, "%s: published indexes are not used from there: %s", self.bucket, error)
