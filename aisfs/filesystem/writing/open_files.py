"""Files that are open: opened, read, written, cut and extended, and closed.

What is written is staged on the local disk, and committed by close and fsync (`Committer`).
"""

import os
import time
from collections import Counter

from aisfs.core.names.inodes import split_member
from aisfs.engine.overlay import Overlay
from aisfs.engine.parts import Data
from aisfs.engine.writing.staging import StagedFile
from aisfs.engine.writing.uploads import Writer
from aisfs.errors import AisfsError, NotFound, ReadOnly, Stale
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.handles import FileHandle, OpenFile
from aisfs.filesystem.nodes import ObjectNode, ShardNode, identity
from aisfs.filesystem.writing.commit import Committer
from aisfs.filesystem.writing.restore import note
from aisfs.filesystem.written import WrittenFile
from aisfs.model import ObjectInfo
from aisfs.stores.posix_metadata import mode_of, mtime_of
from aisfs.system.threads import any_thread

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
