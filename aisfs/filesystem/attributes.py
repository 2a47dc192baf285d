"""What `stat` shows, and for how long the kernel may believe it.

The attributes of a file never change, since a new version of an object is a new inode. So the
kernel may keep them; what expires is the entry, the claim that a name still stands for this inode.
A directory of a bucket does change, and the kernel keeps what it listed (`aisfs.filesystem.listing_validity`).
"""

import stat
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import structs

from aisfs.model import ObjectInfo
from aisfs.settings import TreeSettings
from aisfs.stores.posix_metadata import mode_of, mtime_of, with_type

BLOCK_SIZE = 128 * 1024
"""st_blksize. Python, cp and tar size their buffers by it; with 4096 a JPEG costs PIL three reads
instead of one and webdataset reads a shard 8 KiB at a time."""

LONGEST_TIMEOUT = 365 * 86400.0
"""Seconds; the kernel's own arithmetic has no infinity."""


class Attr(msgspec.Struct, frozen=True, gc=False):
    """The attributes of one inode."""

    ino: int
    mode: int
    size: int
    mtime_ns: int
    uid: int
    gid: int
    timeout: float = LONGEST_TIMEOUT
    """Seconds the kernel may keep these attributes."""
    links: int = 1
    """Names; 1 for directories too, which tells `find` that it says nothing of subdirectories."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A name of a directory with what it stands for."""

    name: bytes
    attr: Attr
    entry_timeout: float
    """Seconds the kernel may keep the name."""


class FileRun(NamedTuple):
    """Plain files side by side in a listing, as columns: a million are listed at a time, and objects
    for each would cost more than all the rest."""

    inos: Sequence[int]
    sizes: Sequence[int]
    mtimes_ns: Sequence[int]
    modes: Sequence[int]
    names: Sequence[bytes]


class AttrMaker:
    """Makes attributes with the owner and the modes of the mount."""

    def __init__(self, settings: TreeSettings, mounted_at_ns: int) -> None:
        """Directories without a time of their own show the time of the mount."""
        self._settings = settings
        self._mounted_at_ns = mounted_at_ns

    def wall_ns(self, seconds: float) -> int:
        """Return the time of day so many seconds after the mount."""
        return self._mounted_at_ns + int(seconds * 1e9)

    def directory(
        self,
        ino: int,
        mtime_ns: int | None = None,
        timeout: float = LONGEST_TIMEOUT,
        permissions: int | None = None,
    ) -> Attr:
        """Describe a directory; without `permissions` it has those of the mount."""
        settings = self._settings
        mtime = self._mounted_at_ns if mtime_ns is None else mtime_ns
        mode = stat.S_IFDIR | (settings.dir_mode if permissions is None else permissions)
        return Attr(ino, mode, BLOCK_SIZE, mtime, settings.uid, settings.gid, timeout)

    def file(self, ino: int, size: int, mtime_ns: int, *, executable: bool = False) -> Attr:
        """Describe a regular file; `executable` adds x wherever the mode has r."""
        settings = self._settings
        mode = self.file_mode(executable=executable)
        return Attr(ino, mode, size, mtime_ns, settings.uid, settings.gid)

    def file_mode(self, *, executable: bool = False) -> int:
        """Return the mode of a regular file."""
        mode = self._settings.file_mode
        return stat.S_IFREG | (mode | (mode & 0o444) >> 2 if executable else mode)

    @property
    def owner(self) -> tuple[int, int]:
        """User and group of everything."""
        return self._settings.uid, self._settings.gid

    def object(self, ino: int, info: ObjectInfo) -> Attr:
        """Describe an object."""
        attr = self.file(ino, info.size, mtime_of(info))
        mode = mode_of(info)
        return attr if mode is None else structs.replace(attr, mode=with_type(mode))

    def objects(self, objects: Sequence[ObjectInfo]) -> tuple[list[int], list[int], list[int]]:
        """Return sizes, times in nanoseconds and modes of objects, as `object` shows them."""
        sizes = [info.size for info in objects]
        plain = self.file_mode()
        if not any(info.custom for info in objects):
            return sizes, [info.mtime_ns for info in objects], [plain] * len(objects)
        modes = [plain if mode is None else with_type(mode) for mode in map(mode_of, objects)]
        return sizes, [mtime_of(info) for info in objects], modes

    def symlink(self, ino: int, target: bytes, mtime_ns: int) -> Attr:
        """Describe a symbolic link."""
        settings = self._settings
        return Attr(ino, stat.S_IFLNK | 0o777, len(target), mtime_ns, settings.uid, settings.gid)
