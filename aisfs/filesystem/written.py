"""Files that this mount writes: what they are beside the version of an object they began as.

An inode number stands for one version (invariant I2), but a program goes on using the inode it
writes to. So a written file keeps its number from the first change to the last lookup, whatever
versions it becomes meanwhile; anybody else's new version of the object gets a number of its own.

`ContentLock` is the lock of a written file: tasks of trio queue for it, the dispatcher takes it only when it is free. Modes and
times of directories are kept here, too, since no store keeps them.

`NameChanges` holds the names that are being changed, which takes the store a while. The kernel keeps the changes of one
directory apart. But while a name goes it opens the file, and while a directory is renamed it sends any request about what is
below. A request that relies on such a name waits until it is decided what the name stands for; otherwise its data would go where
it is deleted in the next moment.
"""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType

import trio
from cachetools import FIFOCache
from msgspec import structs

from aisfs.core.names.listing import PENDING_VERSION
from aisfs.engine.writing.journal import JournalEntry
from aisfs.engine.writing.on_disk import StagedRecord, version_text
from aisfs.engine.writing.staging import StagedFile
from aisfs.errors import AisfsError, Stale
from aisfs.filesystem.nodes import DirectoryNode, Node, ObjectNode
from aisfs.model import Bucket, ObjectInfo
from aisfs.system.locks import Lock, Rank, ranked_lock
from aisfs.system.threads import any_thread


