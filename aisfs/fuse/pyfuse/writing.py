"""What the kernel can ask of a mount that can be written: changes, and what differs for them."""

import stat
from typing import cast

import pyfuse3

from aisfs.errors import NotPermitted
from aisfs.filesystem.handles import FileHandle
from aisfs.filesystem.write.create import Changes
from aisfs.filesystem.write.open_files import OpenFile
from aisfs.filesystem.write.rename import NamingFileSystem
from aisfs.fuse.fastpath.handle_codes import object_of
from aisfs.fuse.pyfuse.reading import Operations
from aisfs.fuse.pyfuse.replies import attributes, entry_attributes, handler


class WritableOperations(Operations):
    """Answers the kernel from a file system that can be written."""

    _filesystem: NamingFileSystem

    # files -----------------------------------------------------------------------------------

    @handler
    async def open(
        self, inode: pyfuse3.InodeT, flags: pyfuse3.FlagT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.FileInfo:
        """Open a file; its pages are those of the inode, which every change here goes through."""
        opened = await self._filesystem.open_file(inode, flags)
        bypasses = isinstance(opened, OpenFile) and opened.bypasses_pages
        return pyfuse3.FileInfo(fh=self._keep(opened), keep_cache=True, direct_io=bypasses)

    @handler
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
        return pyfuse3.FileInfo(fh=handle, keep_cache=True), entry_attributes(entry)

    @handler
    async def read(self, fh: pyfuse3.FileHandleT, off: int, size: int) -> bytes:
        """Read a range."""
        return cast("bytes", await self._filesystem.read_file(self.handles.file(fh), off, size))

    @handler
    async def write(self, fh: pyfuse3.FileHandleT, off: int, buf: bytes) -> int:
        """Write a range to the local disk."""
        handle = self.handles.file(fh)
        assert isinstance(handle, OpenFile), "the kernel writes to what it opened for writing"
        return await self._filesystem.write(handle, off, buf)

    @handler
    async def flush(self, fh: pyfuse3.FileHandleT) -> None:
        """Commit: a file descriptor is closed. Its error is that of `close`."""
        await self._filesystem.flush(self.handles.file(fh))

    @handler
    async def fsync(self, fh: pyfuse3.FileHandleT, datasync: bool) -> None:
        """Commit."""
        await self._filesystem.flush(self.handles.file(fh))

    @handler
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

    @handler
    async def _release(self, handle: FileHandle | OpenFile) -> None:
        await self._filesystem.release(handle)

    @handler
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
        return attributes(await self._filesystem.setattr(inode, changes, opened))

    # names -----------------------------------------------------------------------------------

    @handler
    async def unlink(
        self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext
    ) -> None:
        """Remove a file."""
        await self._filesystem.unlink(parent_inode, name)

    @handler
    async def mkdir(
        self,
        parent_inode: pyfuse3.InodeT,
        name: pyfuse3.FileNameT,
        mode: pyfuse3.ModeT,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        """Make a directory."""
        return entry_attributes(await self._filesystem.mkdir(parent_inode, name, mode))

    @handler
    async def rmdir(
        self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext
    ) -> None:
        """Remove an empty directory."""
        await self._filesystem.rmdir(parent_inode, name)

    @handler
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

    @handler
    async def symlink(
        self,
        parent_inode: pyfuse3.InodeT,
        name: pyfuse3.FileNameT,
        target: pyfuse3.FileNameT,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        """Refuse: EPERM, as link(2) and symlink(2) say of file systems without."""
        raise NotPermitted("there are no symbolic links in a bucket")

    @handler
    async def link(
        self,
        inode: pyfuse3.InodeT,
        new_parent_inode: pyfuse3.InodeT,
        new_name: pyfuse3.FileNameT,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        """Refuse."""
        raise NotPermitted("there are no hard links in a bucket")

    @handler
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
