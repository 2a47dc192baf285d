"""A mount without a kernel, and somebody who plays the kernel: counts, remembers, forgets."""

from collections import Counter
from dataclasses import dataclass
from itertools import islice

import trio

from aisfs.cache.names import MetadataCache
from aisfs.core.names.inodes import ROOT, split_member
from aisfs.engine.dataset.reshuffler import SyntheticReader
from aisfs.engine.fetcher import Fetcher, Hooks
from aisfs.engine.listing import Lister
from aisfs.engine.prefetcher import Prefetcher
from aisfs.engine.reader import Reader
from aisfs.engine.scanning import ShardScanner
from aisfs.engine.shards import ArchiveForms, Indexer
from aisfs.engine.unpacker import Unpacker
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.handles import DirectoryHandle
from aisfs.filesystem.inodes import ShardFolders
from aisfs.filesystem.nodes import (
    LONGEST_TIMEOUT,
    AttrMaker,
    DirectoryNode,
    Entry,
    Node,
    ProviderNode,
    RootNode,
)
from aisfs.filesystem.trees import Tree
from aisfs.metrics import Metrics
from aisfs.model import Bucket, ByteRange
from aisfs.settings import Shards, TreeSettings
from aisfs.stores.memory import MemoryStore

BUCKET = Bucket("pets")
OFF = {"attr_ttl": 0.0, "list_ttl": 0.0, "negative_ttl": 0.0}
MOUNTED_AT_NS = 1_700_000_000_000_000_000


def new_store(**options) -> MemoryStore:
    """A store with an empty bucket and pages so small that most directories have several."""
    store = MemoryStore(**{"page_size": 3, "sink_in_thread": False, **options})
    store.add_bucket(BUCKET)
    return store


def build(
    store: MemoryStore,
    nursery: trio.Nursery,
    *,
    shards: Shards = Shards.FILE,
    root: Node | None = None,
    writable: bool = False,
    **ttls: float,
) -> FileSystem:
    """Put a file system together as `aisfs.mount.run` does."""
    settings = TreeSettings(shards=shards, **ttls)
    clock = trio.current_time
    cache = MetadataCache(
        attr_ttl=settings.attr_ttl,
        list_ttl=settings.list_ttl,
        negative_ttl=settings.negative_ttl,
        clock=clock,
    )
    hooks = Hooks()
    lister = Lister(
        store,
        cache,
        nursery,
        list_ttl=settings.list_ttl,
        clock=clock,
        metrics=Metrics(),
        hooks=hooks,
    )
    # Without a disk cache, and with room in memory for what was read last and nothing else.
    fetcher = Fetcher(
        store, nursery, None, cache=None, origin="test", memory_limit=0, read_ahead_max=0
    )
    prefetcher = Prefetcher(fetcher, lister, nursery, max_shards=0, budget=0)
    unpacker = Unpacker(fetcher, nursery, cache=None)
    make = AttrMaker(settings, MOUNTED_AT_NS)
    tree = Tree(lister, settings.shards)
    filesystem = FileSystem(
        root or DirectoryNode(BUCKET, ""),
        tree=tree,
        folders=ShardFolders(
            Indexer(ShardScanner(fetcher, unpacker), ArchiveForms(fetcher), nursery), make
        ),
        reader=Reader(fetcher, prefetcher, unpacker),
        assembler=SyntheticReader(fetcher, read_ahead_max=0),
        make=make,
        clock=clock,
        list_ttl=settings.list_ttl,
        kernel=FakeKernel(),
        overlay=lister.overlay if writable else None,
    )
    hooks.listing_changed = tree.with_all_names(filesystem.listing_changed)
    return filesystem


async def push_out(store: MemoryStore, filesystem: FileSystem) -> None:
    """Read something else, so that no bytes of anything before are left in memory."""
    other = store.put(Bucket("push-out"), "x", b"x")
    await filesystem._reader.read_object(Bucket("push-out"), other, ByteRange(0, 1))
    store.delete_bucket(Bucket("push-out"))


class FakeKernel:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.invalidated: list[tuple[int, bytes]] = []
        self.listed_again: list[int] = []

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        self.invalidated.append((parent, name))

    def invalidate_inode(self, ino: int) -> None:
        self.listed_again.append(ino)

    async def invalidated(self, parent: int, name: bytes) -> None:
        self.invalidate_entry(parent, name)


class DeafKernel(FakeKernel):
    """Acts on nothing it is told."""

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        pass

    def invalidate_inode(self, ino: int) -> None:
        pass


def slot(ino: int) -> int:
    """What lookups are counted on: the inode, or for anything in a shard the shard."""
    parts = split_member(ino)
    return ino if parts is None else parts[0]


