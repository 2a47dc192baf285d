"""Every failure of the store at every operation: it comes out as it is, and nothing remembers it."""

import errno
import logging
from collections.abc import Awaitable, Callable

import pytest
import trio

from aisfs import errors
from aisfs.core.names.inodes import ROOT, directory_number, member_number, split_member
from aisfs.errors import (
    AisfsError,
    BucketNotFound,
    InvalidName,
    IsADirectory,
    NameTooLong,
    NotADirectory,
    NotFound,
    Stale,
    Unavailable,
)
from aisfs.filesystem.errnos import ERRNOS, errno_of
from aisfs.filesystem.nodes import RootNode
from aisfs.model import Provider
from aisfs.settings import Shards
from aisfs.stores.memory import MemoryStore
from tests.filesystem.model import Member, tar_of
from tests.filesystem.user import BUCKET, OFF, User, build, new_store, push_out
from tests.support.for_each import for_each

COMMANDS = {
    errors.ConfigError,
    errors.MountError,
    errors.DaemonSilent,
    errors.FuseUnavailable,
    errors.NoEndpoint,
    errors.SourceMissing,
    errors.IndexRefused,
    errors.IndexOutdated,
    errors.JobNotFound,
    errors.JobFailed,
}
"""What only a command can say, or leads to a scan: no request of the kernel ends in these."""


def _subclasses(cls: type[AisfsError]) -> list[type[AisfsError]]:
    return [cls, *(found for sub in cls.__subclasses__() for found in _subclasses(sub))]


ERRORS = [cls for cls in _subclasses(AisfsError) if cls.__module__ == "aisfs.errors"]
SHARD = (
    Member("a", data=b"member a"),
    Member("d/b", data=b"member b"),
    Member("l", b"2", target="a"),
)


class Scene:
    """A mount of everything with an object, a shard and a directory, and a store that may fail."""

    def __init__(self, nursery: trio.Nursery, **ttls: float) -> None:
        self.store: MemoryStore = new_store()
        for key in ("dir/one", *(f"large/{n}" for n in range(9))):
            self.store.put(BUCKET, key, key.encode())
        self.store.put(BUCKET, "x.tar", tar_of(SHARD))
        self.everything = User(build(self.store, nursery, root=RootNode(), **ttls))
        self.user = User(build(self.store, nursery, **ttls))
        self.fs = self.user.fs

    def fail(self, error: type[AisfsError] | None, method: str = "", after: int = 0) -> None:
        """Make calls of `method`, or all, fail; the first `after` of them still work."""
        left = after

        async def hook(called: str, bucket: object, key: str) -> None:
            nonlocal left
            if method in ("", called):
                left -= 1
                if left < 0:
                    raise error("injected")

        self.store.hook = hook if error else None


Operation = Callable[[Scene], Awaitable[Callable[[], Awaitable[object]]]]
"""Prepares while the store works; gives what is done when it fails."""


async def root_opendir(scene: Scene):
    return lambda: scene.everything.readdir(ROOT)


async def provider_opendir(scene: Scene):
    ino = await scene.everything.ino(b"ais")
    return lambda: scene.everything.readdir(ino)


async def provider_lookup(scene: Scene):
    return lambda: scene.everything.lookup(ROOT, b"s3")


async def bucket_lookup(scene: Scene):
    ino = await scene.everything.ino(b"ais")
    return lambda: scene.everything.lookup(ino, b"pets")


async def bucket_opendir(scene: Scene):
    return lambda: scene.user.readdir(ROOT)


async def directory_opendir(scene: Scene):
    ino = await scene.user.ino(b"dir")
    return lambda: scene.user.readdir(ino)


async def first_lookup(scene: Scene):
    return lambda: scene.user.lookup(ROOT, b"dir")


async def single_lookup(scene: Scene):
    ino = await scene.user.ino(b"large")
    await scene.user.lookup(ino, b"0")
    return lambda: scene.user.lookup(ino, b"8")


async def single_lookup_of_none(scene: Scene):
    ino = await scene.user.ino(b"large")
    await scene.user.lookup(ino, b"0")
    return lambda: scene.user.lookup(ino, b"none")


async def folder_opendir(scene: Scene):
    ino = await scene.user.ino(b"x.tar.d")
    return lambda: scene.user.readdir(ino)


async def folder_lookup(scene: Scene):
    ino = await scene.user.ino(b"x.tar.d")
    return lambda: scene.user.lookup(ino, b"a")


async def numbers_known_before_the_scan(scene: Scene, is_directory: bool) -> int:
    """Numbers of members outlive their index, which memory may have no room for."""
    first, _, _ = split_member(await scene.user.ino(b"x.tar.d"))
    return directory_number(first, 1) if is_directory else member_number(first, 0)


async def member_getattr(scene: Scene):
    ino = await numbers_known_before_the_scan(scene, is_directory=False)
    return lambda: scene.fs.getattr(ino)


async def member_directory_getattr(scene: Scene):
    ino = await numbers_known_before_the_scan(scene, is_directory=True)
    return lambda: scene.fs.getattr(ino)