class ContentLock:
    """Held by one task at a time, for as long as it likes; or by another thread, for moments."""

    def __init__(self, token: trio.lowlevel.TrioToken | None = None) -> None:
        """Start unheld; to be made in the trio thread, unless its `token` is given."""
        self._tasks: trio.Lock | None = None
        """Made for the first task: most files are made and written without any."""
        self._token = token or trio.lowlevel.current_trio_token()
        self._guard = ranked_lock(Rank.CONTENT)
        """Held for an instant, while the thread's part is looked at or changed."""
        self._in_thread = False
        self._left: trio.Event | None = None
        """Set for the task that waits until the thread is done."""

    async def __aenter__(self) -> None:
        """Wait for the tasks that came before, then for the thread, which comes in no more."""
        tasks = self._tasks = self._tasks or trio.Lock()
        try:
            tasks.acquire_nowait()  # saves a turn of all tasks, where it is free
        except trio.WouldBlock:
            await tasks.acquire()
        try:
            await self._thread_left()
        except BaseException:
            tasks.release()
            raise

    async def _thread_left(self) -> None:
        with self._guard:
            if not self._in_thread:
                return
            self._left = left = trio.Event()
        await left.wait()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release the lock."""
        assert self._tasks is not None, "a task has it"
        self._tasks.release()

    @property
    def is_free(self) -> bool:
        """Whether a task could have it now."""
        return not self._in_thread and not self._has_task()

    def _has_task(self) -> bool:
        return self._tasks is not None and self._tasks.locked()

    def take_in_thread(self) -> bool:
        """Take it, unless a task has it or is about to; returns whether. From one thread only.

        Another thread may return it.
        """
        with self._guard:
            if self._in_thread or self._has_task():
                return False
            self._in_thread = True
            return True

    def leave_in_thread(self) -> None:
        """Return it back."""
        with self._guard:
            self._in_thread = False
            left, self._left = self._left, None
        if left is not None:
            self._token.run_sync_soon(left.set)


_serial = count(time.monotonic_ns())
"""No daemon of the mount has counted there before."""
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
    next_key: str = ""
    """Under which name it may be in the journal already, since it is being renamed."""
    entry_overwrites: bool = False
    """What `overwrites` was then."""
    acknowledged: bool = False
    """Whether `entry` is the content as it is now, so that a close need not wait for the store."""
    unlinked: bool = False
    """It has no name any more; nothing of it is uploaded."""
    detached_because: AisfsError | None = None
    """Why what was written is not to be seen here any more."""
    may_be_stored: bool = False
    """Whether the store may have it already, and not `base`: it is not known what an upload did."""
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
    resumed: bool = False
    """Whether a daemon before has begun it."""
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
        """What `Upload` calls so; empty once the store has a version, or to overwrite what it has."""
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

    @any_thread
    def record(self, endpoint: str) -> StagedRecord:
        """Return what is recorded beside its bytes, for the store at `endpoint`."""
        return StagedRecord(
            endpoint,
            self.bucket,
            self.key,
            self.member,
            version_text(self.base),
            self.mode,
            only_new=self.only_new,
        )

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


DIRECTORIES_MAX = 100_000


_ModeAndTime = tuple[int | None, int | None]


class DirectoryAttributes:
    """Modes that were set in this mount, and times when entries changed or that were set.

    They are kept of the directories where that happened last.

    `of` takes no lock, so it must not change what is kept.
    """

    def __init__(self) -> None:
        """Start with none."""
        self._kept: FIFOCache[tuple[Bucket, str], _ModeAndTime] = FIFOCache(DIRECTORIES_MAX)
        self._lock = ranked_lock(Rank.DIRECTORY_ATTRIBUTES)
        self.note: Callable[[Bucket, str, _ModeAndTime | None], None] = lambda *_: None
        """Told of what is kept from now on, or no more, for the next daemon of the mount."""

    @any_thread
    def of(self, bucket: Bucket, prefix: str) -> _ModeAndTime:
        """Return mode and time of a directory, each None if it is not known."""
        try:
            return self._kept[bucket, prefix]  # one step; `get` is two
        except KeyError:
            return None, None

    def keep(self, bucket: Bucket, prefix: str, mode: int | None, mtime_ns: int | None) -> None:
        """Remember both."""
        with self._lock:
            self._keep(bucket, prefix, mode, mtime_ns)

    def _keep(self, bucket: Bucket, prefix: str, mode: int | None, mtime_ns: int | None) -> None:
        if (bucket, prefix) not in self._kept and len(self._kept) == DIRECTORIES_MAX:
            oldest, _ = self._kept.popitem()
            self.note(*oldest, None)
        self._kept[bucket, prefix] = mode, mtime_ns
        self.note(bucket, prefix, (mode, mtime_ns))

    @any_thread
    def touch(self, bucket: Bucket, prefix: str) -> None:
        """Record that an entry of a directory was made, removed or replaced just now."""
        with self._lock:
            mode, _ = self.of(bucket, prefix)
            self._keep(bucket, prefix, mode, time.time_ns())

    def drop(self, bucket: Bucket, prefix: str) -> None:
        """Forget those of a directory that was removed."""
        with self._lock:
            self._drop(bucket, prefix)

    def _drop(self, bucket: Bucket, prefix: str) -> _ModeAndTime | None:
        dropped = self._kept.pop((bucket, prefix), None)
        self.note(bucket, prefix, None)
        return dropped

    def rename(self, bucket: Bucket, prefix: str, new_prefix: str) -> None:
        """Move those of a directory, and of all below it, to another name, where nothing is left."""
        self.drop(bucket, new_prefix)
        with self._lock:
            for at, old in list(self._kept):
                if at == bucket and old.startswith(prefix):
                    kept = self._drop(bucket, old)
                    assert kept is not None, "it was listed"
                    self._keep(bucket, new_prefix + old[len(prefix) :], *kept)


Names = frozenset[tuple[Bucket, str]]
"""Keys, and prefixes with their slash for all that is below."""


@dataclass(eq=False, slots=True)
class NameChange:
    """A change that is under way, or content that needs its name for a while."""

    names: Names
    gone: set[int] = field(default_factory=set)
    """Inodes that have no name any more."""
    over: trio.Event = field(default_factory=trio.Event)

    def covers(self, bucket: Bucket, name: str) -> bool:
        """Return whether it changes where this key, or all below this prefix, is."""
        return any(b == bucket and _is_within(name, own) for b, own in self.names)

    def meets(self, names: Names) -> bool:
        """Return whether it is about any of these, or about something below or above."""
        return any(
            b == bucket and (_is_within(name, own) or _is_within(own, name))
            for bucket, name in names
            for b, own in self.names
        )


class NameChanges:
    """The changes of names of one mount. Only for the trio thread, but for `of`."""

    def __init__(self, lock: Lock | None = None) -> None:
        """Begin with none; `lock` is held while one is added, where other threads look at them."""
        self._lock = lock or nullcontext()
        self._changes: set[NameChange] = set()
        self._uses: set[NameChange] = set()

    def of(self, node: Node) -> NameChange | None:
        """Return a change that decides where a file or directory is. The dispatcher holds the lock."""
        if not self._changes:
            return None
        match node:
            case ObjectNode(bucket, info):
                name = info.key
            case DirectoryNode(bucket, name):
                pass
            case _:
                return None
        changes = self._changes.copy()
        return next((change for change in changes if change.covers(bucket, name)), None)

    @asynccontextmanager
    async def changing(self, names: Callable[[], Names]) -> AsyncIterator[NameChange]:
        """Keep others from relying on names; begins when none does, and asks then which."""
        async with self._apart(names, self._changes, (self._changes, self._uses)) as change:
            yield change

    @asynccontextmanager
    async def using(self, names: Callable[[], Names]) -> AsyncIterator[None]:
        """Keep names from being changed."""
        async with self._apart(names, self._uses, (self._changes,)):
            yield

    @asynccontextmanager
    async def _apart(
        self,
        names: Callable[[], Names],
        own: set[NameChange],
        others: tuple[set[NameChange], ...],
    ) -> AsyncIterator[NameChange]:
        while True:
            wanted = names()
            met = next((one for some in others for one in some if one.meets(wanted)), None)
            if met is None:
                break
            await met.over.wait()
        change = NameChange(wanted)
        with self._lock:
            own.add(change)
        try:
            yield change
        finally:
            own.discard(change)
            change.over.set()


def _is_within(name: str, other: str) -> bool:
    return name == other or (other.endswith("/") and name.startswith(other))
