"""The root of a mount of virtual shards: a list of files that never changes."""

from collections.abc import Iterator, Mapping, Sequence

from aisfs.cache.names import DirectoryId, WouldWait
from aisfs.core.views.shuffled_tar import VirtualShard
from aisfs.errors import Unsupported
from aisfs.filesystem.nodes import Node, ObjectNode, ShardNode, VirtualShardNode
from aisfs.filesystem.trees.bucket_tree import UNTIL_CHANGED, Children, Found

DIGITS = 6
"""Of the number in a shard's name, as in webdataset's examples; more where there are more shards."""


class SyntheticTree:
    """Virtual shards in order."""

    def __init__(self, shards: Sequence[VirtualShard], exclusions: Mapping[str, int]) -> None:
        """Show `shards`."""
        self._nodes = [VirtualShardNode(shard) for shard in shards]
        self._places = {_name(at): at for at in range(len(shards))}
        self._left_out = exclusions

    async def find(self, node: Node, ino: int, name: bytes) -> Found | None:
        """Look a shard up."""
        return self._find(name)

    def try_find(self, node: Node, ino: int, name: bytes) -> Found | WouldWait | None:
        """Look a shard up; this never waits."""
        return self._find(name)

    def _find(self, name: bytes) -> Found | None:
        at = self._places.get(name)
        return Found(name, self._nodes[at], UNTIL_CHANGED) if at is not None else None

    async def children(self, node: Node, ino: int) -> Children:
        """List the shards."""
        return self.try_children(node, ino)

    def try_children(self, node: Node, ino: int) -> Children:
        """List the shards; this never waits."""
        return Children(self._entries, UNTIL_CHANGED)

    def _entries(self, offset: int) -> Iterator[Found]:
        for at in range(offset, len(self._nodes)):
            yield Found(_name(at), self._nodes[at], UNTIL_CHANGED, at + 1)

    def expires(self, node: Node) -> float:
        """Return until when the list may be believed: as long as the mount lasts."""
        return UNTIL_CHANGED

    def changed(self, node: ObjectNode | ShardNode) -> list[tuple[int, bytes]]:
        """Return no names: which versions are shown was settled when the mount began."""
        return []

    async def refresh(self, place: DirectoryId | None) -> Sequence[bytes]:
        """Refuse; see `changed`."""
        raise Unsupported("virtual shards stay what they were when the mount began: mount again")

    async def report(self, node: Node) -> Mapping[str, int]:
        """Count what is in no shard."""
        return {} if isinstance(node, VirtualShardNode) else self._left_out


def _name(at: int) -> bytes:
    return b"shard-%0*d.tar" % (DIGITS, at)
