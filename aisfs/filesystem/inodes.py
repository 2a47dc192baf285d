"""The inodes that the kernel knows, and the entries and attributes that it gets of them.

An inode number stands for one version of an object. The exception is a file that this mount writes:
it keeps the number it began with, and the versions that others write get other numbers. A directory has
one number until this mount removes it; another one of its name has another. The numbers of members, and of directories in a
shard, say which shard and which row they are, so nothing is stored per member.

`ListingValidity` decides how long the kernel may believe a directory that can change. The kernel keeps a listing until the
directory's mtime differs from the one it saw when it listed. In a mount that is only read, the kernel opens directories without
asking. So the mtime we show changes exactly when the listing that the kernel holds stops being believed, and its attributes may
be kept until then and no longer: the kernel drops the listing by itself.

    mtime while listing k is believed = when listing k-1 stopped being believed

In a mount that can be written, the mtime tells programs when an entry changed. There the kernel asks
whenever a directory is opened, and the reply says whether to drop what it holds (`take_expired`).
"""

import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from itertools import count as counter

from msgspec import structs

from aisfs.cache.names import DirectoryId
from aisfs.core.index.builder import NestedTars
from aisfs.core.index.columns import column_at
from aisfs.core.index.member_index import EXECUTABLE, MemberIndex, MemberKind
from aisfs.core.names.inodes import (
    ROOT,
    InodeTable,
    directory_number,
    member_number,
    slot_of,
    split_member,
)
from aisfs.core.names.listing import bucket_name, entry_name
from aisfs.core.views.tree import Child, Directory, MembersView
from aisfs.engine.shards import Indexer
from aisfs.errors import NotADirectory, NotFound, ShardDamaged, Stale
from aisfs.filesystem.nodes import (
    LONGEST_TIMEOUT,
    Attr,
    AttrMaker,
    DirectoryNode,
    Entry,
    FileNode,
    FileRun,
    MergedDirectoryNode,
    Node,
    ObjectNode,
    ProviderNode,
    RemovedDirectoryNode,
    ShardNode,
    VirtualShardNode,
    identity,
)
from aisfs.filesystem.takeover import (
    EarlierNumbers,
    Forgotten,
    NumberLog,
    records,
    spelled_place,
    to_place,
)
from aisfs.filesystem.trees import Found, FoundMember, Names, Objects
from aisfs.filesystem.written import DirectoryAttributes, WrittenFile, WrittenFiles
from aisfs.model import Bucket
from aisfs.stores.posix_metadata import mtime_of, with_type
from aisfs.system.locks import Rank, ranked_lock
from aisfs.system.threads import any_thread


@dataclass(frozen=True, slots=True)
class _Epoch:
    """One listing that the kernel may hold. Seconds of the clock."""

    since: float | None
    """When the one before stopped being believed; None for the first."""
    until: float
    expires: float
    """`until` as it was at first: distinguishes this listing from the next."""


_NEVER_FORGOTTEN = 1 << 60
MISSING_MAX = 100_000
"""Missing names that the kernel may keep at once, as many as `MetadataCache` keeps."""


