"""From a name in a directory to its node: what every tree answers (`Names`), and the tree of buckets.

`Tree` has providers, buckets, directories, objects and the folders of shards. It knows the rules of naming (what `x.tar.d`
means, which name wins a clash), and no lookup counts. The trees of dataset mounts are in `dataset_trees`.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from aisfs.cache.names import WOULD_WAIT, Dated, DirectoryId, WouldWait
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.names import listing as names
from aisfs.core.names.listing import (
    PENDING_VERSION,
    SHARD_BYTES_SUFFIX,
    SHARD_DIRECTORY_SUFFIX,
    Listed,
    Listing,
    is_shard,
)
from aisfs.engine.fetcher import ListingChanged
from aisfs.engine.listing import Arriving, Lister
from aisfs.errors import BucketNotFound
from aisfs.filesystem.nodes import (
    DirectoryNode,
    Node,
    ObjectNode,
    ProviderNode,
    RemovedDirectoryNode,
    RootNode,
    ShardNode,
)
from aisfs.model import Bucket, ObjectInfo, Provider
from aisfs.settings import Shards
from aisfs.stores.posix_metadata import is_link
from aisfs.system.threads import any_thread

__all__ = ["Found", "FoundMember", "Tree"]


UNTIL_CHANGED = float("inf")
"""`expires` of what stands until it turns out to have changed."""


IsArchive = Callable[[Bucket, ObjectInfo], Awaitable[bool]]
"""Returns whether an object is an archive, judged by its content."""


class Found(msgspec.Struct, frozen=True):
    """A name of a directory, and what it stands for until `expires`."""

    name: bytes
    node: Node
    expires: float
    offset: int = 0
    """Directory offset of the entry; 0 when it was looked up."""


class FoundMember(Found, frozen=True, kw_only=True):
    """A name that stands for one member of the shard that is the node."""

    index: MemberIndex
    row: int


class Objects(NamedTuple):
    """Objects side by side in a listing, as columns: files, and nothing else."""

    bucket: Bucket
    offsets: Sequence[int]
    names: Sequence[bytes]
    infos: Sequence[ObjectInfo]


@dataclass(frozen=True, slots=True)
class Children:
    """One listing of a directory."""

    entries: Callable[[int], Iterator[Found]]
    """Returns the entries behind an offset; it can be called any number of times."""
    expires: float
    """Until when the listing may be believed."""
    objects: Callable[[int, int], Objects | None] = lambda *_: None
    """Gives those behind an offset, so many at most, as far as they are objects that show as plain
    files; None when not even the first is."""
    more: Callable[[int], Awaitable["Children | None"]] | None = None
    """Of a listing under way: waits until it has more behind an offset, and returns None; or what to go on with, since it is
    over. Raises AisfsError if it is not complete."""


class Names(Protocol):
    """What lies above the members of shards: `Tree`, or the directories of a dataset."""

    async def find(self, node: Node, ino: int, name: bytes) -> Found | None:
        """Look a name up in a directory that is not in a shard."""
        ...

    async def children(self, node: Node, ino: int) -> Children:
        """List a directory."""
        ...

    @any_thread
    def try_find(self, node: Node, ino: int, name: bytes) -> Found | WouldWait | None:
        """Look a name up without asking anybody."""
        ...

    @any_thread
    def try_children(self, node: Node, ino: int) -> Children | None:
        """List a directory without asking anybody; None when that cannot be."""
        ...

    def expires(self, node: Node) -> float | None:
        """Return until when what is known of a directory may be believed; None if nothing is."""
        ...

    def changed(self, node: ObjectNode | ShardNode) -> list[tuple[int, bytes]]:
        """Record that an object is another version; return the entries to be looked up again."""
        ...

    async def refresh(self, place: DirectoryId | None) -> Sequence[tuple[int, bytes]]:
        """Ask the store again for all names below a directory of a bucket, or in the whole mount.

        Returns:
            Number of the directory, and name, of what stands for something else now and whose inode does not say so.

        Raises:
            Unsupported: nothing here ever changes.
        """
        ...

    async def report(self, node: Node) -> Mapping[str, int]:
        """Count what a directory does not show, by reason."""
        ...


@dataclass(frozen=True, slots=True)
class _Alias:
    """What an object's other name says of it."""

    owner: bytes
    """The name of the object."""
    look_inside: IsArchive | None = None
    """Asked whether it is an archive, where its name does not say so."""


