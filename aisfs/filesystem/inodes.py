"""The inodes that the kernel knows, and the entries and attributes it is given of them.

An inode number stands for one version of an object. The exception is a file that this mount writes:
it keeps the number it began with, and the versions that others write get other numbers. A directory has
one number until this mount removes it; another one of its name has another.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import count as counter

from msgspec import structs

from aisfs.cache.names import DirectoryId
from aisfs.core.names.inodes import ROOT, InodeTable, directory_number
from aisfs.core.names.listing import bucket_name, entry_name
from aisfs.errors import Stale
from aisfs.filesystem.attributes import LONGEST_TIMEOUT, Attr, AttrMaker, Entry
from aisfs.filesystem.listing_validity import ListingValidity
from aisfs.filesystem.nodes import (
    DirectoryNode,
    FileNode,
    Node,
    ObjectNode,
    ProviderNode,
    RemovedDirectoryNode,
    ShardNode,
    VirtualShardNode,
    identity,
)
from aisfs.filesystem.shard_folders import ShardFolders
from aisfs.filesystem.trees.bucket_tree import Found, FoundMember, Names, Objects
from aisfs.filesystem.written.directory_attributes import DirectoryAttributes
from aisfs.filesystem.written.files import WrittenFile, WrittenFiles
from aisfs.stores.posix_metadata import with_type
from aisfs.system.locks import Rank, ranked_lock
from aisfs.system.threads import any_thread


@any_thread
class Inodes:
    """Inode numbers with their nodes and lookup counts.

    Safe for any thread: the table is changed under a lock that is held for microseconds, and read
    without it (one look into a dict). `files` and `directory_attributes` stay empty in a mount that
    is only read; they are changed by the trio thread alone.
    """

    def __init__(
        self,
        root: Node,
        *,
        tree: Names,
        folders: ShardFolders,
        make: AttrMaker,
        clock: Callable[[], float],
        list_ttl: float,
        writable: bool,
    ) -> None:
        """Start with the root."""
        self.table: InodeTable[Node] = InodeTable(root, identity)
        self.validity = ListingValidity(clock, list_ttl)
        self.files = WrittenFiles()
        self.directory_attributes = DirectoryAttributes()
        self._writable = writable
        self._tree = tree
        self._folders = folders
        self._make = make
        self._clock = clock
        self._started = clock()
        self._lock = ranked_lock(Rank.INODES)
        self._latest: tuple[Node, bytes] = (root, identity(root))
        self._by_ino = self.files.by_ino
        self.salted: dict[int, bytes] = {}
        """Identities of versions whose own number is that of a written file, by their number."""
        self._removed = counter()
        """A number for each directory that was removed."""

    def __len__(self) -> int:
        return len(self.table)

    # nodes and numbers -----------------------------------------------------------------------

    def get(self, ino: int) -> Node | None:
        """Return the node of an inode, or of its shard; of a written file the version it began as."""
        return self.table.get(ino)

    def node(self, ino: int) -> Node:
        """Return the node of an inode; a written file is the version it was committed as last.

        Raises:
            Stale: it is not known, which a file handle from another mount can bring about.
        """
        file = self._by_ino.get(ino)
        if file is not None:
            return file.node if file.base is None else structs.replace(file.node, info=file.base)
        node = self.table.get(ino)
        if node is None:
            raise Stale(f"inode {ino} is not known to this mount")
        return node

    def number(self, node: Node) -> int:
        """Return the number of a node; of a shard the one of which its members' are made."""
        spelled = self._identity(node)
        number = self.table.number(spelled, shard=isinstance(node, ShardNode))
        again = 0
        while number in self._by_ino and isinstance(node, ObjectNode):
            again += 1
            salted = spelled + b"\0%d" % again
            number = self.table.number(salted)
            if number not in self._by_ino:
                self.salted[number] = salted
        return number

    def _identity(self, node: Node) -> bytes:
        """Spell the identity of a node; many entries in a row have the same one."""
        latest = self._latest
        if latest[0] is not node:
            latest = self._latest = (node, identity(node))
        return latest[1]

    def free(self, objects: Objects, inos: Sequence[int], identities: Sequence[bytes]) -> int:
        """Return how many objects, from the first on, have the numbers computed for them."""
        with self._lock:
            count = self.table.free(inos, identities)
        if not self._by_ino and not self.salted:
            return count
        for at, (ino, info) in enumerate(zip(inos, objects.infos, strict=True)):
            if at == count or ino in self.salted or ino in self._by_ino:
                return at
            if self.files.of_key(objects.bucket, info.key) is not None:
                return at
        return count

    def move(self, ino: int, node: Node) -> None:
        """Make a number stand for another node: it was renamed, or became another version here."""
        with self._lock:
            self.table.move(ino, identity(node), node)

    def removed(self, node: DirectoryNode) -> None:
        """Have the number of a directory that was removed, or replaced, stand for nothing else any more.

        While the kernel knows the number: it lets nothing be made in what it saw removed.
        """
        mode, mtime_ns = self.directory_attributes.of(node.bucket, node.prefix)
        self.directory_attributes.drop(node.bucket, node.prefix)
        gone = RemovedDirectoryNode(node.bucket, node.prefix, mode, mtime_ns, next(self._removed))
        self.move(self.number(node), gone)

    def known(self) -> list[tuple[int, Node]]:
        """Return every inode the kernel knows; of a shard only its slot."""
        with self._lock:
            return self.table.known()

    def directories_in(self, place: DirectoryId | None) -> list[int]:
        """Return the directories above the shards that the kernel knows at a place, and that around it."""
        found = {
            number
            for number, node in self.known()
            if not isinstance(node, FileNode | ShardNode) and _lies_in(node, place)
        }
        if place is not None:
            above = self._entry_of(DirectoryNode(*place))
            found |= {above[0]} if above is not None else set()
        return [*found]

    def entries_in(self, place: DirectoryId | None) -> Iterator[tuple[int, bytes]]:
        """Yield directory and name of all that the kernel knows at a place."""
        for _, node in self.known():
            entry = self._entry_of(node)
            if entry is not None and _lies_in(node, place):
                yield entry

    def _entry_of(self, node: Node) -> tuple[int, bytes] | None:
        """Return where an inode is found; None where its number says that it never changes."""
        match node:
            case ObjectNode() | ShardNode():
                return node.parent, node.name
            case ProviderNode(provider):
                return ROOT, provider.scheme.encode()
            case DirectoryNode(bucket, prefix) if node != self.table.get(ROOT):
                parent, slash, name = prefix.removesuffix("/").rpartition("/")
                if prefix:
                    above = DirectoryNode(bucket, parent + slash)
                    return self._number_of(above), entry_name("", name)
                return self._number_of(ProviderNode(bucket.provider)), bucket_name(bucket)
        return None

    def _number_of(self, node: Node) -> int:
        return ROOT if node == self.table.get(ROOT) else self.number(node)

    # lookup counts ---------------------------------------------------------------------------

    def counted(self, found: Found) -> Entry:
        """Make the entry of something looked up, and count the lookup."""
        with self._lock:  # else another thread could give the number away in between
            entry = self.entry(found)
            self._remember(entry.attr.ino, found.node, 1)
        return entry

    def counted_new(self, file: WrittenFile) -> Attr:
        """Describe a file that was just made, and count the lookup."""
        with self._lock:
            self.table.remember(file.ino, file.identity, file.node)
        return self.written_attr(file)

    def try_counted(self, found: Found) -> Entry | None:
        """Do the same in the fast path; None as of `try_entry`."""
        with self._lock:
            entry = self.try_entry(found)
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
            self.table.remember_all(inos, nodes)

    def _remember(self, ino: int, node: Node, count: int) -> None:
        file = self._by_ino.get(ino)
        if file is not None:  # it keeps the identity it began with
            spelled, node = file.identity, file.node
        else:
            spelled = self.salted.get(ino) or self._identity(node)
        self.table.remember(ino, spelled, node, count)

    def forget(self, ino: int, count: int) -> bool:
        """Take back `count` lookups; returns whether the kernel knows the inode no more."""
        with self._lock:
            gone = self.table.forget(ino, count)
        if gone:
            self.validity.forgotten(ino)
            self.salted.pop(ino, None)
            file = self._by_ino.get(ino)
            if file is not None and not file.busy:  # from now on a version like any other
                self.files.drop(file)
        return gone

    # entries and attributes ------------------------------------------------------------------

    def entry(self, found: Found) -> Entry:
        """Make the entry of something found, without counting it."""
        node = found.node
        if isinstance(node, ObjectNode):
            file = self.current(node) if self._by_ino else None
            if file is None:
                attr = self._make.object(self.number(node), node.info)
            else:
                attr = self.written_attr(file)
        elif isinstance(node, ShardNode):
            first = self.number(node)
            if isinstance(found, FoundMember):
                attr = self._folders.member(found.index, first, found.row)
            else:
                attr = self._folders.folder(node, directory_number(first, 0))
        else:
            attr = self.attr(node, self.number(node))
        return Entry(
            found.name, attr, min(max(found.expires - self._clock(), 0.0), LONGEST_TIMEOUT)
        )

    def try_entry(self, found: Found) -> Entry | None:
        """Make an entry in the fast path; None for written files, which are the trio thread's."""
        node = found.node
        if self._by_ino and isinstance(node, ObjectNode):
            written = self.files.of_key(node.bucket, node.info.key) is not None
            if written or self.table.number(self._identity(node)) in self._by_ino:
                return None
        return self.entry(found)

    def current(self, node: ObjectNode) -> WrittenFile | None:
        """Return the written file that the name of a version stands for in this mount."""
        file = self.files.of_key(node.bucket, node.info.key)
        if file is None or file.stands_for(node.info):
            return file
        self.files.unname(file)  # another client wrote another version
        return None

    def attr(self, node: Node, ino: int) -> Attr:
        """Describe what is not in a shard, and not written here."""
        if isinstance(node, ObjectNode):
            return self._make.object(ino, node.info)
        if isinstance(node, VirtualShardNode):
            return self._make.file(ino, node.shard.size, node.shard.mtime_ns)
        return self._directory_attr(node, ino)

    def written_attr(self, file: WrittenFile) -> Attr:
        """Describe a written file."""
        mode = self._make.file_mode() if file.mode is None else with_type(file.mode)
        links = 0 if file.unlinked else 1
        owner = self._make.owner
        return Attr(file.ino, mode, file.size, file.mtime_ns, *owner, LONGEST_TIMEOUT, links)

    def _directory_attr(self, node: Node, ino: int) -> Attr:
        if isinstance(node, RemovedDirectoryNode):
            gone = self._make.directory(ino, node.mtime_ns, permissions=node.mode)
            return structs.replace(gone, links=0)
        since, timeout = self.validity.of(ino, self._tree.expires(node))
        timeout = min(timeout, LONGEST_TIMEOUT)
        if not self._writable or not isinstance(node, DirectoryNode):
            mtime_ns = None if since is None else self._make.wall_ns(since - self._started)
            return self._make.directory(ino, mtime_ns, timeout)
        mode, mtime_ns = self.directory_attributes.of(node.bucket, node.prefix)
        return self._make.directory(ino, mtime_ns, timeout, mode)

    def opens_anew(self, ino: int) -> bool:
        """Return whether the kernel has to drop what it listed of a directory that is being opened.

        Where the mtime tells when to list again, it sees that by itself.
        """
        return isinstance(self.table.get(ino), DirectoryNode) and self.validity.take_expired(ino)


def _lies_in(node: Node, place: DirectoryId | None) -> bool:
    if place is None:
        return True
    match node:
        case DirectoryNode(bucket, path):
            return bucket == place[0] and path.startswith(place[1])
        case ObjectNode(bucket, info) | ShardNode(bucket, info):
            return bucket == place[0] and info.key.startswith(place[1])
    return False
