"""Open handles: a directory, a version of an object or a member.

Nothing says which of several readers of a handle goes on at an offset. All get the snapshot of the reader that began last, since
offsets hold good from one listing to the next.

A directory whose listing is not in memory is listed while it is being opened, and not at its first
READDIR: the kernel holds the directory's lock during READDIR, and with it every open and look-up in the
directory would wait for the store. The handle then stands for the snapshot, until its first READDIR.

In a mount that is only read nobody makes names in a directory, and READDIRs and look-ups share the kernel's lock. There a
snapshot may be of a listing under way: a READDIR that has got all that came waits for the next page.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from msgspec import structs

from aisfs.cache.names import WOULD_WAIT
from aisfs.core.names.inodes import numbers_of
from aisfs.core.views.tree import MembersView
from aisfs.engine.overlay import Overlay
from aisfs.engine.reader import OpenMember
from aisfs.filesystem.inodes import Inodes, Listed, ShardFolders
from aisfs.filesystem.nodes import (
    LONGEST_TIMEOUT,
    AttrMaker,
    DirectoryNode,
    Entry,
    FileNode,
    FileRun,
    Node,
    ObjectNode,
    ShardNode,
    object_identities,
)
from aisfs.filesystem.trees import Children, Found, Names, Objects
from aisfs.filesystem.written import WrittenFile
from aisfs.system.threads import any_thread


@dataclass(frozen=True, slots=True)
class DirectoryHandle:
    """An open directory: a snapshot, so that one listing is consistent in itself."""

    entries: Callable[[int], Iterator[tuple[int, Entry, Node]]]
    """Returns (offset of the next, entry, node) behind an offset; it can be called any number of times."""
    try_entries: Callable[[int], Iterator[tuple[int, Entry | None, Node]]]
    """The same for the dispatcher; None for entries that only the trio thread can make."""
    members: "MemberRows | None" = None
    """The same of a directory in a shard, which never changes, for packing many at once."""
    objects: "Callable[[int, int], ObjectRun | None]" = lambda *_: None
    """The same of objects above the shards, for the dispatcher: those behind an offset, so many
    at most; None when the next entry has to be taken from `known`."""
    more: "Callable[[int], Awaitable[DirectoryHandle]] | None" = None
    """Of a listing under way: waits for what there is behind an offset, and returns the snapshot to go on with. Raises
    AisfsError if the listing is not complete."""


@dataclass(frozen=True, slots=True)
class ObjectRun:
    """Objects side by side in a directory as columns."""

    files: FileRun
    nodes: Sequence[ObjectNode]
    offsets: Sequence[int]
    """The offset behind each of them."""
    owner: tuple[int, int]
    """User and group."""
    timeout: float
    """Seconds the kernel may keep the names."""


@dataclass(frozen=True, slots=True)
class MemberRows:
    """A directory of a shard as columns."""

    node: ShardNode
    uid: int
    gid: int
    listed: Callable[[int, int], Listed]
    """Returns what is listed from an offset on, and how many files at most."""


@dataclass(frozen=True, slots=True)
class FileHandle:
    """An open object, member or virtual shard of one version."""

    node: FileNode | ShardNode
    member: OpenMember | None = None


@dataclass(eq=False, slots=True)
class OpenFile:
    """An open object of a writable mount; its content is that of the inode, as POSIX has it."""

    ino: int
    file: WrittenFile | None
    """Set when it was opened for writing."""
    bypasses_pages: bool = False
    """Whether what is read and written goes past the kernel's page cache."""


