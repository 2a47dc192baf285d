"""Making and opening files that can be written, and making directories and buckets.

`Creator` makes names, above the shards and in them. `OpenFiles` has the files that are open for writing: each is
staged on the local disk, and committed by close and fsync. `BucketMaker` makes buckets, in a mount of all of them.
"""

import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count

import trio
from msgspec import structs

from aisfs.core.names import listing
from aisfs.core.names.inodes import split_member
from aisfs.core.names.listing import check_new_bucket, is_shard
from aisfs.engine.listing import BucketList
from aisfs.engine.overlay import Overlay
from aisfs.engine.parts import Data
from aisfs.engine.writing.staging import StagedFile
from aisfs.engine.writing.uploads import Writer
from aisfs.errors import (
    AisfsError,
    AlreadyExists,
    BucketNotFound,
    IsADirectory,
    NotFound,
    NotPermitted,
    ReadOnly,
    Stale,
    Unsupported,
)
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.handles import FileHandle, OpenFile
from aisfs.filesystem.nodes import (
    LONGEST_TIMEOUT,
    DirectoryNode,
    Entry,
    Node,
    ObjectNode,
    ProviderNode,
    RemovedDirectoryNode,
    ShardNode,
    describe,
    identity,
)
from aisfs.filesystem.trees import Found, Tree
from aisfs.filesystem.writing.commit import Committer
from aisfs.filesystem.writing.restore import note
from aisfs.filesystem.written import ContentLock, WrittenFile, pending_node
from aisfs.model import Bucket, ObjectInfo
from aisfs.settings import Shards
from aisfs.stores.posix_metadata import LINK, is_link, mode_of, mtime_of
from aisfs.system.threads import any_thread

log = logging.getLogger(__name__)


class BucketMaker:
    """Makes buckets, if that is allowed."""

    def __init__(self, tree: Tree, buckets: BucketList, writer: Writer, *, allowed: bool) -> None:
        """Make with `writer` what `buckets`, the list of `tree`, then shows."""
        self._tree = tree
        self._buckets = buckets
        self._writer = writer
        self._allowed = allowed

    async def make(self, node: ProviderNode, parent: int, name: bytes) -> Found:
        """Make a bucket.

        Raises:
            AlreadyExists: it is there, perhaps since a moment ago.
            InvalidName, Unsupported: AIStore makes no such bucket.
            ReadOnly: buckets may not be made.
        """
        # A namespace is no part of a new name: `@` and `#` are refused.
        bucket = Bucket(os.fsdecode(name), node.provider)
        if not self._allowed:
            log.warning("%s is not made: mount with --allow-bucket-changes to allow it", bucket)
            raise ReadOnly(f"{bucket}: buckets are made only with --allow-bucket-changes")
        check_new_bucket(bucket)
        try:
            await self._writer.create_bucket(bucket)
        finally:  # even after an error: another client may have made it
            self._buckets.forget()
        found = await self._tree.find(node, parent, name)
        if found is None:
            raise BucketNotFound(f"{bucket} was made, and is gone again")
        log.info("made %s", bucket)
        return found


WRITING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND
"""Flags of `open` that ask for a change."""
SYNCHRONOUS = os.O_DSYNC
"""Each write is to be committed. The kernel asks for that only where it goes through its pages."""


