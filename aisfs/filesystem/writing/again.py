"""Changes of names that a daemon was asked for and that died before it had answered: the kernel asks the next one again.

Each is done once. The kernel locks a directory from before it asks until it has the answer. So what only this mount has made
under the name is of this very request, and the last removal or rename that was noted in a directory is of it, too, if it is the
same: the note goes with the next change that the kernel asks for (`Inodes.begins`). Whether that came to its end is noted as well (`Renamer`); if not, the store is asked, whose word counts only if it is sure.
"""

import os
from typing import Any

from aisfs.core.names import listing
from aisfs.engine.overlay import Overlay
from aisfs.engine.writing.appender import END_MARK
from aisfs.errors import AlreadyExists, Stale, Unavailable
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.handles import FileHandle, OpenFile
from aisfs.filesystem.nodes import DirectoryNode, Entry, ObjectNode, ShardNode
from aisfs.filesystem.trees import Found, Tree
from aisfs.filesystem.writing.commit import Committer
from aisfs.filesystem.writing.create import Creator, new_key, writable_directory
from aisfs.filesystem.writing.open_files import OpenFiles
from aisfs.filesystem.writing.rename import DirectoryRenamer, Renamer
from aisfs.filesystem.written import WrittenFile
from aisfs.model import ObjectInfo
from aisfs.stores.posix_metadata import is_link


