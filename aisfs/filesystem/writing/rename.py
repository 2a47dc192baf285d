"""Operations on names in a mount that can be written: unlink, rmdir, and rename, also of every object below a directory."""

import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial

from msgspec import structs

from aisfs.core.names import listing
from aisfs.engine.overlay import Overlay
from aisfs.engine.writing.uploads import Writer
from aisfs.errors import (
    AccessDenied,
    AisfsError,
    AlreadyExists,
    CrossDevice,
    InvalidName,
    IsADirectory,
    NotADirectory,
    NotEmpty,
    NotFound,
    NotPermitted,
    OutOfSpace,
    ReadOnly,
    Stale,
)
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.inodes import Inodes
from aisfs.filesystem.nodes import (
    DirectoryNode,
    Node,
    ObjectNode,
    ProviderNode,
    ShardNode,
    identity,
)
from aisfs.filesystem.takeover import spelled_version
from aisfs.filesystem.trees import Found, Tree
from aisfs.filesystem.writing.commit import Committer
from aisfs.filesystem.writing.create import find_name, new_key, writable_directory
from aisfs.filesystem.writing.open_files import OpenFiles
from aisfs.filesystem.writing.restore import note
from aisfs.filesystem.written import NameChange, Names, WrittenFile
from aisfs.model import Bucket, ObjectInfo

log = logging.getLogger(__name__)

_NoteVersion = Callable[[ObjectInfo], None]


