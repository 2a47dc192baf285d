"""Directories with members of many shards: the whole tree of the views `class` and `flat`, and of
`samples` where samples are joined.

Waiting is for building only: once a directory is laid out, names are found in it at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import trio

from aisfs.cache.names import WOULD_WAIT, DirectoryId, WouldWait
from aisfs.core.names.inodes import ROOT
from aisfs.core.views.merged import MergedChild
from aisfs.engine.dataset.merger import Merged, Merger
from aisfs.engine.dataset.shard_set import FindShards
from aisfs.errors import NotFound
from aisfs.filesystem.nodes import MergedDirectoryNode, Node, ObjectNode, ShardNode
from aisfs.filesystem.trees.bucket_tree import UNTIL_CHANGED, Children, Found, FoundMember


class MergedTree:
    """Names to directories and members."""

    def __init__(self, merger: Merger, layout: str, find_again: FindShards) -> None:
        """Show what `merger` builds; `layout` spells the options that decide how.

        `find_again` returns the shards that the sources name now.
        """
        self._merger = merger
        self._find_again = find_again
        self._layout = layout
        self._known_nodes: tuple[Merged | None, list[ShardNode]] = (None, [])

    async def find(self, node: Node, ino: int, name: bytes) -> Found | None:
        """Look a name up."""
        return self._find(await self._prepared(node), node, name)

    def try_find(self, node: Node, ino: int, name: bytes) -> Found | WouldWait | None:
        """Look a name up, unless shards have to be opened."""
        merged = self._merger.known
        if merged is None or not merged.view.ready(_path(node)):
            return WOULD_WAIT
        return self._find(merged, node, name)

    def _find(self, merged: Merged, node: Node, name: bytes) -> Found | None:
        path = _path(node)
        number = merged.view.resolve(path)
        child = merged.view.find(number, name) if number is not None else None
        return self._found(merged, path, child) if child is not None else None

    async def children(self, node: Node, ino: int) -> Children:
        """List a directory."""
        children = self._children(await self._prepared(node), node)
        if children is None:
            raise NotFound(f"{_path(node)!r} has no members any more")
        return children

    def try_children(self, node: Node, ino: int) -> Children | None:
        """List a directory, unless shards have to be opened."""
        merged = self._merger.known
        if merged is None or not merged.view.ready(_path(node)):
            return None
        return self._children(merged, node)

    async def _prepared(self, node: Node) -> Merged:
        """Return the tree with a directory of it laid out."""
        merged, path = await self._merger.merged(), _path(node)
        if not merged.view.ready(path):
            await trio.to_thread.run_sync(merged.view.prepare, path)
        return merged

    def _children(self, merged: Merged, node: Node) -> Children | None:
        path = _path(node)
        number = merged.view.resolve(path)
        if number is None:
            return None
        return Children(partial(self._entries, merged, path, number), UNTIL_CHANGED)

    def _entries(self, merged: Merged, path: bytes, number: int, offset: int) -> Iterator[Found]:
        for position in range(offset, merged.view.count(number)):
            yield self._found(merged, path, merged.view.child(number, position), position + 1)

    def expires(self, node: Node) -> float:
        """Return until when a directory may be believed: until a shard turns out to have changed."""
        return UNTIL_CHANGED

    def changed(self, node: ObjectNode | ShardNode) -> list[tuple[int, bytes]]:
        """Rebuild everything with the shard's new version; see `Tree.changed`.

        Directories get new numbers with it, so what the kernel knows of the old ones is not used.
        """
        return [(ROOT, name) for name in self._merger.changed(node.bucket, node.info)]

    async def refresh(self, place: DirectoryId | None) -> Sequence[bytes]:
        """Find all shards again, and rebuild everything if any is another or new, or gone."""
        return self._merger.renew(await self._find_again())

    async def report(self, node: Node) -> Mapping[str, int]:
        """Count what is left out of the whole dataset; of samples once it was listed."""
        path = _path(node)
        return (
            (await self._prepared(node)).view.skipped_in(path) if path else self._merger.exclusions
        )

    def _found(self, merged: Merged, path: bytes, child: MergedChild, offset: int = 0) -> Found:
        if child.directory is not None:
            below = path + b"/" + child.name if path else child.name
            return Found(
                child.name,
                MergedDirectoryNode(self._layout, below, merged.generation),
                UNTIL_CHANGED,
                offset,
            )
        node, index = self._nodes(merged)[child.shard], merged.indexes[child.shard]
        return FoundMember(child.name, node, UNTIL_CHANGED, offset, index=index, row=child.row)

    def _nodes(self, merged: Merged) -> list[ShardNode]:
        """Return one node for each shard, shared by all its members."""
        known = self._known_nodes
        if known[0] is not merged:
            nodes = [ShardNode(s.bucket, s.info, ROOT, s.name) for s in merged.shards]
            known = self._known_nodes = (merged, nodes)
        return known[1]


def _path(node: Node) -> bytes:
    return node.path if isinstance(node, MergedDirectoryNode) else b""
