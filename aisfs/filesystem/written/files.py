"""Files that this mount writes: what they are beside the version of an object they began as.

An inode number stands for one version (invariant I2), but a program goes on using the inode it
writes to. So a written file keeps its number from the first change to the last lookup, whatever
versions it becomes meanwhile; anybody else's new version of the object gets a number of its own.
"""

from dataclasses import dataclass, field
from itertools import count

from msgspec import structs

from aisfs.core.names.listing import PENDING_VERSION
from aisfs.engine.writing.journal import JournalEntry
from aisfs.engine.writing.staging import StagedFile
from aisfs.errors import AisfsError, Stale
from aisfs.filesystem.nodes import ObjectNode
from aisfs.filesystem.written.content_lock import ContentLock
from aisfs.model import Bucket, ObjectInfo

_serial = count(1)
MOST_AT_REST = 1000
"""Written files that are in the store and kept only for their number: 1.5 KB each, here."""


@dataclass(eq=False, slots=True)
class WrittenFile:
    """A file of this mount that is, or was, open for writing."""

    ino: int
    identity: bytes
    """What `ino` was computed from."""
    node: ObjectNode
    """Where it is now. Its `info` is only the first one."""
    base: ObjectInfo | None
    """The version in the store that `staged` came from or went to; None when there is none yet."""
    mode: int | None
    """Permissions, or `LINK`; None shows those of the mount."""
    mtime_ns: int
    member: str = ""
    """Its name in the shard `node.info.key`, when it is to be a member."""
    staged: StagedFile | None = None
    """The content on the local disk; without it the content is that of `base`."""
    dirty: bool = False
    """Whether `staged` differs from `base`."""
    entry: JournalEntry | None = None
    """What was acknowledged last and is not in the store yet, with `--write-back`."""
    entry_overwrites: bool = False
    """What `overwrites` was then."""
    acknowledged: bool = False
    """Whether `entry` is the content as it is now, so that a close need not wait for the store."""
    unlinked: bool = False
    """It has no name any more; nothing of it is uploaded."""
    detached_because: AisfsError | None = None
    """Why what was written is not to be seen here any more."""
    failed: AisfsError | None = None
    """Why the last attempt to upload it failed; None after the next write."""
    write_error: AisfsError | None = None
    """Why a write failed; None after the next one. Content with a hole in it is not uploaded."""
    pages_behind: bool = False
    """Whether the kernel may have pages and a size of what came to nothing: see `Committer.show_again`."""
    handles: int = 0
    writers: int = 0
    bypassing: int = 0
    """Handles among `writers` that go past the kernel's page cache."""
    shared: bool = False
    """Whether others opened it while there were such handles."""
    made_only_new: str = ""
    """A name of its own for a file that began as a new one: see `only_new`."""
    overwrites: bool = False
    """Whether its content owes nothing to `base`, so that it replaces whatever the store has."""
    lock: ContentLock = field(default_factory=ContentLock)
    """Held while content or name change, and while it is uploaded."""

    @property
    def bucket(self) -> Bucket:
        """Its bucket."""
        return self.node.bucket

    @property
    def key(self) -> str:
        """Its key; of a member that of the shard."""
        return self.node.info.key

    @property
    def size(self) -> int:
        """Bytes."""
        staged, entry = self.staged, self.entry  # once: other threads take them away
        if staged is not None:
            return staged.size
        if entry is not None:
            return entry.size
        return self.base.size if self.base is not None else 0

    @property
    def only_new(self) -> str:
        """What `WritableStore.upload` calls so; empty once the store has a version, or to overwrite what it has."""
        return "" if self.base is not None or self._replaces_any else self.made_only_new

    @property
    def replaces(self) -> ObjectInfo | None:
        """The only version that an upload may replace; None for any."""
        return None if self._replaces_any else self.base

    @property
    def _replaces_any(self) -> bool:
        """Whether it may replace whatever the store has: not what is newer than an upload that has waited."""
        return self.overwrites and not self.acknowledged

    @property
    def busy(self) -> bool:
        """Whether it is more than the version `base` under a number of its own."""
        return self.dirty or self.handles > 0

    @property
    def waits(self) -> bool:
        """Whether it is safe on the local disk and waits for its upload."""
        return self.acknowledged and self.dirty and self.failed is None

    def joined(self) -> bool:
        """Record that it is opened; return whether past the page cache, as others do."""
        self.shared |= self.bypassing > 0
        return self.bypassing > 0

    def check_attached(self) -> None:
        """Raise `Stale` if what was written is not to be seen here any more."""
        if self.detached_because is not None:
            raise Stale(f"{self.bucket}/{self.key}: {self.detached_because}; open it again")

    def stands_for(self, info: ObjectInfo) -> bool:
        """Return whether this file is what its name shows while the store has `info`."""
        if self.unlinked or self.detached_because is not None:
            return False
        return self.dirty or (self.base is not None and self.base.same_content(info))


