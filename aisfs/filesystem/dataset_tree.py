"""The root of a dataset whose shards have a folder each; below it `ShardFolders` goes on."""

from collections.abc import Callable, Iterator, Mapping

from aisfs.engine.shard_set import Shard, ShardSet
from aisfs.filesystem.nodes import Node, ObjectNode, ShardNode
from aisfs.filesystem.tree import Found


class DatasetTree:
    """Shards as folders, in the order in which the sources name them."""

    def __init__(self, shards: ShardSet) -> None:
        """Show `shards`."""
        self._shards = shards

    async def find(self, node: Node, ino: int, name: bytes) -> Found | None:
        """Look up the folder of a shard."""
        await self._shards.settle()
        shard = self._shards.find(name)
        return _found(shard, ino) if shard is not None else None

    async def children(self, node: Node, ino: int) -> Callable[[int], Iterator[Found]]:
        """List the folders; the result gives those behind an offset."""
        await self._shards.settle()
        current = self._shards.current
        return lambda offset: (_found(shard, ino, at + 1) for at, shard in current if at >= offset)

    def changed(self, node: ObjectNode | ShardNode) -> list[tuple[int, bytes]]:
        """Ask for the shard's version before anything else is answered; see `Tree.changed`."""
        if self._shards.changed(node.bucket, node.info):
            return [(node.parent, node.name)]
        return []

    async def report(self, node: Node) -> Mapping[str, int]:
        """Count what the sources named and the root does not show."""
        return self._shards.left_out


def _found(shard: Shard, ino: int, offset: int = 0) -> Found:
    # It stands for this version until the shard turns out to be another.
    node = ShardNode(shard.bucket, shard.info, ino, shard.name)
    return Found(shard.name, node, float("inf"), offset)
