"""What stores share that write an object only when all of it is there."""

import sys

from aisfs.errors import NotFound
from aisfs.model import Bucket
from aisfs.store.port import UploadAhead


class NoMultipart:
    """The part of `WritableStore` that sends ahead, for a store that does not."""

    ahead_above = sys.maxsize

    async def begin_upload(self, bucket: Bucket, key: str) -> UploadAhead | None:
        """See `WritableStore`."""
        return None

    async def abandon_upload(self, bucket: Bucket, key: str, name: str) -> None:
        """See `WritableStore`."""
        raise NotFound(f"{bucket}/{key}: nothing was sent ahead")
