"""What every implementation of the port does alike.

One suite for the store in memory, the retrying decorator, a local directory, the client over the
embedded server, and, with AIS_ENDPOINT set, the client over that cluster. What can only be read is
written to behind the store's back: files of web servers, of the hub, and of fsspec. Clouds are emulators;
see `tests.support.clouds`.
"""

import os

import pytest
import requests
import trio

from aisfs.errors import BucketNotFound, NotFound, Stale, Unsupported
from aisfs.model import ObjectInfo
from tests.contract.subjects import ClusterSubject
from tests.support.for_each import for_each

PINNED = "what it was opened at does not change"

# Listings


async def test_buckets(subject):
    if not subject.lists_buckets:
        with pytest.raises(Unsupported):
            await subject.store.list_buckets()
        return
    assert subject.bucket in await subject.store.list_buckets()
    listed = await subject.store.list_buckets(subject.bucket.provider)
    assert subject.bucket in listed
    assert listed == sorted(listed)


@pytest.mark.parametrize("page_size", [6, 1000])
async def test_pages_are_complete(subject, page_size):
    subject.page_size(page_size)
    keys = ["a", "b", "dir/1", "dir/2", "dir/sub/x", "dir/sub/y", "dir-2", "e/f/g/h", "z"]
    for key in keys:
        subject.put(key, key.encode())
    expected = {
        "": (["a", "b", "dir-2", "z"], ["dir/", "e/"]),
        "dir/": (["dir/1", "dir/2"], ["dir/sub/"]),
        "dir/sub/": (["dir/sub/x", "dir/sub/y"], []),
        "e/": ([], ["e/f/"]),
        "e/f/g/": (["e/f/g/h"], []),
    }
    for prefix, (names, directories) in expected.items():
        objects, found = await subject.list(prefix)
        assert [info.key for info in objects] == names
        assert found == directories
        for info in objects:
            assert info.size == len(info.key)


@pytest.mark.parametrize("page_size", [12, 20])
async def test_no_name_is_lost_between_pages(subject, page_size):
    """Names that go on where a directory's has its slash: a real cluster mixes these up."""
    subject.page_size(page_size)
    objects = {f"n{rest}" for rest in (" y", "-2", "-d", ".tar", "0", ".d.tar", "-d.x", "")} | {"m"}
    objects |= {f"n-{n:02}.tar" for n in range(30)}
    directories = {f"n{rest}/" for rest in ("", "-d", " y", ".tar", "-d.x", "0", ".d")}
    if not subject.name_may_be_file_and_directory:
        objects -= {name.removesuffix("/") for name in directories}
    for name in objects | {f"{directory}x" for directory in directories}:
        subject.put(name, b"1")
    found, below = await subject.list("")
    assert {info.key for info in found} == objects
    assert set(below) == directories


async def test_neighbours_of_a_directory_are_not_lost(subject):
    """A cluster that is asked for `a` looks at nothing but `a/`, on each disk that has it."""
    neighbours = {f"a{rest}" for rest in ("-1", ".tar", *(f"b{n}" for n in range(8)))}
    below = {f"a/{n}" for n in range(8)} | {"a/b"}
    deep = {f"d/e/{n}" for n in range(8)}
    for key in neighbours | below | deep | {f"d/e{n}" for n in range(8)} | {"ab/x", "abc/x"}:
        subject.put(key, b"1")
    found, directories = await subject.list("")
    assert {info.key for info in found} == neighbours
    assert directories == ["a/", "ab/", "abc/", "d/"]
    assert {info.key for info in (await subject.list("a/"))[0]} == below
    found, directories = await subject.list("d/")
    assert {info.key for info in found} == {f"d/e{n}" for n in range(8)}
    assert directories == ["d/e/"]
    for sure in (False, True):
        keys = await subject.store.first_keys(subject.bucket, "d/e/", 20, sure=sure)
        assert (set(keys.found), keys.complete) == (deep, True)