@dataclass(frozen=True)
class Meaning:
    """What an inode number stands for, as far as that must not change."""

    kind: type[Node]
    key: str
    """What it is called, bucket and all."""
    version: str = ""
    place: tuple[bool, int] | None = None
    """Inside a shard: whether it is a directory, and which one."""


def meaning(filesystem: FileSystem, ino: int) -> Meaning:
    """Say what the file system takes a number for."""
    parts = split_member(ino)
    match filesystem.inodes.node(ino):
        case RootNode():
            return Meaning(RootNode, "")
        case ProviderNode(provider):
            return Meaning(ProviderNode, provider)
        case DirectoryNode(bucket, prefix):
            return Meaning(DirectoryNode, f"{bucket}/{prefix}")
        case node:
            key = f"{node.bucket}/{node.info.key}"
            return Meaning(type(node), key, node.info.version, parts and parts[1:])


class User:
    """Uses a file system as the kernel would, and keeps the books."""

    def __init__(self, filesystem: FileSystem) -> None:
        self.fs = filesystem
        self.counts: Counter[int] = Counter()
        """Lookups and entries of listings, less what was forgotten, by `slot`."""
        self.inodes: dict[int, Meaning] = {}
        """Every number ever seen."""

    def _count(self, entry: Entry) -> None:
        ino = entry.attr.ino
        self.counts[slot(ino)] += 1
        now = meaning(self.fs, ino)
        assert self.inodes.setdefault(ino, now) == now, f"{ino} changed its meaning"

    async def lookup(self, parent: int, name: bytes) -> Entry | None:
        entry = await self.fs.lookup(parent, name)
        if entry is not None:
            assert entry.name == name
            self._count(entry)
        return entry

    async def walk(self, *names: bytes) -> Entry | None:
        """Look up a path from the root, name by name."""
        ino, entry = ROOT, None
        for name in names:
            entry = await self.lookup(ino, name)
            if entry is None:
                return None
            ino = entry.attr.ino
        return entry

    async def ino(self, *names: bytes) -> int:
        """The number of a path that is there."""
        entry = await self.walk(*names)
        assert entry is not None, names
        return entry.attr.ino

    async def readdir(self, ino: int, step: int = 1000) -> list[Entry]:
        return self.take(await self.fs.opendir(ino), step)

    def take(self, handle: DirectoryHandle, step: int = 1000, offset: int = 0) -> list[Entry]:
        """Read an open directory in steps, coming back with the offset of the last entry."""
        found: list[Entry] = []
        while True:
            before = len(found)
            self._check_objects(handle, offset, step)
            for at, entry, node in handle.entries(offset):
                if len(found) - before == step:  # the reply is full: this entry does not go along
                    break
                assert at > offset, "offsets grow"
                self.fs.inodes.remember(entry.attr.ino, node)
                self._count(entry)
                found.append(entry)
                offset = at
            if len(found) == before:
                return found

    def _check_objects(self, handle: DirectoryHandle, offset: int, most: int) -> None:
        """What the fast path packs by columns is what is given one by one."""
        run = handle.objects(offset, most)
        if run is None:
            return
        columns = zip(run.offsets, run.nodes, *run.files, strict=True)
        singly = islice(handle.entries(offset), most)
        for number, (column, (at, entry, node)) in enumerate(zip(columns, singly, strict=False), 1):
            attr = entry.attr
            assert column == (
                at, node, attr.ino, attr.size, attr.mtime_ns, attr.mode, entry.name,
            )  # fmt: skip
            assert run.owner == (attr.uid, attr.gid)
            assert 0 <= run.timeout - entry.entry_timeout < 60, "the clock goes on"
            assert attr.timeout == LONGEST_TIMEOUT
            if number == len(run.nodes):
                return
        raise AssertionError("there are more objects than entries")

    async def read(self, ino: int, size: int, step: int = 1 << 20) -> bytes:
        """Open and read from the beginning to behind the end."""
        handle = await self.fs.open(ino)
        parts = [bytes(await self.fs.read(handle, at, step)) for at in range(0, size + 1, step)]
        return b"".join(parts)

    def forget(self, ino: int, count: int) -> None:
        self.fs.forget(ino, count)
        self.counts[slot(ino)] -= count

    def check_counts(self) -> None:
        """I4: lookup count = lookups + readdirplus entries - forgets."""
        for ino, count in self.counts.items():
            assert self.fs.inodes.table.lookup_count(ino) == count, hex(ino)
        known = sum(count > 0 for count in self.counts.values())
        assert len(self.fs.inodes) == 1 + known

    def forget_all(self) -> None:
        """After the last forget nothing but the root is left."""
        for ino, count in list(self.counts.items()):
            if count:
                self.forget(ino, count)
        self.check_counts()
        assert len(self.fs.inodes) == 1
