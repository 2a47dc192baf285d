"""What there is to pack, wherever it lies."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from aisfs.core.namespace.index_places import shard_of_published
from aisfs.core.namespace.sources import BucketSource, DirectorySource
from aisfs.core.synthetic.packing import File, ShardNames

Place = BucketSource | DirectorySource
"""Where shards are written to."""

ReadFile = Callable[[File, int, memoryview], None]
"""Fills a view, which is not empty, with the content of a file from an offset on. Called in threads.

Raises:
    ContentUnreadable: it cannot be read, or has changed.
"""


class Tree(Protocol):
    """Files to be packed."""

    @property
    def files(self) -> list[File]:
        """All of them."""
        ...

    @property
    def left_out(self) -> list[str]:
        """A line for each thing that cannot be packed."""
        ...

    def reading(self) -> AbstractAsyncContextManager[ReadFile]:
        """Open what they lie in, while they are packed."""
        ...


def is_own(key: str, names: ShardNames) -> bool:
    """Return whether a key is that of a shard with one of these names, or of its index."""
    return names.index(shard_of_published(key) or key) is not None
