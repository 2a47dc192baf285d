"""All pages of one directory, one after the other."""

from collections.abc import AsyncIterator

from aisfs.core.names.listing import ListingBounds
from aisfs.errors import BucketNotFound, NotFound
from aisfs.model import Bucket, Page
from aisfs.store.port import ObjectStore


async def pages_of(store: ObjectStore, bucket: Bucket, prefix: str) -> AsyncIterator[Page]:
    """Yield the pages of a directory, one without entries if there is none; an entry may come twice.

    Raises:
        ProtocolError: the listing has no end.
    """
    bounds = ListingBounds(f"{bucket}/{prefix}")
    token = ""
    while True:
        try:
            page = await store.list_page(bucket, prefix, token=token)
        except BucketNotFound:
            raise
        except NotFound:  # of a store that has directories of its own
            page = Page([], [], "")
        token = page.next_token
        bounds.check(page.names, token)
        yield page
        if not token:
            return
