"""The interface through which uploads, mutations and batches use the client they belong to."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from aisfs.ais.protocol.requests import BucketFacts
from aisfs.ais.remotes import Remotes
from aisfs.ais.transport.client import Transport
from aisfs.http.connections import ConnectionSet
from aisfs.model import Bucket, ObjectInfo

T = TypeVar("T")


class Session(Protocol):
    """A client, as the parts of it see it."""

    transport: Transport
    remotes: Remotes

    async def run(
        self,
        subject: str,
        work: Callable[[ConnectionSet], T],
        bucket: Bucket | None = None,
        key: str = "",
    ) -> T:
        """Run `work` in a thread, on connections of its own; a cancellation aborts them.

        If `work` does not find the object `key`, it is missing, or this raises `Unavailable`.
        """
        ...

    def facts_of(self, connections: ConnectionSet, bucket: Bucket) -> BucketFacts:
        """Look the bucket's properties up, once. In the thread."""
        ...

    async def head(self, bucket: Bucket, key: str, *, latest: bool = False) -> ObjectInfo:
        """Describe the current version of one object; see `ObjectStore.head`."""
        ...

    async def read_range(
        self, bucket: Bucket, expected: ObjectInfo, start: int, buffer: memoryview
    ) -> None:
        """Fill `buffer` with the bytes from `start` on of exactly the version `expected`."""
        ...
