"""An open file is one version: when that is gone, reads say so and the name is looked up anew."""

from dataclasses import dataclass

import pytest
import trio
import trio.testing

from aisfs.core.names.inodes import ROOT
from aisfs.errors import AisfsError, NotFound, Stale
from aisfs.filesystem.nodes import DirectoryNode, ObjectNode, ShardNode
from aisfs.settings import Shards
from tests.filesystem.model import Member, tar_of
from tests.filesystem.user import BUCKET, DeafKernel, User, build, new_store, push_out
from tests.support.for_each import for_each

OLD = tar_of((Member("a", data=b"old a"), Member("d/b", data=b"old b"), Member("empty")))
NEW = tar_of((Member("a", data=b"new a!"), Member("c", data=b"new c")))


@dataclass
class Scene:
    """A mount with the default times to live: nothing is seen anew unless it is forgotten."""

    nursery: trio.Nursery
    shards: Shards = Shards.FILE

    def __post_init__(self) -> None:
        self.store = new_store()
        self.user = User(build(self.store, self.nursery, shards=self.shards))
        self.fs = self.user.fs

    def put(self, key: str, data: bytes) -> None:
        self.store.put(BUCKET, key, data)

    @property
    def invalidated(self) -> list[tuple[int, bytes]]:
        return self.fs.kernel.invalidated

    async def content(self, *path: bytes) -> bytes:
        entry = await self.user.walk(*path)
        assert entry is not None, path
        return await self.user.read(entry.attr.ino, entry.attr.size)

    async def read_stale(self, handle) -> None:
        """Read what is not in memory: there is nothing to read any more."""
        await push_out(self.store, self.fs)
        with pytest.raises(Stale):
            await self.fs.read(handle, 0, 100)


@pytest.fixture
async def scene(nursery: trio.Nursery) -> Scene:
    return Scene(nursery)


# Objects -----------------------------------------------------------------------------------------

PATHS = [
    ("top", ROOT, b"top"),
    ("dir/below", None, b"below"),
    ("dir/deep/odd\udcff\n", None, b"odd\xff\n"),
    ("large/7", None, b"7"),
]


@pytest.mark.parametrize(("key", "parent", "name"), PATHS, ids=["top", "below", "odd", "large"])
@pytest.mark.parametrize("data", [b"other", b"longer than before", b"", b"first"])
async def test_overwritten_object(
    key: str, parent: int | None, name: bytes, data: bytes, scene: Scene
):
    for n in range(9):
        scene.put(f"large/{n}", b"x")
    scene.put(key, b"first")
    path = key.encode(errors="surrogateescape").split(b"/")
    above = await scene.user.walk(*path[:-1])
    if above is not None:
        await scene.user.lookup(above.attr.ino, b"0")  # the large directory is known to be one
    ino = await scene.user.ino(*path)
    handle = await scene.fs.open(ino)
    scene.put(key, data)  # the same bytes are another version too
    await scene.read_stale(handle)
    assert scene.invalidated == [(parent or above.attr.ino, name)]
    entry = await scene.user.walk(*path)
    assert entry.attr.size == len(data)
    assert entry.attr.ino != ino
    assert await scene.content(*path) == data
    await scene.read_stale(handle)  # it stays the version that it was
    assert (await scene.fs.getattr(ino)).size == 5
    scene.user.check_counts()
    scene.user.forget_all()


async def test_file_opened_while_its_name_was_believed_is_the_old_version(scene: Scene):
    scene.put("x", b"first")
    ino = await scene.user.ino(b"x")
    scene.put("x", b"second")
    assert await scene.user.ino(b"x") == ino
    await scene.read_stale(await scene.fs.open(ino))
    assert await scene.content(b"x") == b"second"


async def test_deleted_object(scene: Scene):
    scene.put("x", b"first")
    scene.put("y", b"y")
    handle = await scene.fs.open(await scene.user.ino(b"x"))
    scene.store.delete(BUCKET, "x")
    await scene.read_stale(handle)
    assert scene.invalidated == [(ROOT, b"x")]
    assert await scene.user.walk(b"x") is None
    assert [entry.name for entry in await scene.user.readdir(ROOT)] == [b"y"]


async def test_object_deleted_and_made_again_of_the_same_bytes(scene: Scene):
    scene.put("x", b"first")
    ino = await scene.user.ino(b"x")
    handle = await scene.fs.open(ino)
    scene.store.delete(BUCKET, "x")
    scene.put("x", b"first")
    await scene.read_stale(handle)
    assert await scene.user.ino(b"x") != ino


