"""The operations of the file system, with our own values and errors and without the kernel.

The methods take and return inode numbers and names as bytes, and raise `aisfs.errors`; fuse/ translates
these for the kernel. Operations that change something are in `aisfs.filesystem.writing`.

`InstantAnswers` answers at once, from memory and mapped files, without a request to the store. The fast path calls it while the
trio thread goes on. It returns `WOULD_WAIT`, or None where nothing could be missing, if the waiting operation of `FileSystem`
has to find out: whenever an error is due, and for every file from the moment it is opened for writing until the kernel has
forgotten it. In a mount that can be written the caller holds `OpenFiles.namespace_lock` meanwhile, except to read.

Here are also the Protocol of what a file system may tell the kernel unasked, and the members of open shards, as the pusher needs
them.
"""

import os
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import trio

from aisfs.cache.names import WOULD_WAIT, DirectoryId, WouldWait
from aisfs.core.index.member_index import MemberKind
from aisfs.core.names.inodes import ROOT, directory_number, member_number, slot_of, split_member
from aisfs.core.names.listing import NAME_MAX
from aisfs.core.views.tree import MembersView
from aisfs.engine.dataset.reshuffler import SyntheticReader
from aisfs.engine.overlay import Overlay
from aisfs.engine.parts import Data, Received
from aisfs.engine.reader import MemberReads, Reader
from aisfs.errors import (
    AisfsError,
    IsADirectory,
    NameGone,
    NameTooLong,
    NotADirectory,
    NotFound,
    Stale,
)
from aisfs.filesystem.handles import DirectoryHandle, DirectoryHandles, FileHandle, ReaddirSnapshots
from aisfs.filesystem.inodes import Inodes, ShardFolders, check_directory, is_folder
from aisfs.filesystem.nodes import (
    Attr,
    AttrMaker,
    DirectoryNode,
    Entry,
    FileNode,
    Node,
    ObjectNode,
    RemovedDirectoryNode,
    ShardNode,
    VirtualShardNode,
    describe,
)
from aisfs.filesystem.takeover import FileName, NumberLog
from aisfs.filesystem.trees import Names
from aisfs.filesystem.written import NameChanges, WrittenFile
from aisfs.model import Bucket, ByteRange, ObjectInfo
from aisfs.system.threads import any_thread


class Kernel(Protocol):
    """Makes the kernel forget what it knows."""

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        """Make the kernel look `name` up again. Must not wait for a request to be answered."""
        ...

    def invalidate_inode(self, ino: int) -> None:
        """Make the kernel ask for attributes and content again. Must not wait either."""
        ...

    def drop_pages(self, inodes: Iterable[int]) -> None:
        """Make the kernel ask for the content of files again, read-only ones too. Must not wait."""
        ...

    async def expire(
        self, entries: Iterable[tuple[int, bytes]], directories: Iterable[int]
    ) -> None:
        """Make the kernel ask for names, then for attributes and listings of directories, again.

        Returns once it knows, and has the replies to what it asked for before in the directories of the
        names. What a program has open stays open.
        """
        ...

    async def invalidated(self, parent: int, name: bytes) -> None:
        """Make the kernel look `name` up again, and wait until it knows, a second at most.

        Not for requests during which the kernel holds the lock of the directory `parent`.
        """
        ...


SHORTEN_SECONDS = 1.0
"""How often it is looked how long the log of inode numbers is."""


