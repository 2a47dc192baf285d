"""The only module that touches pyfuse3: unpack a request, call the file system, pack the answer.

No decision is taken here. No exception leaves a handler except FUSEError: anything else would end
the session and with it the mount. Each failed request is logged once, here.
"""

import errno
import functools
import os
import stat
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import pyfuse3
import trio

from aisfs.core.names import NAME_MAX
from aisfs.errors import MountError, NotPermitted, ReadOnly
from aisfs.filesystem.attributes import BLOCK_SIZE, FOREVER, Attr, Entry
from aisfs.filesystem.changing import Changes
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.handles import DirectoryHandle, FileHandle
from aisfs.filesystem.naming import NamingFileSystem
from aisfs.filesystem.writing import OpenFile
from aisfs.filesystem.xattrs import Xattrs
from aisfs.fuse.failures import failure
from aisfs.fuse.handle_table import HandleTable, Opened
from aisfs.fuse.lane_handles import object_of
from aisfs.fuse.notifier import INVALIDATE_SECONDS
from aisfs.metrics import Metrics

BUCKET_BLOCKS = 2**43 // BLOCK_SIZE
"""Blocks that `df` shows, 8 TiB: AIStore has no cheap answer, and tools that compare free space
with what they want to copy must not refuse."""

FIRST_ENTRIES = 16
"""Of a directory listed for the first time with the lane, which gives the rest: it takes a tenth of
the time for each, and from now on it can."""

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


SelfT = TypeVar("SelfT", bound="Operations")


