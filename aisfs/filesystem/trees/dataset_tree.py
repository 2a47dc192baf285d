"""The root of a dataset whose shards have a folder each; below it `ShardFolders` goes on."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from aisfs.cache.names import WOULD_WAIT, DirectoryId, WouldWait
from aisfs.engine.dataset.shard_set import FindShards, Shard, ShardSet
from aisfs.filesystem.nodes import Node, ObjectNode, ShardNode
from aisfs.filesystem.trees.bucket_tree import UNTIL_CHANGED, Children, Found


class DatasetTree:
    """Shards as folders, in the order in which the sources name them."""

    def __init__(self, shards: ShardSet, find_again: FindShards) -> None:
        """Show `shards`; `find_again` returns what the sources name now."""
        self._shards = shards
        self._find_again = find_again

    async def find(self, node: Node, ino: int, name: bytes) -> Found | None:
        """Look up the folder of a shard."""
        await self._shards.settle()
        return self._find(ino, name)

    def try_find(self, node: Node, ino: int, name: bytes) -> Found | WouldWait | None:
        """Look up the folder of a shard, unless one of them has to be asked for."""
        return self._find(ino, name) if self._shards.settled else WOULD_WAIT

    def _find(self, ino: int, name: bytes) -> Found | None:
        shard = self._shards.find(name)
        return _found(shard, ino) if shard is not None else None

    async def children(self, node: Node, ino: int) -> Children:
        """List the folders."""
        await self._shards.settle()
        return self._children(ino)

    def try_children(self, node: Node, ino: int) -> Children | None:
        """List the folders, unless one of them has to be asked for."""
        return self._children(ino) if self._shards.settled else None

    def _children(self, ino: int) -> Children:
        return Children(partial(_entries, self._shards.current, ino), UNTIL_CHANGED)

    def expires(self, node: Node) -> float:
        """Return until when the folders may be believed: until a shard turns out to have changed."""
        return UNTIL_CHANGED

    def changed(self, node: ObjectNode | ShardNode) -> list[tuple[int, bytes]]:
        """Ask for the shard's version before anything else is answered; see `Tree.changed`."""
        if self._shards.changed(node.bucket, node.info):
            return [(node.parent, node.name)]
        return []

    async def refresh(self, place: DirectoryId | None) -> Sequence[bytes]:
        """Find all shards again; each folder says of which version it is."""
        self._shards.renew(await self._find_again())
        return []

    async def report(self, node: Node) -> Mapping[str, int]:
        """Count what the sources named and the root does not show."""
        return self._shards.exclusions


def _entries(shards: list[tuple[int, Shard]], ino: int, offset: int) -> Iterator[Found]:
    return (_found(shard, ino, at + 1) for at, shard in shards if at >= offset)


def _found(shard: Shard, ino: int, offset: int = 0) -> Found:
    # It stands for this version until the shard turns out to be another.
    node = ShardNode(shard.bucket, shard.info, ino, shard.name)
    return Found(shard.name, node, UNTIL_CHANGED, offset)
