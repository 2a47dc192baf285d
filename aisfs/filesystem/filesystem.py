"""The operations of the file system, with our own values and errors and without the kernel.

Every method takes and gives inode numbers, names as bytes and `aisfs.errors`. fuse/ translates.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from aisfs.core.index.member_index import MemberKind
from aisfs.core.namespace.inodes import (
    ROOT,
    InodeTable,
    directory_number,
    member_number,
    split_member,
)
from aisfs.core.namespace.keys import NAME_MAX
from aisfs.core.views.directory_tree import MembersView
from aisfs.engine.dataset.synthetic_reader import SyntheticReader
from aisfs.engine.fetch.part import Data
from aisfs.engine.read.reader import Reader
from aisfs.errors import (
    AisfsError,
    IsADirectory,
    NameTooLong,
    NotADirectory,
    NotFound,
    Stale,
)
from aisfs.filesystem.attributes import FOREVER, Attr, AttrMaker, Entry
from aisfs.filesystem.handles import DirectoryHandle, FileHandle, MemberRows
from aisfs.filesystem.kernel_port import Kernel
from aisfs.filesystem.listing_validity import ListingValidity
from aisfs.filesystem.nodes import (
    DirectoryNode,
    FileNode,
    Node,
    ObjectNode,
    ShardNode,
    VirtualShardNode,
    identity,
)
from aisfs.filesystem.object_entries import ObjectRuns
from aisfs.filesystem.readdir_snapshots import ReaddirSnapshots
from aisfs.filesystem.shard_folders import ShardFolders, check_directory, is_folder
from aisfs.filesystem.trees.bucket_tree import Children, Found, FoundMember, Names, Objects
from aisfs.model import Bucket, ByteRange, ObjectInfo
from aisfs.process.locks import Rank, ranked_lock


class FileSystem:
    """One mount's tree.

    The trio thread calls everything. The lane's thread calls what is not async, through `InstantAnswers`: the
    table of inodes is changed under `_lock`, for microseconds, and read without (one look into a
    dict); what else is shared guards itself.
    """

    def __init__(
        self,
        root: Node,
        *,
        tree: Names,
        folders: ShardFolders,
        reader: Reader,
        assembler: SyntheticReader,
        make: AttrMaker,
        clock: Callable[[], float],
        list_ttl: float,
    ) -> None:
        """Serve the tree below `root`; a listing may be believed for `list_ttl` seconds."""
        self.inodes: InodeTable[Node] = InodeTable(root, identity)
        self._root = root
        self._lock = ranked_lock(Rank.INODES)
        self._beliefs = ListingValidity(clock, list_ttl)
        self.snapshots = ReaddirSnapshots()
        self._started = clock()
        self.tree = tree
        self._folders = folders
        self._reader = reader
        self._assembler = assembler
        self._make = make
        self._runs = ObjectRuns(make, clock, self._free)
        self._clock = clock
        self._latest: tuple[Node, bytes] = (root, identity(root))
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
                self.remember(entry.attr.ino, node)
            return entry
        if isinstance(node, FileNode):
            raise NotADirectory(f"{_name(node)} is not a directory")
        found = await self.tree.find(node, parent, name)
        if found is None:
            return None
        return self.counted(found)

    def counted(self, found: Found) -> Entry:
        """Make the entry of something looked up, and count the lookup."""
        with self._lock:  # else another thread could give the number away in between
            entry = self.entry(found)
            self._remember(entry.attr.ino, found.node, 1)
        return entry

    def known_counted(self, found: Found) -> Entry | None:
        """Do so for the lane's thread; None as of `known_entry`."""
        with self._lock:
            entry = self.known_entry(found)
            if entry is not None:
                self._remember(entry.attr.ino, found.node, 1)
        return entry

    def remember(self, ino: int, node: Node, count: int = 1) -> None:
        """Count lookups of `ino`, or entries of a listing that the kernel took.

        Members are counted on their shard, so one of them may stand for many of the same shard.
        """
        with self._lock:
            self._remember(ino, node, count)

    def remember_objects(self, inos: Sequence[int], nodes: Sequence[ObjectNode]) -> None:
        """Count one lookup of each object of an `ObjectRun`, or of the first of them."""
        with self._lock:
            self.inodes.remember_all(inos, nodes)

    def _remember(self, ino: int, node: Node, count: int) -> None:
        """Do so with the lock held."""
        self.inodes.remember(ino, self._identity(node), node, count)

    def forget(self, ino: int, count: int) -> None:
        """Take back `count` lookups."""
        with self._lock:
            gone = self.inodes.forget(ino, count)
        if gone:
            self._beliefs.forgotten(ino)
            self.snapshots.end(ino)

    async def getattr(self, ino: int) -> Attr:
        """Describe an inode."""
        node = self.node(ino)
        match node:
            case ShardNode():
                with self.noticing_change(node):
                    return await self._folders.attr(node, ino)
            case ObjectNode() | VirtualShardNode():
                return self.file_attr(node, ino)
        return self.directory_attr(node, ino)

    def file_attr(self, node: FileNode, ino: int) -> Attr:
        """Describe an object or a virtual shard."""
        if isinstance(node, VirtualShardNode):
            return self._make.file(ino, node.shard.size, node.shard.mtime_ns)
        return self._make.object(ino, node.info)

    def directory_attr(self, node: Node, ino: int) -> Attr:
        """Describe a directory above the shards."""
        since, timeout = self._beliefs.of(ino, self.tree.expires(node))
        mtime_ns = None if since is None else self._make.wall_ns(since - self._started)
        return self._make.directory(ino, mtime_ns, min(timeout, FOREVER))

    def node(self, ino: int) -> Node:
        """Give the node of an inode the kernel knows.

        Raises:
            Stale: it is not known, which a file handle from another mount can bring about.
        """
        node = self.inodes.get(ino)
        if node is None:
            raise Stale(f"inode {ino} is not known to this mount")
        return node

    def _identity(self, node: Node) -> bytes:
        """Spell the identity of a node; many entries in a row have the same one."""
        latest = self._latest
        if latest[0] is not node:
            latest = self._latest = (node, identity(node))
        return latest[1]

    def entry(self, found: Found) -> Entry:
        """Make the entry of something found, without counting it."""
        node = found.node
        if isinstance(node, ShardNode):
            first = self.inodes.number(self._identity(node), shard=True)
            if isinstance(found, FoundMember):
                attr = self._folders.member(found.index, first, found.row)
            else:
                attr = self._folders.folder(node, directory_number(first, 0))
        else:
            number = self.inodes.number(identity(node))
            if isinstance(node, FileNode):
                attr = self.file_attr(node, number)
            else:
                attr = self.directory_attr(node, number)
        return Entry(found.name, attr, min(max(found.expires - self._clock(), 0.0), FOREVER))

    def known_entry(self, found: Found) -> Entry | None:
        """Make an entry in the lane's thread; None where only the trio thread can."""
        return self.entry(found)

    # directories -----------------------------------------------------------------------------

    async def opendir(self, ino: int) -> DirectoryHandle:
        """Take a snapshot of a directory: complete, or an error."""
        node = self.node(ino)
        if isinstance(node, FileNode):
            raise NotADirectory(f"{_name(node)} is not a directory")
        if isinstance(node, ShardNode):
            check_directory(node, ino)
            with self.noticing_change(node):
                view = await self._folders.view(node)
            self._reader.folder_listed(node.bucket, node.info)
            return self.members_handle(view, node, ino)
        return self.children_handle(ino, await self.tree.children(node, ino))

    def members_handle(self, view: MembersView, node: ShardNode, ino: int) -> DirectoryHandle:
        """Open a directory of an open shard."""
        members = self._folders.children_in(view, node, ino)
        listed = self._folders.listed_in(view, node, ino)

        def entries(offset: int) -> Iterator[tuple[int, Entry, Node]]:
            return ((at, entry, node) for at, entry in members(offset))

        return DirectoryHandle(entries, entries, MemberRows(node, *self._make.owner, listed))

    def children_handle(self, ino: int, children: Children) -> DirectoryHandle:
        """Open a directory above the shards, whose listing the kernel is going to be given."""
        self._beliefs.listed(ino, children.expires)
        return DirectoryHandle(
            lambda offset: (
                (found.offset, self.entry(found), found.node) for found in children.entries(offset)
            ),
            lambda offset: (
                (found.offset, self.known_entry(found), found.node)
                for found in children.entries(offset)
            ),
            objects=partial(self._runs.behind, ino, children),
        )

    def _free(self, objects: Objects, inos: Sequence[int], identities: Sequence[bytes]) -> int:
        """Say how many objects, from the first on, have the numbers computed for them."""
        with self._lock:
            return self.inodes.free(inos, identities)

    async def directory(self, ino: int, offset: int) -> DirectoryHandle:
        """Take the snapshot that a listing without a handle began with, or a new one."""
        known = self.snapshots.under_way(ino, offset)
        if known is not None:
            return known
        try:
            handle = await self.opendir(ino)
        except (Stale, NotFound) as error:
            handle = await self._opened_anew(ino, error)
        return handle if handle.members is not None else self.snapshots.begin(ino, handle)

    async def _opened_anew(self, ino: int, error: AisfsError) -> DirectoryHandle:
        """Open the folder that took the place of one found out of date, since without a handle the
        kernel does not look it up again but hands the error to the program."""
        node = self.node(ino)
        if not isinstance(node, ShardNode) or not is_folder(ino):
            raise error
        found = await self.tree.find(self.node(node.parent), node.parent, node.name)
        if found is None or not isinstance(found.node, ShardNode) or found.node.info == node.info:
            raise error
        first = self.inodes.number(self._identity(found.node), shard=True)
        view = await self._folders.view(found.node)
        return self.members_handle(view, found.node, directory_number(first, 0))

    # files -----------------------------------------------------------------------------------

    async def open(self, ino: int, *, again: bool = False) -> FileHandle:
        """Open the version of an object or a member that the inode number stands for.

        With `again` this is one more read of what was opened before.
        """
        node = self.node(ino)
        if isinstance(node, FileNode):
            return FileHandle(node)
        if isinstance(node, ShardNode):
            _, is_directory, row = split_member(ino) or (0, True, 0)
            if not is_directory:
                with self.noticing_change(node):
                    index = (await self._folders.view(node)).index
                opened = self._reader.open_member(node.bucket, node.info, index, row, again=again)
                return FileHandle(node, opened)
        raise IsADirectory("is a directory")

    async def read_at(self, ino: int, offset: int, size: int) -> Data:
        """Read the version that the inode stands for; the first read of it stands for its opening.

        Raises:
            Stale: the object changed or went away since it was looked up.
        """
        return await self.read(await self.open(ino, again=offset > 0), offset, size)

    async def read(self, handle: FileHandle, offset: int, size: int) -> Data:
        """Read up to `size` bytes; shorter only at the end of the file.

        Raises:
            Stale: the object changed or went away since it was looked up.
        """
        node = handle.node
        wanted = ByteRange(offset, offset + size)
        if isinstance(node, VirtualShardNode):
            return await self._assembler.read(node.shard, wanted)
        try:
            if handle.member is None:
                return await self._reader.read_object(node.bucket, node.info, wanted)
            return await self._reader.read_member(handle.member, wanted)
        except (Stale, NotFound) as error:
            self._changed(node)
            what = "changed" if isinstance(error, Stale) else "is gone"
            raise Stale(
                f"{node.bucket}/{node.info.key} {what} since it was opened: {error}"
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
        parents = set()
        for parent, name in self.tree.changed(node):
            parents.add(parent)
            if self.kernel is not None:
                self.kernel.invalidate_entry(parent, name)
        for parent in parents:
            self._beliefs.dropped(parent)
            if self.kernel is not None:
                self.kernel.invalidate_inode(parent)

    def content_was_wrong(self, bucket: Bucket, info: ObjectInfo) -> None:
        """Make the kernel forget what it was given of an object that is not what it should be."""
        if self.kernel is None:
            return
        with self._lock:
            known = self.inodes.known()
        for number, node in known:
            if isinstance(node, VirtualShardNode):  # it may be made of it
                self.kernel.drop_pages([number])
            elif isinstance(node, ObjectNode | ShardNode) and node.info.key == info.key:
                if (node.bucket, node.info) != (bucket, info):
                    continue
                self.kernel.drop_pages(self._files_of(number, node))

    def _files_of(self, number: int, node: ObjectNode | ShardNode) -> Iterable[int]:
        """Number the files whose bytes are those of an object: itself, or its members."""
        if isinstance(node, ObjectNode):
            return [number]
        view = self._folders.known_view(node)
        rows = range(len(view.index)) if view is not None else ()
        return (member_number(number, row) for row in rows)

    def listing_changed(self, bucket: Bucket, prefix: str, names: list[bytes]) -> None:
        """Tell the kernel what is different in a listing that it may have believed for longer."""
        node = DirectoryNode(bucket, prefix)
        ino = ROOT if node == self._root else self.inodes.number(identity(node))
        if self.kernel is None or not names or self.inodes.get(ino) is None:
            return
        for name in names:
            self.kernel.invalidate_entry(ino, name)
        self.kernel.invalidate_inode(ino)


def _name(node: FileNode) -> str:
    return node.info.key if isinstance(node, ObjectNode) else "a virtual shard"