class FileSystem:
    """One mount's tree. Only `forget` may be called outside the trio thread; the fast path has
    `InstantAnswers`."""

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
        kernel: Kernel,
        overlay: Overlay | None = None,
    ) -> None:
        """Serve the tree below `root`; a listing is valid for `list_ttl` seconds.

        Args:
            root: What the mount shows.
            tree: What is above the members of shards.
            folders: What is in shards.
            reader: Reads objects and members.
            assembler: Reads virtual shards.
            make: Makes attributes.
            clock: Returns the time in seconds.
            list_ttl: See above.
            kernel: Notified of what changed.
            overlay: This mount's own changes over the listings, if it is writable.
        """
        self.inodes = Inodes(
            root,
            tree=tree,
            folders=folders,
            make=make,
            clock=clock,
            list_ttl=list_ttl,
            writable=overlay is not None,
        )
        self.handles = DirectoryHandles(self.inodes, tree, folders, make, clock, overlay)
        self.snapshots = ReaddirSnapshots()
        self.tree = tree
        self.folders = folders
        self.kernel = kernel
        self.name_changes = NameChanges(overlay.namespace_lock if overlay is not None else None)
        """Changes of names under way; none in a mount that is only read."""
        self._root = root
        self._writable = overlay is not None
        self._reader = reader
        self._assembler = assembler

    # names -----------------------------------------------------------------------------------

    async def lookup(self, parent: int, name: bytes) -> Entry | None:
        """Look a name up and count the lookup; None when it is missing."""
        if len(name) > NAME_MAX:
            raise NameTooLong(f"{os.fsdecode(name)!r} is longer than {NAME_MAX} bytes")
        if name in (b".", b".."):
            return await self._by_number(parent, name)
        node = await self.settled(parent)
        if isinstance(node, ShardNode):
            check_directory(node, parent)
            file = await self.new_member(node, parent, name)
            if file is not None:
                self.inodes.remember(file.ino, file.node)
                return Entry(name, self.inodes.written_attr(file), 0.0)
            entry = self.folders.find(await self.view(node), node, parent, name)
            if entry is not None:
                self.inodes.remember(entry.attr.ino, node)
            return entry
        if isinstance(node, FileNode):
            raise NotADirectory(f"{_name(node)} is not a directory")
        found = await self.tree.find(node, parent, name)
        return self.inodes.counted(found) if found is not None else None

    async def find_sized(self, name: bytes, node: Node) -> tuple[Entry, Node] | None:
        """Return the entry of a name that was listed without attributes, which is not counted; None if it is gone."""
        assert isinstance(node, ObjectNode | ShardNode), "others have attributes"
        found = await self.tree.find(self.inodes.node(node.parent), node.parent, name)
        return (self.inodes.entry(found), found.node) if found is not None else None

    async def _by_number(self, ino: int, name: bytes) -> Entry:
        """Return the entry of an inode itself, or of the directory that it is in.

        The kernel asks so for what a file handle names, of which it may know nothing else, and connects it to the tree.
        """
        if ino != ROOT and self.inodes.get(ino) is None:
            if not self.inodes.is_earlier(ino):
                await trio.to_thread.run_sync(self.inodes.find_forgotten)
            await self.restore(ino)
        node = self.inodes.node(ino)
        if name == b"..":
            ino, node = await self._above(ino, node)
        self.inodes.remember(ino, node)
        return Entry(name, await self.getattr(ino), 0.0)

    async def _above(self, ino: int, node: Node) -> tuple[int, Node]:
        """Return the directory that a directory is in."""
        if isinstance(node, ShardNode) and not is_folder(ino):
            path = await self.folders.path_of(node, ino)
            above = os.path.dirname(path)
            first = self.inodes.number(node)
            if not above:
                return directory_number(first, 0), node
            return (await self.folders.resolve(node, first, above)).attr.ino, node
        if isinstance(node, ShardNode | FileNode):
            await self.restore(node.parent)
            return node.parent, self.inodes.node(node.parent)
        return self.inodes.parent_of(node) or (ROOT, self._root)

    async def settled(self, ino: int) -> Node:
        """Return the node of an inode, once no change of its name is under way.

        Raises:
            NameGone: that change took its name away; the kernel looks up what has the name now.
        """
        while True:
            node = self.inodes.node(ino)
            change = self.name_changes.of(node)
            if change is None:
                return node
            await change.over.wait()
            if ino in change.gone:
                raise NameGone("it was removed or replaced while it was being opened")

    def take_over(self, log: NumberLog) -> None:
        """Note from now on what the kernel knows; begin with what it knows from earlier daemons of the mount."""
        self.inodes.take_over(log)

    async def shorten_log(self) -> None:
        """Keep the log of `take_over` from growing without end."""
        while True:
            await trio.sleep(SHORTEN_SECONDS)
            await trio.to_thread.run_sync(self.inodes.shorten_log)

    async def restore(self, ino: int) -> None:
        """Find out again what a number stands for that the kernel knows from an earlier daemon of the mount.

        Raises:
            Stale: it is another version now, or gone.
            AisfsError: the store cannot say now.
        """
        settle = self.inodes.unsettled.get(ino)
        if settle is not None:
            await settle()
            return
        if not self.inodes.is_earlier(ino):
            return
        slot = slot_of(ino)
        node = self.inodes.earlier.get(slot)
        if isinstance(node, FileName):
            await self.restore(node.parent)
            found = await self.tree.find(self.inodes.node(node.parent), node.parent, node.name)
            if found is None or self.inodes.number(found.node) != slot:
                what = "is gone" if found is None else "changed"
                raise Stale(f"{os.fsdecode(node.name)} {what} since an earlier daemon showed it")
            node = found.node
        if node is not None:
            self.inodes.restored(slot, node)

    async def restore_below(self, node: DirectoryNode) -> None:
        """Find out what all numbers stand for that the kernel knows of files below a directory."""
        for ino, (parent, _) in list(self.inodes.earlier.files()):
            above = self.inodes.get(parent)
            if not isinstance(above, DirectoryNode) or above.bucket != node.bucket:
                continue
            if above.prefix.startswith(node.prefix):
                with suppress(Stale):
                    await self.restore(ino)

    def stands(self, node: Node, ino: int) -> bool:
        """Return whether an inode is still this node, with no change of its name under way."""
        return self.inodes.node(ino) == node and self.name_changes.of(node) is None

    async def new_member(self, node: ShardNode, parent: int, name: bytes) -> WrittenFile | None:
        """Return the file that is being written under this name as a new member of the shard."""
        if not self.inodes.files.members:
            return None
        path = await self.folders.path(node, parent, name)
        return self.inodes.files.of_member(node.bucket, node.info.key, path)

    def describe(self, ino: int) -> str:
        """Return which file or directory an inode is, for the log. Waits for nothing."""
        node = self.inodes.get(ino)
        if not isinstance(node, ShardNode):
            return describe(node) if node is not None else f"inode {ino}"
        return f"{node.bucket}/{node.info.key}{self.folders.describe(node, ino)}"

    def forget(self, ino: int, count: int) -> None:
        """Take back `count` lookups."""
        if self.inodes.forget(ino, count):
            self.snapshots.end(ino)

    async def getattr(self, ino: int) -> Attr:
        """Describe an inode."""
        file = self.inodes.files.by_ino.get(ino)
        if file is not None:
            file.check_attached()
            return self.inodes.written_attr(file)
        node = self.inodes.node(ino)
        if not isinstance(node, ShardNode):
            return self.inodes.attr(node, ino)
        if is_folder(ino):  # the folder itself must not cost a scan: `ls -l` shows it
            return self.folders.folder(node, ino)
        return self.folders.attr(await self.view(node), node, ino)

    async def view(self, node: ShardNode) -> MembersView:
        """Return the members of a shard, which is scanned unless it was opened before."""
        with self.noticing_change(node):
            return await self.folders.view(node)

    # directories -----------------------------------------------------------------------------

    async def opendir(self, ino: int) -> DirectoryHandle:
        """Take a snapshot of a directory: complete, or an error."""
        node = self.inodes.node(ino)
        if isinstance(node, FileNode):
            raise NotADirectory(f"{_name(node)} is not a directory")
        if isinstance(node, ShardNode):
            check_directory(node, ino)
            view = await self.view(node)
            self._reader.folder_listed(node.bucket, node.info)
            return self.handles.of_members(view, node, ino)
        return self.handles.of_children(ino, await self.tree.children(node, ino))

    async def directory(self, ino: int, offset: int) -> DirectoryHandle:
        """Return the snapshot that a listing without a handle began with, or take a new one."""
        known = self.snapshots.under_way(ino, offset)
        if known is not None:
            return known
        handle = self.snapshots.handed_on(ino) if not offset else None
        try:
            handle = handle or await self.opendir(ino)
        except (Stale, NotFound) as error:
            handle = await self._opened_anew(ino, error)
        return handle if handle.members is not None else self.snapshots.begin(ino, handle)

    async def _opened_anew(self, ino: int, error: AisfsError) -> DirectoryHandle:
        """Open the folder that has replaced one that turned out to be stale.

        Without a handle, the kernel would not look the name up again, but return the error to the program.
        """
        node = self.inodes.node(ino)
        if not isinstance(node, ShardNode) or not is_folder(ino):
            raise error
        found = await self.tree.find(self.inodes.node(node.parent), node.parent, node.name)
        if found is None or not isinstance(found.node, ShardNode) or found.node.info == node.info:
            raise error
        first = self.inodes.number(found.node)
        view = await self.folders.view(found.node)
        return self.handles.of_members(view, found.node, directory_number(first, 0))

    # files -----------------------------------------------------------------------------------

    async def open(self, ino: int, *, again: bool = False) -> FileHandle:
        """Open the version of an object or a member that the inode number stands for.

        `again` means that it was opened before, and this is another read.
        """
        node = self.inodes.node(ino)
        if isinstance(node, FileNode):
            return FileHandle(node)
        if isinstance(node, ShardNode):
            _, is_directory, row = split_member(ino) or (0, True, 0)
            if not is_directory:
                index = (await self.view(node)).index
                opened = self._reader.open_member(node.bucket, node.info, index, row, again=again)
                return FileHandle(node, opened)
        raise IsADirectory("is a directory")

    async def read_at(self, ino: int, offset: int, size: int) -> Data:
        """Read a file by its inode number, without a handle; the first read of a member counts as opening it.

        Raises:
            Stale: the object changed or went away since it was looked up.
        """
        node = self.inodes.node(ino)
        if isinstance(node, ObjectNode):
            return await self.read_object(ino, offset, size)
        try:
            handle = await self.open(ino, again=offset > 0)
        except (Stale, NotFound) as error:  # a shard that has to be scanned again
            if not isinstance(node, ShardNode):
                raise
            raise self._no_longer(node, error) from error
        return await self.read(handle, offset, size)

    async def read_object(self, ino: int, offset: int, size: int) -> Data:
        """Read the current content of an object in this mount, staged or stored, for any handle."""
        files = self.inodes.files.by_ino
        while True:
            file = files.get(ino)
            if file is not None:
                file.check_attached()
                staged, entry = file.staged, file.entry  # once: other threads take them away
                if staged is not None:
                    return staged.read(offset, size)
                if entry is not None:
                    return entry.read(offset, size)
            node = self.inodes.node(ino)
            assert isinstance(node, ObjectNode), "other nodes have other handles"
            try:
                return await self.read(FileHandle(node), offset, size)
            except Stale:
                change = self.name_changes.of(node)
                if change is not None:
                    await change.over.wait()
                now = files.get(ino)
                changed_here = now is not None and (now.staged or now.base is not node.info)
                if not changed_here and self.inodes.node(ino) == node:
                    raise  # changed by another client

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
            raise self._no_longer(node, error) from error

    async def readlink(self, ino: int) -> bytes:
        """Return the target of a symbolic link, as it is: nobody here follows it."""
        node = self.inodes.node(ino)
        if isinstance(node, ObjectNode):
            attr = await self.getattr(ino)
            if stat.S_ISLNK(attr.mode):
                return bytes(await self.read_object(ino, 0, attr.size))
        parts = split_member(ino)
        if isinstance(node, ShardNode) and parts is not None and not parts[1]:
            index = (await self.view(node)).index
            if index.kind(parts[2]) is MemberKind.SYMLINK:
                return index.link_target(parts[2])
        raise NotFound("not a symbolic link")

    @contextmanager
    def noticing_change(self, node: ObjectNode | ShardNode) -> Iterator[None]:
        """If an object turns out to have changed, or to be gone, have it looked up again."""
        try:
            yield
        except (Stale, NotFound):
            self._changed(node)
            raise

    def _no_longer(self, node: ObjectNode | ShardNode, error: AisfsError) -> Stale:
        """Return what a reader of an object is told that is another one now, or none."""
        self._changed(node)
        what = "changed" if isinstance(error, Stale) else "is gone"
        return Stale(f"{node.bucket}/{node.info.key} {what} since it was opened: {error}")

    def _changed(self, node: ObjectNode | ShardNode) -> None:
        """Forget what was known about an object that turned out to have changed."""
        parents = set()
        for parent, name in self.tree.changed(node):
            parents.add(parent)
            self.kernel.invalidate_entry(parent, name)
        for parent in parents:
            self.inodes.validity.dropped(parent)
            self.kernel.invalidate_inode(parent)

    def content_was_wrong(self, bucket: Bucket, info: ObjectInfo) -> None:
        """Make the kernel drop the pages of an object whose bytes turned out to be wrong."""
        for number, node in self.inodes.known():
            if isinstance(node, VirtualShardNode):  # it may contain the object
                self.kernel.drop_pages([number])
            elif isinstance(node, ObjectNode | ShardNode) and (node.bucket, node.info) == (
                bucket,
                info,
            ):
                self.kernel.drop_pages(self._files_of(number, node))

    def _files_of(self, number: int, node: ObjectNode | ShardNode) -> Iterable[int]:
        """Return the inode numbers of the files that show an object's bytes: itself, or its members."""
        if isinstance(node, ObjectNode):
            return [number]
        view = self.folders.try_view(node)
        rows = range(len(view.index)) if view is not None else ()
        return (member_number(number, row) for row in rows)

    def listing_changed(self, bucket: Bucket, prefix: str, names: list[bytes]) -> None:
        """Notify the kernel of the names in a listing that have changed, since it may still keep the old one."""
        node = DirectoryNode(bucket, prefix)
        ino = ROOT if node == self._root else self.inodes.number(node)
        if not names or self.inodes.get(ino) is None:
            return
        if self._writable:
            self.inodes.directory_attributes.touch(bucket, prefix)
        for name in names:
            self.kernel.invalidate_entry(ino, name)
        self.kernel.invalidate_inode(ino)

    async def refresh(self, ino: int) -> int:
        """Ask the store again for all names below a directory, or in the directory of a file.

        Of a dataset, all shards are found again. What is open stays as it is.

        Returns:
            How many names the kernel has to look up again.

        Raises:
            AisfsError: the shards of a dataset cannot be found, or never change.
        """
        place = self._place_of(ino)
        changed = await self.tree.refresh(place)
        directories = self.inodes.directories_in(place)
        self.inodes.validity.refreshed(directories)
        # Nothing has this name; a reply that was made of what is forgotten by now comes before it.
        await self.kernel.expire([(ino, b".") for ino in directories], [])
        entries = {*self.inodes.entries_in(place), *changed}
        inside = {*directories, *self.inodes.directories_in(place)}
        entries |= {entry for entry in self.inodes.validity.missing_names() if entry[0] in inside}
        await self.kernel.expire(entries, inside)
        return len(entries)

    def _place_of(self, ino: int) -> DirectoryId | None:
        """Return the directory that an inode is, or is in; None for more than one bucket."""
        node = self.inodes.node(ino)
        if ino == ROOT:
            return None
        if isinstance(node, DirectoryNode | RemovedDirectoryNode):
            return node.bucket, node.prefix
        if isinstance(node, ObjectNode | ShardNode):
            return node.bucket, node.info.key[: node.info.key.rfind("/") + 1]
        return None