async def test_first_keys_tell_what_is_below(subject):
    for key in ("a/1", "a/b/2", "a/b/3", "ab/4", "c/d/e/5"):
        subject.put(key, b"")
    store, bucket = subject.store, subject.bucket
    for prefix, most, found in (
        ("a/", 5, {"a/1", "a/b/2", "a/b/3"}),
        ("a/b/", 2, {"a/b/2", "a/b/3"}),
        ("c/", 1, {"c/d/e/5"}),
        ("", 9, {"a/1", "a/b/2", "a/b/3", "ab/4", "c/d/e/5"}),
        ("b/", 1, set()),
        ("a/1/", 1, set()),
    ):
        keys = await store.first_keys(bucket, prefix, most)
        assert (set(keys.found), keys.complete) == (found, True), prefix
    some = await store.first_keys(bucket, "a/", 1)
    assert len(some.found) == 1
    assert not some.complete
    with pytest.raises(BucketNotFound):
        await store.first_keys(subject.nowhere(), "a/", 1)


async def test_emptied_directory_has_no_keys(subject):
    if not subject.follows_changes:
        pytest.skip(PINNED)
    subject.put("deep/sub/x", b"x")
    assert (await subject.store.first_keys(subject.bucket, "deep/", 1)).found == ["deep/sub/x"]
    subject.delete("deep/sub/x")
    assert (await subject.store.first_keys(subject.bucket, "deep/", 1)).found == []


async def test_what_is_below_a_directory_is_found_beside_an_object_of_its_name(subject):
    """A cluster's listing of such a directory is right only now and then."""
    both = []
    for name in (f"d{n}" for n in range(24)):
        subject.put(f"{name}/sub/x", b"x")
        try:
            subject.put(name, b"1")
        except (OSError, requests.HTTPError):  # where the two would lie on one disk
            continue
        both.append(name)
    if not both:
        pytest.skip("a directory has no two of one name")
    for name in both:
        for prefix in (f"{name}/", f"{name}/sub/"):
            found = await subject.store.first_keys(subject.bucket, prefix, 1, sure=True)
            assert found.found == [f"{name}/sub/x"]
        for prefix in (f"{name}/su/", f"{name}/sub/x/"):
            found = await subject.store.first_keys(subject.bucket, prefix, 1, sure=True)
            assert found.found == []


@for_each("prefix", ["~/", "~/x/", "./", "../", "a/../"])
async def test_what_no_key_begins_with_is_an_empty_directory(subject, prefix):
    if not isinstance(subject, ClusterSubject):
        pytest.skip("AIStore refuses to list these; a directory of this machine may have a `~`")
    subject.put("~x/y", b"")
    assert await subject.list(prefix) == ([], [])
    assert (await subject.store.first_keys(subject.bucket, prefix, 1)).found == []
    assert (await subject.list("~x/"))[0] != []


async def test_listing_and_head_agree(subject):
    subject.put("dir/k", b"12345")
    subject.put("dir/zero", b"")
    objects, _ = await subject.list("dir/")
    assert len(objects) == 2
    for info in objects:
        assert info == await subject.store.head(subject.bucket, info.key)


async def test_empty_and_missing_directories(subject):
    assert await subject.list("") == ([], [])
    subject.put("dir/k", b"")
    assert await subject.list("/") == ([], [])
    for prefix in ("no/", "dir/no/", "dir/k/", "di/"):
        assert await subject.list(prefix) == ([], [])
        if subject.knows_directories:
            with pytest.raises(NotFound):
                await subject.store.list_page(subject.bucket, prefix)
        assert not (await subject.store.first_keys(subject.bucket, prefix, 5)).found


async def test_one_prefix_is_not_another(subject):
    for key in ("aa/1", "aab/2", "aa-", "aa.txt"):
        subject.put(key, b"")
    objects, directories = await subject.list("aa/")
    assert ([info.key for info in objects], directories) == (["aa/1"], [])