@any_thread
class ListingValidity:
    """Directories by inode number, and the names that are missing in them."""

    def __init__(self, clock: Callable[[], float], list_ttl: float) -> None:
        """Know of no listing; one may be believed for `list_ttl` seconds."""
        self._clock = clock
        self.list_ttl = list_ttl
        self._lock = ranked_lock(Rank.LISTING_VALIDITY)
        self._turns: dict[int, _Epoch] = {}
        self._missing: dict[tuple[int, bytes], float] = {}
        """Until when the kernel keeps each, about in this order."""
        self.refreshes = 0
        """How often listings under way became too old to be kept by the kernel."""

    def listed(self, ino: int, expires: float) -> None:
        """Record that the kernel is given a listing which may be believed until `expires`."""
        with self._lock:
            before = self._turns.get(ino)
            if before is None:
                self._turns[ino] = _Epoch(None, expires, expires)
            elif before.expires != expires:
                since = min(before.until, self._clock())
                self._turns[ino] = _Epoch(since, expires, expires)

    def dropped(self, ino: int) -> None:
        """Record that the listing the kernel may hold turned out to be wrong."""
        with self._lock:
            turn = self._turns.get(ino)
            if turn is not None:
                until = min(turn.until, self._clock())
                self._turns[ino] = _Epoch(turn.since, until, turn.expires)

    def changed(self, ino: int) -> None:
        """Record that this mount changed an entry, of a directory whose mtime says so by this alone."""
        now = self._clock()
        with self._lock:
            turn = self._turns.get(ino, _Epoch(None, now, now))
            self._turns[ino] = _Epoch(turn.since, now, turn.expires)

    def refreshed(self, directories: Iterable[int]) -> None:
        """Record that no listing of some directories may be kept, nor the rest of one under way."""
        for ino in directories:
            self.dropped(ino)
        self.refreshes += 1

    def missing(self, ino: int, name: bytes, timeout: float) -> float:
        """Record that the kernel learns that a name is missing.

        Returns:
            The seconds it may keep that: `timeout`, or 0 when there would be too many to take back.
        """
        if not timeout:
            return 0.0
        now = self._clock()
        with self._lock:
            while len(self._missing) >= MISSING_MAX:
                oldest = next(iter(self._missing))
                if now < self._missing[oldest]:
                    return 0.0
                del self._missing[oldest]
            self._missing.pop((ino, name), None)
            self._missing[ino, name] = now + timeout
        return timeout

    def missing_names(self) -> list[tuple[int, bytes]]:
        """Return the directory and name of each missing name that the kernel may keep."""
        now = self._clock()
        with self._lock:
            return [place for place, until in self._missing.items() if now < until]

    def take_expired(self, ino: int) -> bool:
        """Return whether the kernel may hold a listing that is not believed any more.

        It is told once, since it could already hold another listing when it is told again.
        """
        with self._lock:
            turn = self._turns.get(ino)
            if turn is None or self._clock() < turn.until:
                return False
            del self._turns[ino]
            return True

    def forgotten(self, ino: int) -> None:
        """Forget a directory that the kernel forgot, and its listing with it."""
        with self._lock:
            self._turns.pop(ino, None)

    def of(self, ino: int, expires: float | None) -> tuple[float | None, float]:
        """Return since when the directory is as it is, None if always, and for how many seconds.

        Args:
            ino: The directory.
            expires: Until when its listing may be believed that the kernel would get if it asked
                now; None if it would have to be listed, and then be believed from that moment.
        """
        now = self._clock()
        ahead = self.list_ttl if expires is None else max(expires - now, 0.0)
        with self._lock:
            turn = self._turns.get(ino)
            if turn is None:
                return None, ahead
            if now < turn.until:
                return turn.since, turn.until - now
            return turn.until, ahead


Listed = FileRun | Entry | None
"""What is listed next: plain files, or something else, or nothing more."""