async def member_directory_opendir(scene: Scene):
    ino = await numbers_known_before_the_scan(scene, is_directory=True)
    return lambda: scene.user.readdir(ino)


async def member_open(scene: Scene):
    ino = await numbers_known_before_the_scan(scene, is_directory=False)
    return lambda: scene.fs.open(ino)


async def member_readlink(scene: Scene):
    ino = await numbers_known_before_the_scan(scene, is_directory=False) + 2
    return lambda: scene.fs.readlink(ino)


async def object_read(scene: Scene):
    handle = await scene.fs.open(await scene.user.ino(b"dir", b"one"))
    return lambda: scene.fs.read(handle, 0, 100)


async def member_read(scene: Scene):
    handle = await scene.fs.open(await scene.user.ino(b"x.tar.d", b"a"))
    await push_out(scene.store, scene.fs)  # the scan read this shard
    return lambda: scene.fs.read(handle, 0, 100)


OPERATIONS: list[Operation] = [
    root_opendir,
    provider_opendir,
    provider_lookup,
    bucket_lookup,
    bucket_opendir,
    directory_opendir,
    first_lookup,
    single_lookup,
    single_lookup_of_none,
    folder_opendir,
    folder_lookup,
    member_getattr,
    member_directory_getattr,
    member_directory_opendir,
    member_open,
    member_readlink,
    object_read,
    member_read,
]
ANSWERED = {
    # The store's word that a name is not there is the answer to a look-up, not a failure.
    **{
        (operation, error): None
        for operation in (single_lookup, single_lookup_of_none)
        for error in (NotFound, BucketNotFound, InvalidName)
    },
    (bucket_lookup, BucketNotFound): None,
}
READS = (object_read, member_read)


def expected(operation: Operation, error: type[AisfsError]) -> type[AisfsError]:
    """What the injected error comes out as."""
    # An open file is one version: when that is gone, the file is stale.
    return Stale if operation in READS and issubclass(error, Stale | NotFound) else error


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
@for_each("error", ERRORS)
async def test_error_comes_out_and_is_not_remembered(
    operation: Operation, error: type[AisfsError], nursery: trio.Nursery
):
    # Listings are kept where the operation is about what they are kept for.
    lookups = (first_lookup, single_lookup, single_lookup_of_none)
    ttls = OFF | ({"list_ttl": 60.0} if operation in lookups else {})
    scene = Scene(nursery, **ttls)
    act = await operation(scene)
    books = dict(scene.user.counts)
    scene.fail(error)
    if (operation, error) in ANSWERED:
        assert await act() is None
    else:
        with pytest.raises(AisfsError) as caught:
            await act()
        # Where the bytes of an object are wanted, it says that a disk cache would help.
        told = {error: errors.Unsupported} if error is errors.NoRanges else {}
        assert type(caught.value) in {expected(operation, error), *told.values()}
        assert errno_of(caught.value) == ERRNOS.get(type(caught.value), (errno.EIO, logging.ERROR))
    assert scene.user.counts == books, "what failed is not counted"
    scene.user.check_counts()

    scene.fail(None)
    found = await act()
    assert (found is None) == (operation in (provider_lookup, single_lookup_of_none))
    scene.user.forget_all()
    scene.everything.forget_all()


@for_each("error", ERRORS)
@for_each("page", [1, 2])
async def test_a_listing_is_complete_or_an_error(
    page: int, error: type[AisfsError], nursery: trio.Nursery
):
    scene = Scene(nursery)
    ino = await scene.user.ino(b"large")
    scene.fail(error, "list_page", after=page)
    with pytest.raises(AisfsError) as caught:
        await scene.fs.opendir(ino)
    assert type(caught.value) is error
    scene.fail(None)
    assert len(await scene.user.readdir(ino)) == 9


async def test_error_of_a_head_comes_out_of_a_single_lookup(nursery: trio.Nursery):
    scene = Scene(nursery, **OFF)
    scene.fail(Unavailable, "head")
    with pytest.raises(Unavailable):
        await scene.user.lookup(ROOT, b"x.tar")
    assert await scene.user.lookup(ROOT, b"dir") is not None  # needs no HEAD


@pytest.mark.parametrize("method", ["list_page", "list_buckets"])
async def test_a_deleted_bucket_is_not_an_empty_directory(method: str, nursery: trio.Nursery):
    scene = Scene(nursery, **OFF)
    ino = await scene.everything.ino(b"ais", b"pets")
    scene.store.delete_bucket(BUCKET)
    if method == "list_page":
        with pytest.raises(BucketNotFound):
            await scene.everything.readdir(ino)
    assert await scene.everything.walk(b"ais", b"pets") is None
    assert [entry.name for entry in await scene.everything.readdir(ROOT)] == [b"ais"]


async def test_a_bucket_that_may_not_be_listed_is_found_by_name(nursery: trio.Nursery):
    scene = Scene(nursery, **OFF)
    scene.fail(errors.AccessDenied, "list_buckets")
    assert await scene.everything.walk(b"ais", b"pets", b"dir") is not None
    assert await scene.everything.walk(b"ais", b"none") is None
    with pytest.raises(errors.AccessDenied):
        await scene.everything.readdir(ROOT)


