"""The tree against the reference model, while somebody else changes the bucket."""

import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.names.inodes import ROOT
from aisfs.errors import NameTooLong, NotFound, Stale
from aisfs.filesystem.nodes import DirectoryNode, Entry, ObjectNode, ShardNode
from aisfs.settings import Shards
from tests.filesystem import operations as ops
from tests.filesystem.model import (
    NAME_MAX,
    Content,
    File,
    Folder,
    Link,
    Member,
    Node,
    expected_tree,
    is_shard,
    raw,
    shard_folder,
    walk,
)
from tests.filesystem.operations import examples
from tests.filesystem.user import BUCKET, OFF, User, build, new_store
from tests.support.for_each import for_each

MODES = st.sampled_from(list(Shards))
Path = tuple[bytes, ...]


class Scene:
    """A bucket, what ought to be in it, and a user of its mount."""

    def __init__(self, nursery: trio.Nursery, shards: Shards, **ttls: float) -> None:
        self.store = new_store()
        self.state: dict[str, Content] = {}
        self.written: dict[tuple[str, str], Content] = {}
        """What each version of each key was."""
        self.shards = shards
        self.nursery = nursery
        self.ttls = ttls
        self.user = self.new_user()

    def new_user(self) -> User:
        """Mount the bucket once more, with nothing known."""
        return User(build(self.store, self.nursery, shards=self.shards, **self.ttls))

    @property
    def tree(self) -> Folder:
        return expected_tree(self.state, self.shards)

    def put(self, key: str, content: Content) -> None:
        info = self.store.put(BUCKET, key, raw(content))
        self.state[key] = content
        self.written[key, info.version] = content

    def change(self, operation: ops.Change) -> None:
        match operation:
            case ops.Put(key, content):
                self.put(key, content)
            case ops.Overwrite(index, data) if self.state:
                self.put(pick(list(self.state), index), data)
            case ops.Delete(index) if self.state:
                key = pick(list(self.state), index)
                self.store.delete(BUCKET, key)
                del self.state[key]

    # What the user does while nothing is cached -----------------------------------------------

    async def use(self, operation: ops.Use) -> None:
        nodes = list(walk(self.tree))
        match operation:
            case ops.Lookup(index) if nodes:
                path, node = pick(nodes, index)
                entry = await self.user.walk(*path)
                assert entry is not None, path
                assert split_size(entry) == (kind_of(node), node.size)
                assert await self.user.fs.getattr(entry.attr.ino) == entry.attr
            case ops.Readdir(index, step):
                folders = [((), self.tree), *((p, n) for p, n in nodes if isinstance(n, Folder))]
                path, folder = pick(folders, index)
                entry = await self.user.walk(*path)
                found = await self.user.readdir(entry.attr.ino if entry else ROOT, step)
                names = [entry.name for entry in found]
                assert len(names) == len(set(names))
                assert set(names) == set(folder.entries)
            case ops.Read(index, offset, length):
                await self._read(index, offset, length)
            case ops.OpenThenOverwriteThenRead(index, data):
                await self._overwrite_while_open(index, data)
            case ops.Forget(index, count) if self.user.counts:
                ino = pick(list(self.user.counts), index)
                self.user.forget(ino, min(count, self.user.counts[ino]))

    def _files(self) -> list[tuple[Path, File]]:
        return [(path, node) for path, node in walk(self.tree) if isinstance(node, File)]

    async def _read(self, index: int, offset: int, length: int) -> None:
        if files := self._files():
            path, file = pick(files, index)
            handle = await self.user.fs.open(await self.user.ino(*path))
            found = await self.user.fs.read(handle, offset, length)
            assert found == file.content[offset : offset + length]

    async def _overwrite_while_open(self, index: int, data: bytes) -> None:
        if not (files := self._files()):
            return
        path, file = pick(files, index)
        fs, ino = self.user.fs, await self.user.ino(*path)
        node = fs.inodes.node(ino)
        assert isinstance(node, ObjectNode | ShardNode)
        handle = await fs.open(ino)
        self.put(node.info.key, data)
        try:
            assert await fs.read(handle, 0, file.size + 1) == file.content, "old bytes or none"
        except Stale:
            assert fs.kernel.invalidated[-1] == (node.parent, node.name)


