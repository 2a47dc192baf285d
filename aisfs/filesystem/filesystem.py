"""The operations of the file system, with our own values and errors and without the kernel.

Every method takes and gives inode numbers, names as bytes and `aisfs.errors`. fuse/ translates.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from aisfs.core.inodes import InodeTable, directory_number, split_member
from aisfs.core.member_index import MemberIndex, MemberKind
from aisfs.core.names import NAME_MAX
from aisfs.engine.lister import Lister
from aisfs.engine.parts import Data
from aisfs.engine.reader import Reader
from aisfs.errors import (
    IsADirectory,
    NameTooLong,
    NotADirectory,
    NotFound,
    Stale,
)
from aisfs.filesystem.attributes import FOREVER, Attr, AttrMaker, Entry
from aisfs.filesystem.nodes import Node, ObjectNode, ShardNode, identity
from aisfs.filesystem.shards import ShardFolders
from aisfs.filesystem.tree import Found, Tree
from aisfs.model import ByteRange


class Kernel(Protocol):
    """What the file system may tell the kernel."""

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        """Make the kernel look `name` up again. Must not wait for a request to be answered."""
        ...

    async def invalidated(self, parent: int, name: bytes) -> None:
        """Make the kernel look `name` up again, and wait until it knows, a second at most.

        Not for requests during which the kernel holds the lock of the directory `parent`.
        """
        ...


@dataclass(frozen=True, slots=True)
class DirectoryHandle:
    """An open directory: a snapshot, so that one listing is consistent in itself."""

    entries: Callable[[int], Iterator[tuple[int, Entry, Node]]]


@dataclass(frozen=True, slots=True)
class FileHandle:
    """An open object or member of one version."""

    node: ObjectNode | ShardNode
    index: MemberIndex | None = None
    row: int = 0
    in_order: bool = False
    """Whether members of the shard are being read in the order of the tar."""


class FileSystem:
    """One mount's tree."""

    def __init__(
        self,
        root: Node,
        *,
        tree: Tree,
        folders: ShardFolders,
        reader: Reader,
        lister: Lister,
        make: AttrMaker,
        clock: Callable[[], float],
    ) -> None:
        """Serve the tree below `root`."""
        self.inodes: InodeTable[Node] = InodeTable(root)
        self._tree = tree
        self._folders = folders
        self._reader = reader
        self._lister = lister
        self._make = make
        self._clock = clock
        self.kernel: Kernel | None = None
        """Set once there is a kernel to tell something."""

    # names -----------------------------------------------------------------------------------

    async def lookup(self, parent: int, name: bytes) -> Entry | None:
        """Look a name up and count the lookup; None when it is missing."""
        if len(name) > NAME_MAX:
            raise NameTooLong(f"{name!r} is longer than {NAME_MAX} bytes")
        node = self.node(parent)
        if isinstance(node, ShardNode):
            with self.noticing_change(node):
                entry = await self._folders.find(node, parent, name)
            if entry is not None:
                self.remember(entry, node)
            return entry
        if isinstance(node, ObjectNode):
            raise NotADirectory(f"{node.info.key} is not a directory")
        found = await self._tree.find(node, parent, name)
        if found is None:
            return None
        entry = self._entry(found)
        self.remember(entry, found.node)
        return entry

    def remember(self, entry: Entry, node: Node) -> None:
        """Count one lookup, or one entry of a listing that the kernel took."""
        self.inodes.remember(entry.attr.ino, identity(node), node)

    def forget(self, ino: int, count: int) -> None:
        """Take back `count` lookups."""
        self.inodes.forget(ino, count)

    async def getattr(self, ino: int) -> Attr:
        """Describe an inode."""
        node = self.node(ino)
        match node:
            case ShardNode():
                with self.noticing_change(node):
                    return await self._folders.attr(node, ino)
            case ObjectNode(_, info):
                return self._make.object(ino, info)
        return self._make.directory(ino)

    def node(self, ino: int) -> Node:
        """Give the node of an inode the kernel knows.

        Raises:
            Stale: it is not known, which a file handle from another mount can bring about.
        """
        node = self.inodes.get(ino)
        if node is None:
            raise Stale(f"inode {ino} is not known to this mount")
        return node

    def _entry(self, found: Found) -> Entry:
        node = found.node
        if isinstance(node, ShardNode):
            first = self.inodes.number(identity(node), shard=True)
            attr = self._folders.folder(node, directory_number(first, 0))
        else:
            number = self.inodes.number(identity(node))
            if isinstance(node, ObjectNode):
                attr = self._make.object(number, node.info)
            else:
                attr = self._make.directory(number)
        return Entry(found.name, attr, min(max(found.expires - self._clock(), 0.0), FOREVER))

    # directories -----------------------------------------------------------------------------

    async def opendir(self, ino: int) -> DirectoryHandle:
        """Take a snapshot of a directory: complete, or an error."""
        node = self.node(ino)
        if isinstance(node, ObjectNode):
            raise NotADirectory(f"{node.info.key} is not a directory")
        if isinstance(node, ShardNode):
            with self.noticing_change(node):
                members = await self._folders.children(node, ino)
            return DirectoryHandle(lambda offset: ((at, e, node) for at, e in members(offset)))
        children = await self._tree.children(node, ino)
        return DirectoryHandle(
            lambda offset: (
                (found.offset, self._entry(found), found.node) for found in children(offset)
            )
        )

    # files -----------------------------------------------------------------------------------

    async def open(self, ino: int) -> FileHandle:
        """Open the version of an object or a member that the inode number stands for."""
        node = self.node(ino)
        if isinstance(node, ObjectNode):
            return FileHandle(node)
        if isinstance(node, ShardNode):
            _, is_directory, row = split_member(ino) or (0, True, 0)
            if not is_directory:
                with self.noticing_change(node):
                    view = await self._folders.view(node)
                in_order = self._reader.member_opened(node.bucket, node.info, view.index, row)
                return FileHandle(node, view.index, row, in_order)
        raise IsADirectory("is a directory")

    async def read(self, handle: FileHandle, offset: int, size: int) -> Data:
        """Read up to `size` bytes; shorter only at the end of the file.

        Raises:
            Stale: the object changed or went away since it was looked up.
        """
        node = handle.node
        wanted = ByteRange(offset, offset + size)
        try:
            if handle.index is None:
                return await self._reader.read_object(node.bucket, node.info, wanted)
            return await self._reader.read_member(
                node.bucket,
                node.info,
                handle.index,
                handle.row,
                wanted,
                in_order=handle.in_order,
            )
        except (Stale, NotFound) as error:
            self._changed(node)
            raise Stale(
                f"{node.bucket}/{node.info.key} changed since it was opened; open it again"
            ) from error

    async def readlink(self, ino: int) -> bytes:
        """Give the target of a symbolic link inside a shard."""
        node = self.node(ino)
        parts = split_member(ino)
        if isinstance(node, ShardNode) and parts is not None and not parts[1]:
            with self.noticing_change(node):
                index = (await self._folders.view(node)).index
            if index.kind(parts[2]) is MemberKind.SYMLINK:
                return index.link_target(parts[2])
        raise NotFound("not a symbolic link")

    @contextmanager
    def noticing_change(self, node: ObjectNode | ShardNode) -> Iterator[None]:
        """Make an object that turned out to be another version, or gone, be looked up anew."""
        try:
            yield
        except (Stale, NotFound):
            self._changed(node)
            raise

    def _changed(self, node: ObjectNode | ShardNode) -> None:
        """Forget what was believed about an object that turned out to be another version."""
        prefix, _, name = node.info.key.rpartition("/")
        directory = f"{prefix}/" if prefix else ""
        self._lister.drop(node.bucket, directory, name.encode(errors="surrogateescape"))
        if self.kernel is not None:
            self.kernel.invalidate_entry(node.parent, node.name)