class ShardFolders:
    """Looks into shards."""

    def __init__(self, indexer: Indexer, make: AttrMaker) -> None:
        """Open shards with `indexer`."""
        self._indexer = indexer
        self._make = make

    async def view(self, shard: ShardNode) -> MembersView:
        """Open the shard, scanning it when it was not opened before."""
        return await self._indexer.open(shard.bucket, shard.info)

    @any_thread
    def try_view(self, shard: ShardNode) -> MembersView | None:
        """Return the members of a shard that is open. Waits for nothing."""
        return self._indexer.try_open(shard.bucket, shard.info)

    def describe(self, shard: ShardNode, ino: int) -> str:
        """Return the path of a member or directory in its shard, for the log; empty if it is not open."""
        view = self.try_view(shard)
        if view is None:
            return ""
        _, is_directory, low = _split(ino)
        if not is_directory:
            return "/" + os.fsdecode(view.index.name(low))
        return f"/{os.fsdecode(view.path(low))}/" if low else "/"

    def attr(self, view: MembersView, shard: ShardNode, ino: int) -> Attr:
        """Describe the member or directory with the number `ino` of an open shard."""
        first, is_directory, low = _split(ino)
        child = Child(b"", None, low) if is_directory else Child(b"", low, None)
        return self._attr(shard, view, first, child)

    def folder(self, shard: ShardNode, ino: int) -> Attr:
        """Describe the folder of a shard without opening it."""
        return self._make.directory(ino, mtime_of(shard.info))

    def find(self, view: MembersView, shard: ShardNode, ino: int, name: bytes) -> Entry | None:
        """Look up a name in the directory with the number `ino` of an open shard."""
        first, _, low = _split(ino)
        child = view.directory(low).find(name)
        return self._entry(shard, view, first, child) if child is not None else None

    async def path(self, shard: ShardNode, ino: int, name: bytes) -> str:
        """Return the path, inside the shard, of a name in the directory with the number `ino`."""
        check_directory(shard, ino)
        if is_folder(ino):
            return os.fsdecode(name)
        return self.path_in(await self.view(shard), ino, name)

    def path_in(self, view: MembersView, ino: int, name: bytes) -> str:
        """Return the path of a name in the directory with the number `ino` of an open shard."""
        folder = view.directory(_split(ino)[2]).path
        return os.fsdecode(folder + b"/" + name if folder else name)

    async def path_of(self, shard: ShardNode, ino: int) -> str:
        """Return the path, inside the shard, of the directory with the number `ino`."""
        if is_folder(ino):
            return ""
        return os.fsdecode((await self.view(shard)).path(_split(ino)[2]))

    async def resolve(self, shard: ShardNode, first: int, path: str) -> Entry:
        """Return the entry of what is at a path, in the shard whose first number is `first`.

        Raises:
            NotFound: there is nothing.
        """
        view = await self.view(shard)
        child = view.resolve(os.fsencode(path))
        if child is None:
            raise NotFound(f"{shard.info.key}: nothing at {path!r}")
        return self._entry(shard, view, first, child)

    async def in_opened_tar(self, shard: ShardNode, ino: int) -> bool:
        """Return whether the directory with the number `ino` is in a tar in the shard."""
        _, _, low = _split(ino)
        return bool(low) and (await self.view(shard)).in_opened_tar(low)

    async def check_whole(self, shard: ShardNode) -> None:
        """Raise `ShardDamaged` when what is known of the shard says that nothing can be added to it."""
        for warning in (await self.view(shard)).index.warnings:
            if not NestedTars.is_about(warning):
                raise ShardDamaged(f"{shard.info.key}: nothing can be added: {warning}")

    def children_in(
        self, view: MembersView, shard: ShardNode, ino: int
    ) -> Callable[[int], Iterator[tuple[int, Entry]]]:
        """List the directory with the number `ino` of an open shard."""
        first, _, low = _split(ino)
        return partial(self._entries, shard, view, first, view.directory(low))

    def listed_in(
        self, view: MembersView, shard: ShardNode, ino: int
    ) -> Callable[[int, int], Listed]:
        """List the directory with the number `ino` of an open shard, from an offset on and with so
        many files at most."""
        first, _, low = _split(ino)
        return partial(self._listed, shard, view, first, view.directory(low))

    def _listed(
        self,
        shard: ShardNode,
        view: MembersView,
        first: int,
        directory: Directory,
        offset: int,
        most: int,
    ) -> Listed:
        if offset >= len(directory):
            return None
        rows, names = directory.plain_files(offset, most)
        if not names:
            return self._entry(shard, view, first, directory.child(offset))
        columns = view.index.columns
        plain, executable = self._make.file_mode(), self._make.file_mode(executable=True)
        modes = [executable if e & EXECUTABLE else plain for e in column_at(columns.flags, rows)]
        sizes, mtimes = column_at(columns.sizes, rows), column_at(columns.mtimes, rows)
        return FileRun([first | row for row in rows], sizes, mtimes, modes, names)

    def _entries(
        self, shard: ShardNode, view: MembersView, first: int, directory: Directory, offset: int
    ) -> Iterator[tuple[int, Entry]]:
        for position in range(offset, len(directory)):
            yield position + 1, self._entry(shard, view, first, directory.child(position))

    def _entry(self, shard: ShardNode, view: MembersView, first: int, child: Child) -> Entry:
        # A version of a shard never changes, so neither do the names in it.
        return Entry(child.name, self._attr(shard, view, first, child), LONGEST_TIMEOUT)

    def _attr(self, shard: ShardNode, view: MembersView, first: int, child: Child) -> Attr:
        if child.directory is not None:
            mtime = view.directory(child.directory).mtime_ns
            number = directory_number(first, child.directory)
            return self._make.directory(number, mtime_of(shard.info) if mtime is None else mtime)
        assert child.row is not None, "a child is a row or a directory"
        return self.member(view.index, first, child.row)

    def member(self, index: MemberIndex, first: int, row: int) -> Attr:
        """Describe the member in a row of the shard with the first number `first`."""
        row = index.content_row(row)
        number = member_number(first, row)
        if index.kind(row) is MemberKind.SYMLINK:
            return self._make.symlink(number, index.link_target(row), index.mtime_ns(row))
        executable = index.executable(row)
        return self._make.file(number, index.size(row), index.mtime_ns(row), executable=executable)


def check_directory(shard: ShardNode, ino: int) -> None:
    """Raise `NotADirectory` when the inode `ino` of a shard is a member."""
    if not _split(ino)[1]:
        raise NotADirectory(f"{shard.info.key}: a member is not a directory")


def is_folder(ino: int) -> bool:
    """Return whether `ino` is the folder of the shard itself."""
    return _split(ino)[1:] == (True, 0)


