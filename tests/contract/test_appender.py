"""New members into shards of every kind of store: nothing is lost, and tar reads what comes out."""

import io
import random
import tarfile

import pytest
import trio

from aisfs.engine.writing.appender import END_MARK, Appender, NewMember
from aisfs.engine.writing.staging import StagingArea
from aisfs.errors import BucketNotFound, NotFound, ShardDamaged, Unsupported
from aisfs.stores.port import BytesContent

TIME = 1_600_000_000


@pytest.fixture
async def appender(subject, tmp_path, nursery):
    staging = StagingArea(tmp_path / "staging", 1 << 30)
    yield Appender(subject.store, staging, nursery)
    nursery.cancel_scope.cancel()
    staging.close()


def new(path: str, data: bytes | None, *, mode: int | None = None) -> NewMember:
    content = None if data is None else BytesContent(data)
    return NewMember(path, content, mode, TIME * 10**9)


def made_elsewhere(names: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, data in names.items():
            header = tarfile.TarInfo(name)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
    return file.getvalue()


def members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


async def read(subject, key: str) -> bytes:
    data = bytearray()
    await subject.store.stream(
        subject.bucket, await subject.store.head(subject.bucket, key), data.extend
    )
    return bytes(data)


async def test_one_after_the_other(subject, appender):
    bucket = subject.bucket
    wanted = [
        ("a", b"1"),
        ("dir/b.jpg", b"x" * 5000),
        ("empty", b""),
        ("dir/" + "n" * 200, b"y" * 512),
        ("large", random.Random(1).randbytes(3 << 20)),
    ]
    subject.put("d/s.tar", END_MARK)
    last = await subject.store.head(bucket, "d/s.tar")
    for name, data in wanted:
        info = await appender.append(bucket, "d/s.tar", new(name, data))
        assert info.same_content(await subject.store.head(bucket, "d/s.tar"))
        assert not last.same_content(info)
        last = info
    content = await read(subject, "d/s.tar")
    assert members(content) == dict(wanted)
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        assert {(member.mode, member.mtime) for member in tar} == {(0o644, TIME)}
    assert content.endswith(END_MARK)


async def test_a_directory(subject, appender):
    subject.put("s.tar", END_MARK)
    await appender.append(subject.bucket, "s.tar", new("d", None, mode=0o750))
    await appender.append(subject.bucket, "s.tar", new("d/m", b"m", mode=0o600))
    with tarfile.open(fileobj=io.BytesIO(await read(subject, "s.tar"))) as tar:
        found = [(member.name, member.isdir(), member.mode) for member in tar]
    assert found == [("d", True, 0o750), ("d/m", False, 0o600)]


async def test_to_a_tar_made_elsewhere(subject, appender):
    before = made_elsewhere({"first": b"f" * 700})
    subject.put("s.tar", before)
    await appender.append(subject.bucket, "s.tar", new("second", b"s"))
    after = await read(subject, "s.tar")
    assert members(after) == {"first": b"f" * 700, "second": b"s"}
    assert after[: 3 * 512] == before[: 3 * 512]


async def test_what_cannot_be_added_to_stays_as_it_is(subject, appender):
    one, two = made_elsewhere({"a": b"a" * 700}), made_elsewhere({"b": b"b"})
    for content, error in [
        (b"hello" * 300, ShardDamaged),
        (b"hello", ShardDamaged),
        (one[:1000], ShardDamaged),
        (one[:2000], None),
        (one[:512] + b"?" * 9728, ShardDamaged),
        (one + two, ShardDamaged),
        (one + bytes(1 << 17) + two, Unsupported),
        (one + b"signature".ljust(512, b"."), Unsupported),
    ]:
        subject.put("s.tar", content)
        if error is None:
            await appender.append(subject.bucket, "s.tar", new("m", b"m"))
            continue
        with pytest.raises(error, match="nothing can be added"):
            await appender.append(subject.bucket, "s.tar", new("m", b"m"))
        assert await read(subject, "s.tar") == content


async def test_what_is_not_there(subject, appender):
    with pytest.raises(NotFound):
        await appender.append(subject.bucket, "none.tar", new("m", b"m"))
    with pytest.raises(BucketNotFound):
        await appender.append(subject.nowhere(), "s.tar", new("m", b"m"))
    with pytest.raises(NotFound):
        await subject.store.head(subject.bucket, "none.tar")


async def test_many_at_once(subject, appender):
    wanted = {f"{n:02}": b"%d" % n * 5000 for n in range(40)}
    subject.put("s.tar", END_MARK)
    async with trio.open_nursery() as nursery:
        for name, data in wanted.items():
            nursery.start_soon(appender.append, subject.bucket, "s.tar", new(name, data))
    content = await read(subject, "s.tar")
    assert members(content) == wanted
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        assert len(tar.getnames()) == len(wanted)


async def test_somebody_else_writes_the_shard_too(subject, appender):
    subject.put("s.tar", END_MARK)
    await appender.append(subject.bucket, "s.tar", new("ours", b"1"))
    subject.put("s.tar", made_elsewhere({"theirs": b"2"}))
    await appender.append(subject.bucket, "s.tar", new("later", b"3"))
    assert members(await read(subject, "s.tar")) == {"theirs": b"2", "later": b"3"}


async def test_at_any_moment_whole(subject, appender):
    """Whoever is cancelled leaves the shard as it was or as it was to be, and the next goes on."""
    subject.put("s.tar", END_MARK)
    for number, delay in enumerate((0, 0.001, 0.005, 0.01, 0.02, 0.04)):
        before = members(await read(subject, "s.tar"))
        with trio.move_on_after(delay):
            await appender.append(subject.bucket, "s.tar", new(f"c{number}", b"c" * 100_000))
        await appender.append(subject.bucket, "s.tar", new(f"n{number}", b"n"))
        now = members(await read(subject, "s.tar"))
        assert now.pop(f"n{number}") == b"n"
        assert now.pop(f"c{number}", b"c" * 100_000) == b"c" * 100_000
        assert now == before
