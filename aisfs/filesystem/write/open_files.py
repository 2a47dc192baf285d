"""Open files of a tree that can be written: staged on the local disk, committed by close and fsync.

How that is done is in `filesystem.committing`. What makes a file or changes its size, mode or time is
in `filesystem.changing`, what changes names in `filesystem.naming`.
"""

import os
import time
from dataclasses import dataclass

from aisfs.core.staged.posix_metadata import mode_of, mtime_of
from aisfs.engine.fetch.part import Data
from aisfs.engine.write.staging import StagedFile
from aisfs.errors import AisfsError, ReadOnly, Stale
from aisfs.filesystem.handles import FileHandle
from aisfs.filesystem.nodes import ObjectNode, ShardNode, identity
from aisfs.filesystem.write.commit import CommittingFileSystem
from aisfs.filesystem.write.files import WrittenFile

WRITING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND
"""Flags of `open` that ask for a change."""
SYNCHRONOUS = os.O_DSYNC
"""Each write is to be committed. The kernel asks for that only where it goes through its pages."""


@dataclass(eq=False, slots=True)
class OpenFile:
    """An open object of a writable mount; its content is that of the inode, as POSIX has it."""

    ino: int
    file: WrittenFile | None
    """Set when it was opened for writing."""
    bypasses_pages: bool = False
    """Whether what is read and written goes past the kernel's page cache."""


