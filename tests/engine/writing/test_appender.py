"""New members into shards: what goes together, what is fetched again, and that tar agrees."""

import errno
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from aisfs.engine.writing.appender import (
    END_MARK,
    KEEP_SECONDS,
    KEPT_MAX,
    Appended,
    Appender,
    NewMember,
    ShardCopy,
)
from aisfs.engine.writing.staging import StagingArea
from aisfs.errors import ContentUnreadable, OutOfSpace, ShardDamaged, Stale, Unavailable
from aisfs.model import Bucket
from aisfs.stores.memory import MemoryStore
from aisfs.stores.port import BytesContent
from tests.support.tars import END, entry

B = Bucket("b")
LIMIT = 1 << 20


class Broken:
    """A content that cannot be read to its end."""

    size = 100_000

    def read_into(self, start: int, buffer: memoryview) -> None:
        raise ContentUnreadable("gone")


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    store.put(B, "s.tar", END_MARK)
    return store


@pytest.fixture
def staging(tmp_path: Path):
    staging = StagingArea(tmp_path / "staging", LIMIT)
    yield staging
    staging.close()


@pytest.fixture
def appender(store: MemoryStore, staging: StagingArea, nursery: trio.Nursery):
    return Appender(store, staging, nursery)


def new(path: str, data: bytes | None, *, replaces: bool = False) -> NewMember:
    content = None if data is None else BytesContent(data)
    return NewMember(path, content, None, 10**18, replaces=replaces)


async def read(store: MemoryStore, key: str = "s.tar") -> bytes:
    data = bytearray()
    await store.stream(B, await store.head(B, key), data.extend)
    return bytes(data)


async def members(store: MemoryStore, key: str = "s.tar") -> list[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(await read(store, key))) as tar:
        return [(one.name, tar.extractfile(one).read()) for one in tar]


# together


async def test_what_waits_goes_together(store: MemoryStore, appender: Appender):
    """The first is on its way alone; all who come meanwhile go with the second upload."""
    begun, go_on = trio.Event(), trio.Event()

    async def hook(method: str, bucket: Bucket | None, key: str) -> None:
        if method == "upload":
            begun.set()
            await go_on.wait()

    store.hook = hook
    done: list[str] = []

    async def append(name: str) -> None:
        await appender.append(B, "s.tar", new(name, name.encode()))
        done.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(append, "first")
        await begun.wait()
        for n in range(20):
            nursery.start_soon(append, f"{n}")
        await trio.testing.wait_all_tasks_blocked()
        assert done == [], "nobody is told before the store has it"
        go_on.set()
    assert store.calls["upload"] == 2
    assert sorted(name for name, _ in await members(store)) == sorted(done)
    assert len(done) == 21


async def test_one_that_cannot_be_read_keeps_nobody_else_out(store: MemoryStore, staging, nursery):
    appender = Appender(store, staging, nursery)
    errors: list[BaseException] = []

    async def append(member: NewMember) -> None:
        try:
            await appender.append(B, "s.tar", member)
        except (ContentUnreadable, OutOfSpace) as error:
            errors.append(error)

    async with trio.open_nursery() as tasks:
        tasks.start_soon(append, new("a", b"a"))
        tasks.start_soon(append, NewMember("broken", Broken(), None, 0))
        tasks.start_soon(append, new("too large", bytes(LIMIT)))
        tasks.start_soon(append, new("b", b"b"))
    assert {type(error) for error in errors} == {ContentUnreadable, OutOfSpace}
    assert sorted(await members(store)) == [("a", b"a"), ("b", b"b")]


@pytest.mark.parametrize("beside", [[], [new("b", b"b")]])
async def test_what_was_stored_outlives_a_later_state_that_does_not_fit(
    beside: list[NewMember], store: MemoryStore, staging: StagingArea, appender: Appender
):
    await appender.append(B, "s.tar", new("a", b"first"))
    async with trio.open_nursery() as tasks:
        for member in beside:
            tasks.start_soon(appender.append, B, "s.tar", member)
        with pytest.raises(OutOfSpace):
            await appender.append(B, "s.tar", new("a", bytes(LIMIT), replaces=True))
    await appender.append(B, "s.tar", new("c", b"c"))
    there = {one.path: b"b" for one in beside}
    assert dict(await members(store)) == {"a": b"first", "c": b"c"} | there
    assert len(await members(store)) == 2 + len(beside)