def pick(choices: list, index: int):
    return choices[index % len(choices)]


KINDS = {0o100000: File, 0o120000: Link, 0o040000: Folder}


def kind_of(node: Node) -> type:
    return type(node)


def split_size(entry: Entry) -> tuple[type, int]:
    return KINDS[entry.attr.mode & 0o170000], entry.attr.size


async def content_of(user: User, entry: Entry, kind: type) -> Node:
    """A file or link, with all it has."""
    if kind is Link:
        return Link(await user.fs.readlink(entry.attr.ino))
    return File(await user.read(entry.attr.ino, entry.attr.size, step=4096))


async def same_by_listing(user: User, ino: int, expected: Folder, path: Path = ()) -> None:
    """Compare a directory and all below it with the model, by readdir."""
    found = await user.readdir(ino, step=2)
    names = [entry.name for entry in found]
    assert sorted(names) == sorted(expected.entries), path
    if expected.ordered:
        assert names == list(expected.entries), path
    for entry in found:
        await _same(user, entry, expected.entries[entry.name], (*path, entry.name))
    for name, node in expected.unlisted.items():
        entry = await user.lookup(ino, name)
        assert entry is not None, (*path, name)
        await _same(user, entry, node, (*path, name))


async def _same(user: User, entry: Entry, node: Node, path: Path) -> None:
    kind, size = split_size(entry)
    assert (kind, size) == (type(node), node.size), path
    if isinstance(node, Folder):
        await same_by_listing(user, entry.attr.ino, node, path)
    else:
        assert await content_of(user, entry, kind) == node, path


async def same_by_lookup(user: User, ino: int, expected: Folder, path: Path = ()) -> None:
    """Compare with the model by names alone: those that are there, and many that are not."""
    names = {*expected.entries, *expected.unlisted}
    for name in {*names, *MISSING}:
        where = (*path, name)
        if len(name) > NAME_MAX:
            with pytest.raises(NameTooLong):
                await user.lookup(ino, name)
            continue
        entry, node = await user.lookup(ino, name), expected.find(name)
        if node is None:
            assert entry is None, where
            continue
        assert entry is not None, where
        kind, size = split_size(entry)
        assert (kind, size) == (type(node), node.size), where
        if isinstance(node, Folder):
            await same_by_lookup(user, entry.attr.ino, node, where)
        else:
            assert await content_of(user, entry, kind) == node, where


MISSING = [
    name.encode(errors="surrogateescape")
    for name in (*ops.NAMES, "y.tar.x", "x.tar.d.raw", "a~file", "A", "", "z.tar.d", "z.tar.raw")
]


def run(main: Callable, *arguments: object) -> None:
    trio.run(main, *arguments, clock=trio.testing.MockClock(autojump_threshold=0))


# Nothing cached: every observation is the present ------------------------------------------------


@pytest.mark.parametrize("shards", list(Shards))
@examples(40)
@given(history=ops.histories(ops.all_changes, ops.all_changes, ops.uses))
def test_tree_is_the_models_by_listing(shards: Shards, history: list[ops.Operation]):
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            scene = Scene(nursery, shards, **OFF)
            for operation in history:
                if isinstance(operation, ops.Change):
                    scene.change(operation)
                else:
                    await scene.use(operation)
                await same_by_listing(scene.user, ROOT, scene.tree)
            scene.user.check_counts()
            scene.user.forget_all()

    run(main)


@examples(70)
@given(ops.shards)
def test_folder_of_a_shard_is_the_models(content: tuple[Member, ...]):
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            scene = Scene(nursery, Shards.DIR, **OFF)
            scene.put("x.tar", content)
            await same_by_listing(scene.user, ROOT, scene.tree)
            await same_by_lookup(scene.new_user(), ROOT, scene.tree)

    run(main)


