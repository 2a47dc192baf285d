"""Trees of names of dataset mounts: what their root has instead of buckets.

There is a folder for each shard; or directories with members of many shards (the views `class` and `flat`, and `samples` where
samples are joined), where only building waits; or the list of virtual shards, which never changes. `EpochTree` has one of these
for each epoch.
"""

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial

import trio
from msgspec import structs

from aisfs.cache.names import WOULD_WAIT, DirectoryId, WouldWait
from aisfs.core.names.inodes import ROOT
from aisfs.core.views.merged import MergedChild
from aisfs.core.views.shuffled_tar import VirtualShard
from aisfs.engine.dataset.merger import Merged, Merger
from aisfs.engine.dataset.shard_set import FindShards, Shard, ShardSet
from aisfs.errors import NotFound, Unsupported
from aisfs.filesystem.nodes import (
    DirectoryNode,
    MergedDirectoryNode,
    Node,
    ObjectNode,
    ShardNode,
    VirtualShardNode,
)
from aisfs.filesystem.trees import UNTIL_CHANGED, Children, Found, FoundMember, Names
from aisfs.model import Bucket
from aisfs.stores.epochs import epoch_directory, epoch_of


class DatasetTree:
    """Shards as folders, in the order in which the sources name them."""

    def __init__(self, shards: ShardSet, find_again: FindShards, nursery: trio.Nursery) -> None:
        """Show `shards`; `find_again` returns what the sources name now. `nursery` runs what is done ahead."""
        self._shards = shards
        self._nursery = nursery
        self._find_again = find_again

    async def find(self, node: Node, ino: int, name: bytes) -> Found | None:
        """Look up the folder of a shard."""
        await self._shards.settle()
        shard = await self._shards.find_sized(name, self._nursery)
        return _found(shard, ino) if shard is not None else None

    def try_find(self, node: Node, ino: int, name: bytes) -> Found | WouldWait | None:
        """Look up the folder of a shard, unless one of them has to be asked for."""
        shard = self._shards.find(name)
        if not self._shards.settled or (shard is not None and not shard.info.is_sized):
            return WOULD_WAIT
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

    async def refresh(self, place: DirectoryId | None) -> Sequence[tuple[int, bytes]]:
        """Find all shards again; each folder says which version it shows."""
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

    async def refresh(self, place: DirectoryId | None) -> Sequence[tuple[int, bytes]]:
        """Find all shards again, and rebuild everything if any is another or new, or gone."""
        return [(ROOT, name) for name in self._merger.renew(await self._find_again())]

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


DIGITS = 6
"""Of the number in a shard's name, as in webdataset's examples; more where there are more shards."""


class SyntheticTree:
    """Virtual shards in order."""

    def __init__(self, shards: Sequence[VirtualShard], exclusions: Mapping[str, int]) -> None:
        """Show `shards`."""
        self._shards = shards
        self._places = {_name(at): at for at in range(len(shards))}
        self._left_out = exclusions

    async def find(self, node: Node, ino: int, name: bytes) -> Found | None:
        """Look a shard up."""
        return self._find(ino, name)

    def try_find(self, node: Node, ino: int, name: bytes) -> Found | WouldWait | None:
        """Look a shard up; this never waits."""
        return self._find(ino, name)

    def _find(self, ino: int, name: bytes) -> Found | None:
        at = self._places.get(name)
        return self._found(ino, at) if at is not None else None

    def _found(self, ino: int, at: int, offset: int = 0) -> Found:
        name = _name(at)
        node = VirtualShardNode(self._shards[at], name, ino)
        return Found(name, node, UNTIL_CHANGED, offset)

    async def children(self, node: Node, ino: int) -> Children:
        """List the shards."""
        return self.try_children(node, ino)

    def try_children(self, node: Node, ino: int) -> Children:
        """List the shards; this never waits."""
        return Children(partial(self._entries, ino), UNTIL_CHANGED)

    def _entries(self, ino: int, offset: int) -> Iterator[Found]:
        for at in range(offset, len(self._shards)):
            yield self._found(ino, at, at + 1)

    def expires(self, node: Node) -> float:
        """Return until when the list may be believed: as long as the mount lasts."""
        return UNTIL_CHANGED

    def changed(self, node: ObjectNode | ShardNode) -> list[tuple[int, bytes]]:
        """Return no names: which versions are shown was settled when the mount began."""
        return []

    async def refresh(self, place: DirectoryId | None) -> Sequence[tuple[int, bytes]]:
        """Refuse; see `changed`."""
        raise Unsupported("virtual shards do not change while they are mounted: mount again")

    async def report(self, node: Node) -> Mapping[str, int]:
        """Count what is in no shard."""
        return {} if isinstance(node, VirtualShardNode) else self._left_out


def _name(at: int) -> bytes:
    return b"shard-%0*d.tar" % (DIGITS, at)