class DirectoryRenamer:
    """Renames directories, which the store does not know as such."""

    def __init__(
        self,
        inodes: Inodes,
        committer: Committer,
        overlay: Overlay,
        writer: Writer,
        limit: int,
    ) -> None:
        """Rename at most `limit` objects at a time with `writer`, and show that in `overlay`."""
        self._inodes = inodes
        self._files = inodes.files
        self._committer = committer
        self._overlay = overlay
        self._writer = writer
        self._limit = limit

    async def check_empty(self, node: DirectoryNode, *, keep_marker: bool = False) -> None:
        """Raise `NotEmpty` if there is something in a directory, whatever was believed about it.

        Published indexes and markers of directories, which are not listed, go with the last of what is
        listed; a marker may be kept for the directory that takes the place of this one.
        """
        empty = partial(self._overlay.is_empty, node.bucket, node.prefix)
        if await empty():
            return
        await self._writer.remove_indexes(node.bucket, node.prefix)
        rest = await empty(but_for_marker=True)
        if rest and not keep_marker:
            await self._writer.remove_marker(node.bucket, node.prefix)
            rest = await empty()
        if not rest:
            raise NotEmpty(f"{node.bucket}/{node.prefix} is not empty")

    async def beside(self, node: DirectoryNode) -> ObjectInfo | None:
        """Return the object that has the name of a directory: it is there when the directory is gone."""
        try:
            return await self._writer.head(node.bucket, node.prefix.removesuffix("/"))
        except (NotFound, AccessDenied):
            return None

    def removed(self, node: DirectoryNode, beside: ObjectInfo | None) -> None:
        """Show a directory no more, but an object of its name."""
        self._overlay.remove(node.bucket, node.prefix)
        if beside is not None:
            self._overlay.settle(node.bucket, beside.key, beside)

    async def drop_indexes(self, node: DirectoryNode) -> None:
        """Remove what is left of a removed directory in the bucket of indexes."""
        await self._writer.drop_indexes(node.bucket, node.prefix)

    async def rename(self, node: DirectoryNode, victim: Found | None, new_prefix: str) -> None:
        """Rename every object below a directory, or none; nothing is lost on the way."""
        bucket, prefix = node.bucket, node.prefix
        if victim is not None:
            if not isinstance(victim.node, DirectoryNode):
                raise NotADirectory(f"{bucket}/{new_prefix[:-1]} is not a directory")
            await self.check_empty(victim.node, keep_marker=True)
        if new_prefix.startswith(prefix):
            raise InvalidName(f"{bucket}/{prefix} cannot be moved into itself")
        async with AsyncExitStack() as locks:
            # What is written meanwhile is uploaded under its new name.
            for file in self._files.below(bucket, prefix):
                await locks.enter_async_context(file.lock)
                await self._committer.commit_locked(file)
            await self._rename_objects(node, new_prefix)
        await self._committer.settled()

    async def _rename_objects(self, node: DirectoryNode, new_prefix: str) -> None:
        """Rename what the store has below a directory."""
        bucket, prefix = node.bucket, node.prefix
        found = await self._writer.objects_below(bucket, prefix, self._limit)
        beside = await self.beside(node)
        now = {info.key: info for info in found}
        moved: dict[str, ObjectInfo] = {}
        try:
            for info in found:
                new_key = new_prefix + info.key[len(prefix) :]
                try:
                    renamed = await self._writer.rename(bucket, info.key, new_key, expected=info)
                except Stale:  # since it was listed: theirs is renamed
                    del now[info.key]
                    renamed = await self._writer.rename(bucket, info.key, new_key)
                moved[info.key] = renamed
        except AisfsError as error:
            await self._rename_back(bucket, prefix, new_prefix, moved, len(found), error)
            raise
        with self._overlay.namespace_lock:
            self._forget_older(bucket, prefix, now)
            self._moved_directory(node, new_prefix, now, moved)
            self.removed(node, beside)
        await self._writer.move_indexes(bucket, prefix, new_prefix, self._limit)

    def moved(self, node: DirectoryNode, new_prefix: str) -> None:
        """Show a directory under its new name that a daemon before has renamed."""
        with self._overlay.namespace_lock:
            self._moved_directory(node, new_prefix, {}, {})
            self.removed(node, None)

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
            there: ObjectInfo | None = None
            try:
                there = await self._there(bucket, old_key)
                if there is not None:
                    raise AlreadyExists("another client has made it anew")
                back = await self._writer.rename(bucket, info.key, old_key, expected=info)
                self._overlay.settle(bucket, old_key, back)
            except AisfsError as failed:
                stranded.append(info.key)
                log.error("%s/%s could not go back to %s: %s", bucket, info.key, old_key, failed)
                if there is None:
                    self._overlay.remove(bucket, old_key)
                else:
                    self._overlay.settle(bucket, old_key, there)
                self._overlay.settle(bucket, info.key, info, below=new_prefix)
        log.error(
            "%s/%s was not renamed: %s; of %d objects %d were moved, %d of these moved back, "
            "%d are under the new name: %s",
            bucket, prefix, error, total, len(moved), len(moved) - len(stranded), len(stranded),
            ", ".join(stranded) or "none",
        )  # fmt: skip

    async def _there(self, bucket: Bucket, key: str) -> ObjectInfo | None:
        try:
            return await self._writer.head(bucket, key)
        except NotFound:
            return None

    def _forget_older(self, bucket: Bucket, prefix: str, now: dict[str, ObjectInfo]) -> None:
        """Have the kernel look up again what other clients have changed or removed since it did.

        Its numbers, and pages, of such a version do not go on under the new names. What was changed while it was
        renamed is missing in `now`, too.
        """
        for ino, known in self._inodes.known():
            file = self._files.by_ino.get(ino)
            node = known if file is None else file.node
            if not isinstance(node, ObjectNode) or node.bucket != bucket:
                continue
            info, key = node.info if file is None else file.base, node.info.key
            if info is None or not key.startswith(prefix):
                continue
            if key in now and info.same_content(now[key]):
                continue
            if file is not None:
                file.detached_because = Stale("another client has changed or removed it")
                self._files.unname(file)
                note(self._inodes, file)
            self._committer.invalidate(node.parent, node.name)

    def _moved_directory(
        self,
        node: DirectoryNode,
        new_prefix: str,
        found: dict[str, ObjectInfo],
        moved: dict[str, ObjectInfo],
    ) -> None:
        """Move everything known below the old name to below the new one."""
        bucket, prefix = node.bucket, node.prefix

        def renamed(key: str) -> str:
            return new_prefix + key[len(prefix) :]

        for file in self._files.below(bucket, prefix):
            info = moved.get(file.key, file.base)
            self._files.rename(file, renamed(file.key), file.node.parent, file.node.name)
            file.base = info
            note(self._inodes, file)
        for member in self._files.new_members(bucket, prefix):
            self._files.rename(member, renamed(member.key), member.node.parent, member.node.name)
            note(self._inodes, member)
        self._move_inodes_below(node, new_prefix, found, moved)
        for held in self._overlay.held.below(bucket, prefix):
            self._overlay.remove(bucket, held, hold=False)
            self._overlay.set_pending(bucket, renamed(held), None)
        for old_key, new_info in moved.items():
            self._overlay.remove(bucket, old_key, hold=False, below=prefix)
            self._overlay.settle(bucket, new_info.key, new_info, below=new_prefix)
        self._inodes.directory_attributes.rename(bucket, prefix, new_prefix)
        if not moved:
            self._overlay.set_pending(bucket, new_prefix, None)

    def _move_inodes_below(
        self,
        node: DirectoryNode,
        new_prefix: str,
        found: dict[str, ObjectInfo],
        moved: dict[str, ObjectInfo],
    ) -> None:
        """Make the kernel's numbers of what lies in a renamed directory stand for the new names.

        Those of the empty directory that it replaces, and of what others emptied in that, stand for nothing.
        """
        bucket, prefix = node.bucket, node.prefix
        all_known = self._inodes.known()
        for _, known in all_known:
            match known:
                case DirectoryNode(b, p) if b == bucket and p.startswith(new_prefix):
                    self._inodes.removed(known)
        for ino, known in all_known:
            new: ObjectNode | DirectoryNode
            match known:
                case DirectoryNode(b, p) if b == bucket and p.startswith(prefix):
                    new = DirectoryNode(bucket, new_prefix + p[len(prefix) :])
                case ObjectNode(b, info) if b == bucket and info.key in moved:
                    there = found.get(info.key)
                    if ino in self._files.by_ino or there is None or not info.same_content(there):
                        continue
                    new = structs.replace(known, info=moved[info.key])
                case _:
                    continue
            self._inodes.move(ino, new)