class OpenFiles:
    """Opens, reads, writes and closes files.

    A handle that makes a file, or empties it, and only writes to it bypasses the kernel's page cache, which
    would cost a copy, and room that others read from. As long as such a handle is open, all others of the
    file are of that kind, or they would see pages that are behind.

    The fast path takes `namespace_lock` before it asks for anything that can change, and never waits
    for it. It is told nothing of a file that was written since the kernel first heard of it.
    """

    may_bypass_pages = False
    """Whether the kernel can do that. Set before the first request."""

    def __init__(
        self, filesystem: FileSystem, committer: Committer, overlay: Overlay, writer: Writer
    ) -> None:
        """Stage with `writer`; `committer` uploads."""
        self._filesystem = filesystem
        self._inodes = filesystem.inodes
        self._files = filesystem.inodes.files
        self._committer = committer
        self._writer = writer
        self.namespace_lock = overlay.namespace_lock
        """Held by the trio thread while it changes something in several steps, during which it never
        waits for anything; and by the fast path while it looks."""
        self.readers: Counter[int] = Counter()
        """Open handles by inode that are not for writing; changed while the lock is held."""
        self.going: set[int] = set()
        """Versions that are being removed: an open of one now has to go to the trio thread."""

    # opening and closing ---------------------------------------------------------------------

    async def open(self, ino: int, flags: int) -> OpenFile | FileHandle:
        """Open an object, to read or to write, or a member, to read.

        Raises:
            Stale: it is to be written and is another version by now, or its name goes; the kernel
                looks it up again.
            ReadOnly: a member is to be written.
        """
        node = await self._filesystem.settled(ino)
        wanted = flags & WRITING
        if not isinstance(node, ObjectNode):
            if wanted and isinstance(node, ShardNode):
                raise ReadOnly("members of a shard cannot be changed")
            return await self._filesystem.open(ino)
        known = self._files.by_ino.get(ino)
        if known is not None:
            known.check_attached()
            await self._committer.show_again(known)
        if not wanted:
            with self.namespace_lock:
                self.readers[ino] += 1
                if known is not None:
                    known.handles += 1
            return OpenFile(ino, None, known is not None and known.joined())
        file = self.written(ino)
        handle = self.begin(file, flags)
        try:
            async with file.lock:
                if flags & os.O_TRUNC:
                    await self.truncate(file, 0)
                else:
                    await self.check_version(file)
        except BaseException:
            await self.release(handle)
            raise
        return handle

    def try_open(self, ino: int) -> bool:
        """Open a file to read, if it is the version it was looked up as; returns whether it is.

        For the fast path, which holds `namespace_lock`.
        """
        if not isinstance(self._inodes.get(ino), ObjectNode):
            parts = split_member(ino)
            return parts is not None and not parts[1]
        if ino in self._files.by_ino or ino in self.going:
            return False
        self.readers[ino] += 1
        return True

    def _close_reader(self, ino: int) -> None:
        self.readers[ino] -= 1
        if self.readers[ino] <= 0:
            del self.readers[ino]

    def begin(self, file: WrittenFile, flags: int) -> OpenFile:
        """Make a handle for writing, and count it."""
        with self.namespace_lock:
            handle = OpenFile(file.ino, file, self._bypasses_pages(file, flags))
            file.handles += 1
            file.writers += 1
            file.bypassing += handle.bypasses_pages
            note(self._inodes, file)
        return handle

    def _bypasses_pages(self, file: WrittenFile, flags: int) -> bool:
        """Return whether a new handle for writing bypasses the page cache, which has nothing of it."""
        others_do = file.joined()
        if others_do or flags & SYNCHRONOUS:
            return others_do and not flags & SYNCHRONOUS
        empty = file.base is None or flags & os.O_TRUNC
        only_writes = flags & os.O_ACCMODE == os.O_WRONLY
        return bool(self.may_bypass_pages and only_writes and empty and not file.handles)

    def written(self, ino: int) -> WrittenFile:
        """Return the written file of an inode; from now on it is one."""
        file = self._files.by_ino.get(ino)
        if file is None:
            node = self._inodes.node(ino)
            assert isinstance(node, ObjectNode), "only objects are written"
            info = node.info
            spelled = self._inodes.salted.get(ino) or identity(node)
            file = WrittenFile(ino, spelled, node, info, mode_of(info), mtime_of(info))
            with self.namespace_lock:
                file.handles = self.readers[ino]
                self._files.add(file)
        return file

    async def check_version(self, file: WrittenFile) -> None:
        """Make sure that the store still has what is to be changed in part; called with the lock held.

        Raises:
            Stale: it has another version, or none; the kernel looks the name up again.
        """
        if file.staged is None and file.entry is None and not file.unlinked:
            await self.check_stored(file.node, file.base)

    async def check_stored(self, node: ObjectNode, base: ObjectInfo | None) -> None:
        """Make sure that the store has this version of an object.

        Raises:
            Stale: it has another one, or none; the kernel looks the name up again.
        """
        assert base is not None, "what the store does not have yet is dirty"
        with self._filesystem.noticing_change(node):
            try:
                now = await self._writer.head(node.bucket, node.info.key)
            except NotFound as error:
                raise Stale(
                    f"{node.bucket}/{node.info.key} was removed by somebody else"
                ) from error
            if not now.same_content(base):
                raise Stale(f"{node.bucket}/{node.info.key} was changed by somebody else")

    async def flush(self, handle: OpenFile | FileHandle, *, sync: bool = True) -> None:
        """Commit at a close or fsync: after this the store has what was written.

        At a close, without `sync`, it is enough that what was written is safe, and may wait. An fsync is about
        the file: through a handle that is only for reading it commits what others have written.

        Raises:
            AisfsError: it has not, and holds what it held before.
        """
        if not isinstance(handle, OpenFile):
            return
        file = handle.file or (self._files.by_ino.get(handle.ino) if sync else None)
        if file is not None:
            await self._committer.commit(file, sync=sync)

    @any_thread
    def is_stored(self, ino: int) -> bool:
        """Return whether an fsync of what `try_open` opened has nothing to do: nobody writes to it here."""
        return ino not in self._files.by_ino

    async def release(self, handle: OpenFile) -> None:
        """Close a handle for good. What is still dirty after the last one is uploaded or kept."""
        if not self.try_release(handle):
            file = self.end(handle)
            if file is None:
                return
            async with file.lock:
                self._committer.undo_failed(file)
            if not file.handles:
                await self._committer.settle_unopened(file)

    def try_release(self, handle: OpenFile) -> bool:
        """Close a handle for good if that need not wait; else do nothing. Return whether it was.

        What could not be written goes here: the kernel does not wait for a RELEASE, and an open that follows
        must not see it.
        """
        file = handle.file or self._files.by_ino.get(handle.ino)
        fails = file is not None and file.write_error is not None
        if file is not None and (
            (file.dirty and not file.waits and not fails) or not file.lock.is_free
        ):
            return False
        self.end(handle)
        if file is not None:
            self._committer.undo_failed(file)
            if not file.handles:
                self._committer.let_go(file)
        return True

    @any_thread
    def try_release_in_thread(self, handle: OpenFile) -> bool:
        """Close a handle for good, if its file is stored, or waits for its upload; return whether that is so.

        For the fast path, which holds `namespace_lock`.
        """
        file = handle.file
        if file is None and handle.ino not in self._files.by_ino:
            self._close_reader(handle.ino)
            return True
        if file is None or not file.waits or not file.lock.take_in_thread():
            return False
        try:
            self.end(handle)
            if not file.handles:
                self._committer.let_wait(file)
        finally:
            file.lock.leave_in_thread()
        return True

    @any_thread
    def end(self, handle: OpenFile) -> WrittenFile | None:
        """Count a handle no more; returns the written file it was of."""
        with self.namespace_lock:
            return self._end_locked(handle)

    def _end_locked(self, handle: OpenFile) -> WrittenFile | None:
        file = handle.file
        if file is None:
            self._close_reader(handle.ino)
            file = self._files.by_ino.get(handle.ino)
        else:
            file.writers -= 1
            file.bypassing -= handle.bypasses_pages
            if file.shared and not file.bypassing:  # pages of a mapping may be behind
                file.shared = False
                self._filesystem.kernel.invalidate_inode(file.ino)
        if file is not None:
            file.handles -= 1
        return file

    # reading and writing ---------------------------------------------------------------------

    async def read(self, handle: OpenFile | FileHandle, offset: int, size: int) -> Data:
        """Read up to `size` bytes; shorter only at the end of the file."""
        if isinstance(handle, FileHandle):
            return await self._filesystem.read(handle, offset, size)
        return await self._filesystem.read_object(handle.ino, offset, size)

    async def write(self, handle: OpenFile, offset: int, data: bytes) -> int:
        """Write all of `data`.

        Raises:
            OutOfSpace: the staging directory is full.
            Stale: another client changed the object since it was opened.
        """
        file = handle.file
        if file is None:
            raise ReadOnly("not open for writing")
        async with file.lock:
            file.check_attached()
            try:
                self._write_staged(file, await self.stage(file), offset, data)
            except AisfsError:
                # Those of a mapping have what could not be written.
                self._filesystem.kernel.drop_pages([file.ino])
                raise
        return len(data)

    def try_write(self, ino: int, offset: int, data: memoryview) -> bool:
        """Write to a file that is staged and that no task is at work on; returns whether it is so.

        For the fast path. On an error the request goes to the trio thread, which reports it.
        """
        file = self._files.by_ino.get(ino)
        if file is None or not file.lock.take_in_thread():
            return False
        try:
            if file.staged is None or file.detached_because is not None:
                return False
            self._write_staged(file, file.staged, offset, data)
        finally:
            file.lock.leave_in_thread()
        return True

    def _write_staged(
        self, file: WrittenFile, staged: StagedFile, offset: int, data: bytes | memoryview
    ) -> None:
        """Write; called with the lock held."""
        failed = file.write_error is not None
        try:
            self._touch(file)
            staged.write(offset, data)
        except AisfsError as error:
            file.write_error = error
            note(self._inodes, file)
            raise
        file.write_error = None
        if failed:
            note(self._inodes, file)

    async def truncate(self, file: WrittenFile, size: int) -> None:
        """Cut or extend; called with the lock held.

        What this mount believes to be empty may not be so any more: it is emptied all the same.
        """
        known = size > 0 or file.staged is not None or file.entry is not None
        if known and size == file.size:
            file.write_error = None
            return
        was_dirty, was_acknowledged, mtime_ns = file.dirty, file.acknowledged, file.mtime_ns
        created = file.staged is None and size == 0
        if created:  # what is cut off need not be loaded
            file.staged = self._writer.new()
        staged = await self.stage(file)
        try:
            self._touch(file)
            staged.truncate(size)
            file.overwrites |= size == 0
        except BaseException:
            if not was_dirty:
                file.dirty = False
                staged.mark_clean()
            file.acknowledged, file.mtime_ns = was_acknowledged, mtime_ns
            if created:
                staged.discard()
                file.staged = None
            raise
        file.write_error = None
        note(self._inodes, file)

    async def allocate(self, handle: OpenFile | FileHandle, end: int) -> None:
        """Extend a file up to `end` with zeros, and so take the room for them."""
        file = handle.file if isinstance(handle, OpenFile) else None
        if file is None:
            raise ReadOnly("not open for writing")
        async with file.lock:
            file.check_attached()
            if end > file.size:
                await self.truncate(file, end)

    async def stage(self, file: WrittenFile) -> StagedFile:
        """Bring the content to the local disk; called with the lock held."""
        if file.staged is None and file.entry is not None:
            content = file.entry.read(0, file.entry.size)
            staged = self._writer.new()
            try:
                staged.write(0, content)
            except BaseException:
                staged.discard()
                raise
            file.staged = staged
        if file.staged is None:
            assert file.base is not None, "a file without a version is staged"
            with self._filesystem.noticing_change(file.node):
                file.staged = await self._writer.load(file.bucket, file.base)
        return file.staged

    def _touch(self, file: WrittenFile) -> None:
        """Mark the file as changed, before it is."""
        is_noted = file.dirty and not file.acknowledged and file.failed is None
        file.acknowledged = False
        file.failed = None
        file.mtime_ns = time.time_ns()
        if not file.unlinked:
            self.record(file)
            file.dirty = True
        if not is_noted:
            note(self._inodes, file)

    def record(self, file: WrittenFile) -> None:
        """Record on the disk whose bytes these are, before anyone relies on them."""
        assert file.staged is not None, "what is dirty is staged"
        file.staged.mark_dirty(file.record(self._writer.endpoint))


