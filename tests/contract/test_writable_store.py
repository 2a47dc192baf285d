"""What every implementation of the port does alike when it writes."""

import os
import random
import sys
import uuid

import pytest
import trio

from aisfs.errors import (
    AlreadyExists,
    BucketNotFound,
    ContentUnreadable,
    InvalidName,
    NameTooLong,
    NotFound,
    Stale,
    Unavailable,
    Unsupported,
)
from aisfs.model import Bucket, Provider
from aisfs.stores.port import BytesContent, FileContent, PartOfContent, Upload
from tests.support.for_each import for_each

BIG = random.Random(5).randbytes((9 << 20) + 17)


def open_file(path):
    return open(path, "rb")


async def read(subject, key):
    info = await subject.store.head(subject.bucket, key)
    return await subject.stream(info)


async def upload(subject, key, data, **kwargs):
    return await subject.store.upload(Upload(subject.bucket, key, BytesContent(data), **kwargs))


async def keys(subject, prefix=""):
    objects, directories = await subject.list(prefix)
    found = [info.key for info in objects]
    for directory in directories:
        found += await keys(subject, directory)
    return sorted(found)


async def test_create_bucket(subject):
    if not subject.lists_buckets:
        with pytest.raises(Unsupported):
            await subject.store.create_bucket(subject.bucket)
        return
    with pytest.raises(AlreadyExists):
        await subject.store.create_bucket(subject.bucket)
    new = Bucket(f"new-{uuid.uuid4().hex[:12]}")
    if subject.bucket.path:  # a directory is one bucket
        with pytest.raises(Unsupported):
            await subject.store.create_bucket(new)
        return
    with pytest.raises(BucketNotFound):
        await subject.store.list_page(new, "")
    await subject.store.create_bucket(new)
    try:
        assert new in await subject.store.list_buckets()
        await subject.store.upload(Upload(new, "k", BytesContent(b"new")))
        with pytest.raises(AlreadyExists):
            await subject.store.create_bucket(new)
        assert (await subject.store.head(new, "k")).size == 3
        for name in (".hidden", "a..b", "x" * 65, "a b", "a/b", ""):
            with pytest.raises(InvalidName):
                await subject.store.create_bucket(Bucket(name))
        with pytest.raises(Unsupported):
            await subject.store.create_bucket(Bucket("b", Provider.AWS))
    finally:
        subject.destroy_bucket(new)


@for_each("data", [b"", b"1", b"12345" * 1000, BIG])
async def test_upload(subject, data):
    info = await upload(subject, "dir/k", data)
    assert info == await subject.store.head(subject.bucket, "dir/k")
    assert (info.key, info.size) == ("dir/k", len(data))
    assert await read(subject, "dir/k") == data
    assert (await subject.list("dir/"))[0] == [info]


async def test_overwriting_is_another_version(subject):
    for data in (b"first", b"second", b"third", b"third!", b""):
        old = await upload(subject, "k", b"before")
        new = await upload(subject, "k", data)
        assert not old.same_content(new)
        assert await read(subject, "k") == data
        with pytest.raises(Stale):
            await subject.read(old, 0, 1)


async def test_the_same_bytes_again(subject):
    await upload(subject, "k", b"same")
    info = await upload(subject, "k", b"same")
    assert info == await subject.store.head(subject.bucket, "k")
    assert await subject.stream(info) == b"same"


async def test_content_of_a_file_and_of_a_part(subject, tmp_path):
    (tmp_path / "file").write_bytes(BIG)
    with open_file(tmp_path / "file") as file:
        whole = FileContent(file.fileno(), len(BIG))
        await subject.store.upload(Upload(subject.bucket, "whole", whole))
        part = PartOfContent(whole, 1000, 5 << 20)
        await subject.store.upload(Upload(subject.bucket, "part", part))
    assert await read(subject, "whole") == BIG
    assert await read(subject, "part") == BIG[1000 : 1000 + (5 << 20)]