@any_thread
class DirectoryHandles:
    """Makes the handles of directories."""

    def __init__(
        self,
        inodes: Inodes,
        tree: Names,
        folders: ShardFolders,
        make: AttrMaker,
        clock: Callable[[], float],
        overlay: Overlay | None,
    ) -> None:
        """List what the collaborators know; `overlay` has what this mount itself changes."""
        self._inodes = inodes
        self._tree = tree
        self._folders = folders
        self._make = make
        self._clock = clock
        self._overlay = overlay

    def of_members(self, view: MembersView, node: ShardNode, ino: int) -> DirectoryHandle:
        """Open a directory of an open shard."""
        members = self._folders.children_in(view, node, ino)
        listed = self._folders.listed_in(view, node, ino)

        def entries(offset: int) -> Iterator[tuple[int, Entry, Node]]:
            return ((at, entry, node) for at, entry in members(offset))

        return DirectoryHandle(entries, entries, MemberRows(node, *self._make.owner, listed))

    def of_children(self, ino: int, children: Children) -> DirectoryHandle:
        """Open a directory above the shards, whose listing the kernel is going to be given."""
        inodes, validity = self._inodes, self._inodes.validity
        validity.listed(ino, children.expires)
        refreshes = validity.refreshes

        def current(found: Found) -> Found:
            """Return what the kernel may keep only if nothing was refreshed since."""
            return found if validity.refreshes == refreshes else structs.replace(found, expires=0.0)

        async def more(offset: int) -> DirectoryHandle:
            assert children.more is not None, "the listing is under way"
            others = await children.more(offset)
            return self.of_children(ino, others) if others is not None else handle

        if self._overlay is not None:
            children = self._without_changes(ino, children, self._overlay)
        handle = DirectoryHandle(
            lambda offset: (
                (found.offset, inodes.entry(current(found)), found.node)
                for found in children.entries(offset)
            ),
            lambda offset: (
                (found.offset, inodes.try_entry(current(found)), found.node)
                for found in children.entries(offset)
            ),
            objects=partial(self._run, ino, children, refreshes),
            more=more if children.more is not None else None,
        )
        return handle

    def _without_changes(self, ino: int, children: Children, overlay: Overlay) -> Children:
        """Leave out what this mount changes while the listing is read: the kernel would believe it."""
        made = overlay.changes

        def entries(offset: int) -> Iterator[Found]:
            for found in children.entries(offset):
                now = found if overlay.changes == made else self._found_again(ino, found)
                if now is not None:
                    yield now

        def objects(offset: int, most: int) -> Objects | None:
            return children.objects(offset, most) if overlay.changes == made else None

        return Children(entries, children.expires, objects)

    def _found_again(self, ino: int, found: Found) -> Found | None:
        """Return what the name of an entry stands for by now."""
        node = self._inodes.get(ino)
        if not isinstance(node, DirectoryNode):
            return found
        now = self._tree.try_find(node, ino, found.name)
        if now is WOULD_WAIT:
            return found  # as old as it is believed to be: the kernel asks again
        return structs.replace(now, offset=found.offset) if now is not None else None

    def _run(
        self, ino: int, children: Children, refreshes: int, offset: int, most: int
    ) -> ObjectRun | None:
        """Return the objects behind an offset, `most` at most; None when the next entry is none, or
        has to be looked at by itself."""
        objects = children.objects(offset, most)
        if objects is None or self._inodes.validity.refreshes != refreshes:
            return None
        bucket, offsets, names, infos = objects
        identities = object_identities(bucket, infos)
        inos = numbers_of(identities)
        count = self._inodes.free(objects, inos, identities)
        if not count:
            return None
        if count < len(inos):
            inos, names, infos = inos[:count], names[:count], infos[:count]
            offsets = offsets[:count]
        nodes = [
            ObjectNode(bucket, info, ino, name) for info, name in zip(infos, names, strict=True)
        ]
        timeout = min(max(children.expires - self._clock(), 0.0), LONGEST_TIMEOUT)
        files = FileRun(inos, *self._make.objects(infos), names)
        return ObjectRun(files, nodes, offsets, self._make.owner, timeout)


DIRECTORIES_MAX = 256
"""Directories being read at once; one more makes one of them be listed again."""


class ReaddirSnapshots:
    """One for each directory that is being read, by inode number."""

    def __init__(self) -> None:
        """Start with none."""
        self._latest: OrderedDict[int, DirectoryHandle] = OrderedDict()
        self._opened: dict[int, DirectoryHandle] = {}
        """Listed while being opened and not read yet, by the number that the kernel knows as the handle."""
        self._numbers = count(1)
        self._handed_on: dict[int, DirectoryHandle] = {}
        """By inode number: what the dispatcher began to read and the trio thread has to answer."""

    def open(self, handle: DirectoryHandle) -> int:
        """Return a snapshot a number, for its first reader."""
        number = next(self._numbers)
        self._opened[number] = handle
        return number

    def take(self, number: int) -> DirectoryHandle | None:
        """Return the snapshot that has a number, the first time; 0 is none."""
        return self._opened.pop(number, None)

    def hand_on(self, ino: int, handle: DirectoryHandle) -> None:
        """Have the trio thread begin with a snapshot."""
        self._handed_on[ino] = handle

    def handed_on(self, ino: int) -> DirectoryHandle | None:
        """Return the snapshot to begin with, once."""
        return self._handed_on.pop(ino, None)

    def under_way(self, ino: int, offset: int) -> DirectoryHandle | None:
        """Return the snapshot to go on with at an offset, if there is one."""
        return self._latest.get(ino) if offset else None

    def begin(self, ino: int, handle: DirectoryHandle) -> DirectoryHandle:
        """Keep a snapshot for the programs that go on reading it."""
        self._latest[ino] = handle
        while len(self._latest) > DIRECTORIES_MAX:
            self._latest.popitem(last=False)
        return handle

    def end(self, ino: int) -> None:
        """Drop a snapshot: a reader came to its end, or the kernel forgot the directory."""
        self._latest.pop(ino, None)
