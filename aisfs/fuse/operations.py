"""What the kernel can ask of a mount that the fast path does not answer, served by pyfuse3.

Only this module touches pyfuse3. It takes a request apart, calls the file system and packs the answer:
failures as errno, attributes as pyfuse3 wants them. No exception leaves a handler except FUSEError: anything
else would end the session, and with it the mount. Each failed request is logged once, by
`aisfs.fuse.dispatcher`.
"""

import errno
import functools
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

import pyfuse3
import trio
from pyfuse3 import (
    EntryAttributes,
    FileHandleT,
    FileInfo,
    FileNameT,
    FlagT,
    FUSEError,
    InodeT,
    ModeT,
    ReaddirToken,
    RequestContext,
    SetattrFields,
    StatvfsData,
    XAttrNameT,
)

from aisfs.core.names.listing import NAME_MAX
from aisfs.errors import MountError, NotPermitted, ReadOnly
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.handles import DirectoryHandle, FileHandle, OpenFile
from aisfs.filesystem.nodes import BLOCK_SIZE, LONGEST_TIMEOUT, Attr, Entry
from aisfs.filesystem.writing.open_files import WRITING
from aisfs.filesystem.writing.setattr import AttributeChanges, WriteLayer
from aisfs.filesystem.xattrs import Xattrs
from aisfs.fuse import abi
from aisfs.fuse.dispatcher import failure, is_ending
from aisfs.fuse.notifier import INVALIDATE_SECONDS
from aisfs.fuse.requests import HandleTable, Opened
from aisfs.metrics import Metrics
from aisfs.system.logs import request_log
from aisfs.system.threads import start_service_thread

log = logging.getLogger(__name__)


class _Answering(Protocol):
    """Whose handlers they are."""

    metrics: Metrics
    before_each: Callable[[], None]

    def describe(self, operation: str, *arguments: object) -> str:
        """Return what a request is about, for the log."""
        ...


P = ParamSpec("P")
ResultT = TypeVar("ResultT")
SelfT = TypeVar("SelfT", bound=_Answering)


