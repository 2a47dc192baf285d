"""The only module that touches pyfuse3: unpack a request, call the file system, pack the answer.

No decision is taken here. No exception leaves a handler except FUSEError: anything else would end
the session and with it the mount. Each failed request is logged once, here.
"""

import errno
import functools
import os
import stat
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import pyfuse3

from aisfs.core.names import NAME_MAX
from aisfs.errors import MountError, ReadOnly
from aisfs.filesystem.attributes import BLOCK_SIZE, FOREVER, Attr, Entry
from aisfs.filesystem.filesystem import DirectoryHandle, FileHandle, FileSystem
from aisfs.filesystem.xattrs import Xattrs
from aisfs.fuse.failures import failure
from aisfs.metrics import Metrics

BUCKET_BLOCKS = 2**43 // BLOCK_SIZE
"""Blocks that `df` shows, 8 TiB: AIStore has no cheap answer, and tools that compare free space
with what they want to copy must not refuse."""

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


def _handler(
    operation: Callable[Concatenate["Operations", P], Coroutine[Any, Any, ResultT]],
) -> Callable[Concatenate["Operations", P], Coroutine[Any, Any, ResultT]]:
    """Count a request, and turn every failure into the errno the table says."""
    name = operation.__name__

    @functools.wraps(operation)
    async def answer(self: "Operations", *args: P.args, **kwargs: P.kwargs) -> ResultT:
        self.metrics.operations.labels(name, "pyfuse3").inc()
        try:
            return await operation(self, *args, **kwargs)
        except pyfuse3.FUSEError:
            raise
        except Exception as error:  # noqa: BLE001 - logged there
            code = failure(self.metrics, name, error)
        raise pyfuse3.FUSEError(code)

    return cast("Callable[Concatenate[Operations, P], Coroutine[Any, Any, ResultT]]", answer)


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
        self._handles: dict[pyfuse3.FileHandleT, DirectoryHandle | FileHandle] = {}
        self._next_handle = 1
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
        handle = self._handles[fh]
        assert isinstance(handle, DirectoryHandle), "the kernel reads a directory it opened"
        self._give_entries(handle, start_id, token)

    async def _readdir_by_inode(
        self, ino: pyfuse3.InodeT, start_id: int, token: pyfuse3.ReaddirToken
    ) -> None:
        handle = await self._filesystem.directory(ino, start_id)
        if not self._give_entries(handle, start_id, token):
            self._filesystem.end(ino)

    def _give_entries(
        self, handle: DirectoryHandle, start_id: int, token: pyfuse3.ReaddirToken
    ) -> bool:
        """Give entries until the buffer is full; says whether there was any."""
        some = False
        for offset, entry, node in handle.entries(start_id):
            attributes = _entry_attributes(entry)
            if not pyfuse3.readdir_reply(token, pyfuse3.FileNameT(entry.name), attributes, offset):
                return True
            self._filesystem.remember(entry.attr.ino, node)
            some = True
        return some

    async def releasedir(self, fh: pyfuse3.FileHandleT) -> None:
        """Close a directory."""
        self._handles.pop(fh, None)

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
        handle = self._handles[fh]
        assert isinstance(handle, FileHandle), "the kernel reads a file it opened"
        # pyfuse3 sends any contiguous buffer; copying it into bytes first would cost a pass.
        return cast("bytes", await self._filesystem.read(handle, off, size))

    async def flush(self, fh: pyfuse3.FileHandleT) -> None:
        """Nothing to write: ENOSYS, and the kernel asks no more at every close."""
        raise pyfuse3.FUSEError(errno.ENOSYS)

    async def release(self, fh: pyfuse3.FileHandleT) -> None:
        """Close a file."""
        self._handles.pop(fh, None)

    def _keep(self, handle: DirectoryHandle | FileHandle) -> pyfuse3.FileHandleT:
        number = pyfuse3.FileHandleT(self._next_handle)
        self._next_handle += 1
        self._handles[number] = handle
        return number

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


class PyfuseKernel:
    """Tells the kernel through pyfuse3, which sends from a thread of its own."""

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        """See `filesystem.Kernel`."""
        pyfuse3.invalidate_entry_async(
            pyfuse3.InodeT(parent), pyfuse3.FileNameT(name), ignore_enoent=True
        )

    def invalidate_directory(self, ino: int) -> None:
        """Nothing to do: without the lane the kernel keeps no listings."""


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
