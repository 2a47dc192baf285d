"""Names to nodes: providers, buckets, directories, objects and the folders of shards.

Knows the rules of naming (what `x.tar.d` means, who wins a clash); knows no lookup counts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aisfs.cache.metadata import Dated
from aisfs.config import Shards
from aisfs.core import names
from aisfs.core.listing import PENDING_VERSION, Listed, Listing
from aisfs.core.names import SHARD_DIRECTORY_SUFFIX, is_shard
from aisfs.engine.lister import Lister
from aisfs.errors import BucketNotFound
from aisfs.filesystem.nodes import (
    DirectoryNode,
    Node,
    ObjectNode,
    ProviderNode,
    RootNode,
    ShardNode,
)
from aisfs.model import Bucket, ObjectInfo, Provider

__all__ = ["Found", "Tree"]


@dataclass(frozen=True, slots=True)
class Found:
    """A name of a directory, and what it stands for until `expires`."""

    name: bytes
    node: Node
    expires: float
    offset: int = 0
    """Directory offset of the entry; 0 when it was looked up."""


class Tree:
    """The directories above the shards."""

    def __init__(self, lister: Lister, shards: Shards) -> None:
        """Ask `lister`; show shards as `shards` says."""
        self._lister = lister
        self.shards = shards
        """How shards show."""

    async def find(self, node: Node, ino: int, name: bytes) -> Found | None:
        """Look a name up in a directory that is not in a shard."""
        match node:
            case RootNode():
                return await self._find_provider(name)
            case ProviderNode(provider) if names.is_bucket_name(name):
                return await self._find_bucket(names.parse_bucket_name(provider, name), name)
            case DirectoryNode():
                return await self._find_in_bucket(node, ino, name)
        return None

    async def children(self, node: Node, ino: int) -> Callable[[int], Iterator[Found]]:
        """List a directory; the result gives the entries behind an offset, again and again."""
        match node:
            case RootNode() | ProviderNode():
                found = await self._providers_or_buckets(node)
                return lambda offset: iter(found[offset:])
            case DirectoryNode(bucket, prefix):
                listing = await self._lister.directory(bucket, prefix)
                return lambda offset: self._entries(node, ino, listing, offset)
        raise AssertionError(f"{node} has no children here")

    # providers and buckets -------------------------------------------------------------------

    async def _find_provider(self, name: bytes) -> Found | None:
        if name == Provider.AIS.scheme.encode():  # always there, whoever may list buckets
            return Found(name, ProviderNode(Provider.AIS), float("inf"))
        for found in await self._providers_or_buckets(RootNode()):
            if found.name == name:
                return found
        return None

    async def _find_bucket(self, bucket: Bucket, name: bytes) -> Found | None:
        try:
            expires = await self._lister.check_bucket(bucket)
        except BucketNotFound:
            return None
        return Found(name, DirectoryNode(bucket, ""), expires)

    async def _providers_or_buckets(self, node: RootNode | ProviderNode) -> list[Found]:
        listed = await self._lister.buckets()
        children: dict[bytes, Node] = {}
        if isinstance(node, RootNode):
            providers = {Provider.AIS, *(bucket.provider for bucket in listed.value)}
            children = {p.scheme.encode(): ProviderNode(p) for p in sorted(providers)}
        else:
            for bucket in listed.value:
                if bucket.provider is node.provider:
                    children[names.bucket_name(bucket)] = DirectoryNode(bucket, "")
        return [
            Found(name, child, listed.expires, position)
            for position, (name, child) in enumerate(children.items(), start=1)
        ]

    # directories of a bucket -----------------------------------------------------------------

    async def _find_in_bucket(self, node: DirectoryNode, ino: int, name: bytes) -> Found | None:
        listed = await self._lister.find(node.bucket, node.prefix, name)
        if listed is not None:
            return self._found(node, ino, name, listed.value, listed.expires)
        return await self._find_alias(node, ino, name)

    async def _find_alias(self, node: DirectoryNode, ino: int, name: bytes) -> Found | None:
        """Look for a shard under its other name; a real key of that name has been found before."""
        as_bytes = self.shards is Shards.DIR
        shard = names.shard_of_bytes(name) if as_bytes else names.shard_of_directory(name)
        if shard is None:
            return None
        listed = await self._lister.find(node.bucket, node.prefix, shard)
        if listed is None or listed.value is None or not _can_open(shard, listed.value):
            return None
        kind = ObjectNode if as_bytes else ShardNode
        return Found(name, kind(node.bucket, listed.value, ino, name), listed.expires)

    def _found(
        self,
        node: DirectoryNode,
        ino: int,
        name: bytes,
        listed: Listed,
        expires: float,
        offset: int = 0,
    ) -> Found:
        child: Node
        if listed is None:
            child = DirectoryNode(node.bucket, names.child_prefix(node.prefix, name))
        elif self.shards is Shards.DIR and _can_open(name, listed):
            child = ShardNode(node.bucket, listed, ino, name)
        else:
            child = ObjectNode(node.bucket, listed, ino, name)
        return Found(name, child, expires, offset)

    def _entries(
        self, node: DirectoryNode, ino: int, dated: Dated[Listing], offset: int
    ) -> Iterator[Found]:
        """Give the entries behind `offset`.

        An entry of the listing has twice its own offset, which leaves room behind it for the
        second name of a shard.
        """
        listing = dated.value
        both = self.shards is Shards.BOTH
        for place, name, listed in listing.after((offset - 1) // 2 if offset else 0):
            if 2 * place > offset:
                yield self._found(node, ino, name, listed, dated.expires, 2 * place)
            alias = name + SHARD_DIRECTORY_SUFFIX
            if not (both and isinstance(listed, ObjectInfo) and _can_open(name, listed)):
                continue
            if alias not in listing and not names.refusal(alias):
                yield Found(
                    alias, ShardNode(node.bucket, listed, ino, alias), dated.expires, 2 * place + 1
                )


def _can_open(name: bytes, info: ObjectInfo) -> bool:
    """Say whether an object is shown as a folder: one that is only being written is not yet."""
    return is_shard(name) and info.version != PENDING_VERSION
