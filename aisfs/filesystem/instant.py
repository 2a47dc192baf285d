"""What can be answered at once: from memory and mapped files, without a request to the store.

Called by the fast path while the trio thread goes on. `WOULD_WAIT`, or None where nothing could be
missing, means that the waiting operation of `FileSystem` has to find out; so it does whenever an error
is due, and for every file from the moment it is opened for writing until the kernel has forgotten it.
In a mount that can be written the caller holds `OpenFiles.namespace_lock` meanwhile, except to read.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass

from aisfs.cache.names import WOULD_WAIT, WouldWait
from aisfs.core.names.inodes import slot_of, split_member
from aisfs.core.names.listing import NAME_MAX
from aisfs.core.views.tree import MembersView
from aisfs.engine.parts import Data, Received
from aisfs.engine.reader import MemberReads, Reader
from aisfs.errors import AisfsError
from aisfs.filesystem.attributes import Attr, Entry
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.handles import DirectoryHandle
from aisfs.filesystem.nodes import FileNode, ObjectNode, ShardNode
from aisfs.filesystem.shard_folders import check_directory, is_folder
from aisfs.model import ByteRange

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
