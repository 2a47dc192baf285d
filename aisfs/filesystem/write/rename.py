"""Names of a tree that can be written: unlink, mkdir, rmdir, rename."""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from msgspec import structs

from aisfs.config import Shards
from aisfs.core.namespace import keys
from aisfs.core.namespace.keys import is_shard
from aisfs.errors import (
    AisfsError,
    AlreadyExists,
    CrossDevice,
    InvalidName,
    IsADirectory,
    NotADirectory,
    NotEmpty,
    NotFound,
    OutOfSpace,
    ReadOnly,
    Unsupported,
)
from aisfs.filesystem.attributes import Entry
from aisfs.filesystem.nodes import DirectoryNode, ObjectNode, ShardNode, identity
from aisfs.filesystem.trees.bucket_tree import Found
from aisfs.filesystem.write.create import ChangingFileSystem
from aisfs.filesystem.write.files import WrittenFile
from aisfs.filesystem.write.name_locks import NameChange, Names
from aisfs.model import Bucket, ObjectInfo

log = logging.getLogger(__name__)

RENAME_NOREPLACE = 1  # as of renameat2(2)


class NamingFileSystem(ChangingFileSystem):
    """Removes, makes and moves names."""

    # files -----------------------------------------------------------------------------------

    async def unlink(self, parent: int, name: bytes) -> None:
        """Remove a file; whoever has it open goes on with what it holds."""
        async with self._changing_names((parent, name)) as change:
            where = self._writable_directory(self.node(parent))
            found = await self._found(where, parent, name)
            if not isinstance(found.node, ObjectNode):
                raise IsADirectory(f"{name!r} is a directory")
            with self._shut(found.node, change):
                await self._remove(found, found.node)
        self._invalidate_aliases(parent, keys.entry_name(where.prefix, found.node.info.key))

    @asynccontextmanager
    async def _changing_names(self, *places: tuple[int, bytes]) -> AsyncIterator[NameChange]:
        """Change what these names stand for while nobody else is about to, nor relies on them."""

        def affected() -> Names:
            affected = set()
            for parent, name in places:
                where = self.node(parent)
                if isinstance(where, DirectoryNode):  # anything else is refused
                    affected.add((where.bucket, keys.child_key(where.prefix, name)))
                    affected.add((where.bucket, keys.child_prefix(where.prefix, name)))
            return frozenset(affected)

        async with self._name_changes.changing(affected) as change:
            yield change

    async def _remove(self, found: Found, node: ObjectNode) -> None:
        file = await self._detach(found)
        if file is None:
            await self._writer.remove(node.bucket, node.info.key)
            self._lister.remove(node.bucket, node.info.key)
            self._lose_members(node)
            return
        async with file.lock:
            if file.base is not None:
                await self._writer.remove(node.bucket, node.info.key)
            with self.changing:
                self._unname(file)
                self._lister.remove(node.bucket, node.info.key)
        self._lose_members(node)

    def _lose_members(self, shard: ObjectNode) -> None:
        """Let no new member bring back a shard that was removed."""
        for member in self._files.new_members(shard.bucket, shard.info.key):
            member.lost = NotFound("its shard was removed")

    @contextmanager
    def _shut(self, node: ObjectNode, change: NameChange) -> Iterator[None]:
        """Let nobody begin to read a version unknown to the trio thread, since it is about to go."""
        file = self._current(node)
        if file is not None:  # a written file is opened by the trio thread anyway
            yield
            change.gone.add(file.ino)
            return
        ino = self._number(node)
        with self.changing:
            self._going.add(ino)
        try:
            yield
            change.gone.add(ino)
        finally:
            self._going.discard(ino)

    async def _detach(self, found: Found) -> WrittenFile | None:
        """Give the written file of a name that is about to go.

        A version that somebody is reading becomes one, with its content on the local disk, since
        the store will not have it any more.
        """
        assert isinstance(found.node, ObjectNode), "only files are detached"
        file = self._current(found.node)
        ino = self._number(found.node) if file is None else file.ino
        if file is None and not self._readers[ino]:
            del self._readers[ino]
            return None
        file = file or self._file(ino)
        async with file.lock:
            if file.handles:
                try:
                    await self._stage(file)
                except OutOfSpace as error:
                    log.warning("%s/%s is removed under a reader: %s", file.bucket, file.key, error)
        return file

    def _unname(self, file: WrittenFile) -> None:
        """Take a file's name away; called with its lock held. Its content lives while it is open."""
        file.unlinked = True
        file.dirty = False
        self._files.unname(file)
        if file.staged is not None:
            file.staged.mark_clean()
            if not file.handles:
                file.staged.discard()
                file.staged = None

    # directories -----------------------------------------------------------------------------

    async def mkdir(self, parent: int, name: bytes, mode: int) -> Entry:
        """Make a directory, which the store has once there is an object in it; or a new shard.

        Raises:
            AlreadyExists: the name is taken.
        """
        node = await self._settled(parent)
        if isinstance(node, ShardNode):
            return await self._make_folder(node, parent, name, mode)
        where = self._writable_directory(node)
        key = self._new_key(where, name)
        if await self.tree.find(where, parent, name) is not None:
            raise AlreadyExists(f"{where.bucket}/{key} exists")
        shard = self._shard_of(name)
        if shard is not None:
            shard_key = self._new_key(where, shard)
            if not keys.is_plain_tar(shard):
                raise Unsupported(f"{where.bucket}/{shard_key}: only plain tars can be begun")
            info = await self._writer.make_shard(where.bucket, shard_key)
            self._lister.settle(where.bucket, shard_key, info)
            self._invalidate(parent, shard)
        else:
            self._lister.held.check_room(where.bucket, f"{key}/")
            with self.changing:
                self._lister.set_pending(where.bucket, f"{key}/", None)
                self._directory_attrs.keep(where.bucket, f"{key}/", mode & 0o777, None)
        found = await self._found(where, parent, name)
        entry = self.entry(found)
        self.remember(entry.attr.ino, found.node)
        return entry

    def _shard_of(self, name: bytes) -> bytes | None:
        """Give the shard that a new directory is to be."""
        if self.tree.shards is Shards.DIR:
            return name if is_shard(name) else None
        return keys.shard_of_directory(name)

    async def rmdir(self, parent: int, name: bytes) -> None:
        """Remove a directory that is empty now, whatever was believed about it.

        Raises:
            NotEmpty: there is something in it, perhaps something that cannot be shown.
        """
        where = self._writable_directory(await self._settled(parent))
        found = await self._found(where, parent, name)
        node = found.node
        if isinstance(node, ShardNode):
            raise ReadOnly("a shard is removed with its object")
        if not isinstance(node, DirectoryNode):
            raise NotADirectory(f"{name!r} is not a directory")
        await self._check_empty(node)
        with self.changing:
            self._lister.remove(node.bucket, node.prefix)
            self._directory_attrs.drop(node.bucket, node.prefix)

    async def _check_empty(self, node: DirectoryNode) -> None:
        if not await self._lister.is_empty(node.bucket, node.prefix):
            raise NotEmpty(f"{node.bucket}/{node.prefix} is not empty")

    async def _found(self, where: DirectoryNode, parent: int, name: bytes) -> Found:
        found = await self.tree.find(where, parent, name)
        if found is None:
            raise NotFound(f"{where.bucket}/{keys.child_key(where.prefix, name)}: no such name")
        return found

    # rename ----------------------------------------------------------------------------------

    async def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int
    ) -> None:
        """Move a file or a directory inside a bucket.

        Raises:
            CrossDevice: only a copy can do it; `mv` then copies.
        """
        if flags & ~RENAME_NOREPLACE:
            raise InvalidName("names cannot be exchanged")
        async with self._changing_names((parent, name), (new_parent, new_name)) as change:
            await self._rename(parent, name, new_parent, new_name, flags, change)

    async def _rename(
        self,
        parent: int,
        name: bytes,
        new_parent: int,
        new_name: bytes,
        flags: int,
        change: NameChange,
    ) -> None:
        where = self._writable_directory(self.node(parent))
        target = self.node(new_parent)
        if isinstance(target, ShardNode):
            raise CrossDevice("a member of a shard is made by copying into it")
        target = self._writable_directory(target)
        if where.bucket != target.bucket:
            raise CrossDevice("objects are not renamed from bucket to bucket")
        key = self._new_key(target, new_name)
        found = await self._found(where, parent, name)
        victim = await self.tree.find(target, new_parent, new_name)
        if victim is not None and flags & RENAME_NOREPLACE:
            raise AlreadyExists(f"{target.bucket}/{key} exists")
        if victim is not None and identity(victim.node) == identity(found.node):
            return
        if isinstance(found.node, ObjectNode):
            if victim is None:
                await self._rename_file(found, None, key, new_parent, new_name)
            elif isinstance(victim.node, ObjectNode):
                with self._shut(victim.node, change):
                    await self._rename_file(found, victim, key, new_parent, new_name)
            else:
                raise IsADirectory(f"{target.bucket}/{key} is a directory")
        elif isinstance(found.node, DirectoryNode):
            await self._rename_directory(found.node, victim, f"{key}/")
        else:
            raise ReadOnly("the folder of a shard is renamed with its object")

    async def _rename_file(
        self, found: Found, victim: Found | None, key: str, parent: int, name: bytes
    ) -> None:
        node = found.node
        assert isinstance(node, ObjectNode), "a file is an object"
        gone = await self._detach(victim) if victim is not None else None
        file = self._current(node)
        async with AsyncExitStack() as locks:
            # Neither is uploaded while the one takes the name of the other.
            for locked in (gone, file):
                if locked is not None:
                    await locks.enter_async_context(locked.lock)
            if file is not None:
                await self._commit_locked(file)
            info = await self._writer.rename(node.bucket, node.info.key, key)
            with self.changing:
                if gone is not None:
                    self._unname(gone)
                if file is None:
                    self._move_inode(node, ObjectNode(node.bucket, info, parent, name))
                else:
                    self._files.rename(file, key, parent, name)
                    file.base = info
                for member in self._files.new_members(node.bucket, node.info.key):
                    self._files.rename(member, key, member.node.parent, member.node.name)
                self._lister.remove(node.bucket, node.info.key)
                self._lister.settle(node.bucket, key, info)
        self._invalidate_aliases(node.parent, found.name)
        self._invalidate_aliases(parent, name)

    def _move_inode(self, old: ObjectNode | DirectoryNode, new: ObjectNode | DirectoryNode) -> None:
        """Let the kernel's number of a node stand for its new name."""
        number = (
            self._number(old) if isinstance(old, ObjectNode) else self.inodes.number(identity(old))
        )
        with self._lock:
            self.inodes.move(number, identity(new), new)

    async def _rename_directory(
        self, node: DirectoryNode, victim: Found | None, new_prefix: str
    ) -> None:
        """Rename every object below a directory, or none; nothing is lost on the way."""
        bucket, prefix = node.bucket, node.prefix
        if victim is not None:
            if not isinstance(victim.node, DirectoryNode):
                raise NotADirectory(f"{bucket}/{new_prefix[:-1]} is not a directory")
            await self._check_empty(victim.node)
        if new_prefix.startswith(prefix):
            raise InvalidName(f"{bucket}/{prefix} cannot be moved into itself")
        async with AsyncExitStack() as locks:
            # What is written meanwhile is uploaded under its new name.
            for file in self._files.below(bucket, prefix):
                await locks.enter_async_context(file.lock)
                await self._commit_locked(file)
            await self._rename_objects(node, new_prefix)

    async def _rename_objects(self, node: DirectoryNode, new_prefix: str) -> None:
        """Rename what the store has below a directory."""
        bucket, prefix = node.bucket, node.prefix
        found = await self._writer.objects_below(bucket, prefix, self._settings.rename_dir_limit)
        moved: dict[str, ObjectInfo] = {}
        try:
            for info in found:
                new_key = new_prefix + info.key[len(prefix) :]
                moved[info.key] = await self._writer.rename(bucket, info.key, new_key)
        except AisfsError as error:
            await self._rename_back(bucket, prefix, new_prefix, moved, len(found), error)
            raise
        with self.changing:
            self._moved_directory(node, new_prefix, moved)

    async def _rename_back(
        self,
        bucket: Bucket,
        prefix: str,
        new_prefix: str,
        moved: dict[str, ObjectInfo],
        total: int,
        error: AisfsError,
    ) -> None:
        """Undo a rename of a directory that failed half-way, and account for every object."""
        stranded = []
        for old_key, info in moved.items():
            try:
                back = await self._writer.rename(bucket, info.key, old_key)
                self._lister.settle(bucket, old_key, back)
            except AisfsError as failed:
                stranded.append(info.key)
                log.error("%s/%s could not go back to %s: %s", bucket, info.key, old_key, failed)
                self._lister.remove(bucket, old_key)
                self._lister.settle(bucket, info.key, info, below=new_prefix)
        log.error(
            "%s/%s was not renamed: %s; of %d objects %d were moved, %d of these moved back, "
            "%d are under the new name: %s",
            bucket, prefix, error, total, len(moved), len(moved) - len(stranded), len(stranded),
            ", ".join(stranded) or "none",
        )  # fmt: skip

    def _moved_directory(
        self, node: DirectoryNode, new_prefix: str, moved: dict[str, ObjectInfo]
    ) -> None:
        """Let everything known below the old name be known below the new one."""
        bucket, prefix = node.bucket, node.prefix

        def renamed(key: str) -> str:
            return new_prefix + key[len(prefix) :]

        for file in self._files.below(bucket, prefix):
            info = moved.get(file.key, file.base)
            self._files.rename(file, renamed(file.key), file.node.parent, file.node.name)
            file.base = info
        for member in self._files.new_members(bucket, prefix):
            self._files.rename(member, renamed(member.key), member.node.parent, member.node.name)
        self._move_inodes_below(node, new_prefix, moved)
        for held in self._lister.held.below(bucket, prefix):
            self._lister.remove(bucket, held, hold=False)
            self._lister.set_pending(bucket, renamed(held), None)
        for old_key, new_info in moved.items():
            self._lister.remove(bucket, old_key, hold=False, below=prefix)
            self._lister.settle(bucket, new_info.key, new_info, below=new_prefix)
        self._directory_attrs.rename(bucket, prefix, new_prefix)
        self._lister.remove(bucket, prefix)
        if not moved:
            self._lister.set_pending(bucket, new_prefix, None)

    def _move_inodes_below(
        self, node: DirectoryNode, new_prefix: str, moved: dict[str, ObjectInfo]
    ) -> None:
        """Let the kernel's numbers of what lies in a renamed directory stand for the new names."""
        bucket, prefix = node.bucket, node.prefix
        for ino, known in self.inodes.known():
            new: ObjectNode | DirectoryNode
            match known:
                case DirectoryNode(b, p) if b == bucket and p.startswith(prefix):
                    new = DirectoryNode(bucket, new_prefix + p[len(prefix) :])
                case ObjectNode(b, info) if b == bucket and info.key in moved:
                    if ino in self._files.by_ino:
                        continue
                    new = structs.replace(known, info=moved[info.key])
                case _:
                    continue
            with self._lock:
                self.inodes.move(ino, identity(new), new)
