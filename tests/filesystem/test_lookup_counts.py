"""Numbers and counts: what the kernel holds on to between requests."""

from itertools import islice

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.names.inodes import ROOT
from aisfs.settings import Shards
from tests.filesystem import operations as ops
from tests.filesystem.model import Folder, Member, State, expected_tree, raw, tar_of, walk
from tests.filesystem.operations import examples
from tests.filesystem.user import BUCKET, OFF, User, build, meaning, new_store, slot

MODES = st.sampled_from(list(Shards))
SHARD = (
    Member("a", data=b"a"),
    Member("d/b", data=b"b"),
    Member("hard", b"1", target="a"),
    Member("soft", b"2", target="a"),
)


def run(main) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def numbers(user: User, state: State, shards: Shards) -> dict[tuple[bytes, ...], int]:
    """The number of everything there is; found by names and by listings in turn."""
    found = {}
    for path, node in walk(expected_tree(state, shards)):
        found[path] = await user.ino(*path)
        if isinstance(node, Folder):
            for entry in await user.readdir(found[path], step=2):
                assert found.setdefault((*path, entry.name), entry.attr.ino) == entry.attr.ino
    return found


class Bucket:
    """A store with changes applied, and what is in it."""

    def __init__(self) -> None:
        self.store = new_store()
        self.state: dict = {}

    def change(self, operation: ops.Operation) -> None:
        match operation:
            case ops.Put(key, content):
                self.store.put(BUCKET, key, raw(content))
                self.state[key] = content
            case ops.Overwrite(index, data) if self.state:
                self.change(ops.Put(list(self.state)[index % len(self.state)], data))
            case ops.Delete(index) if self.state:
                key = list(self.state)[index % len(self.state)]
                self.store.delete(BUCKET, key)
                del self.state[key]


# Inode numbers -----------------------------------------------------------------------------------


@examples(30)
@given(st.lists(ops.changes_of(ops.FEW_KEYS), min_size=2, max_size=15), MODES)
def test_number_is_the_version_in_every_mount(history: list, shards: Shards):
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            bucket = Bucket()
            old = User(build(bucket.store, nursery, shards=shards, **OFF))
            ever: dict = {}
            """Each thing there ever was with its number, and each number with its thing."""
            for operation in history:
                bucket.change(operation)
                remounted = User(build(bucket.store, nursery, shards=shards))
                here = await numbers(old, bucket.state, shards)
                assert here == await numbers(remounted, bucket.state, shards)
                for ino in here.values():
                    thing = meaning(old.fs, ino)
                    assert ever.setdefault(thing, ino) == ino, "one thing, one number"
                    assert ever.setdefault(ino, thing) == thing, "one number, one thing"
                remounted.forget_all()
            old.forget_all()

    run(main)


async def test_numbers_do_not_depend_on_the_order_of_looking(nursery: trio.Nursery):
    bucket = Bucket()
    for key in ("a", "dir/b", "dir/deep/c"):
        bucket.change(ops.Put(key, key.encode()))
    bucket.change(ops.Put("x.tar", SHARD))
    first, second = (User(build(bucket.store, nursery)) for _ in range(2))
    await first.readdir(ROOT)
    paths = [path for path, _ in walk(expected_tree(bucket.state, Shards.FILE))]
    found = {path: await first.ino(*path) for path in paths}
    assert {path: await second.ino(*path) for path in reversed(paths)} == found
    assert found[b"x.tar.d", b"hard"] == found[b"x.tar.d", b"a"]
    assert found[b"x.tar.d", b"soft"] != found[b"x.tar.d", b"a"]
    different = {path: ino for path, ino in found.items() if path[-1] != b"hard"}
    assert len(set(different.values())) == len(different)


# Lookup counts -----------------------------------------------------------------------------------


@examples(30)
@given(ops.histories(ops.changes_of(ops.FEW_KEYS), ops.uses, ops.uses, max_size=25), MODES)
def test_counts_are_lookups_and_entries_less_what_is_forgotten(history: list, shards: Shards):
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            bucket = Bucket()
            user = User(build(bucket.store, nursery, shards=shards, **OFF))
            for operation in history:
                paths = list(walk(expected_tree(bucket.state, shards)))
                match operation:
                    case ops.Readdir(index, step) if paths:
                        path, node = paths[index % len(paths)]
                        if isinstance(node, Folder):
                            await user.readdir(await user.ino(*path), step)
                        await user.readdir(ROOT, step)
                    case ops.Forget(index, count) if user.counts:
                        ino = list(user.counts)[index % len(user.counts)]
                        user.forget(ino, min(count, user.counts[ino]))
                    case ops.Lookup(index) | ops.Read(index) if paths:
                        await user.walk(*paths[index % len(paths)][0])
                        assert await user.walk(b"no such name") is None
                    case _:
                        bucket.change(operation)
                user.check_counts()
            user.forget_all()

    run(main)