async def test_odd_names(subject):
    for key in subject.odd_names:
        subject.put(f"dir/{key}", os.fsencode(key))
        subject.put(f"{key[:250]}-d/k", b"")
    objects, _ = await subject.list("dir/")
    assert sorted(info.key for info in objects) == sorted(f"dir/{key}" for key in subject.odd_names)
    _, directories = await subject.list("")
    odd = [f"{key[:250]}-d/" for key in subject.odd_names]
    assert sorted(directories) == sorted(["dir/", *odd])
    for info in objects:
        data = os.fsencode(info.key.removeprefix("dir/"))
        assert (await subject.store.head(subject.bucket, info.key)).size == len(data)
        assert await subject.read(info, 0, len(data)) == data
    for directory in odd:
        found, _ = await subject.list(directory)
        assert [info.key for info in found] == [directory + "k"]


async def test_names_that_are_not_utf8(subject):
    if not subject.names_are_bytes:
        pytest.skip("the server has its own way to encode them")
    key = "dir/a\udcff\udcfe"
    subject.put(key, b"12345")
    subject.put("dir/z", b"")
    objects, _ = await subject.list("dir/")
    assert [info.key for info in objects] == [key, "dir/z"]
    assert await subject.store.head(subject.bucket, key) == objects[0]
    assert await subject.read(objects[0], 1, 3) == b"23"


async def test_a_name_that_is_object_and_directory(subject):
    if not subject.name_may_be_file_and_directory:
        pytest.skip("not every placement of the two permits it")
    subject.put("p", b"1")
    subject.put("p/q", b"12")
    for page_size in (1, 10):
        subject.page_size(page_size)
        objects, directories = await subject.list("")
        assert ([info.key for info in objects], directories) == (["p"], ["p/"])


async def test_missing_bucket(subject):
    nowhere = subject.nowhere()
    info = ObjectInfo("k", 5, "1")
    with pytest.raises(BucketNotFound):
        await subject.store.list_page(nowhere, "")
    with pytest.raises(BucketNotFound):
        await subject.store.head(nowhere, "k")
    with pytest.raises(BucketNotFound):
        await subject.store.read_range(nowhere, info, 0, memoryview(bytearray(5)))
    with pytest.raises(BucketNotFound):
        await subject.store.stream(nowhere, info, lambda piece: None)


# Objects


async def test_missing_object(subject):
    subject.put("dir/k", b"12345")
    for key in ("no", "dir", "dir/k/x", "dir/", "no/no"):
        with pytest.raises(NotFound) as caught:
            await subject.store.head(subject.bucket, key)
        assert caught.type is NotFound


async def test_ranges(subject):
    data = bytes(range(256)) * 5000
    subject.put("k", data)
    info = await subject.store.head(subject.bucket, "k")
    end = len(data)
    ranges = [(0, 1), (0, end), (end - 1, end), (1, end - 1), (4095, 4097), (0, end - 1), (1, end)]
    for start, stop in ranges:
        assert await subject.read(info, start, stop) == data[start:stop]


async def test_range_fills_a_part_of_a_larger_buffer(subject):
    subject.put("k", b"0123456789")
    info = await subject.store.head(subject.bucket, "k")
    buffer = bytearray(b"." * 9)
    await subject.store.read_range(subject.bucket, info, 4, memoryview(buffer)[3:6])
    assert buffer == b"...456..."


@for_each("start, length", [(0, 0), (5, 0), (5, 1), (0, 6), (9, 1)])
async def test_ranges_outside_are_never_sent(subject, start, length):
    subject.put("k", b"12345")
    info = await subject.store.head(subject.bucket, "k")
    with pytest.raises(ValueError, match=r"."):
        await subject.read(info, start, start + length)


