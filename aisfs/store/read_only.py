"""What stores share that can only be read."""

from collections.abc import Mapping

from aisfs.errors import ReadOnly
from aisfs.model import NO_CUSTOM, Bucket, ObjectInfo
from aisfs.store.plain import PlainStore
from aisfs.store.port import Announce, Content, Progress, UploadAhead


class ReadOnlyStore(PlainStore):
    """The part of `WritableStore` that changes anything: all of it is refused."""

    async def create_bucket(self, bucket: Bucket) -> None:
        """Refuse."""
        raise _refusal(bucket)

    async def upload(
        self,
        bucket: Bucket,
        key: str,
        content: Content,
        *,
        custom: Mapping[str, str] = NO_CUSTOM,
        progress: Progress | None = None,
        ahead: UploadAhead | None = None,
        announce: Announce | None = None,
        only_new: str = "",
        replaces: ObjectInfo | None = None,
    ) -> ObjectInfo:
        """Refuse."""
        raise _refusal(bucket)

    async def remove(self, bucket: Bucket, key: str) -> None:
        """Refuse."""
        raise _refusal(bucket)

    async def copy(self, bucket: Bucket, key: str, to_bucket: Bucket, new_key: str) -> ObjectInfo:
        """Refuse."""
        raise _refusal(to_bucket)

    async def rename(self, bucket: Bucket, key: str, new_key: str) -> ObjectInfo:
        """Refuse."""
        raise _refusal(bucket)

    async def set_custom(
        self, bucket: Bucket, expected: ObjectInfo, custom: Mapping[str, str]
    ) -> ObjectInfo:
        """Refuse."""
        raise _refusal(bucket)


def _refusal(bucket: Bucket) -> ReadOnly:
    return ReadOnly(f"{bucket}: can only be read")