@pytest.mark.parametrize("list_ttl", [0.0, 60.0], ids=["never-listed", "first-page"])
@pytest.mark.parametrize("shards", list(Shards))
@examples(12)
@given(history=ops.histories(ops.all_changes, max_size=5))
def test_tree_is_the_models_by_lookup_alone(
    shards: Shards, list_ttl: float, history: list[ops.Operation]
):
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            scene = Scene(nursery, shards, **{**OFF, "list_ttl": list_ttl})
            for operation in history:
                assert isinstance(operation, ops.Change)
                scene.change(operation)
            for _ in range(2):
                user = scene.new_user()
                await same_by_lookup(user, ROOT, scene.tree)
                user.forget_all()
                scene.change(ops.Overwrite(1, b"changed meanwhile"))
                scene.change(ops.Delete(0))

    run(main)


# Everything cached: every observation is of a moment within the times to live --------------------

LIST_TTL = ATTR_TTL = 60.0
NEGATIVE_TTL = 5.0
POSITIVE_WINDOW = 60.0
NEGATIVE_WINDOW = 65.0
"""SEMANTICS.md section 6: a missing name is believed for at most 65 s, the kernel included."""

Real = str | tuple[str, str] | None
"""What a name in the bucket is: a directory, a version of an object, or nothing."""
DIRECTORY = "directory"


@dataclass(frozen=True)
class Moment:
    """The bucket from `since` on, until the next moment."""

    since: float
    versions: dict[str, str]
    names: dict[Path, dict[bytes, Real]]
    """Of each directory the names, aliases aside."""


class CachingUser(User):
    """Keeps names as long as it is told to, like the kernel."""

    def __init__(self, filesystem) -> None:
        super().__init__(filesystem)
        self._names: dict[tuple[int, bytes], tuple[Entry | None, float]] = {}

    def _count(self, entry: Entry) -> None:
        super()._count(entry)
        assert entry.entry_timeout >= 0

    async def lookup(self, parent: int, name: bytes) -> Entry | None:
        for gone in self.fs.kernel.invalidated:
            self._names.pop(gone, None)
        self.fs.kernel.invalidated.clear()
        known = self._names.get((parent, name))
        if known is not None and trio.current_time() < known[1]:
            return known[0]
        entry = await super().lookup(parent, name)
        timeout = NEGATIVE_TTL if entry is None else entry.entry_timeout
        self._names[parent, name] = entry, trio.current_time() + timeout
        return entry

    async def readdir(self, ino: int, step: int = 1000) -> list[Entry]:
        found = await super().readdir(ino, step)
        for entry in found:  # readdirplus: each entry of the listing is a lookup as well
            self._names[ino, entry.name] = entry, trio.current_time() + entry.entry_timeout
        return found