async def test_object_of_a_deleted_bucket(scene: Scene):
    scene.put("x", b"first")
    handle = await scene.fs.open(await scene.user.ino(b"x"))
    scene.store.delete_bucket(BUCKET)
    await scene.read_stale(handle)
    assert scene.invalidated == [(ROOT, b"x")]


async def test_object_that_became_a_directory(scene: Scene):
    scene.put("p", b"first")
    handle = await scene.fs.open(await scene.user.ino(b"p"))
    scene.store.delete(BUCKET, "p")
    scene.put("p/q", b"below")
    await scene.read_stale(handle)
    assert isinstance(scene.fs.inodes.node(await scene.user.ino(b"p")), DirectoryNode)
    assert await scene.content(b"p", b"q") == b"below"


async def test_object_hidden_by_a_directory_can_still_be_read_while_open(scene: Scene):
    scene.put("p", b"first")
    handle = await scene.fs.open(await scene.user.ino(b"p"))
    scene.put("p/q", b"below")
    assert await scene.fs.read(handle, 0, 100) == b"first"
    assert not scene.invalidated


async def test_overwritten_between_two_reads_of_one_file(scene: Scene):
    scene.put("x", b"A" * 1000)
    handle = await scene.fs.open(await scene.user.ino(b"x"))
    first = await scene.fs.read(handle, 0, 10)
    scene.put("x", b"B" * 1000)
    assert first == b"A" * 10
    try:
        assert await scene.fs.read(handle, 500, 10) == b"A" * 10
    except Stale:
        assert scene.invalidated == [(ROOT, b"x")]


async def test_end_of_file_and_empty_files_need_no_object(scene: Scene):
    scene.put("x", b"first")
    scene.put("empty", b"")
    handles = [await scene.fs.open(await scene.user.ino(name)) for name in (b"x", b"empty")]
    scene.store.delete(BUCKET, "x")
    scene.store.delete(BUCKET, "empty")
    for handle in handles:
        assert await scene.fs.read(handle, 5, 10) == b""
    assert not scene.invalidated


async def test_failure_that_is_not_a_change_forgets_nothing(scene: Scene):
    scene.put("x", b"first")
    ino = await scene.user.ino(b"x")
    handle = await scene.fs.open(ino)

    async def fail(method: str, bucket: object, key: str) -> None:
        raise AisfsError("not now")

    scene.store.hook = fail
    with pytest.raises(AisfsError):
        await scene.fs.read(handle, 0, 10)
    assert not scene.invalidated
    assert await scene.user.ino(b"x") == ino, "the listing is still believed"


async def test_change_is_noticed_without_a_kernel(scene: Scene):
    scene.fs.kernel = DeafKernel()
    scene.put("x", b"first")
    handle = await scene.fs.open(await scene.user.ino(b"x"))
    scene.put("x", b"second")
    await scene.read_stale(handle)
    assert await scene.content(b"x") == b"second"


async def test_other_names_of_the_directory_are_seen_anew_as_well(scene: Scene):
    for name in "ab":
        scene.put(name, b"first")
    handle = await scene.fs.open(await scene.user.ino(b"a"))
    for name in "abc":
        scene.put(name, b"second")
    await scene.read_stale(handle)
    for name in (b"a", b"b", b"c"):
        assert await scene.content(name) == b"second"


async def test_inode_forgotten_before_its_open_file_turns_stale(scene: Scene):
    scene.put("dir/x", b"first")
    parent = await scene.user.ino(b"dir")
    handle = await scene.fs.open(await scene.user.ino(b"dir", b"x"))
    scene.user.forget_all()
    scene.put("dir/x", b"second")
    await scene.read_stale(handle)
    assert scene.invalidated == [(parent, b"x")]
    assert await scene.content(b"dir", b"x") == b"second"