@for_each("size", [10, len(BIG)])
async def test_content_that_cannot_be_read_changes_nothing(subject, tmp_path, size):
    (tmp_path / "file").write_bytes(b"x" * (size - 1))
    await upload(subject, "old", b"old")
    with open_file(tmp_path / "file") as file:
        short = FileContent(file.fileno(), size, "staged")
        for key in ("old", "dir/new"):
            with pytest.raises(ContentUnreadable, match=f"staged: ends after {size - 1}"):
                await subject.store.upload(Upload(subject.bucket, key, short))
    assert await read(subject, "old") == b"old"
    assert await keys(subject) == ["old"]
    assert await subject.list("") == ([await subject.store.head(subject.bucket, "old")], [])


async def test_progress(subject):
    told: list[int] = []
    await upload(subject, "k", BIG, progress=told.append)
    assert told[-1] == len(BIG)
    assert told == sorted(told)
    assert len(told) > 2


async def test_odd_names(subject):
    for key in subject.odd_names:
        assert (await upload(subject, f"dir/{key}", os.fsencode(key))).key == f"dir/{key}"
    raw = ["a\udcff\udcfe"] if subject.names_are_bytes else []
    for key in raw:
        await upload(subject, f"dir/{key}", b"")
    objects, _ = await subject.list("dir/")
    assert {info.key for info in objects} == {f"dir/{key}" for key in [*subject.odd_names, *raw]}
    for key in subject.odd_names:
        assert await read(subject, f"dir/{key}") == os.fsencode(key)
        renamed = await subject.store.rename(subject.bucket, f"dir/{key}", f"moved/{key}")
        assert renamed.key == f"moved/{key}"
        await subject.store.copy(subject.bucket, f"moved/{key}", subject.bucket, f"copy/{key}")
        assert await read(subject, f"moved/{key}") == os.fsencode(key)
        assert await read(subject, f"copy/{key}") == os.fsencode(key)
        await subject.store.remove(subject.bucket, f"moved/{key}")
    assert await keys(subject, "moved/") == []


@for_each("key", ["/a", "a//b", ".", "a/.", "../a", "a/../b"])
async def test_components_that_no_path_has(subject, key):
    if not subject.takes_odd_components:
        await check_refused(subject, key, InvalidName)
        return
    await upload(subject, key, b"x")
    assert await read(subject, key) == b"x"
    await subject.store.rename(subject.bucket, key, "k")
    await subject.store.copy(subject.bucket, "k", subject.bucket, key)
    assert await read(subject, key) == b"x"
    await subject.store.remove(subject.bucket, key)
    assert await keys(subject) == ["k"]


@for_each("key", ["", "/", "a/", "~/a", "a\0b", "\ud800", "y" * 256])
async def test_names_that_are_refused(subject, key):
    await check_refused(subject, key, NameTooLong if key.startswith("y") else InvalidName)


async def check_refused(subject, key, error):
    await upload(subject, "k", b"")
    with pytest.raises(error):
        await upload(subject, key, b"x")
    with pytest.raises(error):
        await subject.store.rename(subject.bucket, "k", key)
    with pytest.raises(error):
        await subject.store.copy(subject.bucket, "k", subject.bucket, key)
    assert await keys(subject) == ["k"]


async def test_missing_bucket(subject):
    nowhere = subject.nowhere()
    info = await upload(subject, "k", b"1")
    store = subject.store
    for call in (
        store.upload(Upload(nowhere, "k", BytesContent(b""))),
        store.remove(nowhere, "k"),
        store.rename(nowhere, "k", "l"),
        store.copy(nowhere, "k", subject.bucket, "l"),
        store.copy(subject.bucket, "k", nowhere, "l"),
        store.set_custom(nowhere, info, {}),
    ):
        with pytest.raises(BucketNotFound):
            await call
    assert await keys(subject) == ["k"]