def _split(ino: int) -> tuple[int, bool, int]:
    parts = split_member(ino)
    assert parts is not None, f"inode {ino} is not in a shard"
    return parts


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
        self._removed = counter(time.monotonic_ns())  # a daemon before has counted from less
        """A number for each directory that was removed."""
        self.log: NumberLog | None = None
        """Where is noted what the kernel knows, for the next daemon of the mount."""
        self.earlier = EarlierNumbers(b"")
        self.unsettled: dict[int, Callable[[], Awaitable[None]]] = {}
        """Finds out what an earlier daemon has stored of a written file, by its number."""
        """What the kernel knows from the daemons before."""
        self.forgotten: Forgotten | None = None
        """What it has forgotten, and a file handle may name."""

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
        """Return the number of a node; for a shard, the one that its members' numbers contain."""
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
            self._move(ino, node)

    def _move(self, ino: int, node: Node) -> None:
        self.table.move(ino, identity(node), node)
        if self.log is not None:
            self.log.node(slot_of(ino), node)

    def settled_as(self, ino: int, node: ObjectNode) -> None:
        """Note which version a written file is that is not open any more: it keeps its number."""
        with self._lock:
            if self.log is not None and self.table.get(ino) is not None:
                self.log.node(ino, node)

    def fact(self, key: str, value: object) -> None:
        """Note something else for the next daemon of the mount; see `NumberLog.fact`."""
        if self.log is not None:
            with self._lock:
                self.log.fact(key, value)

    def begins(self, *directories: int) -> None:
        """Drop what is noted of the last change of names in some directories: it was answered, as the kernel asks for another."""
        for directory in directories:
            self.fact(f"change {directory}", None)

    def has_handle(self, handle: int) -> bool:
        """Return whether a file is open under a handle, as far as is noted."""
        return self.log is not None and handle in self.log.handles

    def opened_by(self, unique: int) -> int | None:
        """Return the handle that a request of a daemon before has opened; None for none."""
        handles = list(self.log.handles.items()) if self.log is not None else []
        return next((handle for handle, said in handles if said[1] == unique), None)

    def handle(self, handle: int, ino: int, unique: int, flags: int, count: int) -> None:
        """Note that a file is open once more or less; see `NumberLog.handle`."""
        if self.log is not None:
            with self._lock:
                self.log.handle(handle, ino, unique, flags, count)

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
            for number, node in chain(self.known(), self.earlier.nodes())
            if not isinstance(node, FileNode | ShardNode) and _lies_in(node, place)
        }
        if place is not None:
            above = self._entry_of(DirectoryNode(*place))
            found |= {above[0]} if above is not None else set()
        return [*found]

    def entries_in(self, place: DirectoryId | None) -> Iterator[tuple[int, bytes]]:
        """Yield directory and name of all that the kernel knows at a place."""
        for _, node in chain(self.known(), self.earlier.nodes()):
            entry = self._entry_of(node)
            if entry is not None and _lies_in(node, place):
                yield entry
        for _, (parent, name) in self.earlier.files():  # wherever they are: it does no harm
            yield parent, name

    def parent_of(self, node: Node) -> tuple[int, Node] | None:
        """Return the directory above a directory that is not in a shard; None for one whose number says it."""
        match node:
            case DirectoryNode(bucket, prefix) if prefix and node != self.table.get(ROOT):
                parent, slash, _ = prefix.removesuffix("/").rpartition("/")
                above: Node = DirectoryNode(bucket, parent + slash)
            case DirectoryNode(bucket) if node != self.table.get(ROOT):
                above = ProviderNode(bucket.provider)
            case MergedDirectoryNode(layout, path, generation) if b"/" in path:
                above = MergedDirectoryNode(layout, path.rpartition(b"/")[0], generation)
            case MergedDirectoryNode(layout) if isinstance(
                root := self.table.get(ROOT), DirectoryNode
            ):
                above = DirectoryNode(root.bucket, layout[: layout.index("/") + 1])  # of an epoch
            case _:
                return None
        return self._number_of(above), above

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
            if self.log is not None:
                self.log.files(*self.table.unknown(inos, nodes))
            self.table.remember_all(inos, nodes)

    def _remember(self, ino: int, node: Node, count: int) -> None:
        file = self._by_ino.get(ino)
        if file is not None:  # it keeps the identity it began with
            spelled, node = file.identity, file.node
        else:
            spelled = self.salted.get(ino) or self._identity(node)
        if self.log is not None and self.table.get(ino) is None:
            if isinstance(node, FileNode) and ino not in self.salted:
                self.log.files([ino], [node])
            else:
                self.log.node(slot_of(ino), node)
        self.table.remember(ino, spelled, node, count)

    def forget(self, ino: int, count: int) -> bool:
        """Take back `count` lookups; returns whether the kernel knows the inode no more."""
        with self._lock:
            node = self.table.get(ino) if self.forgotten is not None else None
            gone = self.table.forget(ino, count)
            if gone and node is not None and self.forgotten is not None:
                self.forgotten.add(slot_of(ino), node)
            if self.log is not None and (gone or self.table.get(ino) is None):
                self.earlier.forget(slot_of(ino))
                self.log.forgot(slot_of(ino))
        if gone:
            self.validity.forgotten(ino)
            self.salted.pop(ino, None)
            file = self._by_ino.get(ino)
            if file is not None and not file.busy:  # from now on a version like any other
                self.files.drop(file)
                self.fact(f"file {ino}", None)
            if self._writable:
                self.fact(f"change {ino}", None)
        return gone

    # numbers of earlier daemons --------------------------------------------------------------

    def take_over(self, log: NumberLog) -> None:
        """Note from now on what the kernel knows, which begins with what `log` has."""
        self.earlier, self.log = EarlierNumbers(log.read(), log), log
        self._make.mounted_at_ns = log.get("mounted") or self._make.mounted_at_ns
        log.fact("mounted", self._make.mounted_at_ns)
        for key, kept in list(log.facts("attributes")):
            self.directory_attributes.keep(*to_place(key), *kept)
        self.directory_attributes.note = self._note_attributes

    def _note_attributes(
        self, bucket: Bucket, prefix: str, kept: tuple[int | None, int | None] | None
    ) -> None:
        self.fact(f"attributes {spelled_place(bucket, prefix)}", kept)

    def is_earlier(self, ino: int) -> bool:
        """Return whether only an earlier daemon has known a number so far, or what has become of its written file."""
        if ino in self.unsettled:
            return True
        slot = slot_of(ino)
        return slot in self.earlier and self.table.get(slot) is None

    def lasting(self) -> bytes:
        """Return what file handles may name after the end of this mount."""
        return self.forgotten.lasting(self.known()) if self.forgotten is not None else b""

    def find_forgotten(self) -> None:
        """Know again what file handles may name. Waits for the disk."""
        if self.forgotten is not None:
            found = chain(self.forgotten.records(), self.earlier.records())
            self.earlier = EarlierNumbers(b"".join(found))

    def restored(self, ino: int, node: Node) -> None:
        """Know again what an earlier daemon has told the kernel. The count of lookups is a lower bound.

        For a shard it is one that is never reached: it stands for all its members.
        """
        with self._lock:
            if self.table.get(ino) is None:
                count = _NEVER_FORGOTTEN if isinstance(node, ShardNode) else 1
                spelled = self.salted.get(ino) or identity(node)
                self.table.remember(ino, spelled, node, count)

    def restored_written(self, file: WrittenFile) -> None:
        """Know a file again that an earlier daemon wrote."""
        with self._lock:
            self.files.add(file)
            self.table.remember(file.ino, file.identity, file.node)

    def shorten_log(self) -> None:
        """Write the log again if it is much longer than it need be. In a thread of its own."""
        log = self.log
        if log is None or not log.is_long:
            return
        with self._lock:
            since, others = log.begin_rewrite(), log.others()
            known = self.table.known()
            moved = self.table.moved() | self._by_ino.keys() | self.salted.keys()
        now = ((ino, self.node(ino) if ino in self._by_ino else node) for ino, node in known)
        # What is known now comes last, as it wins: numbers of earlier daemons may have been renamed since.
        length = log.rewrite(chain(self.earlier.records(), records(now, moved), others))
        with self._lock:
            log.end_rewrite(since, length)

    # entries and attributes ------------------------------------------------------------------

    def entry(self, found: Found) -> Entry:
        """Make the entry of something found, without counting it."""
        node = found.node
        if isinstance(node, ObjectNode | ShardNode) and not node.info.is_sized:
            return self._bare(found.name, node)
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

    def _bare(self, name: bytes, node: ObjectNode | ShardNode) -> Entry:
        if isinstance(node, ShardNode):
            ino = directory_number(self.number(node), 0)
            return Entry(name, self._make.directory(ino), 0.0, bare=True)
        return Entry(name, self._make.file(self.number(node), 0, 0), 0.0, bare=True)

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

    def current_number(self, node: Node) -> int:
        """Return the number of a node, or of the written file that its name stands for in this mount."""
        file = self.current(node) if isinstance(node, ObjectNode) else None
        return self.number(node) if file is None else file.ino

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