async def test_who_leads_is_cancelled_and_the_others_go_on(store: MemoryStore, appender: Appender):
    begun = trio.Event()

    async def hook(method: str, bucket: Bucket | None, key: str) -> None:
        if method == "upload" and not begun.is_set():
            begun.set()
            await trio.sleep_forever()

    store.hook = hook
    scope = trio.CancelScope()

    async def lead() -> None:
        with scope:
            await appender.append(B, "s.tar", new("leader", b"l"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lead)
        await begun.wait()
        for name in "abc":
            nursery.start_soon(appender.append, B, "s.tar", new(name, b"x"))
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
    assert sorted(name for name, _ in await members(store)) == ["a", "b", "c"]


async def test_who_leads_others_is_cancelled_and_they_go_on(store: MemoryStore, appender: Appender):
    under_way = [trio.Event(), trio.Event()]
    go_on = trio.Event()
    uploads = iter(range(100))

    async def hook(method: str, bucket: Bucket | None, key: str) -> None:
        if method == "upload" and (number := next(uploads)) < 2:
            under_way[number].set()
            if number:
                await trio.sleep_forever()
            await go_on.wait()

    store.hook = hook
    scope = trio.CancelScope()

    async def lead() -> None:
        with scope:
            await appender.append(B, "s.tar", new("leader", b"l"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(appender.append, B, "s.tar", new("first", b"f"))
        await under_way[0].wait()
        nursery.start_soon(lead)
        await trio.testing.wait_all_tasks_blocked()
        for name in "abc":
            nursery.start_soon(appender.append, B, "s.tar", new(name, b"x"))
        await trio.testing.wait_all_tasks_blocked()
        go_on.set()
        await under_way[1].wait()
        scope.cancel()
    assert sorted(name for name, _ in await members(store)) == ["a", "b", "c", "first"]


async def test_each_who_waits_gets_an_error_of_his_own(store: MemoryStore, appender: Appender):
    async def hook(method: str, bucket: Bucket | None, key: str) -> None:
        if method == "upload":
            await trio.sleep(0.01)
            raise Unavailable("no")

    store.hook = hook
    errors: list[BaseException] = []

    async def append(name: str) -> None:
        with pytest.raises(Unavailable) as caught:
            await appender.append(B, "s.tar", new(name, b"x"))
        errors.append(caught.value)

    async with trio.open_nursery() as nursery:
        for n in range(5):
            nursery.start_soon(append, f"{n}")
    assert len({id(error) for error in errors}) == 5
    assert await read(store) == END_MARK
    store.hook = None
    await appender.append(B, "s.tar", new("later", b"x"))
    assert await members(store) == [("later", b"x")]


# versions


async def test_an_attempt_whose_outcome_is_unknown_may_be_repeated(store, appender: Appender):
    lost = True

    async def upload(*args, **kwargs):
        nonlocal lost
        info = await MemoryStore.upload(store, *args, **kwargs)
        if lost:
            lost = False
            raise Unavailable("the reply was lost")
        return info

    store.upload = upload
    with pytest.raises(Unavailable):
        await appender.append(B, "s.tar", new("m", b"content"))
    await appender.append(B, "s.tar", new("m", b"content"))
    assert await members(store) == [("m", b"content")]
    assert store.calls["upload"] == 1, "it was there already"


async def test_a_shard_that_changes_meanwhile_is_read_anew(store: MemoryStore, appender: Appender):
    other = entry(b"theirs", b"t") + END
    changes = 0

    async def hook(method: str, bucket: Bucket | None, key: str) -> None:
        nonlocal changes
        if method in ("stream", "head") and changes < 2:
            changes += 1
            store.put(B, "s.tar", other if changes == 2 else END_MARK)

    store.hook = hook
    await appender.append(B, "s.tar", new("ours", b"o"))
    assert await members(store) == [("theirs", b"t"), ("ours", b"o")]


async def test_the_latest_version_is_asked_for(store: MemoryStore, appender: Appender):
    """Else a shard of a remote bucket would be written as the cluster remembers it."""
    asked: list[bool] = []
    head = store.head

    async def listening(bucket: Bucket, key: str, *, latest: bool = False):
        asked.append(latest)
        return await head(bucket, key)

    store.head = listening
    await appender.append(B, "s.tar", new("m", b"o"))
    assert asked == [True]  # the upload replaces only what was loaded


async def test_a_shard_that_never_rests(store: MemoryStore, appender: Appender):
    async def hook(method: str, bucket: Bucket | None, key: str) -> None:
        if method == "upload":
            store.put(B, "s.tar", END_MARK)

    store.hook = hook
    with pytest.raises(Stale, match="keeps changing it"):
        await appender.append(B, "s.tar", new("m", b"o"))
    assert await members(store) == []


async def test_what_a_shard_has_become_is_told_before_the_caller_knows(store, appender: Appender):
    told: list[Appended] = []
    appender.on_append = told.append
    base = await store.head(B, "s.tar")
    info = await appender.append(B, "s.tar", new("m", b"o"))
    assert [(one.base, one.info, one.growth.in_place) for one in told] == [(base, info, True)]
    await appender.append(B, "s.tar", new("m", b"other", replaces=True))
    assert (told[1].growth.in_place, told[1].growth.replaced) == (True, 0)
    await appender.append(B, "s.tar", new("n", b"n"))
    await appender.append(B, "s.tar", new("m", b"now in the middle", replaces=True))
    assert not told[3].growth.in_place
    assert await members(store) == [("n", b"n"), ("m", b"now in the middle")]


# copies that are kept


async def test_one_download_for_many_members(store: MemoryStore, appender: Appender):
    for n in range(10):
        await appender.append(B, "s.tar", new(f"{n}", b"x" * 1000))
    assert store.calls["stream"] == 1
    store.put(B, "s.tar", END_MARK)  # by somebody else
    await appender.append(B, "s.tar", new("m", b"m"))
    assert store.calls["stream"] == 2
    assert await members(store) == [("m", b"m")]


async def test_a_copy_goes_after_a_while(
    store: MemoryStore, staging: StagingArea, nursery: trio.Nursery, autojump_clock
):
    store.sink_in_thread = False
    appender = Appender(store, staging, nursery)
    await appender.append(B, "s.tar", new("a", b"a"))
    await trio.sleep(KEEP_SECONDS / 2)
    await appender.append(B, "s.tar", new("b", b"b"))
    await trio.sleep(0.75 * KEEP_SECONDS)
    assert staging.used > 0
    await appender.append(B, "s.tar", new("c", b"c"))
    assert store.calls["stream"] == 1
    await trio.sleep(2 * KEEP_SECONDS)
    assert staging.used == 0
    assert not staging.open


async def test_few_copies_are_kept(store: MemoryStore, staging: StagingArea, appender: Appender):
    for n in range(3 * KEPT_MAX):
        store.put(B, f"{n}.tar", END_MARK)
        await appender.append(B, f"{n}.tar", new("m", b"m"))
    assert len(staging.open) == KEPT_MAX


async def test_a_copy_gives_way(store: MemoryStore, staging: StagingArea, appender: Appender):
    await appender.append(B, "s.tar", new("large", bytes(LIMIT // 2)))
    staged = staging.create()
    staged.write(0, bytes(LIMIT - 10))
    assert staging.used <= LIMIT
    with pytest.raises(OutOfSpace):
        await appender.append(B, "s.tar", new("m", b"m"))
    staged.discard()
    await appender.append(B, "s.tar", new("m", b"m"))
    assert [name for name, _ in await members(store)] == ["large", "m"]
    assert store.calls["stream"] == 3


async def test_a_copy_gives_way_on_a_full_disk(
    staging: StagingArea, appender: Appender, monkeypatch: pytest.MonkeyPatch
):
    await appender.append(B, "s.tar", new("large", bytes(LIMIT // 2)))
    staged, pwrite = staging.create(), os.pwrite

    def write(fd: int, data: memoryview, offset: int) -> int:
        if sum(path.stat().st_size for path in staging.directory.rglob("*.data")) > LIMIT // 2:
            raise OSError(errno.ENOSPC, "full")
        return pwrite(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", write)
    staged.write(0, b"more")
    assert staged.read(0, 10) == b"more"


# tar agrees

NAMES = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1, max_size=40
).filter(lambda name: name not in (".", "..") and len(name.encode()) <= 255)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
NEW = st.tuples(PATHS, st.one_of(st.none(), st.binary(max_size=2000)), st.integers(0, 0o777))
FORMATS = st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])


def made(names: dict[str, bytes], form: int, padding: int) -> tuple[bytes, int]:
    """Give a tar with so many zeros behind its last member, and where that ends."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        for name, data in names.items():
            header = tarfile.TarInfo(name)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
        end = file.tell()
    return file.getvalue()[:end] + bytes(padding), end


@settings(deadline=None)
@given(
    before=st.dictionaries(st.from_regex(r"[a-z]{1,12}", fullmatch=True), st.binary(max_size=1500)),
    form=FORMATS,
    padding=st.sampled_from([0, 512, 1024, 1536, 10240, 1 << 17]),
    added=st.lists(NEW, max_size=6, unique_by=lambda one: one[0]),
    cuts=st.integers(0, 6),
)
def test_tar_reads_what_was_there_and_what_is_new(
    tmp_path_factory, before, form, padding, added, cuts
):
    old, end = made(before, form, padding)
    added = [one for one in added if one[0] not in before]
    staging = StagingArea(tmp_path_factory.mktemp("staging"), 1 << 30)
    staged = staging.create()
    staged.write(0, old)
    copy = ShardCopy(staged, "s.tar")
    for some in (added[:cuts], added[cuts:]):
        news = [
            NewMember(path, None if data is None else BytesContent(data), mode, 5 * 10**9)
            for path, data, mode in some
        ]
        assert copy.add(news).errors == [None] * len(some)
    now = staged.read(0, staged.size)
    assert now[:end] == old[:end], "what was there is not touched"
    assert now.endswith(END_MARK)
    assert len(now) % 512 == 0
    with tarfile.open(fileobj=io.BytesIO(now)) as tar:
        found = [
            (one.name, None if one.isdir() else tar.extractfile(one).read(), one.mode, one.mtime)
            for one in tar
        ]
    assert found[: len(before)] == [(name, data, 0o644, 0) for name, data in before.items()]
    assert found[len(before) :] == [(path, data, mode, 5) for path, data, mode in added]
    if added and added[0][0].isprintable():
        (path := tmp_path_factory.mktemp("tar") / "s.tar").write_bytes(now)
        done = subprocess.run(
            ["tar", "-xOf", path, "--", added[0][0]], capture_output=True, check=True
        )
        assert done.stdout.startswith(added[0][1] or b"")
    staging.close()


@pytest.mark.parametrize("cut", [0, 1, 511, 512, 700, 1023, 1024])
def test_a_tar_is_never_taken_for_whole_when_it_is_cut(staging: StagingArea, cut: int):
    whole = entry(b"a", b"a" * 600) + entry(b"b", b"b" * 600)
    staged = staging.create()
    staged.write(0, whole[: len(whole) - cut])
    if cut < 512 - 600 % 512 + 1 or cut == 0:
        assert ShardCopy(staged, "s.tar").add([new("c", b"c")]).changed
        return
    with pytest.raises(ShardDamaged):
        ShardCopy(staged, "s.tar")