class Again:
    """Carries such requests out, or finds that they were."""

    def __init__(
        self,
        filesystem: FileSystem,
        tree: Tree,
        overlay: Overlay,
        committer: Committer,
        open_files: OpenFiles,
        creator: Creator,
        names: Renamer,
        directories: DirectoryRenamer,
    ) -> None:
        """Do with these what is to be done; `overlay` is the lister of `tree`."""
        self._filesystem = filesystem
        self._inodes = filesystem.inodes
        self._tree = tree
        self._overlay = overlay
        self._committer = committer
        self._open_files = open_files
        self._creator = creator
        self._names = names
        self._directories = directories

    async def _find(self, parent: int, name: bytes) -> Found | None:
        """Return what has a name, by the word of the store; None if that is sure that nothing has."""
        where = writable_directory(self._inodes.node(parent))
        return await self._tree.find_to_make(where, parent, name)

    async def _made(self, parent: int, name: bytes) -> WrittenFile | None:
        """Return the file of a name that the store did not have when it was made here."""
        node = self._inodes.node(parent)
        if isinstance(node, ShardNode):
            return await self._filesystem.new_member(node, parent, name)
        where = writable_directory(node)
        file = self._inodes.files.of_key(where.bucket, new_key(where, name))
        return file if file is not None and file.base is None else None

    # what is made ----------------------------------------------------------------------------

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int
    ) -> tuple[Entry, OpenFile | FileHandle]:
        """Make a file and open it. No program has it open yet."""
        file = await self._made(parent, name)
        if file is None:
            return await self._creator.create(parent, name, mode, flags)
        file.handles = file.writers = file.bypassing = 0
        entry = Entry(name, self._inodes.written_attr(file), 0.0)
        return entry, self._open_files.begin(file, flags)

    async def make_file(self, parent: int, name: bytes, mode: int, target: bytes | None) -> Entry:
        """Make an empty file, or a symbolic link to `target`."""
        file = await self._made(parent, name)
        if file is not None and not file.acknowledged:  # half made
            file.handles = file.writers = 0
            self._committer.discard(file, Stale("its daemon has ended"))
            self._committer.let_go(file)
        found = await self._find(parent, name)
        if found is None and target is None:
            return await self._creator.make_empty(parent, name, mode)
        if found is None:
            return await self._creator.symlink(parent, name, target or b"")
        entry = self._inodes.counted(found)
        size = len(target or b"")
        if isinstance(found.node, ObjectNode) and entry.attr.size == size:
            there = await self._filesystem.read_object(entry.attr.ino, 0, size)
            if bytes(there) == (target or b"") and is_link(found.node.info) == (target is not None):
                return entry
        self._filesystem.forget(entry.attr.ino, 1)
        raise AlreadyExists(f"{os.fsdecode(name)!r} exists")

    async def mkdir(self, parent: int, name: bytes, mode: int) -> Entry:
        """Make a directory, or a new shard."""
        node = self._inodes.node(parent)
        if isinstance(node, DirectoryNode):
            found = await self._find(parent, name)
            match found.node if found is not None else None:
                case DirectoryNode(bucket, prefix):
                    made = prefix in self._overlay.held.below(bucket, prefix)
                case ShardNode(_, info):
                    made = info.size == len(END_MARK)
                case _:
                    made = False
            if found is not None and made:
                return self._inodes.counted(found)
        return await self._creator.mkdir(parent, name, mode)

    # what is removed or renamed --------------------------------------------------------------

    def _noted(self, parent: int, *what: Any) -> tuple[list[Any], bool] | None:  # noqa: ANN401 - JSON
        """Return what was noted of a change when it began, and whether it came to its end; None if it did not begin."""
        told = self._inodes.log
        said = told.get(f"change {parent}") if told is not None else None
        if said is None or said[: len(what)] != list(what):
            return None
        return said[len(what) : -1], said[-1]

    async def unlink(self, parent: int, name: bytes) -> None:
        """Remove a file."""
        noted = self._noted(parent, "unlink", os.fsdecode(name))
        if noted is not None:
            [ino, version], done = noted
            if done:
                return
            found = await self._find(parent, name)
            if found is None:
                self._unlinked(parent, name)
                return
            match found.node:
                case ObjectNode(_, info) if self._inodes.current_number(found.node) != ino:
                    if not info.same_content(ObjectInfo(*version)):
                        return  # another client has made it since
        await self._names.unlink(parent, name)

    def _unlinked(self, parent: int, name: bytes) -> None:
        where = writable_directory(self._inodes.node(parent))
        key = new_key(where, name)
        with self._overlay.namespace_lock:
            file = self._inodes.files.of_key(where.bucket, key)
            if file is not None:
                self._names.unname(file)
            self._overlay.remove(where.bucket, key)

    async def rmdir(self, parent: int, name: bytes) -> None:
        """Remove a directory."""
        noted = self._noted(parent, "rmdir", os.fsdecode(name))
        if noted is None or (not noted[1] and await self._find(parent, name) is not None):
            await self._names.rmdir(parent, name)

    async def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int
    ) -> None:
        """Move a file or a directory."""
        what = "rename", os.fsdecode(name), new_parent, os.fsdecode(new_name)
        noted = self._noted(parent, *what)
        if noted is None:
            await self._names.rename(parent, name, new_parent, new_name, flags)
            return
        [ino, said], done = noted
        where = writable_directory(self._inodes.node(parent))
        target = writable_directory(self._inodes.node(new_parent))
        key, new = listing.child_key(where.prefix, name), listing.child_key(target.prefix, new_name)
        file = self._inodes.files.by_ino.get(ino)
        if done or (file is not None and file.key == new and not file.unlinked):
            return
        found = await self._find(parent, name)
        if found is not None and isinstance(found.node, DirectoryNode):  # some of it may be there
            await self._directories.rename(found.node, None, f"{new}/")
            return
        there = await self._find(new_parent, new_name)
        info = there.node.info if there is not None and isinstance(there.node, ObjectNode) else None
        version = ObjectInfo(*said) if said is not None else None
        moved = bool(
            info and version and (info.size, info.checksum) == (version.size, version.checksum)
        )
        if found is not None:
            await self._names.rename(parent, name, new_parent, new_name, 0 if moved else flags)
        elif info is not None and moved:
            now = ObjectNode(target.bucket, info, new_parent, new_name)
            self._names.moved(ino, file, where.bucket, key, now)
        elif there is not None and isinstance(there.node, DirectoryNode):
            self._directories.moved(DirectoryNode(where.bucket, f"{key}/"), f"{new}/")
        else:
            raise Unavailable(f"{where.bucket}/{key}: it is not known what became of its renaming")
