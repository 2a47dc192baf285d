"""Where the index of a shard may be found that need not be scanned then.

A new source gets a class here or beside, with the method of `IndexSource`, and a place in the order
that `aisfs.app.services` gives to the indexer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.published import LabelColumn
from aisfs.core.names.formats import Form
from aisfs.model import Bucket, ObjectInfo

T = TypeVar("T")

KEPT = "kept"
"""The origin of an index that was found in the index cache."""

FormedShard = tuple[Bucket, ObjectInfo, Form]
"""A version of a shard, and its form."""


@dataclass(frozen=True, slots=True)
class FoundIndex:
    """What a source knows of a shard."""

    index: MemberIndex
    labels: Mapping[str, LabelColumn] = field(default_factory=dict)
    """Columns of labels by the name of their rule: see `Indexer.labels`."""
    encoded: bytes | None = None
    """The index as `core.index.codec` encodes it, if it was found like that."""
    origin: str = KEPT
    """In one word, where it was found."""


class IndexSource(Protocol):
    """Knows the indexes of some shards."""

    async def find(self, bucket: Bucket, shard: ObjectInfo, form: Form) -> FoundIndex | None:
        """Return the index of exactly this version; None if it has to be found elsewhere."""
        ...

    async def find_many(
        self, shards: Sequence[FormedShard], use: Callable[[int, FoundIndex], T | None]
    ) -> list[T | None]:
        """Return what `use` makes of the indexes of some shards, much faster than one by one.

        Args:
            shards: The shards.
            use: Called with the position of a shard and its index, in a worker thread.

        Returns:
            None where `use` returned it, and for a shard that has to be asked for with `find`.
        """
        ...