RENAME_NOREPLACE = 1  # as of renameat2(2)


class Renamer:
    """Removes and moves names."""

    def __init__(
        self,
        filesystem: FileSystem,
        tree: Tree,
        committer: Committer,
        open_files: OpenFiles,
        directories: DirectoryRenamer,
        overlay: Overlay,
        writer: Writer,
    ) -> None:
        """Change the store with `writer`, and show that in `overlay`, the lister of `tree`."""
        self._filesystem = filesystem
        self._inodes = filesystem.inodes
        self._files = filesystem.inodes.files
        self._tree = tree
        self._committer = committer
        self._open_files = open_files
        self._directories = directories
        self._overlay = overlay
        self._writer = writer

    # files -----------------------------------------------------------------------------------

    async def unlink(self, parent: int, name: bytes) -> None:
        """Remove a file; open handles keep its content."""
        async with self._changing_names((parent, name)) as change:
            where = writable_directory(self._inodes.node(parent))
            found = await find_name(self._tree, where, parent, name)
            if not isinstance(found.node, ObjectNode):
                raise IsADirectory(f"{os.fsdecode(name)!r} is a directory")
            await self._restore(found)
            what = "unlink", os.fsdecode(name), self._inodes.current_number(found.node)
            with (
                self._noted(parent, *what, spelled_version(found.node.info)) as note_version,
                self._shut(found.node, change),
            ):
                await self._remove(found.node, note_version)
                self._touch(where)
        self._committer.invalidate_aliases(
            parent, listing.entry_name(where.prefix, found.node.info.key)
        )

    @contextmanager
    def _noted(self, parent: int, *what: object) -> Iterator[_NoteVersion]:
        """Note that a change begins in a directory, and then that it was carried out: see `Again`.

        The last of what is noted may be a version; if another one is changed, that can be said meanwhile.
        """
        key = f"change {parent}"
        self._inodes.fact(key, [*what, False])
        try:
            yield lambda version: self._inodes.fact(
                key, [*what[:-1], spelled_version(version), False]
            )
        except AisfsError:
            self._inodes.fact(key, None)
            raise
        self._inodes.fact(key, [*what, True])

    async def _restore(self, *found: Found | None) -> None:
        """Find out which numbers the kernel has of what a daemon before has shown."""
        for each in found:
            if each is not None:
                await self._filesystem.restore(self._inodes.number(each.node))

    @asynccontextmanager
    async def _changing_names(self, *places: tuple[int, bytes]) -> AsyncIterator[NameChange]:
        """Change what these names stand for while no other request changes or relies on them."""

        def affected() -> Names:
            affected = set()
            for parent, name in places:
                where = self._inodes.node(parent)
                if isinstance(where, DirectoryNode):  # anything else is refused
                    affected.add((where.bucket, listing.child_key(where.prefix, name)))
                    affected.add((where.bucket, listing.child_prefix(where.prefix, name)))
            return frozenset(affected)

        async with self._filesystem.name_changes.changing(affected) as change:
            yield change

    async def _remove(self, node: ObjectNode, note_version: _NoteVersion) -> None:
        file = await self._detach(node)
        if file is None:
            await self._writer.remove(node.bucket, node.info.key)
            self._overlay.remove(node.bucket, node.info.key)
        else:
            async with file.lock:
                if file.base is not None:  # it may have been uploaded just now
                    note_version(file.base)
                if file.base is not None or file.may_be_stored:
                    await self._writer.remove(node.bucket, node.info.key)
                with self._overlay.namespace_lock:
                    self.unname(file)
                    self._overlay.remove(node.bucket, node.info.key)
        await self._committer.settled()
        for member in self._files.new_members(node.bucket, node.info.key):
            member.detached_because = NotFound("its shard was removed")  # none brings it back
            note(self._inodes, member)

    @contextmanager
    def _shut(self, node: ObjectNode, change: NameChange) -> Iterator[None]:
        """Keep the fast path from opening a version that is about to go."""
        file = self._inodes.current(node)
        if file is not None:  # a written file is opened by the trio thread anyway
            yield
            change.gone.add(file.ino)
            return
        ino = self._inodes.number(node)
        with self._overlay.namespace_lock:
            self._open_files.going.add(ino)
        try:
            yield
            change.gone.add(ino)
        finally:
            self._open_files.going.discard(ino)

    async def _detach(self, node: ObjectNode) -> WrittenFile | None:
        """Return the written file of a name that is about to go.

        A version that is being read becomes one, with its content on the local disk, since the
        store will not have it any more.
        """
        file = self._inodes.current(node)
        ino = self._inodes.number(node) if file is None else file.ino
        if file is None and not self._open_files.readers[ino]:
            del self._open_files.readers[ino]
            return None
        file = file or self._open_files.written(ino)
        async with file.lock:
            if file.handles:
                try:
                    await self._open_files.stage(file)
                except OutOfSpace as error:
                    log.warning("%s/%s is removed under a reader: %s", file.bucket, file.key, error)
        return file

    def unname(self, file: WrittenFile) -> None:
        """Take a file's name away; called with its lock held. Its content lives while it is open."""
        file.unlinked = True
        file.dirty = False
        self._files.unname(file)
        self._committer.end_waiting(file)
        if file.staged is not None:
            file.staged.mark_clean()
            if not file.handles:
                file.staged.discard()
                file.staged = None
        note(self._inodes, file)

    # directories -----------------------------------------------------------------------------

    async def rmdir(self, parent: int, name: bytes) -> None:
        """Remove a directory that is empty now, whatever was believed about it.

        Raises:
            NotEmpty: there is something in it, perhaps something that cannot be shown.
            NotPermitted: it is a bucket.
        """
        above = await self._filesystem.settled(parent)
        if isinstance(above, ProviderNode):
            # AIStore has no call that destroys a bucket only while it is empty.
            log.warning("%r is a bucket: remove it with `ais bucket rm`", os.fsdecode(name))
            raise NotPermitted(
                f"{os.fsdecode(name)!r}: other clients may be writing into the bucket"
            )
        where = writable_directory(above)
        found = await find_name(self._tree, where, parent, name)
        node = found.node
        if isinstance(node, ShardNode):
            raise ReadOnly("a shard is removed with its object")
        if not isinstance(node, DirectoryNode):
            raise NotADirectory(f"{os.fsdecode(name)!r} is not a directory")
        await self._directories.check_empty(node)
        beside = await self._directories.beside(node)
        with (
            self._noted(parent, "rmdir", os.fsdecode(name)),
            self._overlay.namespace_lock,
        ):
            self._directories.removed(node, beside)
            self._inodes.removed(node)
            self._touch(where)
        await self._directories.drop_indexes(node)

    def _touch(self, where: DirectoryNode) -> None:
        self._inodes.directory_attributes.touch(where.bucket, where.prefix)

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
        where = writable_directory(self._inodes.node(parent))
        target = self._inodes.node(new_parent)
        if isinstance(target, ShardNode):
            raise CrossDevice("a member of a shard is made by copying into it")
        target = writable_directory(target)
        if where.bucket != target.bucket:
            raise CrossDevice("objects are not renamed from bucket to bucket")
        found = await find_name(self._tree, where, parent, name)
        key = new_key(target, new_name, directory=isinstance(found.node, DirectoryNode))
        only_new = bool(flags & RENAME_NOREPLACE)
        if only_new or not self._needs_no_question(found.node, target):
            victim = await self._tree.find_to_make(target, new_parent, new_name)
        else:
            victim = await self._tree.find(target, new_parent, new_name)
        if victim is not None and only_new:
            self._committer.invalidate(new_parent, new_name)  # perhaps it was seen just now
            raise AlreadyExists(f"{target.bucket}/{key} exists")
        if victim is not None and identity(victim.node) == identity(found.node):
            return
        await self._restore(found, victim)
        what = "rename", os.fsdecode(name), new_parent, os.fsdecode(new_name)
        version = spelled_version(found.node.info) if isinstance(found.node, ObjectNode) else None
        ino = self._inodes.current_number(found.node)
        with self._noted(parent, *what, ino, version) as note_version:
            await self._move(
                found, victim, key, new_parent, new_name, only_new, change, note_version
            )
        self._touch(where)
        self._touch(target)

    async def _move(
        self,
        found: Found,
        victim: Found | None,
        key: str,
        new_parent: int,
        new_name: bytes,
        only_new: bool,
        change: NameChange,
        note_version: _NoteVersion,
    ) -> None:
        if isinstance(found.node, ObjectNode):
            move = partial(self._rename_file, found.node, key, new_parent, new_name, note_version)
            if victim is None:
                await move(None, only_new=only_new)
            elif isinstance(victim.node, ObjectNode):
                with self._shut(victim.node, change):
                    await move(victim.node)
            else:
                self._committer.invalidate(new_parent, new_name)
                raise IsADirectory(f"{found.node.bucket}/{key} is a directory")
        elif isinstance(found.node, DirectoryNode):
            await self._filesystem.restore_below(found.node)
            await self._directories.rename(found.node, victim, f"{key}/")
        else:
            raise ReadOnly("the folder of a shard is renamed with its object")

    async def _rename_file(
        self,
        node: ObjectNode,
        key: str,
        parent: int,
        name: bytes,
        note_version: _NoteVersion,
        victim: ObjectNode | None,
        *,
        only_new: bool = False,
    ) -> None:
        gone = await self._detach(victim) if victim is not None else None
        file = self._inodes.current(node)
        async with AsyncExitStack() as locks:
            # Neither is uploaded while the one takes the name of the other.
            for locked in (gone, file):
                if locked is not None:
                    await locks.enter_async_context(locked.lock)
            if file is not None and await self._rename_waiting(file, victim, gone, key, only_new):
                self._moved_waiting(file, gone, victim, key, parent, name, only_new=only_new)
                return
            # Under the new name the kernel goes on using the number, and the pages, that it has for the old one.
            if file is None:
                if self._inodes.get(self._inodes.number(node)) is None:
                    raise Stale(f"{node.bucket}/{node.info.key} was changed by somebody else")
            else:
                await self._committer.commit_locked(file)
            known = node.info if file is None else file.base
            assert known is not None, "what was committed is in the store"
            note_version(known)
            with self._filesystem.noticing_change(node):
                info = await self._writer.rename(node.bucket, node.info.key, key, expected=known)
            with self._overlay.namespace_lock:
                if gone is not None:
                    self.unname(gone)
                if file is None:
                    now = ObjectNode(node.bucket, info, parent, name)
                    self._inodes.move(self._inodes.number(node), now)
                else:
                    self._files.rename(file, key, parent, name)
                    file.base = info
                    note(self._inodes, file)
                for member in self._files.new_members(node.bucket, node.info.key):
                    self._files.rename(member, key, member.node.parent, member.node.name)
                    note(self._inodes, member)
                self._overlay.remove(node.bucket, node.info.key)
                self._overlay.settle(node.bucket, key, info)
        await self._committer.settled()
        self._committer.invalidate_aliases(node.parent, node.name)
        self._committer.invalidate_aliases(parent, name)

    def moved(
        self, ino: int, file: WrittenFile | None, bucket: Bucket, old: str, now: ObjectNode
    ) -> None:
        """Show a file under its new name that a daemon before has renamed."""
        with self._overlay.namespace_lock:
            if file is None:
                self._inodes.move(ino, now)
            else:
                self._files.rename(file, now.info.key, now.parent, now.name)
                file.base = now.info
                note(self._inodes, file)
            self._overlay.remove(bucket, old)
            self._overlay.settle(bucket, now.info.key, now.info)

    def _needs_no_question(self, node: Node, target: DirectoryNode) -> bool:
        """Return whether a name that is missing here may be taken without asking the store.

        For a file that waits for its first upload, in a directory that was made here a moment ago: `rsync`
        gives every new file its name so.
        """
        file = self._inodes.current(node) if isinstance(node, ObjectNode) else None
        if file is None or not file.waits or file.base is not None or file.may_be_stored:
            return False
        with self._overlay.namespace_lock:
            return self._overlay.held.is_fresh(target.bucket, target.prefix)

    async def _rename_waiting(
        self,
        file: WrittenFile,
        victim: ObjectNode | None,
        gone: WrittenFile | None,
        key: str,
        only_new: bool,
    ) -> bool:
        """Have a file that waits for its first upload wait under another name; return whether it does.

        What has that name stays in the store until then; with `only_new` nothing has, and if another client
        makes it meanwhile, theirs stays. Called with the locks of both held.
        """
        acknowledger = self._committer.acknowledger
        new = file.waits and file.base is None
        if file.may_be_stored or (gone is not None and gone.may_be_stored):
            return False  # else it would stay under the old name, or count as another client's
        if acknowledger is None or not new or listing.is_shard(os.fsencode(key)):
            return False
        base = _stored(victim, gone)
        mark = file.made_only_new if only_new else ""
        file.next_key = key
        note(self._inodes, file)
        return await acknowledger.again(file, key=key, base=base, only_new=mark, instead_of=gone)

    def _moved_waiting(
        self,
        file: WrittenFile,
        gone: WrittenFile | None,
        victim: ObjectNode | None,
        key: str,
        parent: int,
        name: bytes,
        *,
        only_new: bool,
    ) -> None:
        """Show a file that waits under its new name."""
        bucket, old = file.bucket, file.key
        with self._overlay.namespace_lock:
            base = _stored(victim, gone)
            if gone is not None:
                self.unname(gone)
            self._files.rename(file, key, parent, name)
            file.base, file.next_key = base, ""
            file.overwrites = file.entry_overwrites = not only_new
            note(self._inodes, file)
            self._overlay.remove(bucket, old)
            self._overlay.set_pending(bucket, key, file.node.info)


def _stored(victim: ObjectNode | None, gone: WrittenFile | None) -> ObjectInfo | None:
    """Return the version in the store that a renamed file replaces."""
    if gone is not None:
        return gone.base
    return victim.info if victim is not None else None
