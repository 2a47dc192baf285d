"""New buckets, in a mount of all of them."""

import logging
import os

from aisfs.core.names.listing import check_new_bucket
from aisfs.engine.listing import BucketList
from aisfs.engine.writing.uploads import Writer
from aisfs.errors import BucketNotFound, ReadOnly
from aisfs.filesystem.nodes import ProviderNode
from aisfs.filesystem.trees.bucket_tree import Found, Tree
from aisfs.model import Bucket

log = logging.getLogger(__name__)


class BucketMaker:
    """Makes buckets, if that is allowed."""

    def __init__(self, tree: Tree, buckets: BucketList, writer: Writer, *, allowed: bool) -> None:
        """Make with `writer` what `buckets`, the list of `tree`, then shows."""
        self._tree = tree
        self._buckets = buckets
        self._writer = writer
        self._allowed = allowed

    async def make(self, node: ProviderNode, parent: int, name: bytes) -> Found:
        """Make a bucket.

        Raises:
            AlreadyExists: it is there, perhaps since a moment ago.
            InvalidName, Unsupported: AIStore makes no such bucket.
            ReadOnly: buckets may not be made.
        """
        # A namespace is no part of a new name: `@` and `#` are refused.
        bucket = Bucket(os.fsdecode(name), node.provider)
        if not self._allowed:
            log.warning("%s is not made: mount with --allow-bucket-changes to allow it", bucket)
            raise ReadOnly(f"{bucket}: buckets are made only with --allow-bucket-changes")
        check_new_bucket(bucket)
        try:
            await self._writer.create_bucket(bucket)
        finally:  # even after an error: another client may have made it
            self._buckets.forget()
        found = await self._tree.find(node, parent, name)
        if found is None:
            raise BucketNotFound(f"{bucket} was made, and is gone again")
        log.info("made %s", bucket)
        return found
