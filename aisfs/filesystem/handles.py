"""What is open: a directory, a version of an object or a member."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from aisfs.engine.reader import OpenMember
from aisfs.filesystem.attributes import Entry, FileRun
from aisfs.filesystem.nodes import FileNode, Node, ObjectNode, ShardNode
from aisfs.filesystem.shard_folders import Listed
from aisfs.filesystem.written.files import WrittenFile


@dataclass(frozen=True, slots=True)
class DirectoryHandle:
    """An open directory: a snapshot, so that one listing is consistent in itself."""

    entries: Callable[[int], Iterator[tuple[int, Entry, Node]]]
    """Returns (offset of the next, entry, node) behind an offset; it can be called any number of times."""
    try_entries: Callable[[int], Iterator[tuple[int, Entry | None, Node]]]
    """The same for the dispatcher; None for entries that only the trio thread can make."""
    members: "MemberRows | None" = None
    """The same of a directory in a shard, which never changes, for packing many at once."""
    objects: "Callable[[int, int], ObjectRun | None]" = lambda *_: None
    """The same of objects above the shards, for the dispatcher: those behind an offset, so many
    at most; None when the next entry has to be taken from `known`."""


@dataclass(frozen=True, slots=True)
class ObjectRun:
    """Objects side by side in a directory as columns."""

    files: FileRun
    nodes: Sequence[ObjectNode]
    offsets: Sequence[int]
    """The offset behind each of them."""
    owner: tuple[int, int]
    """User and group."""
    timeout: float
    """Seconds the kernel may keep the names."""


@dataclass(frozen=True, slots=True)
class MemberRows:
    """A directory of a shard as columns."""

    node: ShardNode
    uid: int
    gid: int
    listed: Callable[[int, int], Listed]
    """Returns what is listed from an offset on, and how many files at most."""


@dataclass(frozen=True, slots=True)
class FileHandle:
    """An open object, member or virtual shard of one version."""

    node: FileNode | ShardNode
    member: OpenMember | None = None


@dataclass(eq=False, slots=True)
class OpenFile:
    """An open object of a writable mount; its content is that of the inode, as POSIX has it."""

    ino: int
    file: WrittenFile | None
    """Set when it was opened for writing."""
    bypasses_pages: bool = False
    """Whether what is read and written goes past the kernel's page cache."""
