"""New files, sizes, modes and times of a tree that can be written."""

import os
import stat
import time
from dataclasses import dataclass, replace

from aisfs.core.namespace import keys
from aisfs.core.staged.posix_metadata import mode_of, mtime_of
from aisfs.errors import (
    AisfsError,
    AlreadyExists,
    IsADirectory,
    NotPermitted,
    ReadOnly,
    Unsupported,
)
from aisfs.filesystem.attributes import Attr, Entry
from aisfs.filesystem.handles import FileHandle
from aisfs.filesystem.nodes import DirectoryNode, Node, ObjectNode, ShardNode, identity
from aisfs.filesystem.trees.bucket_tree import Found
from aisfs.filesystem.write.files import WrittenFile, pending_node
from aisfs.filesystem.write.open_files import OpenFile, WritingFileSystem


@dataclass(frozen=True, slots=True)
class Changes:
    """What `setattr` is to change; None leaves a value as it is."""

    size: int | None = None
    mode: int | None = None
    mtime_ns: int | None = None
    uid: int | None = None
    gid: int | None = None


class ChangingFileSystem(WritingFileSystem):
    """Makes files and changes what is known about them."""

    # new files -------------------------------------------------------------------------------

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int
    ) -> tuple[Entry, OpenFile | FileHandle]:
        """Make a file and open it; the store has it when it is closed.

        Raises:
            AlreadyExists: it is there, and O_EXCL asks for a new one.
            InvalidName: AIStore refuses such a name, or would never list it.
        """
        node = await self._settled(parent)
        if isinstance(node, ShardNode):
            return await self._create_member(node, parent, name, mode, flags)
        where = self._writable_directory(node)
        key = self._new_key(where, name)
        found = await self.tree.find(where, parent, name)
        if found is not None:
            if flags & os.O_EXCL:
                raise AlreadyExists(f"{where.bucket}/{key} exists")
            if not isinstance(found.node, ObjectNode):
                raise IsADirectory(f"{where.bucket}/{key} is a directory")
            entry = self.entry(found)
            self.remember(entry.attr.ino, found.node)
            try:
                return entry, await self.open_file(entry.attr.ino, flags)
            except BaseException:
                self.forget(entry.attr.ino, 1)  # the kernel learns nothing of it
                raise
        return self._make_file(where, key, parent, name, mode, flags)

    def create_known(
        self, parent: int, name: bytes, mode: int, flags: int
    ) -> tuple[Entry, OpenFile] | None:
        """Make a file and open it, if its directory is known to lack it; None if that is to be asked."""
        where = self.inodes.get(parent)
        if not isinstance(where, DirectoryNode) or self._name_changes.of(where) is not None:
            return None
        key = self._new_key(where, name)
        if self.tree.known(where, parent, name) is not None:
            return None
        return self._make_file(where, key, parent, name, mode, flags)

    def _make_file(
        self, where: DirectoryNode, key: str, parent: int, name: bytes, mode: int, flags: int
    ) -> tuple[Entry, OpenFile]:
        file = self._new_file(pending_node(where.bucket, key, parent, name), mode)
        with self.changing:
            self._lister.set_pending(where.bucket, key, file.node.info)
            found = Found(name, file.node, self._clock() + self._lister.list_ttl)
            entry = self.entry(found)
            return entry, self._opened_new(file, entry, flags)

    async def _create_member(
        self, node: ShardNode, parent: int, name: bytes, mode: int, flags: int
    ) -> tuple[Entry, OpenFile]:
        """Begin a new member of a shard; it is added when it is closed."""
        if await self._place_in_shard(node, parent, name) is not None:
            raise ReadOnly("members of a shard cannot be changed")
        path = await self._folders.path(node, parent, name)
        file = self._new_file(pending_node(node.bucket, node.info.key, parent, name), mode, path)
        entry = Entry(name, self._file_attr(file), 0.0)
        return entry, self._opened_new(file, entry, flags)

    async def _place_in_shard(self, node: ShardNode, parent: int, name: bytes) -> Entry | None:
        """Make sure that a name can be in a folder of a shard; gives what it stands for already."""
        keys.check_new_member(os.fsdecode(name))
        if not keys.is_plain_tar(os.fsencode(node.info.key)):
            raise ReadOnly(f"{node.bucket}/{node.info.key}: only plain tars take new members")
        if await self._folders.in_opened_tar(node, parent):
            raise ReadOnly(f"{node.bucket}/{node.info.key}: a tar in it takes no new members")
        found = await self._find_member(parent, name)
        if found is None:
            await self._folders.check_whole(node)
        return found

    async def _make_folder(self, node: ShardNode, parent: int, name: bytes, mode: int) -> Entry:
        """Make a directory in a shard, which has it when this returns."""
        if await self._place_in_shard(node, parent, name) is not None:
            raise AlreadyExists(f"{node.bucket}/{node.info.key}.d/{os.fsdecode(name)} exists")
        path = await self._folders.path(node, parent, name)
        return await self._store_folder(node, path, mode & 0o777, time.time_ns())

    async def _store_folder(
        self, node: ShardNode, path: str, mode: int | None, mtime_ns: int
    ) -> Entry:
        """Add a directory to a shard, or what is different of it; gives its entry, counted."""
        bucket, key = node.bucket, node.info.key
        kept = f"{key}//{path}"
        if mode is None:  # which nobody else remembers
            mode, _ = self._directory_attrs.of(bucket, kept)
        async with self._name_changes.using(lambda: frozenset({(bucket, key)})):
            info = await self._writer.append(bucket, key, path, None, mtime_ns=mtime_ns, mode=mode)
            self._directory_attrs.keep(bucket, kept, mode, None)
            now = replace(node, info=info)
            first = self.inodes.number(identity(now), shard=True)
            entry = await self._folders.resolve(now, first, path)
        self.remember(entry.attr.ino, now)
        return entry

    async def _find_member(self, parent: int, name: bytes) -> Entry | None:
        """Look a member up without counting it."""
        node = self.node(parent)
        assert isinstance(node, ShardNode), "only shards have members"
        if await self._new_member(parent, name) is not None:
            raise AlreadyExists(f"{name!r} is being written")
        with self.noticing_change(node):
            return await self._folders.find(node, parent, name)

    def _new_file(self, node: ObjectNode, mode: int | None, member: str = "") -> WrittenFile:
        spelled = identity(node)
        ino = self.inodes.number(spelled)
        kept = None if mode is None else mode & 0o777
        file = WrittenFile(ino, spelled, node, None, kept, time.time_ns(), member)
        file.staged = self._writer.new()
        file.dirty = True
        try:
            self._record(file)
        except BaseException:
            file.staged.discard()
            raise
        self._files.add(file)
        return file

    def _opened_new(self, file: WrittenFile, entry: Entry, flags: int) -> OpenFile:
        handle = OpenFile(file.ino, file, self._bypasses_pages(file, flags))
        self._begin(handle)
        self.remember(entry.attr.ino, file.node)
        return handle

    # size, mode and time ---------------------------------------------------------------------

    async def setattr(self, ino: int, changes: Changes, handle: OpenFile | None) -> Attr:
        """Change size, mode or time.

        Raises:
            NotPermitted: an owner, or a mode or time that the bucket cannot keep.
            ReadOnly: in a shard.
        """
        node = await self._settled(ino)
        attr = await self.getattr(ino)
        self._check_owner(changes, attr)
        if isinstance(node, ShardNode):
            return await self._set_folder(node, attr, changes)
        if isinstance(node, DirectoryNode):
            mode, mtime_ns = self._directory_attrs.of(node.bucket, node.prefix)
            self._directory_attrs.keep(
                node.bucket,
                node.prefix,
                mode if changes.mode is None else changes.mode & 0o7777,
                mtime_ns if changes.mtime_ns is None else changes.mtime_ns,
            )
            return self.directory_attr(node, ino)
        if not isinstance(node, ObjectNode):
            raise ReadOnly("the directories of buckets cannot be changed")
        file = handle.file if handle is not None and handle.file is not None else self._file(ino)
        try:
            async with file.lock:
                self._check_not_lost(file)
                if changes.size is not None:
                    await self._truncate(file, changes.size)
                if changes.mode is not None or changes.mtime_ns is not None:
                    await self._set_attributes(file, changes)
            if changes.size is not None and not file.writers:
                await self._commit_unopened(file)
        finally:
            if not file.handles:
                await self._settle_unopened(file)
        return self._file_attr(file)

    async def _set_folder(self, node: ShardNode, attr: Attr, changes: Changes) -> Attr:
        """Change mode or time of a directory of a shard: the shard gets another header of it.

        Those of the folder of the shard itself are the object's.
        """
        if not stat.S_ISDIR(attr.mode):
            raise ReadOnly("members of a shard cannot be changed")
        mode = None if changes.mode is None else changes.mode & 0o777
        if mode is None and changes.mtime_ns is None:
            return attr
        path = await self._folders.path_of(node, attr.ino)
        if path:
            mtime_ns = attr.mtime_ns if changes.mtime_ns is None else changes.mtime_ns
            entry = await self._store_folder(node, path, mode, mtime_ns)
            self.forget(entry.attr.ino, 1)
            return replace(entry.attr, ino=attr.ino)
        try:
            now = await self._writer.head(node.bucket, node.info.key)
            mtime_ns = mtime_of(now) if changes.mtime_ns is None else changes.mtime_ns
            mode = mode_of(now) if mode is None else mode
            info = await self._writer.set_attributes(node.bucket, now, mtime_ns=mtime_ns, mode=mode)
        except Unsupported as error:
            if self._settings.ignore_attr_changes:
                return attr
            raise NotPermitted(f"{node.bucket} cannot keep modes and times") from error
        self._lister.settle(node.bucket, node.info.key, info)
        return attr

    def _check_owner(self, changes: Changes, attr: Attr) -> None:
        same = changes.uid in (None, attr.uid) and changes.gid in (None, attr.gid)
        if not same and not self._settings.ignore_attr_changes:
            raise NotPermitted(
                "all files belong to who mounts; --ignore-attr-changes accepts other owners"
            )

    async def _set_attributes(self, file: WrittenFile, changes: Changes) -> None:
        """Keep mode and time: with the next upload, or at once where none is due."""
        old = file.mode, file.mtime_ns
        if changes.mode is not None:
            file.mode = changes.mode & 0o777
        if changes.mtime_ns is not None:
            file.mtime_ns = changes.mtime_ns
            if file.staged is not None:
                file.staged.set_mtime(file.mtime_ns)
        if file.unlinked or (file.mode, file.mtime_ns) == old:
            return
        if file.dirty or file.member:  # of a member they are in its header
            self._record(file)
            file.dirty = True
            return
        try:
            await self._store_attributes(file)
        except AisfsError as error:
            if self._settings.ignore_attr_changes and isinstance(error, Unsupported):
                return
            file.mode, file.mtime_ns = old
            if isinstance(error, Unsupported):
                raise NotPermitted(
                    f"{file.bucket} cannot keep modes and times; see --ignore-attr-changes"
                ) from error
            raise

    async def _store_attributes(self, file: WrittenFile) -> None:
        """Store mode and time of a file whose content is stored."""
        assert file.base is not None, "what is not dirty is in the store"
        file.base = await self._writer.set_attributes(
            file.bucket, file.base, mtime_ns=file.mtime_ns, mode=file.mode
        )
        self._lister.settle(file.bucket, file.key, file.base)

    async def _commit_unopened(self, file: WrittenFile) -> None:
        """Commit a change that no close will follow; its error is the caller's, and undoes it."""
        try:
            await self.commit(file)
        except AisfsError as error:
            async with file.lock:
                if file.staged is not None and not file.writers:
                    self._discard(file, error)
            raise

    # checks ----------------------------------------------------------------------------------

    def _writable_directory(self, node: Node) -> DirectoryNode:
        if isinstance(node, DirectoryNode):
            return node
        if isinstance(node, ShardNode):
            raise ReadOnly("members of a shard cannot be changed")
        raise ReadOnly("buckets are made and removed with the ais command")

    def _new_key(self, where: DirectoryNode, name: bytes) -> str:
        """Give the key of a new object, if the store takes and lists such a key."""
        key = keys.child_key(where.prefix, name)
        keys.check_new_key(where.bucket, key)
        return key
