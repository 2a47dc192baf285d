"""pyfuse3 itself: its loop, from the mounting to the unmounting, and what it tells the kernel."""

import os
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress

import pyfuse3
import trio

from aisfs.errors import MountError
from aisfs.fuse.notifier import INVALIDATE_SECONDS
from aisfs.fuse.pyfuse.operations import Operations
from aisfs.system.threads import start_service_thread


class PyfuseKernel:
    """Tells the kernel through pyfuse3, which sends from a thread of its own."""

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

        # A page that is being read is waited for, and a thread of trio's may be who reads it.
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
            if dropping is not None:  # as in the fast path: what was told before is known before
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