@pytest.mark.parametrize("size", [0, 1, (3 << 20) + 1])
async def test_stream(subject, size):
    data = bytes(i % 251 for i in range(1000)) * (size // 1000 + 1)
    data = data[:size]
    subject.put("k", data)
    info = await subject.store.head(subject.bucket, "k")
    assert info.size == size
    assert await subject.stream(info) == data


async def test_overwritten_object_is_stale(subject):
    if not subject.follows_changes:
        pytest.skip(PINNED)
    for change in (b"54321", b"123456", b"", b"1234"):
        subject.put("k", b"12345")
        info = await subject.store.head(subject.bucket, "k")
        subject.put("k", change)
        with pytest.raises(Stale):
            await subject.read(info, 0, 3)
        with pytest.raises(Stale):
            await subject.stream(info)
        fresh = await subject.store.head(subject.bucket, "k")
        assert not fresh.same_content(info)
        assert await subject.stream(fresh) == change


async def test_deleted_object_is_not_found(subject):
    if not subject.follows_changes:
        pytest.skip(PINNED)
    subject.put("dir/k", b"12345")
    info = await subject.store.head(subject.bucket, "dir/k")
    subject.delete("dir/k")
    for call in (
        subject.store.head(subject.bucket, "dir/k"),
        subject.read(info, 0, 3),
        subject.stream(info),
    ):
        with pytest.raises(NotFound):
            await call


class SinkError(Exception):
    pass


async def test_exception_of_a_sink_comes_out(subject):
    data = b"x" * (3 << 20)
    subject.put("k", data)
    info = await subject.store.head(subject.bucket, "k")

    def sink(piece: memoryview) -> None:
        raise SinkError

    with pytest.raises(SinkError):
        await subject.store.stream(subject.bucket, info, sink)
    assert await subject.stream(info) == data
    # Nothing of it is left on the server, least of all the object's lock.
    subject.put("k", b"new")


async def test_fifty_calls_at_once(subject):
    data = bytes(range(256)) * 1000
    subject.put("dir/k", data)
    info = await subject.store.head(subject.bucket, "dir/k")
    done = []

    async def call(i: int) -> None:
        if i % 10 == 9:
            assert (await subject.list("dir/"))[0] == [info]
        else:
            start = i * 1000
            assert await subject.read(info, start, start + 5000) == data[start : start + 5000]
        done.append(i)

    async with trio.open_nursery() as nursery:
        for i in range(50):
            nursery.start_soon(call, i)
    assert len(done) == 50


async def test_cancelled_calls_leave_nothing_behind(subject):
    data = bytes(1 << 20)
    subject.put("k", data)
    info = await subject.store.head(subject.bucket, "k")
    for delay in (0, 0.001, 0.005):
        with trio.move_on_after(delay):
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(subject.read, info, 0, len(data))
                    nursery.start_soon(subject.stream, info)
    assert await subject.read(info, 0, 10) == data[:10]
    with trio.fail_after(10):
        await trio.to_thread.run_sync(subject.put, "k", b"new")


# Many at once


async def test_many_at_once_are_these_versions_or_not_filled(subject):
    contents = {f"dir/{n}": b"%d" % n * 100 for n in range(20)} | {"dir/" + "long" * 40: b"x" * 777}
    for key, data in contents.items():
        subject.put(key, data)
    known = [await subject.store.head(subject.bucket, key) for key in contents]
    subject.put("dir/3", b"y" * 100)
    subject.delete("dir/4")
    wanted = [(info, memoryview(bytearray(info.size))) for info in known]
    try:
        filled = await subject.store.read_many(subject.bucket, wanted)
    except Unsupported:
        return
    brought = {info.key for (info, _), one in zip(wanted, filled, strict=True) if one}
    assert brought == contents.keys() - {"dir/3", "dir/4"}
    for info, buffer in wanted:
        if info.key in brought:
            assert buffer == contents[info.key]


async def test_many_ranges_are_of_these_versions_or_not_filled(subject):
    contents = {"dir/a": bytes(range(256)) * 40, "dir/b": b"b" * 700}
    for key, data in contents.items():
        subject.put(key, data)
    first, second = [await subject.store.head(subject.bucket, key) for key in contents]
    subject.put("dir/b", b"c" * 700)
    places = [
        (first, start, length) for start, length in ((0, 1), (512, 600), (7, 9000), (10239, 1))
    ]
    wanted = [(info, at, memoryview(bytearray(n))) for info, at, n in [*places, (second, 5, 5)]]
    try:
        filled = await subject.store.read_ranges(subject.bucket, wanted)
    except Unsupported:
        return
    assert filled == [True] * 4 + [False]
    for info, start, buffer in wanted[:4]:
        assert buffer == contents[info.key][start : start + len(buffer)]
