"""Which objects are archives, and of which form: by their names, or by their first bytes."""

import os

from cachetools import LRUCache

from aisfs.cache.format import PAGE
from aisfs.core.names.formats import HEAD, Form, form_of_content, form_of_name
from aisfs.core.ranges import aligned
from aisfs.engine.fetch.fetcher import Fetcher
from aisfs.model import Bucket, ByteRange, ObjectInfo

FORMS_MAX = 100_000
"""Objects of which is remembered whether their content is an archive."""


class ArchiveForms:
    """Recognises archives."""

    def __init__(self, fetcher: Fetcher, *, magic: bool = False) -> None:
        """Read first bytes through `fetcher`; if `magic`, of those too whose names say what they are."""
        self._fetcher = fetcher
        self._magic = magic
        self._by_content: LRUCache[tuple[Bucket, ObjectInfo], Form | None] = LRUCache(FORMS_MAX)

    def form_by_name(self, shard: ObjectInfo) -> Form | None:
        """Return the form that the name of an archive says; None if content decides."""
        if self._magic and shard.size:
            return None
        return form_of_name(os.fsencode(shard.key.rpartition("/")[2]))

    async def form(self, bucket: Bucket, shard: ObjectInfo) -> Form | None:
        """Return the form of an archive, by its content if its name has no suffix; None if it is none.

        Raises:
            Stale: the object changed meanwhile.
        """
        named = form_of_name(os.fsencode(shard.key.rpartition("/")[2]))
        if (named is not None and not self._magic) or not shard.size:
            return named
        known = self._by_content
        if (bucket, shard) not in known:
            wanted = aligned(ByteRange(0, min(HEAD, shard.size)), PAGE, shard.size)
            head = await self._fetcher.start(self._fetcher.open(bucket, shard), wanted).wait()
            known[bucket, shard] = form_of_content(bytes(head[:HEAD])) or named
        return known[bucket, shard]

    async def is_archive(self, bucket: Bucket, info: ObjectInfo) -> bool:
        """Return whether an object is an archive.

        Raises:
            Stale: the object changed meanwhile.
        """
        return await self.form(bucket, info) is not None
