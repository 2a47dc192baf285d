"""Directories with members of many shards: the whole tree of the views `class` and `flat`.

Waiting is for building only: once there is a view, names are found in it at once.
"""

from collections.abc import Callable, Iterator, Mapping

from aisfs.core.inodes import ROOT
from aisfs.core.merged_view import MergedChild
from aisfs.engine.merger import Merged, Merger
from aisfs.errors import NotFound
from aisfs.filesystem.nodes import MergedDirectoryNode, Node, ObjectNode, ShardNode
from aisfs.filesystem.tree import Found, FoundMember

_FOREVER = float("inf")  # until a shard turns out to have changed


class MergedTree:
    """Names to directories and members."""

    def __init__(self, merger: Merger, layout: str) -> None:
        """Show what `merger` builds; `layout` spells the options that decide how."""
        self._merger = merger
        self._layout = layout
        self._known_nodes: tuple[Merged | None, list[ShardNode]] = (None, [])

    async def find(self, node: Node, ino: int, name: bytes) -> Found | None:
        """Look a name up."""
        merged = await self._merger.merged()
        path = _path(node)
        number = merged.view.resolve(path)
        child = merged.view.find(number, name) if number is not None else None
        return self._found(merged, path, child) if child is not None else None

    async def children(self, node: Node, ino: int) -> Callable[[int], Iterator[Found]]:
        """List a directory; the result gives the entries behind an offset."""
        merged = await self._merger.merged()
        path = _path(node)
        number = merged.view.resolve(path)
        if number is None:
            raise NotFound(f"{path!r} has no members any more")
        return lambda offset: (
            self._found(merged, path, merged.view.child(number, position), position + 1)
            for position in range(offset, merged.view.count(number))
        )

    def changed(self, node: ObjectNode | ShardNode) -> list[tuple[int, bytes]]:
        """Have everything built anew with the shard's new version; see `Tree.changed`.

        A directory that the kernel looks up again takes with it what the kernel knows below it.
        """
        return [(ROOT, name) for name in self._merger.changed(node.bucket, node.info)]

    async def report(self, node: Node) -> Mapping[str, int]:
        """Count what is left out of the whole dataset; of samples once it was listed."""
        return {} if _path(node) else self._merger.left_out

    def _found(self, merged: Merged, path: bytes, child: MergedChild, offset: int = 0) -> Found:
        if child.directory is not None:
            below = path + b"/" + child.name if path else child.name
            return Found(child.name, MergedDirectoryNode(self._layout, below), _FOREVER, offset)
        node, index = self._nodes(merged)[child.shard], merged.indexes[child.shard]
        return FoundMember(child.name, node, _FOREVER, offset, index=index, row=child.row)

    def _nodes(self, merged: Merged) -> list[ShardNode]:
        """Give one node for each shard, shared by all its members."""
        known = self._known_nodes
        if known[0] is not merged:
            nodes = [ShardNode(s.bucket, s.info, ROOT, s.name) for s in merged.shards]
            known = self._known_nodes = (merged, nodes)
        return known[1]


def _path(node: Node) -> bytes:
    return node.path if isinstance(node, MergedDirectoryNode) else b""