class Creator:
    """Makes files and directories."""

    def __init__(
        self,
        filesystem: FileSystem,
        tree: Tree,
        committer: Committer,
        open_files: OpenFiles,
        overlay: Overlay,
        writer: Writer,
        buckets: BucketMaker,
        clock: Callable[[], float],
        *,
        drops_modes: bool = False,
    ) -> None:
        """Stage with `writer`, and show what is new in `overlay`, the lister of `tree`."""
        self._filesystem = filesystem
        self._inodes = filesystem.inodes
        self._folders = filesystem.folders
        self._tree = tree
        self._committer = committer
        self._open_files = open_files
        self._overlay = overlay
        self._writer = writer
        self._buckets = buckets
        self._clock = clock
        self._drops_modes = drops_modes
        self._without_links = set[Bucket]()
        """Buckets that turned out to keep no custom metadata."""
        self._token = trio.lowlevel.current_trio_token()
        self._made_by = os.urandom(12).hex()
        self._made = count()
        """With a number each, names for files that are to be new; asking the kernel for one would take longer."""

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int
    ) -> tuple[Entry, OpenFile | FileHandle]:
        """Make a file and open it; the store has it when it is closed.

        Raises:
            AlreadyExists: it is there, and O_EXCL asks for a new one.
            InvalidName: AIStore refuses such a name, or would never list it.
        """
        while True:
            node = await self._filesystem.settled(parent)
            if isinstance(node, ShardNode):
                return await self._create_member(node, parent, name, mode, flags)
            where = writable_directory(node)
            key = new_key(where, name)
            if self._asks(where, flags):
                found = await self._tree.find_to_make(where, parent, name, only_object=True)
            else:
                found = await self._tree.find(where, parent, name)
            if self._filesystem.stands(where, parent):
                break
        if found is None:
            return self._make_file(where, key, parent, name, mode, flags)
        if flags & os.O_EXCL:
            raise AlreadyExists(f"{where.bucket}/{key} exists")
        if not isinstance(found.node, ObjectNode):
            raise IsADirectory(f"{where.bucket}/{key} is a directory")
        entry = self._inodes.counted(found)
        try:
            return entry, await self._open_files.open(entry.attr.ino, flags)
        except BaseException:
            self._filesystem.forget(entry.attr.ino, 1)  # the kernel learns nothing of it
            raise

    async def make_empty(self, parent: int, name: bytes, mode: int) -> Entry:
        """Make an empty file that nobody has open.

        Raises:
            AlreadyExists: the name is taken.
            NotPermitted: in a shard, whose members cannot be written after they were made.
        """
        return await self._make_closed(parent, name, mode, b"")

    async def symlink(self, parent: int, name: bytes, target: bytes) -> Entry:
        """Make a symbolic link; the store has it when this returns, also with `--write-back`.

        Raises:
            AlreadyExists: the name is taken.
            NotPermitted: the bucket keeps no custom metadata, or it is a shard.
        """
        return await self._make_closed(parent, name, LINK, target)

    async def _make_closed(self, parent: int, name: bytes, mode: int, content: bytes) -> Entry:
        """Make a file with its content in one step."""
        where, key = await self._free_name(parent, name)
        if mode == LINK and where.bucket in self._without_links:
            raise _no_links(where.bucket)
        entry, opened = self._make_file(where, key, parent, name, mode, os.O_WRONLY | os.O_EXCL)
        file = opened.file
        assert file is not None, "it is open for writing"
        try:
            if content:
                await self._open_files.write(opened, 0, content)
            await self._committer.commit(file, sync=mode == LINK)
            if mode == LINK:
                await self._check_link(file)
        except BaseException as error:
            self._filesystem.forget(entry.attr.ino, 1)  # the kernel learns nothing of it
            if isinstance(error, AisfsError) and file.staged is not None and file.dirty:
                self._committer.discard(file, error)
            raise
        finally:
            await self._open_files.release(opened)
        return structs.replace(entry, attr=self._inodes.written_attr(file))

    async def _check_free(self, where: DirectoryNode, parent: int, name: bytes) -> None:
        """Make sure that a name is free, by the word of the store where that may be asked; see `_asks`."""
        if self._asks(where, os.O_EXCL):
            found = await self._tree.find_to_make(where, parent, name)
        else:
            found = await self._tree.find(where, parent, name)
        if found is not None:
            raise AlreadyExists(f"{where.bucket}/{listing.child_key(where.prefix, name)} exists")

    async def _free_name(self, parent: int, name: bytes) -> tuple[DirectoryNode, str]:
        """Return directory and key of a name that is free, by the word of the store."""
        while True:
            node = await self._filesystem.settled(parent)
            if isinstance(node, ShardNode):
                raise NotPermitted("a new member of a shard is made by writing it")
            where = writable_directory(node)
            key = new_key(where, name)
            await self._check_free(where, parent, name)
            if self._filesystem.stands(where, parent):
                return where, key

    async def _check_link(self, file: WrittenFile) -> None:
        """Remove what is a plain file to all others, since its bucket keeps no custom metadata."""
        async with file.lock:
            if file.base is None or is_link(file.base):
                return
            self._without_links.add(file.bucket)
            await self._writer.remove(file.bucket, file.key)
            with self._overlay.namespace_lock:
                file.unlinked = True
                self._inodes.files.unname(file)
                self._overlay.remove(file.bucket, file.key)
        raise _no_links(file.bucket)

    @any_thread
    def try_create(
        self,
        parent: int,
        name: bytes,
        mode: int,
        flags: int,
        made: Callable[[Entry, OpenFile], None],
    ) -> bool:
        """Make a file and open it, if that takes no question to the store; return whether it does not.

        For the fast path, which does not wait for what changes names at this moment. `made` is called before
        all that can be done later.
        """
        where = self._inodes.get(parent)
        if not isinstance(where, DirectoryNode):
            return False
        key = new_key(where, name)
        lock = self._overlay.namespace_lock
        if not lock.acquire(blocking=False):
            return False
        try:
            if self._filesystem.name_changes.of(where) is not None:
                return False
            if self._tree.try_find(where, parent, name) is not None or self._asks(where, flags):
                return False
            file = self._new_file(pending_node(where.bucket, key, parent, name), mode, flags)
            made(*self._open_new(file, flags))
            self._show(file)
            with suppress(AisfsError):  # the first write tries again, and reports it
                self._open_files.record(file)
            return True
        finally:
            lock.release()

    def _make_file(
        self, where: DirectoryNode, key: str, parent: int, name: bytes, mode: int, flags: int
    ) -> tuple[Entry, OpenFile]:
        file = self._new_file(pending_node(where.bucket, key, parent, name), mode, flags)
        self._record(file)
        with self._overlay.namespace_lock:
            self._show(file)
            return self._open_new(file, flags)

    @any_thread
    def _open_new(self, file: WrittenFile, flags: int) -> tuple[Entry, OpenFile]:
        """Open a new file for the program that makes it; called with `namespace_lock` held."""
        self._inodes.files.add(file)
        attr = self._inodes.counted_new(file)
        timeout = min(self._overlay.list_ttl, LONGEST_TIMEOUT)
        return Entry(file.node.name, attr, timeout), self._open_files.begin(file, flags)

    @any_thread
    def _show(self, file: WrittenFile) -> None:
        """Show a new file to all; called with `namespace_lock` held."""
        self._overlay.set_pending(file.bucket, file.key, file.node.info)
        folder, slash, _ = file.key.rpartition("/")
        self._inodes.directory_attributes.touch(file.bucket, folder + slash)

    async def _create_member(
        self, node: ShardNode, parent: int, name: bytes, mode: int, flags: int
    ) -> tuple[Entry, OpenFile]:
        """Begin a new member of a shard; it is added when it is closed."""
        if await self._place_in_shard(node, parent, name) is not None:
            raise ReadOnly("members of a shard cannot be changed")
        path = await self._folders.path(node, parent, name)
        pending = pending_node(node.bucket, node.info.key, parent, name)
        file = self._new_file(pending, mode, flags, path)
        self._record(file)
        self._inodes.files.add(file)
        entry = Entry(name, self._inodes.written_attr(file), 0.0)
        self._inodes.remember(entry.attr.ino, file.node)
        return entry, self._open_files.begin(file, flags)

    async def _place_in_shard(self, node: ShardNode, parent: int, name: bytes) -> Entry | None:
        """Check that a name can be in a folder of a shard; returns what it stands for already."""
        listing.check_new_member(os.fsdecode(name))
        if not listing.is_plain_tar(os.fsencode(node.info.key)):
            raise ReadOnly(f"{node.bucket}/{node.info.key}: only plain tars take new members")
        if await self._folders.in_opened_tar(node, parent):
            raise ReadOnly(f"{node.bucket}/{node.info.key}: a tar in it takes no new members")
        now = self._inodes.node(parent)  # perhaps another version by now
        assert isinstance(now, ShardNode), "only shards have members"
        if await self._filesystem.new_member(now, parent, name) is not None:
            raise AlreadyExists(f"{os.fsdecode(name)!r} is being written")
        found = self._folders.find(await self._filesystem.view(now), now, parent, name)
        if found is None:
            await self._folders.check_whole(node)
        return found

    @any_thread
    def _new_file(self, node: ObjectNode, mode: int, flags: int, member: str = "") -> WrittenFile:
        """Stage a new file; nothing shows it yet, and nothing is recorded of it."""
        spelled = identity(node)
        ino = self._inodes.table.number(spelled)
        lock = ContentLock(self._token)
        times = time.time_ns()
        if mode != LINK:
            mode = kept_mode(mode, drops=self._drops_modes)
        file = WrittenFile(ino, spelled, node, None, mode, times, member, lock=lock)
        if not member:
            file.made_only_new, file.overwrites = self._mark(), _overwrites(flags)
        file.staged = self._writer.new()
        file.dirty = True
        return file

    @any_thread
    def _asks(self, where: DirectoryNode, flags: int) -> bool:
        """Return whether the store is to be asked for a name that is missing here, before it is made.

        Not for what overwrites anyway. Nor for what must be new in a directory that was made here a moment
        ago: `cp -r` and `tar x` make all in such, and the upload looks once more.
        """
        if _overwrites(flags):
            return False
        with self._overlay.namespace_lock:
            fresh = self._overlay.held.is_fresh(where.bucket, where.prefix)
        return not (flags & os.O_EXCL and fresh)

    @any_thread
    def _mark(self) -> str:
        """Return a text that no other writer of a new object has; see `Upload`."""
        return f"{self._made_by}{next(self._made):08x}"

    def _record(self, file: WrittenFile) -> None:
        try:
            self._open_files.record(file)
        except BaseException:
            assert file.staged is not None, "it is new"
            file.staged.discard()
            raise

    # directories -----------------------------------------------------------------------------

    async def mkdir(self, parent: int, name: bytes, mode: int) -> Entry:
        """Make a directory, which the store has once there is an object in it; or a new shard or bucket.

        Raises:
            AlreadyExists: the name is taken.
        """
        node = await self._filesystem.settled(parent)
        if isinstance(node, ShardNode):
            return await self._make_folder(node, parent, name, mode)
        if isinstance(node, ProviderNode):
            made = await self._buckets.make(node, parent, name)
            self._inodes.validity.changed(parent)
            return self._inodes.counted(made)
        where = writable_directory(node)
        key = new_key(where, name, directory=True)
        await self._check_free(where, parent, name)
        attributes = self._inodes.directory_attributes
        shard = self._shard_of(name)
        if shard is not None:
            shard_key = new_key(where, shard)
            if not listing.is_plain_tar(shard):
                raise Unsupported(f"{where.bucket}/{shard_key}: only plain tars can be begun")
            if shard != name and await self._tree.find_to_make(where, parent, shard) is not None:
                raise AlreadyExists(f"{where.bucket}/{shard_key} exists")
            info = await self._writer.make_shard(where.bucket, shard_key, self._mark())
            self._overlay.settle(where.bucket, shard_key, info)
            self._committer.invalidate(parent, shard)
        else:
            self._overlay.held.check_room(where.bucket, f"{key}/")
            with self._overlay.namespace_lock:
                attributes.keep(where.bucket, f"{key}/", mode & 0o7777, time.time_ns())
                self._overlay.set_pending(where.bucket, f"{key}/", None)
        attributes.touch(where.bucket, where.prefix)
        return self._inodes.counted(await find_name(self._tree, where, parent, name))

    def _shard_of(self, name: bytes) -> bytes | None:
        """Return the shard that a new directory is to be, if any."""
        if self._tree.shards is Shards.DIR:
            return name if is_shard(name) else None
        return listing.shard_of_directory(name)

    async def _make_folder(self, node: ShardNode, parent: int, name: bytes, mode: int) -> Entry:
        """Make a directory in a shard, which has it when this returns."""
        if await self._place_in_shard(node, parent, name) is not None:
            raise AlreadyExists(f"{node.bucket}/{node.info.key}.d/{os.fsdecode(name)} exists")
        path = await self._folders.path(node, parent, name)
        mode = kept_mode(mode, drops=self._drops_modes)
        return await self.store_folder(node, path, mode, time.time_ns())

    async def store_folder(
        self, node: ShardNode, path: str, mode: int | None, mtime_ns: int
    ) -> Entry:
        """Add a directory to a shard, or what is different of it; returns its entry, counted."""
        bucket, key = node.bucket, node.info.key
        attributes, kept = self._inodes.directory_attributes, f"{key}//{path}"
        if mode is None:  # which is remembered nowhere else
            mode, _ = attributes.of(bucket, kept)
        async with self._filesystem.name_changes.using(lambda: frozenset({(bucket, key)})):
            info = await self._writer.append(bucket, key, path, None, mtime_ns=mtime_ns, mode=mode)
            attributes.keep(bucket, kept, mode, None)
            now = replace(node, info=info)
            entry = await self._folders.resolve(now, self._inodes.number(now), path)
        self._inodes.remember(entry.attr.ino, now)
        return entry