async def test_entry_that_did_not_fit_is_not_counted(nursery: trio.Nursery):
    bucket = Bucket()
    for n in range(5):
        bucket.change(ops.Put(f"{n}", b"x"))
    user = User(build(bucket.store, nursery))
    handle = await user.fs.opendir(ROOT)
    list(handle.entries(0))
    assert len(user.fs.inodes) == 1
    user.take(handle, step=2)
    assert len(user.fs.inodes) == 6
    user.check_counts()


async def test_everything_in_a_shard_counts_on_the_shard(nursery: trio.Nursery):
    bucket = Bucket()
    bucket.change(ops.Put("x.tar", SHARD))
    user = User(build(bucket.store, nursery))
    folder = await user.ino(b"x.tar.d")
    await user.ino(b"x.tar.d", b"d", b"b")
    assert len(await user.readdir(folder)) == 4
    assert user.fs.inodes.table.lookup_count(folder) == 1 + 3 + 4
    assert len(user.fs.inodes) == 2
    member = await user.ino(b"x.tar.d", b"a")
    user.forget(folder, 8)  # the kernel may let go of the folder before its members
    assert await user.read(member, 1) == b"a"
    user.forget_all()


async def test_many_at_once_are_all_counted(nursery: trio.Nursery):
    bucket = Bucket()
    bucket.change(ops.Put("x.tar", SHARD))
    for n in range(8):
        bucket.change(ops.Put(f"dir/{n}", b"x"))
    user = User(build(bucket.store, nursery, **OFF))

    async def slow(*call: object) -> None:
        await trio.lowlevel.checkpoint()

    bucket.store.hook = slow
    async with trio.open_nursery() as tasks:
        for n in range(8):
            tasks.start_soon(user.walk, b"dir", str(n).encode())
            tasks.start_soon(user.walk, b"x.tar.d", b"d", b"b")
            tasks.start_soon(user.walk, b"x.tar.d", b"none")
            tasks.start_soon(user.readdir, ROOT, 1)
    user.check_counts()
    assert user.counts[slot(await user.ino(b"x.tar.d"))] == 8 * 3 + 8 + 1
    user.forget_all()


async def test_cancelled_lookup_is_not_counted(nursery: trio.Nursery):
    bucket = Bucket()
    bucket.change(ops.Put("x.tar", SHARD))
    user = User(build(bucket.store, nursery, **OFF))
    folder = await user.ino(b"x.tar.d")
    with trio.CancelScope() as scope:
        scope.cancel()
        await user.lookup(folder, b"a")
    assert scope.cancelled_caught
    user.check_counts()
    assert (await user.lookup(folder, b"a")) is not None
    user.forget_all()


# Offsets -----------------------------------------------------------------------------------------


@examples(60)
@given(
    st.lists(ops.all_changes, min_size=4, max_size=20),
    st.lists(st.lists(ops.all_changes, max_size=3), max_size=8),
    st.integers(1, 3),
    MODES,
)
def test_directory_is_read_on_from_an_offset_while_it_changes(
    begin: list, meanwhile: list, step: int, shards: Shards
):
    """A name that stays is given once, in steps each of which lists the directory anew."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            bucket = Bucket()
            for operation in begin:
                bucket.change(operation)
            user = User(build(bucket.store, nursery, shards=shards, **OFF))
            staying = _shown(bucket.state, shards)
            found: list[bytes] = []
            offset = 0
            while True:
                handle = await user.fs.opendir(ROOT)
                batch = [(at, entry.name) for at, entry, _ in islice(handle.entries(offset), step)]
                if not batch:
                    break
                found += [name for _, name in batch]
                offset = batch[-1][0]
                for operation in meanwhile.pop() if meanwhile else ():
                    bucket.change(operation)
                    now = _shown(bucket.state, shards)
                    staying = {
                        name: kind for name, kind in staying.items() if now.get(name) == kind
                    }
            for name in staying:
                assert found.count(name) == 1, name

    run(main)


def _shown(state: State, shards: Shards) -> dict[bytes, bool]:
    """The names of the root; whether each is a key's own name or one that aisfs made."""
    entries = expected_tree(state, shards).entries
    own = expected_tree(state, Shards.FILE).entries
    return {name: name in own for name in entries}


@pytest.mark.parametrize("shards", list(Shards))
async def test_every_offset_of_an_open_directory_can_be_resumed(
    shards: Shards, nursery: trio.Nursery
):
    bucket = Bucket()
    for key in ("a", "b/c", "x.tar", "y.tar", "y.tar.d", "z.tar/inside"):
        bucket.change(ops.Put(key, tar_of(SHARD)))
    user = User(build(bucket.store, nursery, shards=shards))
    folder = b"x.tar" if shards is Shards.DIR else b"x.tar.d"
    for ino in (ROOT, await user.ino(folder), await user.ino(b"b")):
        handle = await user.fs.opendir(ino)
        whole = [(at, entry.name) for at, entry, _ in handle.entries(0)]
        assert len({name for _, name in whole}) == len(whole)
        for position, (at, _) in enumerate(whole, start=1):
            rest = [(at, entry.name) for at, entry, _ in handle.entries(at)]
            assert rest == whole[position:]
    assert list(handle.entries(1 << 40)) == []