def _name(node: FileNode) -> str:
    return node.info.key if isinstance(node, ObjectNode) else "a virtual shard"


SHARDS_MAX = 4096
"""Shards whose members were read lately; then all are looked for again."""


@dataclass(frozen=True, slots=True)
class _OpenShard:
    node: ShardNode
    view: "weakref.ref[MembersView]"
    """Weak, since how long an index stays in memory is the indexer's to decide."""
    reads: MemberReads


class InstantAnswers:
    """The answers of a `FileSystem` that need no waiting. All methods are for one thread."""

    def __init__(self, filesystem: FileSystem, reader: Reader) -> None:
        """Answer for `filesystem`, which reads with `reader` as well."""
        self._inodes = filesystem.inodes
        self._nodes = filesystem.inodes.table
        self._files = filesystem.inodes.files
        self._written = filesystem.inodes.files.by_ino
        self._handles = filesystem.handles
        self._snapshots = filesystem.snapshots
        self._tree = filesystem.tree
        self._folders = filesystem.folders
        self._reader = reader
        self._shards: dict[int, _OpenShard] = {}

    def try_lookup(self, parent: int, name: bytes) -> Entry | WouldWait | None:
        """Look a name up and count the lookup; None when it is missing."""
        node = self._nodes.get(parent)
        if node is None or isinstance(node, FileNode) or len(name) > NAME_MAX:
            return WOULD_WAIT
        if isinstance(node, ShardNode):
            return self._member(node, parent, name)
        found = self._tree.try_find(node, parent, name)
        if found is None or found is WOULD_WAIT:
            return found
        return self._inodes.try_counted(found) or WOULD_WAIT

    def _member(self, node: ShardNode, parent: int, name: bytes) -> Entry | WouldWait | None:
        view = self._folders.try_view(node)
        _, is_directory, low = split_member(parent) or (0, False, 0)
        if view is None or not is_directory or not view.directory(low).searchable:
            return WOULD_WAIT
        if self._files.members:
            path = self._folders.path_in(view, parent, name)
            if self._files.of_member(node.bucket, node.info.key, path) is not None:
                return WOULD_WAIT
        entry = self._folders.find(view, node, parent, name)
        if entry is not None:
            self._inodes.remember(entry.attr.ino, node)
        return entry

    def try_getattr(self, ino: int) -> Attr | None:
        """Describe an inode; None when it is not known how."""
        node = self._nodes.get(ino)
        if node is None or ino in self._written:
            return None
        if not isinstance(node, ShardNode):
            return self._inodes.attr(node, ino)
        if is_folder(ino):
            return self._folders.folder(node, ino)
        view = self._folders.try_view(node)
        return self._folders.attr(view, node, ino) if view is not None else None

    def knows_directory(self, ino: int) -> bool:
        """Return whether `try_directory` would return a snapshot."""
        node = self._nodes.get(ino)
        if node is None or isinstance(node, FileNode):
            return False
        if isinstance(node, ShardNode):
            return self._folders.try_view(node) is not None
        return self._tree.try_children(node, ino) is not None

    def try_directory(self, ino: int, offset: int) -> DirectoryHandle | None:
        """Return a snapshot of a directory to read on from `offset`."""
        going_on = self._snapshots.under_way(ino, offset)
        if going_on is not None:
            return going_on
        node = self._nodes.get(ino)
        if node is None or isinstance(node, FileNode):
            return None
        if isinstance(node, ShardNode):
            view = self._folders.try_view(node)
            if view is None:
                return None
            check_directory(node, ino)
            if not offset:
                self._reader.folder_listed(node.bucket, node.info)
            return self._handles.of_members(view, node, ino)
        children = self._tree.try_children(node, ino)
        if children is None:
            return None
        handle = self._handles.of_children(ino, children)
        return self._snapshots.begin(ino, handle)

    def try_read(self, ino: int, offset: int, size: int) -> Data | None:
        """Read a range, cut at the end of the file. The bytes stay what they are while held."""
        node = self._nodes.get(ino)
        wanted = ByteRange(offset, offset + size)
        if isinstance(node, ObjectNode):
            if ino in self._written:
                return None
            return self._reader.try_read_object(node.bucket, node.info, wanted)
        if not isinstance(node, ShardNode):
            return None
        _, is_directory, row = split_member(ino) or (0, True, 0)
        if is_directory:
            return None
        try:
            shard = self._open(ino, node)
            view = shard.view() if shard is not None else None
            if shard is None or view is None:
                return None
            return self._reader.try_read_member(shard.reads, view.index, row, wanted)
        except AisfsError:
            return None

    def when_here(self, ino: int, offset: int, size: int, then: Callable[[Received], None]) -> bool:
        """Read a range of an object when it has been received, if it is under way.

        `then` gets it in the thread that receives it, or trio's; or an error, or None: see `Received`.

        Returns:
            Whether `then` will be called.
        """
        node = self._nodes.get(ino)
        if not isinstance(node, ObjectNode) or ino in self._written:
            return False
        return self._reader.when_here(
            node.bucket, node.info, ByteRange(offset, offset + size), then
        )

    def _open(self, ino: int, node: ShardNode) -> _OpenShard | None:
        slot = slot_of(ino)
        known = self._shards.get(slot)
        if known is not None and known.node is node and known.view() is not None:
            return known
        view = self._folders.try_view(node)
        if view is None:
            return None
        if len(self._shards) >= SHARDS_MAX:
            self._shards.clear()
        reads = self._reader.open_shard(node.bucket, node.info, view.index)
        opened = self._shards[slot] = _OpenShard(node, weakref.ref(view), reads)
        return opened