def kept_mode(mode: int, *, drops: bool) -> int:
    """Return the permissions to keep of a file.

    Raises:
        NotPermitted: there are setuid, setgid or sticky, which are not kept, and `drops` does not say to drop them.
    """
    if mode & 0o7000 and not drops:
        raise NotPermitted(
            "files have no setuid, setgid or sticky bit here; --ignore-attr-changes drops them"
        )
    return mode & 0o777


def _no_links(bucket: Bucket) -> NotPermitted:
    log.warning("%s: no symbolic links: the bucket keeps no custom metadata", bucket)
    return NotPermitted(f"{bucket} keeps no custom metadata, and so no symbolic links")


def _overwrites(flags: int) -> bool:
    """Return whether an open is to replace whatever has the name."""
    return bool(flags & os.O_TRUNC and not flags & os.O_EXCL)


def writable_directory(node: Node) -> DirectoryNode:
    """Return a directory in which names can be changed, or raise."""
    if isinstance(node, DirectoryNode):
        return node
    if isinstance(node, ShardNode):
        raise ReadOnly("members of a shard cannot be changed")
    if isinstance(node, RemovedDirectoryNode):
        raise NotFound(f"{describe(node)}: nothing can be made in it")
    raise ReadOnly("only buckets are here, and only directories can be made")


def new_key(where: DirectoryNode, name: bytes, *, directory: bool = False) -> str:
    """Return the key of a new object or directory, if the store takes and lists such a key."""
    key = listing.child_key(where.prefix, name)
    listing.check_new_key(where.bucket, key, directory=directory)
    return key


async def find_name(tree: Tree, where: DirectoryNode, parent: int, name: bytes) -> Found:
    """Return what a name stands for; raises `NotFound` if it is missing."""
    found = await tree.find(where, parent, name)
    if found is None:
        raise NotFound(f"{where.bucket}/{listing.child_key(where.prefix, name)}: no such name")
    return found