def handler(
    operation: Callable[Concatenate[SelfT, P], Coroutine[Any, Any, ResultT]],
) -> Callable[Concatenate[SelfT, P], Coroutine[Any, Any, ResultT]]:
    """Count a request, and turn every failure into the errno the table says."""
    name = operation.__name__

    @functools.wraps(operation)
    async def answer(self: SelfT, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        self.metrics.operations.labels(name, "pyfuse3").inc()
        self.before_each()
        request_log.begin()
        started = time.monotonic()
        try:
            return await operation(self, *args, **kwargs)
        except pyfuse3.FUSEError:
            raise
        except Exception as error:  # noqa: BLE001 - logged there
            code = failure(self.metrics, name, error)
        finally:
            seconds = time.monotonic() - started
            self.metrics.pyfuse_times.observe(name, seconds)
            if seconds >= request_log.least:
                request_log.answered(log, name, self.describe(name, *args), seconds)
        raise pyfuse3.FUSEError(code)

    return cast("Callable[Concatenate[SelfT, P], Coroutine[Any, Any, ResultT]]", answer)


def entry_attributes(entry: Entry) -> pyfuse3.EntryAttributes:
    """Pack what is said of a name."""
    found = attributes(entry.attr)
    found.entry_timeout = entry.entry_timeout
    if entry.bare:
        found.generation = abi.BARE
    return found


def give_dot(token: pyfuse3.ReaddirToken) -> bool:
    """List a directory in itself, at offset 1; return whether it fits. It counts no lookup."""
    dot = pyfuse3.EntryAttributes()
    dot.st_mode = pyfuse3.ModeT(stat.S_IFDIR)
    return bool(pyfuse3.readdir_reply(token, pyfuse3.FileNameT(b"."), dot, 1))


def attributes(attr: Attr) -> pyfuse3.EntryAttributes:
    """Pack what is said of an inode."""
    found = pyfuse3.EntryAttributes()
    found.st_ino = pyfuse3.InodeT(attr.ino)
    found.st_mode = pyfuse3.ModeT(attr.mode)
    found.st_nlink = attr.links
    found.st_uid = attr.uid
    found.st_gid = attr.gid
    found.st_size = attr.size
    found.st_blksize = BLOCK_SIZE
    found.st_blocks = 0 if stat.S_ISDIR(attr.mode) else -(-attr.size // 512)
    found.st_atime_ns = found.st_mtime_ns = found.st_ctime_ns = attr.mtime_ns
    found.attr_timeout = attr.timeout
    found.entry_timeout = LONGEST_TIMEOUT
    return found


BUCKET_BLOCKS = 2**43 // BLOCK_SIZE
"""`df` shows 8 TiB: AIStore has no cheap answer, and tools that look for free space must not refuse."""

FIRST_ENTRIES = 16
"""Of a directory listed for the first time with the fast path, which gives the rest at a tenth of the cost."""

BY_HANDLE = ("readdir", "read", "write", "flush", "fsync", "fsyncdir")
BY_ATTRIBUTE = ("getxattr",)
"""Requests whose first argument is a handle, and whose second is no name of a file."""

LOOK_SECONDS = 1.0
"""How often callers are looked at."""


class Operations(pyfuse3.Operations):
    """Answers the kernel from a `FileSystem`."""

    supports_dot_lookup = False
    enable_writeback_cache = False
    enable_acl = False

    def __init__(
        self,
        filesystem: FileSystem,
        write: WriteLayer | None,
        xattrs: Xattrs,
        metrics: Metrics,
        *,
        negative_timeout: float,
        on_ready: Callable[[], None],
    ) -> None:
        """Serve `filesystem`, and `write` where it can be changed.

        `on_ready` is called when the kernel has mounted it.
        """
        super().__init__()
        self.metrics = metrics
        self._filesystem = filesystem
        self._write = write
        self._xattrs = xattrs
        self.negative_timeout = min(negative_timeout, LONGEST_TIMEOUT)
        self._on_ready = on_ready
        self.handles = HandleTable(
            write.files if write is not None else None, filesystem.inodes.handle
        )
        self.before_each: Callable[[], None] = lambda: None
        """Does what the kernel asked before and pyfuse3 does not see."""
        self.lists_by_inode = False
        """Whether directories are read by inode: the fast path sees to that."""
        self._listings: set[trio.CancelScope] = set()
        """Of the tasks that list a directory for a request."""
        self._callers: dict[trio.CancelScope, int] = {}
        """The process that waits for a name or a listing: 0 when it is in another namespace."""

    def init(self) -> None:
        """The kernel's first request came: the mount works."""
        self._on_ready()

    async def watch_callers(self) -> None:
        """End requests whose callers are being ended: without the fast path there are no INTERRUPTs."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            for scope in [scope for scope, pid in self._callers.items() if pid and is_ending(pid)]:
                scope.cancel()

    async def _unless_left(self, ctx: RequestContext, work: Awaitable[ResultT]) -> ResultT:
        with trio.CancelScope() as scope:
            self._callers[scope] = ctx.pid
            try:
                return await work
            finally:
                del self._callers[scope]
        raise FUSEError(errno.EINTR)

    # names -----------------------------------------------------------------------------------

    @handler
    async def lookup(
        self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        """Look up a name; a missing one is an answer too, which the kernel may keep."""
        entry = await self._unless_left(ctx, self._filesystem.lookup(parent_inode, name))
        if entry is not None:
            return entry_attributes(entry)
        validity = self._filesystem.inodes.validity
        timeout = validity.missing(parent_inode, name, self.negative_timeout)
        if not timeout:
            raise FUSEError(errno.ENOENT)
        missing = EntryAttributes()
        missing.st_ino = InodeT(0)
        missing.entry_timeout = timeout
        return missing

    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        """Take back lookups. Must not fail."""
        for ino, count in inode_list:
            self._filesystem.forget(ino, count)

    @handler
    async def getattr(self, inode: InodeT, ctx: RequestContext) -> EntryAttributes:
        """Describe an inode."""
        return attributes(await self._unless_left(ctx, self._filesystem.getattr(inode)))

    @handler
    async def readlink(self, inode: InodeT, ctx: RequestContext) -> FileNameT:
        """Return the target of a symbolic link."""
        return FileNameT(await self._filesystem.readlink(inode))

    # directories -----------------------------------------------------------------------------

    @handler
    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        """Open a directory: list it."""
        if self.lists_by_inode:
            handle = await self._unless_all_left(self._filesystem.opendir(inode))
            # A directory in a shard is in memory from now on.
            number = self._filesystem.snapshots.open(handle) if handle.members is None else 0
            return FileHandleT(number)
        return self._keep(await self._unless_left(ctx, self._filesystem.opendir(inode)))

    @handler
    async def readdir(self, fh: FileHandleT, start_id: int, token: ReaddirToken) -> None:
        """Pack entries until the kernel's buffer is full."""
        if self.lists_by_inode:
            await self._readdir_by_inode(InodeT(fh), start_id, token)
            return
        await self._give_entries(self.handles.directory(fh), start_id, token)

    async def _readdir_by_inode(self, ino: InodeT, start_id: int, token: ReaddirToken) -> None:
        begun = await self._unless_all_left(self._filesystem.directory(ino, start_id))
        some = False
        try:
            handle, some = await self._give_some(begun, start_id, token)
            if handle is not begun:
                self._filesystem.snapshots.begin(ino, handle)
        finally:
            if not some:
                self._filesystem.snapshots.end(ino)

    async def _give_some(
        self, handle: DirectoryHandle, start_id: int, token: ReaddirToken
    ) -> tuple[DirectoryHandle, bool]:
        """Pack entries, as soon as there are any; return what they are from, and whether there are."""
        some, seen = await self._give_entries(handle, start_id, token)
        while not some and handle.more is not None:
            handle = await self._unless_all_left(handle.more(seen))
            some, seen = await self._give_entries(handle, seen, token)
        return handle, some

    async def _unless_all_left(self, work: Awaitable[ResultT]) -> ResultT:
        with trio.CancelScope() as scope:
            self._listings.add(scope)
            try:
                return await work
            finally:
                self._listings.discard(scope)
        raise FUSEError(errno.EINTR)

    def end_listings(self) -> None:
        """End all listings that requests for directories by inode wait for; none does any more."""
        for scope in self._listings:
            scope.cancel()

    async def _give_entries(
        self, handle: DirectoryHandle, start_id: int, token: ReaddirToken
    ) -> tuple[bool, int]:
        """Pack entries until the buffer is full; returns whether there was any, or `.` in place of none, and how far it looked."""
        some, seen = False, start_id
        entries = handle.entries(start_id)
        if not start_id and self.lists_by_inode:
            entries = islice(entries, FIRST_ENTRIES)
        for offset, listed, stands_for in entries:
            entry, node = listed, stands_for
            if entry.bare and not self.lists_by_inode:  # nobody leaves the attributes out
                found = await self._filesystem.find_sized(entry.name, node)
                if found is None:
                    seen = offset
                    continue
                entry, node = found
            packed = entry_attributes(entry)
            if not pyfuse3.readdir_reply(token, FileNameT(entry.name), packed, offset):
                return True, seen
            if not entry.bare:
                self._filesystem.inodes.remember(entry.attr.ino, node)
            some = True
        some = some or (not start_id and self._write is not None and give_dot(token))
        return some, seen

    async def releasedir(self, fh: FileHandleT) -> None:
        """Close a directory."""
        self.handles.drop(fh)

    # files -----------------------------------------------------------------------------------

    @property
    def _changes(self) -> WriteLayer:
        """What changes something, which the kernel stops asking for where nothing can be changed."""
        if self._write is None:
            raise FUSEError(errno.ENOSYS)
        return self._write

    @property
    def _writable(self) -> WriteLayer:
        """What changes names and attributes; asked for if the mount was made writable by another program."""
        if self._write is None:
            raise ReadOnly("the mount is read-only")
        return self._write

    @handler
    async def open(self, inode: InodeT, flags: FlagT, ctx: RequestContext) -> FileInfo:
        """Open a file; its pages are those of the inode, which every change here goes through."""
        opened: FileHandle | OpenFile
        if self._write is not None:
            opened = await self._write.files.open(inode, flags)
        elif flags & WRITING:
            raise ReadOnly("the mount is read-only")
        else:
            opened = await self._filesystem.open(inode)
        return self._info(opened)

    @handler
    async def create(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, flags: FlagT, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        """Make a file and open it."""
        entry, opened = await self._writable.creator.create(parent_inode, name, mode, flags)
        return self._info(opened), entry_attributes(entry)

    def _info(self, opened: FileHandle | OpenFile) -> FileInfo:
        bypasses = isinstance(opened, OpenFile) and opened.bypasses_pages
        return FileInfo(fh=self._keep(opened), keep_cache=True, direct_io=bypasses)

    @handler
    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        """Read a range."""
        # pyfuse3 sends any contiguous buffer; copying it into bytes first would cost a pass.
        handle = self.handles.file(fh)
        if isinstance(handle, OpenFile):
            return cast("bytes", await self._filesystem.read_object(handle.ino, off, size))
        return cast("bytes", await self._filesystem.read(handle, off, size))

    @handler
    async def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        """Write a range to the local disk."""
        handle = self.handles.file(fh)
        assert isinstance(handle, OpenFile), "the kernel writes to what it opened for writing"
        return await self._changes.files.write(handle, off, buf)

    @handler
    async def flush(self, fh: FileHandleT) -> None:
        """Commit: a file descriptor is closed. Its error is that of `close`."""
        await self._changes.files.flush(self.handles.file(fh), sync=False)

    @handler
    async def fsync(self, fh: FileHandleT, datasync: bool) -> None:
        """Commit."""
        await self._changes.files.flush(self.handles.file(fh))

    @handler
    async def fsyncdir(self, fh: FileHandleT, datasync: bool) -> None:
        """Upload what waits; changes of names are in the store when they return, or wait as well."""
        await self._changes.flush()

    @handler
    async def release(self, fh: FileHandleT) -> None:
        """Close a file for good."""
        await self.handles.release(fh)

    @handler
    async def setattr(
        self,
        inode: InodeT,
        attr: EntryAttributes,
        fields: SetattrFields,
        fh: FileHandleT | None,
        ctx: RequestContext,
    ) -> EntryAttributes:
        """Change size, mode, owner or time; the time of the last access is kept nowhere."""
        changes = AttributeChanges(
            size=attr.st_size if fields.update_size else None,
            mode=stat.S_IMODE(attr.st_mode) if fields.update_mode else None,
            mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            from_root=not ctx.uid,
        )
        handle = self.handles.get(fh) if fh is not None else None
        opened = handle if isinstance(handle, OpenFile) else None
        return attributes(await self._writable.attributes.setattr(inode, changes, opened))

    def describe(self, operation: str, *arguments: object) -> str:
        """See `handler`: the first argument is an inode or a handle, the second may be a name in it."""
        first, second = (*arguments, None, None)[:2]
        if not isinstance(first, int):
            return "the mount"
        if operation in BY_HANDLE and not (operation == "readdir" and self.lists_by_inode):
            return self.handles.describe(first, self._filesystem.describe)
        name = second if isinstance(second, bytes) and operation not in BY_ATTRIBUTE else b""
        return self._filesystem.describe(first) + os.fsdecode(name)

    def _keep(self, opened: Opened) -> FileHandleT:
        return FileHandleT(self.handles.keep(opened))

    # names that are changed ------------------------------------------------------------------

    @handler
    async def unlink(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        """Remove a file."""
        await self._writable.names.unlink(parent_inode, name)

    @handler
    async def mkdir(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, ctx: RequestContext
    ) -> EntryAttributes:
        """Make a directory."""
        return entry_attributes(await self._writable.creator.mkdir(parent_inode, name, mode))

    @handler
    async def rmdir(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        """Remove an empty directory."""
        await self._writable.names.rmdir(parent_inode, name)

    @handler
    async def rename(
        self,
        parent_inode_old: InodeT,
        name_old: FileNameT,
        parent_inode_new: InodeT,
        name_new: FileNameT,
        flags: FlagT,
        ctx: RequestContext,
    ) -> None:
        """Rename a file or a directory."""
        await self._writable.names.rename(
            parent_inode_old, name_old, parent_inode_new, name_new, flags
        )

    # what is no file of its own ---------------------------------------------------------------

    @handler
    async def symlink(
        self, parent_inode: InodeT, name: FileNameT, target: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        """Make a symbolic link."""
        made = await self._writable.creator.symlink(parent_inode, name, target)
        return entry_attributes(made)

    @handler
    async def link(
        self, inode: InodeT, new_parent_inode: InodeT, new_name: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        """Refuse: EPERM, as link(2) says of file systems without."""
        _ = self._writable
        raise NotPermitted("there are no hard links in a bucket")

    @handler
    async def mknod(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, rdev: int, ctx: RequestContext
    ) -> EntryAttributes:
        """Make an empty file, as the kernel's servers of NFS and SMB do before they open it."""
        write = self._writable
        if stat.S_ISREG(mode):
            made = await write.creator.make_empty(parent_inode, name, stat.S_IMODE(mode))
            return entry_attributes(made)
        raise NotPermitted("there are no devices, pipes and sockets in a bucket")

    # the rest --------------------------------------------------------------------------------

    @handler
    async def getxattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> bytes:
        """Return an extended attribute."""
        return await self._xattrs.get(inode, name, ctx.uid, ctx.pid)

    @handler
    async def listxattr(self, inode: InodeT, ctx: RequestContext) -> Sequence[XAttrNameT]:
        """Name the extended attributes."""
        return [XAttrNameT(name) for name in await self._xattrs.names(inode)]

    @handler
    async def statfs(self, ctx: RequestContext) -> StatvfsData:
        """Show a large file system with all room free: there is no cheap true answer."""
        answer = StatvfsData()
        answer.f_bsize = answer.f_frsize = BLOCK_SIZE
        answer.f_blocks = answer.f_bfree = answer.f_bavail = BUCKET_BLOCKS
        answer.f_files = answer.f_ffree = answer.f_favail = 2**31
        answer.f_namemax = NAME_MAX
        return answer


class PyfuseKernel:
    """Notifies the kernel through pyfuse3, which sends from a thread of its own."""

    def __init__(self) -> None:
        self._dropping: threading.Thread | None = None
        """Drops pages."""

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        """See `Kernel`."""
        pyfuse3.invalidate_entry_async(
            pyfuse3.InodeT(parent), pyfuse3.FileNameT(name), ignore_enoent=True
        )

    def invalidate_inode(self, ino: int) -> None:
        """Nothing to do: without the fast path the kernel keeps no listings, and has all pages written."""

    def drop_pages(self, inodes: Iterable[int]) -> None:
        """See `Kernel`."""

        def drop() -> None:
            for ino in inodes:
                with suppress(OSError):  # the kernel does not know it
                    pyfuse3.invalidate_inode(pyfuse3.InodeT(ino))

        # The kernel waits for a page that is being read, perhaps by a thread of trio's.
        self._dropping = start_service_thread("aisfs drops pages", drop)

    async def expire(
        self, entries: Iterable[tuple[int, bytes]], directories: Iterable[int]
    ) -> None:
        """Make the kernel ask for names and attributes again; see `Kernel`."""

        def tell() -> None:
            for parent, name in entries:
                with suppress(OSError):  # the kernel does not know it
                    pyfuse3.invalidate_entry(pyfuse3.InodeT(parent), pyfuse3.FileNameT(name))
            for ino in directories:
                with suppress(OSError):
                    pyfuse3.invalidate_inode(pyfuse3.InodeT(ino), attr_only=True)

        # A look-up under way is waited for, and it may wait for the cluster.
        await trio.to_thread.run_sync(tell, abandon_on_cancel=True)

    async def invalidated(self, parent: int, name: bytes) -> None:
        """See `Kernel`.

        The call waits for the directory's lock. Its holder may wait for the file that is
        being closed or synced here, so after a while the thread is left to itself.
        """

        dropping = self._dropping

        def invalidate() -> None:
            if dropping is not None:  # as in the fast path: earlier notifications arrive earlier
                dropping.join()
            with suppress(OSError):  # the kernel does not know the name
                pyfuse3.invalidate_entry(pyfuse3.InodeT(parent), pyfuse3.FileNameT(name))

        with trio.move_on_after(INVALIDATE_SECONDS):
            await trio.to_thread.run_sync(invalidate, abandon_on_cancel=True)


async def serve(operations: Operations, mountpoint: str, options: set[str]) -> None:
    """Mount, answer requests until unmounted or `terminate` is called, and unmount.

    Args:
        operations: What answers.
        mountpoint: An empty directory; or `/dev/fd/N`, which libfuse neither mounts nor unmounts.
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


def serves_descriptors() -> bool:
    """Return whether this libfuse can serve a descriptor it is given: since 3.3.

    To be asked before anything is built, since a mount is put together for one way or the other.
    """
    ours, its = socket.socketpair()
    with ours, its:
        try:
            pyfuse3.init(pyfuse3.Operations(), f"/dev/fd/{its.fileno()}", set())
        except RuntimeError:
            return False
        its.detach()
        pyfuse3.close(unmount=False)
    return True


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