def test_all_is_seen_anew_after_the_times_to_live():
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            scene = Scene(nursery)
            scene.put("x", b"first")
            old = await scene.user.ino(b"x")
            assert await scene.user.walk(b"new") is None
            scene.put("x", b"second")
            scene.put("new", b"new")
            await trio.sleep(59)
            assert await scene.user.ino(b"x") == old
            await trio.sleep(1)
            assert await scene.content(b"x") == b"second"
            assert await scene.content(b"new") == b"new"
            assert not scene.invalidated

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_kernel_is_told_how_long_a_name_may_still_be_believed():
    """The age of what aisfs itself remembers is taken off: no name is believed twice as long."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            scene = Scene(nursery)
            for key in ("x.tar", "small/x", *(f"large/{n}" for n in range(9))):
                scene.put(key, OLD)
            paths = [(b"x.tar",), (b"x.tar.d",), (b"small", b"x"), (b"large", b"3")]
            for left in (60, 35, 10):
                for path in paths:
                    assert (await scene.user.walk(*path)).entry_timeout == left, path
                for name in (b"small", b"large"):
                    for entry in await scene.user.readdir(await scene.user.ino(name)):
                        assert entry.entry_timeout == left
                        break
                await trio.sleep(25)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@for_each("key", ["small/new", "large/new"])
def test_missing_name_is_missing_no_longer_than_it_may_be(key: str):
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            scene = Scene(nursery)
            for n in range(9):
                scene.put(f"large/{n}", b"x")
            scene.put("small/x", b"x")
            path = key.encode().split(b"/")
            above = await scene.user.ino(path[0])
            await scene.user.lookup(above, b"0")
            assert await scene.user.lookup(above, b"new") is None
            scene.put(key, b"new")
            ttl = 5 if path[0] == b"large" else 60
            await trio.sleep(ttl - 1)
            assert await scene.user.lookup(above, b"new") is None
            await trio.sleep(1)
            assert (await scene.user.lookup(above, b"new")).attr.size == 3

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


# Directories -------------------------------------------------------------------------------------


async def test_open_directory_stays_a_snapshot(scene: Scene):
    for n in range(8):
        scene.put(f"dir/{n}", b"x")
    handle = await scene.fs.opendir(await scene.user.ino(b"dir"))
    before = [(e.name, e.attr) for e in scene.user.take(handle, step=3)]
    scene.store.delete(BUCKET, "dir/3")
    scene.put("dir/4", b"changed")
    scene.put("dir/9", b"new")
    rewound = [(e.name, e.attr) for e in scene.user.take(handle, step=3)]
    assert rewound == before


# Shards ------------------------------------------------------------------------------------------


def names_of_shard(shards: Shards = Shards.FILE, parent: int = ROOT) -> set[tuple[int, bytes]]:
    """Both names of x.tar: whichever was found out of date, the other is as well."""
    return {(parent, b"x.tar"), (parent, b"x.tar.raw" if shards is Shards.DIR else b"x.tar.d")}


@pytest.mark.parametrize("shards", list(Shards))
@pytest.mark.parametrize("name", [b"a", b"d/b"])
async def test_member_of_a_replaced_shard(name: bytes, shards: Shards, nursery: trio.Nursery):
    scene = Scene(nursery, shards)
    folder = b"x.tar" if shards is Shards.DIR else b"x.tar.d"
    scene.put("dir/x.tar", OLD)
    parent = await scene.user.ino(b"dir")
    old = await scene.user.ino(b"dir", folder)
    handle = await scene.fs.open(await scene.user.ino(b"dir", folder, *name.split(b"/")))
    scene.put("dir/x.tar", NEW)
    await scene.read_stale(handle)
    assert set(scene.invalidated) == names_of_shard(shards, parent)
    new = await scene.user.ino(b"dir", folder)
    assert new != old
    assert [entry.name for entry in await scene.user.readdir(new)] == [b"a", b"c"]
    assert await scene.content(b"dir", folder, b"a") == b"new a!"
    assert await scene.user.walk(b"dir", folder, b"d") is None
    scene.user.check_counts()
    scene.user.forget_all()


async def test_shard_replaced_while_its_folder_is_open(scene: Scene):
    scene.put("x.tar", OLD)
    ino = await scene.user.ino(b"x.tar.d")
    opened = await scene.fs.opendir(ino)
    scene.put("x.tar", NEW)
    # The members of a version cannot change: they stay listed, and known by name.
    found = scene.user.take(opened, step=1)
    assert [entry.name for entry in found] == [b"a", b"d", b"empty"]
    assert [entry.name for entry in await scene.user.readdir(ino)] == [b"a", b"d", b"empty"]
    assert (await scene.user.lookup(ino, b"empty")).attr.size == 0
    # Their bytes are gone with their version, and that is when the name is forgotten.
    assert not scene.invalidated
    await scene.read_stale(await scene.fs.open(found[0].attr.ino))
    assert set(scene.invalidated) == names_of_shard()
    assert await scene.content(b"x.tar.d", b"a") == b"new a!"
    # The old folder is still the old version for whoever stands in it.
    assert [entry.name for entry in scene.user.take(opened)] == [b"a", b"d", b"empty"]


@pytest.mark.parametrize("shards", [Shards.FILE, Shards.DIR, Shards.BOTH])
async def test_the_other_name_of_a_shard_is_seen_anew_too(shards: Shards, nursery: trio.Nursery):
    scene = Scene(nursery, shards)
    as_file, folder = (b"x.tar.raw", b"x.tar") if shards is Shards.DIR else (b"x.tar", b"x.tar.d")
    scene.put("x.tar", OLD)
    assert await scene.content(folder, b"a") == b"old a"
    handle = await scene.fs.open(await scene.user.ino(as_file))
    scene.put("x.tar", NEW)
    await scene.read_stale(handle)
    assert set(scene.invalidated) == names_of_shard(shards)
    assert await scene.content(as_file) == NEW
    assert await scene.content(folder, b"a") == b"new a!"


@pytest.mark.parametrize("shards", list(Shards))
async def test_deleted_shard(shards: Shards, nursery: trio.Nursery):
    scene = Scene(nursery, shards)
    folder = b"x.tar" if shards is Shards.DIR else b"x.tar.d"
    scene.put("x.tar", OLD)
    handle = await scene.fs.open(await scene.user.ino(folder, b"a"))
    scene.store.delete(BUCKET, "x.tar")
    await scene.read_stale(handle)
    assert set(scene.invalidated) == names_of_shard(shards)
    for name in (b"x.tar", b"x.tar.d", b"x.tar.raw"):
        assert await scene.user.walk(name) is None


async def test_real_key_takes_the_name_of_a_folder(scene: Scene):
    scene.put("x.tar", OLD)
    handle = await scene.fs.open(await scene.user.ino(b"x.tar.d", b"a"))
    scene.put("x.tar", NEW)
    scene.put("x.tar.d", b"real")
    await scene.read_stale(handle)
    assert await scene.content(b"x.tar.d") == b"real"
    assert isinstance(scene.fs.inodes.node(await scene.user.ino(b"x.tar.d")), ObjectNode)


async def test_folder_shown_by_stat_costs_no_scan_even_when_stale(scene: Scene):
    scene.put("x.tar", OLD)
    ino = await scene.user.ino(b"x.tar.d")
    scene.put("x.tar", NEW)
    assert (await scene.fs.getattr(ino)).ino == ino
    assert set(scene.store.calls) == {"list_page"}


ENTER = {
    "opendir": lambda scene, ino: scene.fs.opendir(ino),
    "lookup": lambda scene, ino: scene.fs.lookup(ino, b"a"),
}


@pytest.mark.parametrize("enter", list(ENTER))
async def test_regression_3_folder_that_turned_out_stale_is_looked_up_anew(
    enter: str, scene: Scene
):
    """As a stale read does: else `ls X.tar.d` is ESTALE until the listing expires, 60 s later."""
    scene.put("x.tar", OLD)
    ino = await scene.user.ino(b"x.tar.d")
    scene.put("x.tar", NEW)
    with pytest.raises(Stale):
        await ENTER[enter](scene, ino)
    assert set(scene.invalidated) == names_of_shard()
    assert await scene.content(b"x.tar.d", b"a") == b"new a!"


@pytest.mark.parametrize("enter", list(ENTER))
async def test_regression_3_folder_of_a_shard_that_is_gone_is_looked_up_anew(
    enter: str, scene: Scene
):
    scene.put("x.tar", OLD)
    ino = await scene.user.ino(b"x.tar.d")
    scene.store.delete(BUCKET, "x.tar")
    with pytest.raises((Stale, NotFound)):
        await ENTER[enter](scene, ino)
    assert set(scene.invalidated) == names_of_shard()
    assert await scene.user.walk(b"x.tar.d") is None


async def test_shard_replaced_in_the_middle_of_its_scan(scene: Scene):
    scene.put("x.tar", OLD)
    ino = await scene.user.ino(b"x.tar.d")

    async def replace(method: str, bucket: object, key: str) -> None:
        if method in ("stream", "read_range"):
            scene.store.hook = None
            scene.put("x.tar", NEW)

    scene.store.hook = replace
    with pytest.raises(Stale):
        await scene.fs.opendir(ino)
    assert isinstance(scene.fs.inodes.node(ino), ShardNode)


@pytest.mark.parametrize(
    ("change", "said"), [("put", "changed since"), ("remove", "is gone since")]
)
async def test_changed_is_said_only_of_what_changed(scene: Scene, change: str, said: str):
    scene.put("k", b"old")
    entry = await scene.user.walk(b"k")
    handle = await scene.fs.open(entry.attr.ino)
    if change == "put":
        scene.put("k", b"new!")
    else:
        await scene.store.remove(BUCKET, "k")
    await push_out(scene.store, scene.fs)
    with pytest.raises(Stale, match=said):
        await scene.fs.read(handle, 0, 100)