async def test_missing_object(subject):
    info = await upload(subject, "dir/k", b"12345")
    await subject.store.remove(subject.bucket, "dir/k")
    store, bucket = subject.store, subject.bucket
    for call in (
        store.remove(bucket, "dir/k"),
        store.rename(bucket, "dir/k", "l"),
        store.copy(bucket, "dir/k", bucket, "l"),
        store.set_custom(bucket, info, {"a": "b"}),
        store.head(bucket, "dir/k"),
    ):
        with pytest.raises(NotFound) as caught:
            await call
        assert caught.type is NotFound
    # Nor is there anything in the directory.
    assert await subject.occupied("") == ([], [])


async def test_rename_and_copy_overwrite(subject):
    await upload(subject, "a", b"aaa")
    await upload(subject, "b", b"bb")
    await upload(subject, "c", b"c")
    copied = await subject.store.copy(subject.bucket, "a", subject.bucket, "b")
    assert copied == await subject.store.head(subject.bucket, "b")
    renamed = await subject.store.rename(subject.bucket, "a", "c")
    assert renamed == await subject.store.head(subject.bucket, "c")
    assert await keys(subject) == ["b", "c"]
    assert await read(subject, "b") == await read(subject, "c") == b"aaa"


async def test_the_same_name_twice_is_a_bug_of_the_caller(subject):
    await upload(subject, "a", b"aaa")
    with pytest.raises(ValueError, match="itself"):
        await subject.store.copy(subject.bucket, "a", subject.bucket, "a")
    with pytest.raises(ValueError, match="itself"):
        await subject.store.rename(subject.bucket, "a", "a")
    assert await read(subject, "a") == b"aaa"


async def test_custom_metadata_belongs_to_one_content(subject):
    store, bucket = subject.store, subject.bucket
    if not subject.keeps_custom:
        info = await upload(subject, "k", b"one", custom={"mode": "0600"})
        assert info.custom == (await store.head(bucket, "k")).custom == {}
        with pytest.raises(Unsupported):
            await store.set_custom(bucket, info, {"mode": "0600"})
        return
    custom = {
        "mtime": "1700000000.123456789",
        "text": "a,b=c;d:e %41 ü\n",
        "raw": "\udcff",
        "n": "",
    }
    info = await upload(subject, "k", b"one", custom=custom)
    assert info.custom == custom
    assert (await store.head(bucket, "k")).custom == custom
    assert (await subject.list(""))[0][0].custom == custom
    changed = await store.set_custom(bucket, info, {"mode": "0600"})
    assert changed.same_content(info)
    assert (await store.head(bucket, "k")).custom == changed.custom == {"mode": "0600"}
    renamed = await store.rename(bucket, "k", "l")
    copied = await store.copy(bucket, "l", bucket, "m")
    assert renamed.custom == copied.custom == {"mode": "0600"}
    # The same bytes with other metadata, where a store may skip the write.
    again = await upload(subject, "m", b"one", custom={"mode": "0644"})
    assert again.custom == (await store.head(bucket, "m")).custom == {"mode": "0644"}
    # Written by somebody who knows nothing of it.
    subject.put("m", b"two")
    assert (await store.head(bucket, "m")).custom == {}
    assert (await upload(subject, "l", b"three")).custom == {}
    # Set for a version that is gone.
    with pytest.raises((Stale, NotFound)):
        await store.set_custom(bucket, info, {"mode": "0600"})
    for gone in (renamed, copied):
        with pytest.raises(Stale):
            await store.set_custom(bucket, gone, {"mode": "0600"})
    assert (await store.head(bucket, "l")).custom == {}


@for_each("custom", [{"a b": ""}, {"": ""}, {"ü": ""}, {"a": "x" * 1100}])
async def test_custom_metadata_that_is_refused(subject, custom):
    info = await upload(subject, "k", b"one")
    with pytest.raises(ValueError, match="custom metadata"):
        await subject.store.set_custom(subject.bucket, info, custom)
    with pytest.raises(ValueError, match="custom metadata"):
        await upload(subject, "k", b"two", custom=custom)
    assert await read(subject, "k") == b"one"