class EpochTree:
    """Directories of epochs in the root, each with a tree of its own, which is made when it is first asked for."""

    def __init__(
        self, bucket: Bucket, count: int, first: Names, make: Callable[[int], Awaitable[Names]]
    ) -> None:
        """Show so many epochs of a dataset in this bucket, or beginning there.

        Args:
            bucket: Whose root is the root of the mount.
            count: How many.
            first: The tree of epoch 0.
            make: Returns that of another one.
        """
        self._bucket = bucket
        self._count = count
        self._make = make
        self._trees = {0: first}
        self._inos: dict[int, int] = {}
        """Numbers of directories of epochs that were looked into."""
        self._turn = trio.Lock()

    def _epoch(self, node: Node) -> int | None:
        """Return the epoch that a node is of; None for the root."""
        match node:
            case DirectoryNode(_, prefix):
                return epoch_of(prefix, self._count)
            case MergedDirectoryNode(layout):
                return epoch_of(layout, self._count)
            case ObjectNode() | ShardNode():
                return epoch_of(node.info.key, self._count)
        return None

    async def _tree(self, epoch: int) -> Names:
        async with self._turn:
            if epoch not in self._trees:
                self._trees[epoch] = await self._make(epoch)
            return self._trees[epoch]

    def _known(self, node: Node, ino: int) -> Names | None:
        """Return the tree that a directory is in, if that is made."""
        epoch = self._epoch(node)
        if epoch is not None and isinstance(node, DirectoryNode):
            self._inos[epoch] = ino
        return self._trees.get(epoch) if epoch is not None else None

    def _found(self, epoch: int) -> Found:
        prefix = epoch_directory(epoch)
        name, node = prefix[:-1].encode(), DirectoryNode(self._bucket, prefix)
        return Found(name, node, UNTIL_CHANGED, epoch + 1)

    def _find_epoch(self, name: bytes) -> Found | None:
        epoch = epoch_of(f"{os.fsdecode(name)}/", self._count)
        return structs.replace(self._found(epoch), offset=0) if epoch is not None else None

    async def find(self, node: Node, ino: int, name: bytes) -> Found | None:
        """Look a name up; making a tree may open all shards."""
        epoch = self._epoch(node)
        if epoch is None:
            return self._find_epoch(name)
        known = self._known(node, ino) or await self._tree(epoch)
        return await known.find(node, ino, name)

    def try_find(self, node: Node, ino: int, name: bytes) -> Found | WouldWait | None:
        """Look a name up in a tree that is made."""
        if self._epoch(node) is None:
            return self._find_epoch(name)
        known = self._known(node, ino)
        return known.try_find(node, ino, name) if known is not None else WOULD_WAIT

    async def children(self, node: Node, ino: int) -> Children:
        """List a directory."""
        epoch = self._epoch(node)
        if epoch is None:
            return self._epochs()
        known = self._known(node, ino) or await self._tree(epoch)
        return await known.children(node, ino)

    def try_children(self, node: Node, ino: int) -> Children | None:
        """List a directory of a tree that is made."""
        if self._epoch(node) is None:
            return self._epochs()
        known = self._known(node, ino)
        return known.try_children(node, ino) if known is not None else None

    def _epochs(self) -> Children:
        return Children(lambda offset: map(self._found, range(offset, self._count)), UNTIL_CHANGED)

    def expires(self, node: Node) -> float:
        """Return until when a directory may be believed: until a shard turns out to have changed."""
        return UNTIL_CHANGED

    def changed(self, node: ObjectNode | ShardNode) -> list[tuple[int, bytes]]:
        """Have the tree of the epoch forget a version; see `Tree.changed`."""
        epoch = self._epoch(node)
        tree = self._trees.get(epoch) if epoch is not None else None
        return self._placed(epoch, tree.changed(node)) if tree is not None else []

    async def refresh(self, place: DirectoryId | None) -> Sequence[tuple[int, bytes]]:
        """Find all shards of the epochs again that were looked into, or those of one."""
        only = epoch_of(place[1], self._count) if place is not None else None
        entries: list[tuple[int, bytes]] = []
        for epoch, tree in list(self._trees.items()):
            if only in (None, epoch):
                entries += self._placed(epoch, await tree.refresh(place))
        return entries

    def _placed(
        self, epoch: int | None, entries: Sequence[tuple[int, bytes]]
    ) -> list[tuple[int, bytes]]:
        """Return entries in the directory of an epoch that are said to be in the root."""
        if epoch not in self._inos:
            return []
        ino = self._inos[epoch]
        return [(ino if parent == ROOT else parent, name) for parent, name in entries]

    async def report(self, node: Node) -> Mapping[str, int]:
        """Count what a directory does not show."""
        epoch = self._epoch(node)
        return await (await self._tree(epoch if epoch is not None else 0)).report(node)