class WritingFileSystem(CommittingFileSystem):
    """Opens, reads, writes and closes files.

    Who makes a file, or empties it, and only writes to it does so past the kernel's page cache, which would cost a
    copy, and room that somebody else reads from. As long as such a handle is open, all others of the
    file are of that kind, or they would see pages that are behind.
    """

    may_bypass_pages = False
    """Whether the kernel can do that. Set before the first request."""

    # opening and closing ---------------------------------------------------------------------

    async def open_file(self, ino: int, flags: int) -> OpenFile | FileHandle:
        """Open an object, to read or to write, or a member, to read.

        Raises:
            Stale: it is to be written and is another version by now, or its name goes; the kernel
                looks it up anew.
            ReadOnly: a member is to be written.
        """
        node = await self._settled(ino)
        wanted = flags & WRITING
        if not isinstance(node, ObjectNode):
            if wanted and isinstance(node, ShardNode):
                raise ReadOnly("members of a shard cannot be changed")
            return await self.open(ino)
        known = self._files.by_ino.get(ino)
        if known is not None:
            self._check_not_lost(known)
        if not wanted:
            with self.changing:
                self._readers[ino] += 1
            if known is not None:
                known.handles += 1
            return OpenFile(ino, None, known is not None and known.joined())
        file = self._file(ino)
        handle = OpenFile(ino, file, self._bypasses_pages(file, flags))
        self._begin(handle)
        try:
            async with file.lock:
                if flags & os.O_TRUNC:
                    await self._truncate(file, 0)
                elif file.staged is None and not file.unlinked:
                    await self._check_version(file)
        except BaseException:
            await self.release(handle)
            raise
        return handle

    def open_known(self, ino: int) -> bool:
        """Open an object to read, if it is the version it was looked up as; says whether it is.

        For the lane's thread, which holds `changing`.
        """
        if self.is_written(ino) or ino in self._going:
            return False
        self._readers[ino] += 1
        return True

    def release_known(self, ino: int) -> bool:
        """Close such a handle for good, if that takes no more than to count it; else do nothing.

        For the lane's thread, which holds `changing`.
        """
        if self.is_written(ino):
            return False
        self._close_reader(ino)
        return True

    def _close_reader(self, ino: int) -> None:
        self._readers[ino] -= 1
        if not self._readers[ino]:
            del self._readers[ino]

    def _bypasses_pages(self, file: WrittenFile, flags: int) -> bool:
        """Say whether who opens a file to write goes past the page cache, where nothing of it is."""
        others_do = file.joined()
        if others_do or flags & SYNCHRONOUS:
            return others_do and not flags & SYNCHRONOUS
        empty = file.base is None or flags & os.O_TRUNC
        only_writes = flags & os.O_ACCMODE == os.O_WRONLY
        return bool(self.may_bypass_pages and only_writes and empty and not file.handles)

    def _begin(self, handle: OpenFile) -> None:
        """Count an open handle for writing."""
        assert handle.file is not None, "only handles for writing are counted here"
        handle.file.handles += 1
        handle.file.writers += 1
        handle.file.bypassing += handle.bypasses_pages

    def _end(self, handle: OpenFile) -> None:
        """Count it no more; a page that somebody's mapping brought meanwhile may be behind."""
        file = handle.file
        assert file is not None, "only handles for writing are counted here"
        file.writers -= 1
        file.bypassing -= handle.bypasses_pages
        if file.shared and not file.bypassing:
            file.shared = False
            if self.kernel is not None:
                self.kernel.invalidate_inode(file.ino)

    def _file(self, ino: int) -> WrittenFile:
        """Give the written file of an inode; from now on it is one."""
        file = self._files.by_ino.get(ino)
        if file is None:
            node = self.node(ino)
            assert isinstance(node, ObjectNode), "only objects are written"
            info = node.info
            spelled = self._salted.get(ino) or identity(node)
            file = WrittenFile(ino, spelled, node, info, mode_of(info), mtime_of(info))
            with self.changing:
                file.handles = self._readers[ino]
                self._files.add(file)
        return file

    async def _check_version(self, file: WrittenFile) -> None:
        """Make sure that what is to be changed in part is still what it was looked up as."""
        assert file.base is not None, "a file without a version is staged"
        with self.noticing_change(file.node):
            now = await self._writer.head(file.bucket, file.key)
            if not now.same_content(file.base):
                raise Stale(f"{file.bucket}/{file.key} was changed by somebody else")

    async def flush(self, handle: OpenFile | FileHandle) -> None:
        """Commit at a close or fsync: after this the store has what was written.

        Raises:
            AisfsError: it has not, and holds what it held before.
        """
        if isinstance(handle, OpenFile) and handle.file is not None:
            await self.commit(handle.file)

    async def release(self, handle: OpenFile | FileHandle) -> None:
        """Close a handle for good. What is still dirty after the last one is uploaded or kept."""
        if isinstance(handle, FileHandle):
            return
        file = handle.file or self._files.by_ino.get(handle.ino)
        if handle.file is None:
            with self.changing:
                self._close_reader(handle.ino)
        else:
            self._end(handle)
        if file is None:
            return
        file.handles -= 1
        if not file.handles:
            await self._settle_unopened(file)

    def release_stored(self, handle: OpenFile | FileHandle) -> bool:
        """Close for good a handle of a file that is in the store; says whether it was one.

        As `release`, where that need not wait.
        """
        if not isinstance(handle, OpenFile):
            return False
        file = handle.file or self._files.by_ino.get(handle.ino)
        if file is not None and (file.dirty or not file.lock.is_free):
            return False
        if handle.file is None:
            with self.changing:
                self._close_reader(handle.ino)
        else:
            self._end(handle)
        if file is not None:
            file.handles -= 1
            if not file.handles:
                self._let_go(file)
        return True

    # reading and writing ---------------------------------------------------------------------

    async def read_at(self, ino: int, offset: int, size: int) -> Data:
        """See `FileSystem`; an object is read as it is in this mount, whoever opened it."""
        if isinstance(self.node(ino), ObjectNode):
            return await self.read_file(OpenFile(ino, None), offset, size)
        return await super().read_at(ino, offset, size)

    async def read_file(self, handle: OpenFile | FileHandle, offset: int, size: int) -> Data:
        """Read up to `size` bytes; shorter only at the end of the file."""
        if isinstance(handle, FileHandle):
            return await self.read(handle, offset, size)
        while True:
            file = self._files.by_ino.get(handle.ino)
            if file is not None:
                self._check_not_lost(file)
                if file.staged is not None:
                    return file.staged.read(offset, size)
            node = self.node(handle.ino)
            assert isinstance(node, ObjectNode), "other nodes have other handles"
            try:
                return await self.read(FileHandle(node), offset, size)
            except Stale:
                change = self._name_changes.of(node)
                if change is not None:
                    await change.over.wait()
                now = self._files.by_ino.get(handle.ino)
                changed_here = now is not None and (now.staged or now.base is not node.info)
                if not changed_here and self.node(handle.ino) == node:
                    raise  # by somebody else

    async def write(self, handle: OpenFile, offset: int, data: bytes) -> int:
        """Write all of `data`.

        Raises:
            OutOfSpace: the staging directory is full.
            Stale: somebody else changed the object since it was opened.
        """
        file = handle.file
        if file is None:
            raise ReadOnly("not open for writing")
        async with file.lock:
            self._check_not_lost(file)
            self._write_staged(file, await self._stage(file), offset, data)
        return len(data)

    def write_known(self, ino: int, offset: int, data: memoryview) -> bool:
        """Write to a file that is staged and that no task is at work on; says whether it is so.

        For the lane's thread. Who gets an error here lets the trio thread try, and say why not.
        """
        file = self._files.by_ino.get(ino)
        if file is None or not file.lock.take_in_thread():
            return False
        try:
            if file.staged is None or file.lost is not None:
                return False
            self._write_staged(file, file.staged, offset, data)
        finally:
            file.lock.leave_in_thread()
        return True

    def _write_staged(
        self, file: WrittenFile, staged: StagedFile, offset: int, data: bytes | memoryview
    ) -> None:
        """Write; called with the lock held."""
        self._touch(file)
        try:
            staged.write(offset, data)
        except AisfsError as error:
            file.torn = error
            raise
        file.torn = None

    async def _truncate(self, file: WrittenFile, size: int) -> None:
        """Cut or extend; called with the lock held."""
        if size == file.size:
            file.torn = None
            return
        was_dirty = file.dirty
        created = file.staged is None and size == 0
        if created:  # what is cut off need not be loaded
            file.staged = self._writer.new()
        staged = await self._stage(file)
        try:
            self._touch(file)
            staged.truncate(size)
        except BaseException:
            if not was_dirty:
                file.dirty = False
                staged.mark_clean()
            if created:
                staged.discard()
                file.staged = None
            raise
        file.torn = None

    async def _stage(self, file: WrittenFile) -> StagedFile:
        """Have the content on the local disk; called with the lock held."""
        if file.staged is None:
            assert file.base is not None, "a file without a version is staged"
            with self.noticing_change(file.node):
                file.staged = await self._writer.load(file.bucket, file.base)
        return file.staged

    def _touch(self, file: WrittenFile) -> None:
        """Take note of a change that is about to be made."""
        file.failed = None
        file.mtime_ns = time.time_ns()
        if not file.unlinked:
            self._record(file)
            file.dirty = True

    def _record(self, file: WrittenFile) -> None:
        """Say on the disk whose bytes these are, before anybody relies on them."""
        assert file.staged is not None, "what is dirty is staged"
        self._writer.record(
            file.staged, file.bucket, file.key, member=file.member, base=file.base, mode=file.mode
        )