async def test_cancelled_upload_is_whole_or_nothing(subject):
    for delay in (0, 0.001, 0.005, 0.02, 0.05):
        await upload(subject, "k", b"old")
        with trio.move_on_after(delay):
            await upload(subject, "k", BIG)
        assert await read(subject, "k") in (b"old", BIG)
    assert await keys(subject) == ["k"]


async def test_writers_of_one_object_each_write_it_whole(subject):
    contents = [bytes([n]) * (1 << 20) + b"end" for n in range(8)]

    async def write(data):
        try:
            await upload(subject, "k", data)
        except Unavailable:
            pytest.fail("writers wait for each other")

    async with trio.open_nursery() as nursery:
        for data in contents:
            nursery.start_soon(write, data)
    assert await read(subject, "k") in contents


async def test_many_directories_come_and_go(subject):
    async def cycle(n):
        for round_ in range(5):
            await upload(subject, f"d/{n % 2}/{n}", b"x" * round_)
            await subject.store.remove(subject.bucket, f"d/{n % 2}/{n}")

    async with trio.open_nursery() as nursery:
        for n in range(8):
            nursery.start_soon(cycle, n)
    assert await subject.occupied("") == ([], [])


# Only new objects -------------------------------------------------------------------------------


@for_each("data", [b"", b"small", BIG])
async def test_of_two_writers_of_a_new_object_one_wins(subject, data):
    await upload(subject, "dir/k", data, only_new="one")
    with pytest.raises(AlreadyExists, match="another client"):
        await upload(subject, "dir/k", data + b"!", only_new="two")
    assert await read(subject, "dir/k") == data
    if subject.knows_own_tries:
        # A try of the first one whose answer was lost, and what it wrote since.
        info = await upload(subject, "dir/k", data + b"?", only_new="one")
        assert info == await subject.store.head(subject.bucket, "dir/k")
        assert await read(subject, "dir/k") == data + b"?"
    await upload(subject, "dir/k", b"over it")
    with pytest.raises(AlreadyExists):
        await upload(subject, "dir/k", data, only_new="one")
    assert await read(subject, "dir/k") == b"over it"
    subject.delete("dir/k")


async def test_what_is_made_while_a_large_new_object_is_sent_stays(subject):
    def put_theirs(done):
        subject.put("k", b"theirs")

    with pytest.raises(AlreadyExists):
        await upload(subject, "k", BIG, only_new="one", progress=put_theirs)
    assert await read(subject, "k") == b"theirs"


@for_each("data", [b"", b"small", BIG])
async def test_a_version_is_replaced_only_if_it_is_still_there(subject, data):
    base = await upload(subject, "dir/k", b"base")
    info = await upload(subject, "dir/k", data, replaces=base)
    assert await read(subject, "dir/k") == data
    subject.put("dir/k", b"theirs")
    with pytest.raises(Stale, match="another client has changed it"):
        await upload(subject, "dir/k", data + b"!", replaces=info)
    assert await read(subject, "dir/k") == b"theirs"
    subject.delete("dir/k")
    with pytest.raises(Stale, match="another client has removed it"):
        await upload(subject, "dir/k", data + b"!", replaces=info)
    assert await keys(subject) == []


@for_each("data", [b"mine", BIG])
async def test_two_uploads_made_of_one_version_do_not_replace_each_other(subject, data):
    base = await upload(subject, "k", b"base")
    await upload(subject, "k", data, replaces=base)
    with pytest.raises(Stale, match="another client has changed it"):
        await upload(subject, "k", b"made of the base, too", replaces=base)
    assert await read(subject, "k") == data