def _handler(
    operation: Callable[Concatenate[SelfT, P], Coroutine[Any, Any, ResultT]],
) -> Callable[Concatenate[SelfT, P], Coroutine[Any, Any, ResultT]]:
    """Count a request, and turn every failure into the errno the table says."""
    name = operation.__name__

    @functools.wraps(operation)
    async def answer(self: SelfT, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        self.metrics.operations.labels(name, "pyfuse3").inc()
        self.before_each()
        try:
            return await operation(self, *args, **kwargs)
        except pyfuse3.FUSEError:
            raise
        except Exception as error:  # noqa: BLE001 - logged there
            code = failure(self.metrics, name, error)
        raise pyfuse3.FUSEError(code)

    return cast("Callable[Concatenate[SelfT, P], Coroutine[Any, Any, ResultT]]", answer)


class Operations(pyfuse3.Operations):
    """Answers the kernel from a `FileSystem`."""

    supports_dot_lookup = False
    enable_writeback_cache = False
    enable_acl = False

    def __init__(
        self,
        filesystem: FileSystem,
        xattrs: Xattrs,
        metrics: Metrics,
        *,
        negative_timeout: float,
        on_ready: Callable[[], None],
    ) -> None:
        """Serve `filesystem`; `on_ready` is called when the kernel has mounted it."""
        super().__init__()
        self.metrics = metrics
        self._filesystem = filesystem
        self._xattrs = xattrs
        self.negative_timeout = min(negative_timeout, FOREVER)
        self._on_ready = on_ready
        self.handles = HandleTable()
        self.before_each: Callable[[], None] = lambda: None
        """Does what the kernel asked before, and somebody else than pyfuse3 has to do."""
        self.lists_by_inode: Callable[[], bool] = lambda: False
        """Whether directories come without a handle, as their inode: the lane sees to that."""

    def init(self) -> None:
        """The kernel's first request came: the mount works."""
        self._on_ready()

    # names -----------------------------------------------------------------------------------

    @_handler
    async def lookup(
        self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Look up a name; a missing one is an answer too, which the kernel may keep."""
        entry = await self._filesystem.lookup(parent_inode, name)
        if entry is not None:
            return _entry_attributes(entry)
        if not self.negative_timeout:
            raise pyfuse3.FUSEError(errno.ENOENT)
        missing = pyfuse3.EntryAttributes()
        missing.st_ino = pyfuse3.InodeT(0)
        missing.entry_timeout = self.negative_timeout
        return missing

    async def forget(self, inode_list: Sequence[tuple[pyfuse3.InodeT, int]]) -> None:
        """Take back lookups. Must not fail."""
        for ino, count in inode_list:
            self._filesystem.forget(ino, count)

    @_handler
    async def getattr(
        self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Describe an inode."""
        return _attributes(await self._filesystem.getattr(inode))

    @_handler
    async def readlink(
        self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.FileNameT:
        """Give the target of a symbolic link."""
        return pyfuse3.FileNameT(await self._filesystem.readlink(inode))

    # directories -----------------------------------------------------------------------------

    @_handler
    async def opendir(
        self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.FileHandleT:
        """Open a directory: list it."""
        return self._keep(await self._filesystem.opendir(inode))

    @_handler
    async def readdir(
        self, fh: pyfuse3.FileHandleT, start_id: int, token: pyfuse3.ReaddirToken
    ) -> None:
        """Give entries until the kernel's buffer is full."""
        if self.lists_by_inode():
            await self._readdir_by_inode(pyfuse3.InodeT(fh), start_id, token)
            return
        handle = self.handles[fh]
        assert isinstance(handle, DirectoryHandle), "the kernel reads a directory it opened"
        self._give_entries(handle, start_id, token)

    async def _readdir_by_inode(
        self, ino: pyfuse3.InodeT, start_id: int, token: pyfuse3.ReaddirToken
    ) -> None:
        handle = await self._filesystem.directory(ino, start_id)
        if not self._give_entries(handle, start_id, token):
            self._filesystem.snapshots.end(ino)

    def _give_entries(
        self, handle: DirectoryHandle, start_id: int, token: pyfuse3.ReaddirToken
    ) -> bool:
        """Give entries until the buffer is full; says whether there was any."""
        some = False
        entries = handle.entries(start_id)
        if not start_id and self.lists_by_inode():
            entries = islice(entries, FIRST_ENTRIES)
        for offset, entry, node in entries:
            attributes = _entry_attributes(entry)
            if not pyfuse3.readdir_reply(token, pyfuse3.FileNameT(entry.name), attributes, offset):
                return True
            self._filesystem.remember(entry.attr.ino, node)
            some = True
        return some

    async def releasedir(self, fh: pyfuse3.FileHandleT) -> None:
        """Close a directory."""
        self.handles.drop(fh)

    # files -----------------------------------------------------------------------------------

    @_handler
    async def open(
        self, inode: pyfuse3.InodeT, flags: pyfuse3.FlagT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.FileInfo:
        """Open a file to read; the number stands for one version, so the page cache may stay."""
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND):
            raise ReadOnly("the mount is read-only")
        handle = self._keep(await self._filesystem.open(inode))
        return pyfuse3.FileInfo(fh=handle, keep_cache=True)

    @_handler
    async def read(self, fh: pyfuse3.FileHandleT, off: int, size: int) -> bytes:
        """Read a range."""
        handle = self.handles[fh]
        assert isinstance(handle, FileHandle), "the kernel reads a file it opened"
        # pyfuse3 sends any contiguous buffer; copying it into bytes first would cost a pass.
        return cast("bytes", await self._filesystem.read(handle, off, size))

    async def flush(self, fh: pyfuse3.FileHandleT) -> None:
        """Nothing to write: ENOSYS, and the kernel asks no more at every close."""
        raise pyfuse3.FUSEError(errno.ENOSYS)

    async def release(self, fh: pyfuse3.FileHandleT) -> None:
        """Close a file."""
        self.handles.drop(fh)

    def _keep(self, opened: Opened) -> pyfuse3.FileHandleT:
        return pyfuse3.FileHandleT(self.handles.keep(opened))

    # the rest --------------------------------------------------------------------------------

    @_handler
    async def getxattr(
        self, inode: pyfuse3.InodeT, name: pyfuse3.XAttrNameT, ctx: pyfuse3.RequestContext
    ) -> bytes:
        """Give an extended attribute."""
        return await self._xattrs.get(inode, name)

    @_handler
    async def listxattr(
        self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext
    ) -> Sequence[pyfuse3.XAttrNameT]:
        """Name the extended attributes."""
        return [pyfuse3.XAttrNameT(name) for name in await self._xattrs.names(inode)]

    @_handler
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """Show a large file system with all room free: there is no cheap true answer."""
        answer = pyfuse3.StatvfsData()
        answer.f_bsize = answer.f_frsize = BLOCK_SIZE
        answer.f_blocks = answer.f_bfree = answer.f_bavail = BUCKET_BLOCKS
        answer.f_files = answer.f_ffree = answer.f_favail = 2**31
        answer.f_namemax = NAME_MAX
        return answer


class WritableOperations(Operations):
    """Answers the kernel from a file system that can be written."""

    _filesystem: NamingFileSystem

    # files -----------------------------------------------------------------------------------

    @_handler
    async def open(
        self, inode: pyfuse3.InodeT, flags: pyfuse3.FlagT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.FileInfo:
        """Open a file; its pages are those of the inode, which every change here goes through."""
        handle = self._keep(await self._filesystem.open_file(inode, flags))
        return pyfuse3.FileInfo(fh=handle, keep_cache=True)

    @_handler
    async def create(
        self,
        parent_inode: pyfuse3.InodeT,
        name: pyfuse3.FileNameT,
        mode: pyfuse3.ModeT,
        flags: pyfuse3.FlagT,
        ctx: pyfuse3.RequestContext,
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        """Make a file and open it."""
        entry, opened = await self._filesystem.create(parent_inode, name, mode, flags)
        handle = self._keep(opened)
        return pyfuse3.FileInfo(fh=handle, keep_cache=True), _entry_attributes(entry)

    @_handler
    async def read(self, fh: pyfuse3.FileHandleT, off: int, size: int) -> bytes:
        """Read a range."""
        return cast("bytes", await self._filesystem.read_file(self.handles.file(fh), off, size))

    @_handler
    async def write(self, fh: pyfuse3.FileHandleT, off: int, buf: bytes) -> int:
        """Write a range to the local disk."""
        handle = self.handles.file(fh)
        assert isinstance(handle, OpenFile), "the kernel writes to what it opened for writing"
        return await self._filesystem.write(handle, off, buf)

    @_handler
    async def flush(self, fh: pyfuse3.FileHandleT) -> None:
        """Commit: a file descriptor is closed. Its error is that of `close`."""
        await self._filesystem.flush(self.handles.file(fh))

    @_handler
    async def fsync(self, fh: pyfuse3.FileHandleT, datasync: bool) -> None:
        """Commit."""
        await self._filesystem.flush(self.handles.file(fh))

    @_handler
    async def fsyncdir(self, fh: pyfuse3.FileHandleT, datasync: bool) -> None:
        """Do nothing: changes of names are in the store when they return."""

    async def release(self, fh: pyfuse3.FileHandleT) -> None:
        """Close a file for good; nobody hears of an error any more."""
        handle = self.handles.drop(fh)
        ino = object_of(fh)
        if ino is not None:  # opened by the lane, and written by somebody else since
            handle = OpenFile(ino, None)
        if isinstance(handle, FileHandle | OpenFile):
            await self._release(handle)

    @_handler
    async def _release(self, handle: FileHandle | OpenFile) -> None:
        await self._filesystem.release(handle)

    @_handler
    async def setattr(
        self,
        inode: pyfuse3.InodeT,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: pyfuse3.FileHandleT | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        """Change size, mode, owner or time; the time of the last access is kept nowhere."""
        changes = Changes(
            size=attr.st_size if fields.update_size else None,
            mode=stat.S_IMODE(attr.st_mode) if fields.update_mode else None,
            mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
        )
        handle = self.handles.get(fh) if fh is not None else None
        opened = handle if isinstance(handle, OpenFile) else None
        return _attributes(await self._filesystem.setattr(inode, changes, opened))

    # names -----------------------------------------------------------------------------------

    @_handler
    async def unlink(
        self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext
    ) -> None:
        """Remove a file."""
        await self._filesystem.unlink(parent_inode, name)

    @_handler
    async def mkdir(
        self,
        parent_inode: pyfuse3.InodeT,
        name: pyfuse3.FileNameT,
        mode: pyfuse3.ModeT,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        """Make a directory."""
        return _entry_attributes(await self._filesystem.mkdir(parent_inode, name, mode))

    @_handler
    async def rmdir(
        self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext
    ) -> None:
        """Remove an empty directory."""
        await self._filesystem.rmdir(parent_inode, name)

    @_handler
    async def rename(
        self,
        parent_inode_old: pyfuse3.InodeT,
        name_old: pyfuse3.FileNameT,
        parent_inode_new: pyfuse3.InodeT,
        name_new: pyfuse3.FileNameT,
        flags: pyfuse3.FlagT,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        """Rename a file or a directory."""
        await self._filesystem.rename(parent_inode_old, name_old, parent_inode_new, name_new, flags)

    # what objects cannot be ------------------------------------------------------------------

    @_handler
    async def symlink(
        self,
        parent_inode: pyfuse3.InodeT,
        name: pyfuse3.FileNameT,
        target: pyfuse3.FileNameT,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        """Refuse: EPERM, as link(2) and symlink(2) say of file systems without."""
        raise NotPermitted("there are no symbolic links in a bucket")

    @_handler
    async def link(
        self,
        inode: pyfuse3.InodeT,
        new_parent_inode: pyfuse3.InodeT,
        new_name: pyfuse3.FileNameT,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        """Refuse."""
        raise NotPermitted("there are no hard links in a bucket")

    @_handler
    async def mknod(
        self,
        parent_inode: pyfuse3.InodeT,
        name: pyfuse3.FileNameT,
        mode: pyfuse3.ModeT,
        rdev: int,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        """Refuse."""
        raise NotPermitted("there are no devices, pipes and sockets in a bucket")


class PyfuseKernel:
    """Tells the kernel through pyfuse3, which sends from a thread of its own."""

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        """See `filesystem.kernel.Kernel`."""
        pyfuse3.invalidate_entry_async(
            pyfuse3.InodeT(parent), pyfuse3.FileNameT(name), ignore_enoent=True
        )

    def invalidate_directory(self, ino: int) -> None:
        """Nothing to do: without the lane the kernel keeps no listings."""

    async def invalidated(self, parent: int, name: bytes) -> None:
        """See `filesystem.kernel.WaitingKernel`.

        The call waits for the directory's lock. Whoever holds it may wait for the file that is
        being closed or synced here, so after a while the thread is left to itself.
        """

        def invalidate() -> None:
            with suppress(OSError):  # the kernel does not know the name
                pyfuse3.invalidate_entry(pyfuse3.InodeT(parent), pyfuse3.FileNameT(name))

        with trio.move_on_after(INVALIDATE_SECONDS):
            await trio.to_thread.run_sync(invalidate, abandon_on_cancel=True)


async def serve(operations: Operations, mountpoint: str, options: set[str]) -> None:
    """Mount, answer requests until unmounted or `terminate` is called, and unmount.

    Args:
        operations: What answers.
        mountpoint: An empty directory.
        options: Mount options as of `mount -o`, each `name` or `name=value`.

    Raises:
        MountError: the kernel or fusermount3 refused.
    """
    try:
        pyfuse3.init(operations, mountpoint, options)
    except RuntimeError as error:
        raise MountError(f"cannot mount on {mountpoint}: {error}") from error
    try:
        await pyfuse3.main()
    finally:
        pyfuse3.close(unmount=True)


async def serve_descriptor(operations: Operations, fd: int) -> None:
    """Answer requests that come through a descriptor, until `terminate` is called.

    Args:
        operations: What answers.
        fd: Given up by the caller, and closed at the end.

    Raises:
        MountError: this libfuse cannot do that.
    """
    try:
        pyfuse3.init(operations, f"/dev/fd/{fd}", set())
    except RuntimeError as error:
        os.close(fd)
        raise MountError(f"libfuse does not serve a descriptor: {error}") from error
    try:
        await pyfuse3.main()
    finally:
        pyfuse3.close(unmount=False)


def terminate() -> None:
    """Make `serve` or `serve_descriptor` return."""
    pyfuse3.terminate()


def _entry_attributes(entry: Entry) -> pyfuse3.EntryAttributes:
    attributes = _attributes(entry.attr)
    attributes.entry_timeout = entry.entry_timeout
    return attributes


def _attributes(attr: Attr) -> pyfuse3.EntryAttributes:
    found = pyfuse3.EntryAttributes()
    found.st_ino = pyfuse3.InodeT(attr.ino)
    found.st_mode = pyfuse3.ModeT(attr.mode)
    # 1 for directories too, which tells `find` that the count says nothing about subdirectories.
    found.st_nlink = 1
    found.st_uid = attr.uid
    found.st_gid = attr.gid
    found.st_size = attr.size
    found.st_blksize = BLOCK_SIZE
    found.st_blocks = 0 if stat.S_ISDIR(attr.mode) else -(-attr.size // 512)
    found.st_atime_ns = found.st_mtime_ns = found.st_ctime_ns = attr.mtime_ns
    found.attr_timeout = attr.timeout
    found.entry_timeout = FOREVER
    return found
