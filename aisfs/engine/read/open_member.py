"""What opening a member found, carried along so that no read of it looks again."""

from dataclasses import dataclass

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.policy.shard_readers import MemberOrder
from aisfs.engine.fetch.object_state import OpenObject
from aisfs.model import Bucket, ObjectInfo


class MemberReads:
    """How the members of one version of a shard are read. Does not hold its index in memory."""

    __slots__ = ("in_order", "opened", "order", "reported_until", "shard")

    def __init__(self, shard: ObjectInfo, opened: OpenObject, members: int) -> None:
        """Start without any read.

        Args:
            shard: The version.
            opened: What the offsets of its index refer to: the object, or what it is decompressed.
            members: How many it has.
        """
        self.shard = shard
        self.opened = opened
        self.order = MemberOrder(members)
        self.in_order = False
        """Whether members are being read in the order of the tar."""
        self.reported_until = 0.0
        """Until when the trio thread need not hear of it again."""

    def __str__(self) -> str:
        return f"{self.bucket}/{self.shard.key}"

    @property
    def bucket(self) -> Bucket:
        """The bucket of the shard."""
        return self.opened.bucket


MemberId = tuple[Bucket, ObjectInfo, int]


@dataclass(frozen=True, slots=True)
class OpenMember:
    """A member to be read."""

    reads: MemberReads
    index: MemberIndex
    row: int
    in_order: bool
    """Whether the members of the shard are read in the order of the tar."""

    @property
    def id(self) -> MemberId:
        """What tells it from all other members."""
        return self.reads.bucket, self.reads.shard, self.row
