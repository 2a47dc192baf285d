"""What an inode can be, apart from members, which are rows of their shard's index; and what `stat` shows of it.

The attributes of a file never change, since a new version of an object is a new inode. So the
kernel may keep them; what expires is the entry, the claim that a name still stands for this inode.
A directory of a bucket does change, and the kernel keeps what it listed (`aisfs.filesystem.inodes`).
"""

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, assert_never

import msgspec
from msgspec import structs

from aisfs.core.names.inodes import ROOT
from aisfs.core.views.shuffled_tar import VirtualShard
from aisfs.model import Bucket, ObjectInfo, Provider
from aisfs.settings import TreeSettings
from aisfs.stores.posix_metadata import mode_of, mtime_of, with_type


@dataclass(frozen=True, slots=True)
class RootNode:
    """The root of a mount of everything: a directory of providers."""


@dataclass(frozen=True, slots=True)
class ProviderNode:
    """A directory of the buckets of one provider."""

    provider: Provider


@dataclass(frozen=True, slots=True)
class DirectoryNode:
    """A bucket or a directory in it."""

    bucket: Bucket
    prefix: str


@dataclass(frozen=True, slots=True)
class RemovedDirectoryNode:
    """A directory that was removed or replaced here, while a program may still have it open.

    Its inode is dead in the kernel, which lets nothing be made in it ever again.
    """

    bucket: Bucket
    prefix: str
    mode: int | None
    mtime_ns: int | None
    serial: int
    """Distinguishes it from all others that had its name."""


@dataclass(frozen=True, slots=True)
class DatasetNode:
    """The root of a mount of shards that are shown together."""


@dataclass(frozen=True, slots=True)
class MergedDirectoryNode:
    """A directory with members of many shards."""

    layout: str
    """The options of the view: under others the same path is something else."""
    path: bytes
    generation: int = 0
    """How often shards had changed when it was built: the kernel may keep what it lists."""


class ObjectNode(msgspec.Struct, frozen=True, gc=False):
    """One version of an object, as a file. A struct, as `ObjectInfo` is."""

    bucket: Bucket
    info: ObjectInfo
    parent: int
    """Inode of the directory it was found in."""
    name: bytes


@dataclass(frozen=True, slots=True)
class ShardNode:
    """One version of a shard, opened up; the same numbers as all its members."""

    bucket: Bucket
    info: ObjectInfo
    parent: int
    name: bytes
    """The directory's name, for example `x.tar.d`."""


@dataclass(frozen=True, slots=True)
class VirtualShardNode:
    """A tar file in the root, or of an epoch, that is made of objects, each of one version."""

    shard: VirtualShard
    name: bytes
    parent: int = ROOT
    """Inode of the directory."""


FileNode = ObjectNode | VirtualShardNode
"""What is a file by itself, and not in a shard."""

Node = (
    RootNode
    | ProviderNode
    | DirectoryNode
    | RemovedDirectoryNode
    | DatasetNode
    | MergedDirectoryNode
    | ObjectNode
    | ShardNode
    | VirtualShardNode
)


def describe(node: Node) -> str:
    """Return which file or directory a node is, for the log."""
    match node:
        case DirectoryNode(bucket, prefix):
            return f"{bucket}/{prefix}"
        case RemovedDirectoryNode(bucket, prefix):
            return f"{bucket}/{prefix} (removed)"
        case ObjectNode():
            return f"{node.bucket}/{node.info.key}"
        case ShardNode():
            return f"{node.bucket}/{node.info.key}"
        case ProviderNode(provider):
            return f"{provider.value}/"
        case MergedDirectoryNode(_, path):
            return f"{os.fsdecode(path)}/"
        case VirtualShardNode():
            return "a virtual shard"
        case RootNode() | DatasetNode():
            return "/"
    assert_never(node)


def identity(node: Node) -> bytes:
    """Spell what the inode number of a node is computed from.

    The version alone is not enough: it starts again at 1 when an object is deleted and made again.
    """
    parts: tuple[object, ...]
    match node:
        case RootNode():
            parts = ("root",)
        case DatasetNode():
            parts = ("dataset",)
        case MergedDirectoryNode(layout, path, generation):
            parts = ("merged", layout, os.fsdecode(path), generation)
        case ProviderNode(provider):
            parts = ("provider", provider)
        case DirectoryNode(bucket, prefix):
            parts = ("directory", bucket, prefix)
        case RemovedDirectoryNode():
            parts = ("removed directory", node.serial)
        case VirtualShardNode(shard, _, parent):
            parts = ("virtual shard", shard.digest, *([parent] if parent != ROOT else []))
        case ObjectNode(bucket, info):
            return object_identities(bucket, [info])[0]
        case ShardNode(bucket, info):
            parts = ("shard", bucket, info.key, info.version, info.checksum, info.size)
    return "\0".join(map(str, parts)).encode(errors="surrogateescape")


def object_identities(bucket: Bucket, objects: Iterable[ObjectInfo]) -> list[bytes]:
    """Spell the identities of objects of a bucket."""
    start = f"object\0{bucket}\0"
    return [
        f"{start}{each.key}\0{each.version}\0{each.checksum}\0{each.size}".encode(
            errors="surrogateescape"
        )
        for each in objects
    ]


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
    """Names; 1 for directories too, from which `find` knows that it does not count subdirectories."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A name of a directory with what it stands for."""

    name: bytes
    attr: Attr
    entry_timeout: float
    """Seconds the kernel may keep the name."""
    bare: bool = False
    """Whether the attributes are not known: the kernel gets the name, a number and the type, and looks it up."""


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
        self._began_ns = mounted_at_ns
        self.mounted_at_ns = mounted_at_ns
        """When the mount began, perhaps with another daemon."""

    def wall_ns(self, seconds: float) -> int:
        """Return the time of day so many seconds after this daemon began."""
        return self._began_ns + int(seconds * 1e9)

    def directory(
        self,
        ino: int,
        mtime_ns: int | None = None,
        timeout: float = LONGEST_TIMEOUT,
        permissions: int | None = None,
    ) -> Attr:
        """Describe a directory; without `permissions` it has those of the mount."""
        settings = self._settings
        mtime = self.mounted_at_ns if mtime_ns is None else mtime_ns
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