class CachedScene(Scene):
    """Remembers the past, to say what may be believed."""

    def __init__(self, nursery: trio.Nursery, shards: Shards) -> None:
        super().__init__(
            nursery, shards, attr_ttl=ATTR_TTL, list_ttl=LIST_TTL, negative_ttl=NEGATIVE_TTL
        )
        self.user = CachingUser(self.user.fs)
        self.moments: list[Moment] = []
        self.note()

    def note(self) -> None:
        """Write down what is there from now on."""
        versions = {key: self.store._buckets[BUCKET].objects[key][0].version for key in self.state}
        names: dict[Path, dict[bytes, Real]] = {(): {}}
        # The listed names of the mode `file` are the keys themselves.
        for path, node in walk(expected_tree(dict.fromkeys(self.state, b""), Shards.FILE)):
            if not isinstance(node, Folder):
                key = b"/".join(path).decode(errors="surrogateescape")
                names.setdefault(path[:-1], {})[path[-1]] = (key, versions[key])
            elif not node.ordered:
                names.setdefault(path, {})
                names.setdefault(path[:-1], {})[path[-1]] = DIRECTORY
        self.moments.append(Moment(trio.current_time(), versions, names))

    def within(self, window: float) -> Iterator[Moment]:
        """The moments of the last `window` seconds."""
        for moment, following in zip(self.moments, [*self.moments[1:], None], strict=True):
            if following is None or following.since >= trio.current_time() - window:
                yield moment

    def real(self, directory: Path, name: bytes, *, fresh: bool) -> set[Real]:
        """What a name may be believed to be."""
        now = self.moments[-1].names.get(directory, {}).get(name)
        found = {now}
        if not fresh:
            found |= {
                thing
                for moment in self.within(POSITIVE_WINDOW)
                if (thing := moment.names.get(directory, {}).get(name)) is not None
            }
            if any(
                moment.names.get(directory, {}).get(name) is None
                for moment in self.within(NEGATIVE_WINDOW)
            ):
                found.add(None)
        return found

    def allowed(self, directory: Path, name: bytes, fresh: bytes | None) -> set:
        """What a lookup may find; of the name `fresh` only the present counts."""
        found: set = set()
        for thing in self.real(directory, name, fresh=name == fresh):
            if thing is not None:
                as_folder = self.shards is Shards.DIR and thing != DIRECTORY and is_shard(name)
                found.add(
                    thing
                    if thing == DIRECTORY
                    else (ShardNode if as_folder else ObjectNode, *thing)
                )
                continue
            alias = b".raw" if self.shards is Shards.DIR else b".d"
            shard = name.removesuffix(alias)
            if shard == name or not is_shard(shard):
                found.add(None)
                continue
            for thing in self.real(directory, shard, fresh=shard == fresh):
                if thing in (None, DIRECTORY):
                    found.add(None)
                else:
                    found.add((ObjectNode if alias == b".raw" else ShardNode, *thing))
        return found

    def seen(self, entry: Entry | None):
        """Say what was found in the same words."""
        if entry is None:
            return None
        node = self.user.fs.inodes.node(entry.attr.ino)
        if isinstance(node, DirectoryNode):
            return DIRECTORY
        assert isinstance(node, ObjectNode | ShardNode)
        content = self.written[node.info.key, node.info.version]
        if isinstance(node, ObjectNode):
            assert entry.attr.size == len(raw(content))
        return type(node), node.info.key, node.info.version

    async def find(self, key: str, fresh: bytes | None = None) -> Entry | None:
        """Walk to a key of the pool as far as there are names, checking each step."""
        path: Path = ()
        ino, entry = ROOT, None
        for name in key.encode(errors="surrogateescape").split(b"/"):
            if not name or len(name) > NAME_MAX or b"\0" in name:
                return None
            entry = await self.user.lookup(ino, name)
            assert self.seen(entry) in self.allowed(path, name, fresh), (path, name)
            if entry is None or self.seen(entry) != DIRECTORY:
                return entry
            ino, path = entry.attr.ino, (*path, name)
        return entry

    async def list(self, key: str, step: int) -> None:
        """List the directory a key lies in: it is what the bucket was at one moment."""
        above = key.rpartition("/")[0]
        entry = await self.find(above) if above else None
        if above and self.seen(entry) != DIRECTORY:
            return
        path = tuple(above.encode(errors="surrogateescape").split(b"/")) if above else ()
        listed = await self.user.readdir(entry.attr.ino if entry else ROOT, step)
        found = {entry.name: self.seen(entry) for entry in listed}
        assert len(found) == len(listed)
        assert found in [self._listing(moment, path) for moment in self.within(LIST_TTL)]

    def _listing(self, moment: Moment, path: Path) -> dict:
        real = moment.names.get(path, {})
        found: dict = {}
        for name, thing in real.items():
            if thing == DIRECTORY:
                found[name] = thing
                continue
            shard = is_shard(name)
            as_folder = shard and self.shards is Shards.DIR
            found[name] = (ShardNode if as_folder else ObjectNode, *thing)
            alias = name + b".d"
            if shard and self.shards is Shards.BOTH and alias not in real:
                found[alias] = (ShardNode, *thing)
        return found

    async def read(self, key: str) -> None:
        """What is read is the version that was found, or else it is Stale and found anew."""
        entry = await self.find(key)
        if entry is None or self.seen(entry) == DIRECTORY:
            return
        node = self.user.fs.inodes.node(entry.attr.ino)
        content = self.written[node.info.key, node.info.version]
        current = self.moments[-1].versions.get(node.info.key) == node.info.version
        try:
            if isinstance(node, ObjectNode):
                assert await self.user.read(entry.attr.ino, entry.attr.size) == raw(content)
            else:
                await self._read_members(entry.attr.ino, shard_folder(content))
        except (Stale, NotFound):  # what a read may raise of these: see test_staleness
            assert not current
            await self.find(key, fresh=node.info.key.rpartition("/")[2].encode())

    async def _read_members(self, ino: int, folder: Folder) -> None:
        found = await self.user.readdir(ino)
        assert [entry.name for entry in found] == list(folder.entries)
        for entry in found:
            node = folder.entries[entry.name]
            assert split_size(entry) == (type(node), node.size)
            if isinstance(node, File):
                assert await self.user.read(entry.attr.ino, node.size) == node.content


