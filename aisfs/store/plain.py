"""What stores share whose requests are for one whole object, or a range of it."""

import sys
from collections.abc import Sequence

from aisfs.errors import NotFound, Unsupported
from aisfs.model import Bucket, ObjectInfo
from aisfs.store.port import UploadAhead


class PlainStore:
    """The parts of `WritableStore` that send ahead, and that read several objects at once: for a store that does neither."""

    ahead_above = sys.maxsize

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