async def test_names_of_the_mount_of_everything(nursery: trio.Nursery):
    scene = Scene(nursery, **OFF)
    scene.store.add_bucket(type(BUCKET)("cloud", Provider.AWS))
    scene.store.add_bucket(type(BUCKET)("b", Provider.AIS, "@uuid#space"))
    user = scene.everything
    assert [entry.name for entry in await user.readdir(ROOT, step=1)] == [b"ais", b"s3"]
    ais = await user.readdir(await user.ino(b"ais"), step=1)
    assert sorted(entry.name for entry in ais) == [b"b@uuid#space", b"pets"]
    for path in ((b"ais", b"b@uuid#space"), (b"s3", b"cloud")):
        assert await user.readdir(await user.ino(*path)) == []
    for missing in ((b"aws",), (b"gs",), (b"s3", b"pets"), (b"ais", b"b")):
        assert await user.walk(*missing) is None


# Operations on the wrong kind of thing -----------------------------------------------------------


@pytest.fixture
async def kinds(nursery: trio.Nursery) -> tuple[User, dict[str, int]]:
    """The number of each kind of inode, in both ways a shard is shown."""
    scene = Scene(nursery)
    names = {
        "object": (b"dir", b"one"),
        "shard": (b"x.tar",),
        "member": (b"x.tar.d", b"a"),
        "link": (b"x.tar.d", b"l"),
        "directory": (b"dir",),
        "folder": (b"x.tar.d",),
        "member directory": (b"x.tar.d", b"d"),
    }
    found = {kind: await scene.user.ino(*path) for kind, path in names.items()}
    return scene.user, {**found, "root": ROOT}


FILES = ("object", "shard", "member", "link")
FOLDERS = ("directory", "folder", "member directory", "root")


@for_each("kind", [*FILES, *FOLDERS])
async def test_each_kind_is_used_as_what_it_is(kind: str, kinds):
    user, inos = kinds
    ino = inos[kind]
    attr = await user.fs.getattr(ino)
    assert attr.ino == ino
    assert (attr.mode & 0o170000 == 0o040000) == (kind in FOLDERS)
    if kind in FILES:
        for use in (lambda: user.fs.lookup(ino, b"below"), lambda: user.fs.opendir(ino)):
            with pytest.raises(NotADirectory):
                await use()
    else:
        with pytest.raises(IsADirectory):
            await user.fs.open(ino)
        with pytest.raises(NameTooLong):
            await user.fs.lookup(ino, b"n" * 256)
        assert await user.fs.lookup(ino, b"n" * 255) is None
    if kind == "link":
        assert await user.fs.readlink(ino) == b"a"
    else:
        with pytest.raises(NotFound):
            await user.fs.readlink(ino)


@for_each("ino", [2, 4711, 1 << 63, (1 << 63) + 5, (1 << 64) - 1])
async def test_unknown_inode_is_stale(ino: int, kinds):
    user, _ = kinds
    for act in (user.fs.getattr, user.fs.open, user.fs.opendir, user.fs.readlink):
        with pytest.raises(Stale):
            await act(ino)
    with pytest.raises(Stale):
        await user.fs.lookup(ino, b"a")


async def test_forgotten_inode_is_stale(kinds):
    user, inos = kinds
    user.forget_all()
    assert (await user.fs.getattr(inos.pop("root"))).ino == ROOT, "it is never forgotten"
    for ino in inos.values():
        with pytest.raises(Stale):
            await user.fs.getattr(ino)


@pytest.mark.parametrize("shards", list(Shards))
async def test_nothing_is_below_the_bytes_of_a_shard(shards: Shards, nursery: trio.Nursery):
    store = new_store()
    store.put(BUCKET, "x.tar", tar_of(SHARD))
    user = User(build(store, nursery, shards=shards))
    as_file = await user.ino(b"x.tar.raw" if shards is Shards.DIR else b"x.tar")
    with pytest.raises(NotADirectory):
        await user.fs.lookup(as_file, b"a")
    folder = b"x.tar" if shards is Shards.DIR else b"x.tar.d"
    assert await user.walk(folder, b"a") is not None
    with pytest.raises(NotADirectory):
        await user.fs.lookup(await user.ino(folder, b"a"), b"x")


# The table ---------------------------------------------------------------------------------------


def test_every_error_of_a_request_is_in_the_table():
    assert set(ERRNOS) == set(ERRORS) - COMMANDS - {AisfsError}


@for_each("error", sorted(COMMANDS, key=lambda cls: cls.__name__))
def test_what_is_not_in_the_table_is_eio(error: type[AisfsError]):
    assert errno_of(error("at mount time only")) == (errno.EIO, logging.ERROR)


@for_each("error", sorted(ERRNOS, key=lambda cls: cls.__name__))
def test_a_kind_of_an_error_is_mapped_like_it(error: type[AisfsError]):
    class Special(error):
        pass

    assert errno_of(Special("as its parent")) == ERRNOS[error]
