"""What stores share whose requests are for one whole object, or a range of it."""

import sys
from collections.abc import Sequence
from typing import Protocol

from aisfs.errors import AlreadyExists, NotFound, Stale, Unsupported
from aisfs.model import Bucket, ObjectInfo, Page
from aisfs.store.port import UploadAhead


def check_condition(
    subject: str, only_new: str, replaces: ObjectInfo | None, there: ObjectInfo | None
) -> None:
    """Make sure that an upload may replace what is there; see `WritableStore.upload`.

    Raises:
        AlreadyExists, Stale: it may not.
    """
    if only_new and there is not None:
        raise AlreadyExists(f"{subject}: another client has made it meanwhile")
    if replaces is not None and (there is None or not there.same_content(replaces)):
        what = "removed" if there is None else "changed"
        raise Stale(f"{subject}: another client has {what} it meanwhile")


class _Listed(Protocol):
    async def list_page(self, bucket: Bucket, prefix: str, *, token: str = "") -> Page: ...


class PlainStore:
    """The parts of `WritableStore` that send ahead, and that read several objects at once: for a store that does neither."""

    ahead_above = sys.maxsize

    async def peek_page(self: "_Listed", bucket: Bucket, prefix: str) -> Page:
        """See `ObjectStore`; nothing is ever moved here."""
        return await self.list_page(bucket, prefix)

    async def begin_upload(self, bucket: Bucket, key: str) -> UploadAhead | None:
        """See `WritableStore`."""
        return None

    async def abandon_upload(self, bucket: Bucket, key: str, name: str) -> None:
        """See `WritableStore`."""
        raise NotFound(f"{bucket}/{key}: nothing was sent ahead")

    async def read_many(
        self, bucket: Bucket, wanted: Sequence[tuple[ObjectInfo, memoryview]]
    ) -> list[bool]:
        """Refuse."""
        raise Unsupported(f"{bucket}: objects are read one by one")

    async def read_ranges(
        self, bucket: Bucket, wanted: Sequence[tuple[ObjectInfo, int, memoryview]]
    ) -> list[bool]:
        """Refuse."""
        raise Unsupported(f"{bucket}: ranges are read one by one")