async def test_what_is_changed_while_a_large_object_is_sent_stays(subject):
    base = await upload(subject, "k", b"base")

    def put_theirs(done):
        subject.put("k", b"theirs")

    with pytest.raises(Stale):
        await upload(subject, "k", BIG, replaces=base, progress=put_theirs)
    assert await read(subject, "k") == b"theirs"


async def test_an_upload_whose_answer_was_lost_replaces_itself(subject):
    if not subject.knows_own_tries:
        pytest.skip("no answer is lost here")
    base = await upload(subject, "k", b"base")
    await upload(subject, "k", b"new", replaces=base)
    info = await upload(subject, "k", b"new", replaces=base)
    assert info.same_content(await subject.store.head(subject.bucket, "k"))
    assert await read(subject, "k") == b"new"


# Sent ahead -------------------------------------------------------------------------------------


async def begin(subject, data, key="ahead"):
    """Send all that a store takes of a content before it is complete; None where it takes nothing."""
    begun = await subject.store.begin_upload(subject.bucket, key)
    assert (begun is None) == (subject.store.ahead_above == sys.maxsize)
    while begun is not None and begun.wants <= len(data):
        await begun.next_part(BytesContent(data))()
    return begun


async def test_parts_sent_ahead(subject):
    begun = await begin(subject, BIG)
    assert await keys(subject) == []
    info = await upload(subject, "ahead", BIG + b"and more", custom={"a": "b"}, ahead=begun)
    assert info == await subject.store.head(subject.bucket, "ahead")
    assert await read(subject, "ahead") == BIG + b"and more"


@for_each("start", [0, 1000, (5 << 20) - 1])
async def test_what_changed_is_sent_again(subject, start):
    begun = await begin(subject, BIG)
    changed = bytearray(BIG)
    changed[start : start + 2] = b"!!"
    if begun is not None:
        begun.invalidate(start, start + 2)
    await upload(subject, "ahead", changed, ahead=begun)
    assert await read(subject, "ahead") == changed


@for_each("size", [0, 1, 5 << 20, (5 << 20) + 1])
async def test_what_was_cut_off_is_not_kept(subject, size):
    begun = await begin(subject, BIG)
    if begun is not None:
        begun.invalidate(size, len(BIG))
    await upload(subject, "ahead", BIG[:size], ahead=begun)
    assert await read(subject, "ahead") == BIG[:size]


async def test_nothing_sent_ahead_is_needed(subject):
    for data in (BIG, b"", b"small"):
        begun = await subject.store.begin_upload(subject.bucket, "ahead")
        await upload(subject, "ahead", data, ahead=begun)
        assert await read(subject, "ahead") == data


async def test_sent_ahead_under_another_name(subject):
    begun = await begin(subject, BIG)
    await upload(subject, "other", BIG, ahead=begun)
    assert await keys(subject) == ["other"]
    assert await read(subject, "other") == BIG


async def test_abandoned(subject):
    begun = await begin(subject, BIG)
    if begun is not None:
        await begun.abandon()
        await begun.abandon()
        with pytest.raises(NotFound):
            await subject.store.abandon_upload(subject.bucket, "ahead", begun.name)
    assert await keys(subject) == []
    await upload(subject, "ahead", BIG, ahead=begun)
    assert await read(subject, "ahead") == BIG


async def test_abandoned_by_somebody_else(subject):
    begun = await begin(subject, BIG)
    if begun is None:
        with pytest.raises(NotFound):
            await subject.store.abandon_upload(subject.bucket, "ahead", "none")
        return
    await subject.store.abandon_upload(subject.bucket, "ahead", begun.name)
    with pytest.raises(Unavailable, match="forgot the parts"):
        await upload(subject, "ahead", BIG, ahead=begun)
    await upload(subject, "ahead", BIG, ahead=begun)
    assert await read(subject, "ahead") == BIG


async def test_names_are_checked_before_anything_is_sent(subject):
    if subject.store.ahead_above < sys.maxsize:
        with pytest.raises(InvalidName):
            await subject.store.begin_upload(subject.bucket, "a//b")