class Tree:
    """The directories above the shards."""

    def __init__(
        self,
        lister: Lister,
        shards: Shards,
        is_archive: IsArchive | None = None,
        *,
        reads_pages: bool = False,
    ) -> None:
        """Ask `lister`; show shards as `shards` says.

        With `is_archive` objects are opened up that do not have the name of a shard, but are one.

        If it `reads_pages`, directories are read while they are listed. Not where shards have two names: a later page may have an
        object of the second one.
        """
        self._reads_pages = reads_pages and shards is not Shards.BOTH
        self._lister = lister
        self.shards = shards
        """How shards show."""
        # Where shards are directories there is no name for the directory of anything else.
        self._is_archive = is_archive if shards is not Shards.DIR else None

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

    async def find_to_make(
        self, where: DirectoryNode, ino: int, name: bytes, *, only_object: bool = False
    ) -> Found | None:
        """Look up a name that is to be made; None if it is missing by the word of the store as of now.

        Another client may have made it since its directory was listed, and must not lose it.

        Args:
            where: The directory.
            ino: Its number.
            name: The name.
            only_object: Whether a directory of that name, which is not known here, does not matter.

        Raises:
            Unavailable, DeadlineExceeded: the store cannot say now.
        """
        found = await self.find(where, ino, name)
        if found is not None:
            return found
        missing = await self._lister.is_missing(
            where.bucket, where.prefix, name, only_object=only_object
        )
        return None if missing else await self.find(where, ino, name)

    @any_thread
    def try_find(self, node: Node, ino: int, name: bytes) -> Found | WouldWait | None:
        """Look a name up without asking anybody."""
        if isinstance(node, DirectoryNode):
            alias = self._alias(name)
            hidden = alias is None
            listed = self._lister.try_find(node.bucket, node.prefix, name, hidden=hidden)
            if isinstance(listed, Dated):
                return self._found(node, ino, name, listed.value, listed.expires)
            if listed is WOULD_WAIT or alias is None:
                return listed
            owner = self._lister.try_find(node.bucket, node.prefix, alias.owner)
            if owner is WOULD_WAIT or (alias.look_inside is not None and owner is not None):
                return WOULD_WAIT
            return self._found_alias(node, ino, name, owner)
        return WOULD_WAIT  # one level above the buckets, asked for once

    async def children(self, node: Node, ino: int) -> Children:
        """List a directory."""
        match node:
            case RootNode() | ProviderNode():
                return self._in_buckets(node, await self._lister.buckets.get())
            case DirectoryNode(bucket, prefix) if self._reads_pages:
                listing = await self._lister.first_names(bucket, prefix)
                if isinstance(listing, Arriving):
                    return self._arriving(node, ino, listing)
                return self._in_listing(node, ino, listing)
            case DirectoryNode(bucket, prefix):
                return self._in_listing(node, ino, await self._lister.directory(bucket, prefix))
            case RemovedDirectoryNode():
                return Children(lambda _: iter(()), UNTIL_CHANGED)
        raise AssertionError(f"{node} has no children here")

    @any_thread
    def try_children(self, node: Node, ino: int) -> Children | None:
        """List a directory without asking anybody; None when that cannot be."""
        match node:
            case RootNode() | ProviderNode():
                buckets = self._lister.buckets.try_get()
                return self._in_buckets(node, buckets) if buckets is not None else None
            case DirectoryNode(bucket, prefix):
                listing = self._lister.try_directory(bucket, prefix)
                return self._in_listing(node, ino, listing) if listing is not None else None
        return None

    def expires(self, node: Node) -> float | None:
        """Return until when what is known of a directory may be believed; None if nothing is."""
        match node:
            case RootNode() | ProviderNode():
                buckets = self._lister.buckets.try_get()
                return buckets.expires if buckets is not None else None
            case DirectoryNode(bucket, prefix):
                return self._lister.believed_until(bucket, prefix)
        return None

    def changed(self, node: ObjectNode | ShardNode) -> list[tuple[int, bytes]]:
        """Believe nothing about an object any more that turned out to be another version.

        Returns:
            Inode of the directory and name of each entry that the kernel must look up again.
        """
        prefix, slash, name = node.info.key.rpartition("/")
        listed = names.entry_name("", name)
        self._lister.drop(node.bucket, prefix + slash, listed)
        others = [each for each in self.names_of(listed) if each != node.name]
        return [(node.parent, each) for each in [*others, node.name]]

    async def refresh(self, place: DirectoryId | None) -> Sequence[tuple[int, bytes]]:
        """Forget all names below a directory of a bucket, and that of the directory itself."""
        bucket, prefix = place or (None, "")
        if bucket is not None and prefix:
            parent, slash, name = prefix.removesuffix("/").rpartition("/")
            self._lister.drop(bucket, parent + slash, names.entry_name("", name))
        await self._lister.refresh(bucket, prefix)
        return []

    async def report(self, node: Node) -> Mapping[str, int]:
        """Count what a directory does not show, by reason."""
        if not isinstance(node, DirectoryNode):
            return {}
        listing = (await self._lister.directory(node.bucket, node.prefix)).value
        return {str(reason): count for reason, count in listing.refused.items()}

    # providers and buckets -------------------------------------------------------------------

    async def _find_provider(self, name: bytes) -> Found | None:
        if name == Provider.AIS.scheme.encode():  # always there, even if buckets may not be listed
            return Found(name, ProviderNode(Provider.AIS), UNTIL_CHANGED)
        for found in self._in_buckets(RootNode(), await self._lister.buckets.get()).entries(0):
            if found.name == name:
                return found
        return None

    async def _find_bucket(self, bucket: Bucket, name: bytes) -> Found | None:
        try:
            expires = await self._lister.check_bucket(bucket)
        except BucketNotFound:
            return None
        return Found(name, DirectoryNode(bucket, ""), expires)

    def _in_buckets(self, node: RootNode | ProviderNode, listed: Dated[list[Bucket]]) -> Children:
        children: dict[bytes, Node] = {}
        if isinstance(node, RootNode):
            providers = {Provider.AIS, *(bucket.provider for bucket in listed.value)}
            children = {p.scheme.encode(): ProviderNode(p) for p in sorted(providers)}
        else:
            for bucket in listed.value:
                if bucket.provider is node.provider:
                    children[names.bucket_name(bucket)] = DirectoryNode(bucket, "")
        found = [
            Found(name, child, listed.expires, position)
            for position, (name, child) in enumerate(children.items(), start=1)
        ]
        return Children(lambda offset: iter(found[offset:]), listed.expires)

    # directories of a bucket -----------------------------------------------------------------

    async def _find_in_bucket(self, node: DirectoryNode, ino: int, name: bytes) -> Found | None:
        alias = self._alias(name)
        # No server hides the name of a shard folder: asking for it would be two requests for each.
        listed = await self._lister.find(node.bucket, node.prefix, name, hidden=alias is None)
        if listed is not None:
            return self._found(node, ino, name, listed.value, listed.expires)
        return await self._find_alias(node, ino, name, alias) if alias is not None else None

    async def _find_alias(
        self, node: DirectoryNode, ino: int, name: bytes, alias: _Alias
    ) -> Found | None:
        """Look for a shard under its other name; a real key of that name has been found before."""
        listed = await self._lister.find(node.bucket, node.prefix, alias.owner)
        info = listed.value if listed is not None else None
        look_inside = alias.look_inside
        if info and look_inside and (is_link(info) or not await look_inside(node.bucket, info)):
            return None
        return self._found_alias(node, ino, name, listed)

    def _alias(self, name: bytes) -> _Alias | None:
        """Return the object that `name` may be the other name of."""
        if self.shards is Shards.DIR:
            shard = names.shard_of_bytes(name)
        else:
            shard = names.shard_of_directory(name)
        if shard is not None:
            return _Alias(shard)
        owner = names.owner_of_directory(name) if self._is_archive is not None else None
        return _Alias(owner, self._is_archive) if owner is not None else None

    def _found_alias(
        self, node: DirectoryNode, ino: int, name: bytes, listed: Dated[Listed] | None
    ) -> Found | None:
        if listed is None or listed.value is None or not _has_members(listed.value):
            return None
        kind = ObjectNode if self.shards is Shards.DIR else ShardNode
        return Found(name, kind(node.bucket, listed.value, ino, name), listed.expires)

    def with_all_names(self, changed: ListingChanged) -> ListingChanged:
        """Return what calls `changed` with all names under which the named objects may be found."""

        def listed(bucket: Bucket, prefix: str, names: list[bytes]) -> None:
            changed(bucket, prefix, [each for name in names for each in self.names_of(name)])

        return listed

    def names_of(self, name: bytes) -> list[bytes]:
        """Return all names under which the object `name` may be found in its directory."""
        if not is_shard(name) and self._is_archive is None:
            return [name]
        suffix = SHARD_BYTES_SUFFIX if self.shards is Shards.DIR else SHARD_DIRECTORY_SUFFIX
        return [name, name + suffix]

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

    def _in_listing(self, node: DirectoryNode, ino: int, listing: Dated[Listing]) -> Children:
        entries = partial(self._entries, node, ino, listing)
        objects = partial(self._objects, node.bucket, listing.value)
        self._lister.overlay.given((node.bucket, node.prefix), listing.value)
        return Children(entries, listing.expires, objects)

    def _arriving(self, node: DirectoryNode, ino: int, arriving: Arriving) -> Children:
        def entries(offset: int) -> Iterator[Found]:
            return self._entries(node, ino, arriving.read(offset // 2), offset)

        def objects(offset: int, most: int) -> Objects | None:
            return self._objects(node.bucket, arriving.read(offset // 2).value, offset, most)

        async def more(offset: int) -> Children | None:
            if await arriving.more(offset // 2):
                return None
            # One that waited for its readers in vain is not left to their pace again.
            whole = arriving.whole or await self._lister.directory(node.bucket, node.prefix)
            return self._in_listing(node, ino, whole)

        return Children(entries, arriving.expires, objects, more)

    def _entries(
        self, node: DirectoryNode, ino: int, dated: Dated[Listing], offset: int
    ) -> Iterator[Found]:
        """Return the entries behind `offset`.

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

    def _objects(self, bucket: Bucket, listing: Listing, offset: int, most: int) -> Objects | None:
        """Return objects behind `offset` as columns."""
        last, is_second = divmod(offset, 2)
        wanted = None if self.shards is Shards.FILE else _is_no_shard
        if self.shards is Shards.BOTH and not is_second:
            last -= 1  # to see whether the last one given is a shard, whose second name comes next
        places, found, infos = listing.objects_after(max(last, 0), most, wanted)
        if places and 2 * places[0] <= offset:
            places, found, infos = places[1:], found[1:], infos[1:]
        if not found:
            return None
        return Objects(bucket, [2 * place for place in places], found, infos)


def _is_no_shard(name: bytes) -> bool:
    return not is_shard(name)


def _can_open(name: bytes, info: ObjectInfo) -> bool:
    """Return whether an object is shown as a folder: one that is only being written is not yet."""
    return is_shard(name) and _has_members(info)


def _has_members(info: ObjectInfo) -> bool:
    """Return whether a shard has content to be opened: not while it is only being written, nor if it is a link."""
    return info.version != PENDING_VERSION and not is_link(info)