def pending_node(bucket: Bucket, key: str, parent: int, name: bytes) -> ObjectNode:
    """Make the node of an object that the store does not have yet, like no other."""
    info = ObjectInfo(key, 0, PENDING_VERSION, checksum=str(next(_serial)))
    return ObjectNode(bucket, info, parent, name)


class WrittenFiles:
    """The written files of a mount, by inode number and by key.

    Changed by the trio thread; new files are also added by the dispatcher, while `namespace_lock` is held.
    """

    def __init__(self) -> None:
        """Start with none."""
        self.by_ino: dict[int, WrittenFile] = {}
        self._by_key: dict[tuple[Bucket, str], WrittenFile] = {}
        self.members: dict[tuple[Bucket, str, str], WrittenFile] = {}
        """New members of shards, by key of the shard and path in it."""
        self._at_rest: dict[int, WrittenFile] = {}
        """Those that are not open, in the order of their last close."""

    def add(self, file: WrittenFile) -> None:
        """Remember a file under its number and its name."""
        self.by_ino[file.ino] = file
        if file.member:
            self.members[file.bucket, file.key, file.member] = file
        else:
            self._by_key[file.bucket, file.key] = file

    def of_key(self, bucket: Bucket, key: str) -> WrittenFile | None:
        """Return the file that last had this key in this mount."""
        return self._by_key.get((bucket, key))

    def of_member(self, bucket: Bucket, shard: str, member: str) -> WrittenFile | None:
        """Return a new member of a shard."""
        return self.members.get((bucket, shard, member))

    def below(self, bucket: Bucket, prefix: str) -> list[WrittenFile]:
        """Return the files whose keys start with `prefix`."""
        known = self._by_key.copy()  # one step: the dispatcher may add one meanwhile
        return [f for (b, k), f in known.items() if b == bucket and k.startswith(prefix)]

    def new_members(self, bucket: Bucket, shard: str) -> list[WrittenFile]:
        """Return the new members of a shard, or of all shards whose keys start with `shard`."""
        return [
            file
            for (b, key, _), file in self.members.items()
            if b == bucket and (key == shard or (shard.endswith("/") and key.startswith(shard)))
        ]

    def unname(self, file: WrittenFile) -> None:
        """Forget its name; the number stays."""
        if file.member:
            where = (file.bucket, file.key, file.member)
            if self.members.get(where) is file:
                del self.members[where]
        elif self._by_key.get((file.bucket, file.key)) is file:
            del self._by_key[file.bucket, file.key]

    def rename(self, file: WrittenFile, key: str, parent: int, name: bytes) -> None:
        """Return it another name."""
        self.unname(file)
        info = structs.replace(file.node.info, key=key)
        file.node = ObjectNode(file.bucket, info, parent, name)
        if file.base is not None:
            file.base = structs.replace(file.base, key=key)
        self.add(file)

    def rest(self, file: WrittenFile) -> WrittenFile | None:
        """Record that a file is not open any more; return one that has not been for too long, if any."""
        self._at_rest.pop(file.ino, None)
        self._at_rest[file.ino] = file
        if len(self._at_rest) <= MOST_AT_REST:
            return None
        return self._at_rest.pop(next(iter(self._at_rest)))

    def drop(self, file: WrittenFile) -> None:
        """Forget it."""
        self._at_rest.pop(file.ino, None)
        self.unname(file)
        self.by_ino.pop(file.ino, None)
