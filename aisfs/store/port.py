"""The port every source of objects implements; one contract suite (tests/contract) holds them to it.

All methods are coroutines for trio and may be called by many tasks at once. A cancelled call
leaves nothing behind: no open request on the server, no thread that still writes to a buffer.
Failures are `aisfs.errors` only; `error.transient` tells whether to try again.
"""

from collections.abc import Callable
from typing import Protocol

from aisfs.model import Bucket, ObjectInfo, Page, Provider

Sink = Callable[[memoryview], None]
"""Takes the next bytes of a stream, in order. The view is only valid during the call."""


class ObjectStore(Protocol):
    """Buckets of objects, to be read."""

    async def list_buckets(self, provider: Provider | None = None) -> list[Bucket]:
        """List the buckets this client may see, sorted; all providers when None."""
        ...

    async def list_page(
        self, bucket: Bucket, prefix: str, *, token: str = "", page_size: int = 0
    ) -> Page:
        """List one page of the directory `prefix`, without recursion.

        Args:
            bucket: The bucket.
            prefix: Empty for the top level, otherwise ends in `/`.
            token: `next_token` of the page before; empty for the first page.
            page_size: Most entries wanted; 0 leaves it to the store. Fewer may come on any page.

        A directory without entries is an empty page, not an error.

        Raises:
            BucketNotFound: the bucket does not exist.
        """
        ...

    async def head(self, bucket: Bucket, key: str) -> ObjectInfo:
        """Describe the current version of one object.

        Raises:
            NotFound: no such object; `BucketNotFound` when it is the bucket that is missing.
        """
        ...

    async def read_range(
        self, bucket: Bucket, expected: ObjectInfo, start: int, buffer: memoryview
    ) -> None:
        """Fill `buffer` with the bytes from `start` on of exactly the version `expected`.

        The range must be non-empty and lie within `expected.size`, else ValueError: the caller's
        bug. On an error the content of `buffer` is undefined.

        Raises:
            Stale: the object is now another version; nothing of it was delivered as `expected`.
            NotFound: the object is gone.
        """
        ...

    async def stream(self, bucket: Bucket, expected: ObjectInfo, sink: Sink) -> None:
        """Send the whole object, version `expected`, to `sink` as the bytes arrive.

        `sink` runs in a worker thread, not always one of trio's (it may use a trio token, not
        `trio.from_thread` without one), and must not wait for anything but the processor; an
        exception from it ends the stream and comes out of this call.

        Raises:
            Stale, NotFound: as for `read_range`; `sink` may have been given a part by then.
        """
        ...

    async def aclose(self) -> None:
        """Release connections. Calls in progress fail."""
        ...