USES = st.tuples(st.sampled_from(("find", "list", "read")), st.sampled_from(ops.FEW_KEYS))


@pytest.mark.parametrize("shards", list(Shards))
@examples(70)
@given(
    begin=st.sets(st.sampled_from(ops.FEW_KEYS)),
    history=st.lists(
        st.one_of(ops.changes_of(ops.FEW_KEYS), USES, USES, ops.waits), min_size=10, max_size=60
    ),
)
def test_what_is_cached_was_true_within_its_time(shards: Shards, begin: set, history: list):
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            scene = CachedScene(nursery, shards)
            for key in sorted(begin):
                scene.put(key, b"at first")
            scene.note()
            for operation in history:
                match operation:
                    case ops.Wait(seconds):
                        await trio.sleep(seconds)
                    case ("find", key):
                        await scene.find(key)
                    case ("list", key):
                        await scene.list(key, 2)
                    case ("read", key):
                        await scene.read(key)
                    case _:
                        scene.change(operation)
                        scene.note()
            scene.user.check_counts()
            scene.user.forget_all()

    run(main)


# What the search above found: literally ----------------------------------------------------------


def listed(content: Content) -> dict[bytes, Node]:
    """The entries of a shard's folder, by the mount."""
    found: dict[bytes, Node] = {}

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            scene = Scene(nursery, Shards.FILE, **OFF)
            scene.put("x.tar", content)
            folder = await scene.user.ino(b"x.tar.d")
            for entry in await scene.user.readdir(folder):
                kind, _ = split_size(entry)
                found[entry.name] = (
                    Folder() if kind is Folder else await content_of(scene.user, entry, kind)
                )

    run(main)
    return found


def symlink(name: str, target: str) -> Member:
    return Member(name, tarfile.SYMTYPE, target=target)


@for_each(
    "links",
    [
        [symlink("l", "d"), symlink("d/up", "..")],
        [symlink("dot", "."), symlink("l", "dot/a")],
        [Member("d/b"), symlink("d/up", ".."), symlink("l", "d/up/a")],
    ],
)
def test_regression_1_symlink_that_hangs_on_a_circle_is_left_out(links: list[Member]):
    """The circle is refused, so the other link ends nowhere: SEMANTICS.md section 4 hides it."""
    content = (Member("a", data=b"a"), *links)
    assert b"l" not in listed(content)
    assert listed(content).keys() == shard_folder(content).entries.keys()


@for_each("shards", list(Shards))
def test_regression_2_folder_of_a_shard_with_a_long_name_is_not_listed(shards: Shards):
    """`X.tar` has 254 bytes, `X.tar.d` would have 256: listed with `both`, but ENAMETOOLONG."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            scene = Scene(nursery, shards, **OFF)
            scene.put(f"{'s' * 250}.tar", (Member("a"),))
            await same_by_listing(scene.user, ROOT, scene.tree)
            for entry in await scene.user.readdir(ROOT):
                assert await scene.user.lookup(ROOT, entry.name) is not None

    run(main)