@dataclass(frozen=True, slots=True)
class OpenShard:
    """A shard whose members are in memory."""

    node: ShardNode
    view: MembersView
    reads: MemberReads


@any_thread
class Members:
    """What pushing asks of the file system. Nothing here waits."""

    def __init__(self, filesystem: FileSystem, reader: Reader) -> None:
        """Look into the shards that `filesystem` shows."""
        self._inodes = filesystem.inodes.table
        self._folders = filesystem.folders
        self._reader = reader

    def find(self, ino: int, last: OpenShard | None) -> OpenShard | None:
        """Return the shard of a member or of a directory in it; None when it is not open.

        `last` is what was found for it before, and is given again when nothing has changed.
        """
        node = self._inodes.get(ino)
        if not isinstance(node, ShardNode):
            return None
        if last is not None and last.node is node:
            return last
        view = self._folders.try_view(node)
        if view is None or view.index.packing is not None:
            return None  # members of a zip have no bytes of their own in the object
        if last is not None and last.view is view:  # forgotten and looked up again
            return last
        try:
            return OpenShard(
                node, view, self._reader.open_shard(node.bucket, node.info, view.index)
            )
        except AisfsError:
            return None

    def in_memory(self, shard: OpenShard, rows: Sequence[int]) -> bool:
        """Return whether most bytes of members are in the daemon's memory, as after a scan."""
        if not rows:
            return False
        data_range = shard.view.index.data_range
        start, stop = data_range(rows[0]).start, data_range(rows[-1]).stop
        if start >= stop:  # a hardlink lies where its content does, perhaps before all of these
            return False
        return 2 * shard.reads.opened.in_memory(ByteRange(start, stop)) > stop - start

    def stored(self, shard: OpenShard, wanted: ByteRange) -> Data | None:
        """Return stored bytes of a shard that are in memory or mapped, for the kernel."""
        return shard.reads.opened.try_read(wanted, push=True)

    def border(self, shard: OpenShard, position: int) -> int:
        """Return up to where bytes from `position` on lie in one buffer, if they are in memory."""
        return shard.reads.opened.border(position)

    def copied(self, shard: OpenShard, wanted: ByteRange) -> bytearray | memoryview | None:
        """Return a copy of them."""
        return shard.reads.opened.try_copy(wanted, push=True)

    def will_be_read(self, shard: OpenShard, row: int) -> None:
        """Prepare for a READ of a member."""
        shard.reads.opened.will_be_read(shard.view.index.data_range(row))

    def pushed(
        self, shard: OpenShard, row: int, last: int, rows: Sequence[int], lacking: Sequence[int]
    ) -> None:
        """Record that members were read for a reader that need not ask for them.

        Args:
            shard: The shard.
            row: The member that reader was last seen at.
            last: The last member it need not ask for.
            rows: Those pushed now.
            lacking: Those that were to be pushed, and whose bytes are not there.
        """
        index = shard.view.index
        done = rows or lacking[:1]
        span = ByteRange(index.data_range(done[0]).start, index.data_range(done[-1]).stop)
        self._reader.pushed(shard.reads, row, last, span, stalled=bool(lacking))
