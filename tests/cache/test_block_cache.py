"""The disk cache as one process sees it."""

import os
import subprocess
import sys
import threading

import pytest

from aisfs.cache.block_cache import LEAST, BlockCache
from aisfs.cache.directory import SEGMENT, content_id, entry_id
from aisfs.errors import ConfigError
from aisfs.model import Bucket, ByteRange, ObjectInfo
from tests.cache.block_helpers import (
    BUCKET,
    KIB,
    MIB,
    an_entry,
    check_accounts,
    content,
    data_files,
    du,
    fill,
    get,
)


@pytest.fixture
def cache(tmp_path):
    cache = BlockCache.open(tmp_path, 64 * MIB)
    yield cache
    check_accounts(cache)
    cache.close()


def test_what_was_published_is_read_back(cache):
    entry = an_entry()
    assert not get(cache, entry)
    assert fill(cache, entry, 100, 70_000)
    assert get(cache, entry, 100, 70_000)
    assert get(cache, entry, 5000, 5001)
    assert not get(cache, entry, 99, 200)
    assert not get(cache, entry, 69_999, 70_001)
    counts = cache.counts()
    assert (counts.hits, counts.misses) == (2, 3)
    statistics = cache.statistics()
    assert (statistics.entries, statistics.segments) == (1, 1)


def test_views_cannot_be_written(cache):
    entry = an_entry()
    fill(cache, entry)
    assert cache.hit(entry, ByteRange(0, 10)).readonly


def test_missing_gives_the_gaps(cache):
    entry = an_entry(size=2 * SEGMENT + 1000)
    whole = ByteRange(0, entry.size)
    assert cache.missing(entry, whole) == [whole]
    fill(cache, entry, 1000, 2000)
    fill(cache, entry, SEGMENT - 10, SEGMENT + 10)
    fill(cache, entry, 2 * SEGMENT + 990)
    assert cache.missing(entry, ByteRange(0, entry.size + 5)) == [
        ByteRange(0, 1000),
        ByteRange(2000, SEGMENT - 10),
        ByteRange(SEGMENT + 10, 2 * SEGMENT + 990),
    ]
    assert cache.missing(entry, ByteRange(1500, 1600)) == []


def test_read_is_cut_at_the_end_of_the_object(cache):
    entry = an_entry(size=1000)
    fill(cache, entry)
    assert bytes(cache.read(entry, ByteRange(900, 5000))) == content(entry, 900)
    assert bytes(cache.read(entry, ByteRange(1000, 5000))) == b""
    assert bytes(cache.read(an_entry("empty", size=0), ByteRange(0, 0))) == b""


def test_parts_are_readable_as_they_land(cache):
    entry = an_entry()
    with cache.reserve(entry, ByteRange(0, MIB)) as reservation:
        reservation.write(500_000, content(entry, 500_000, 600_000))
        assert not get(cache, entry, 500_000, 600_000)
        assert reservation.publish(ByteRange(500_000, 600_000))
        assert get(cache, entry, 500_000, 600_000)
        reservation.write(0, content(entry, 0, 100))
        with pytest.raises(ValueError, match="not written"):
            reservation.publish(ByteRange(0, 101))
        with pytest.raises(ValueError, match="not within"):
            reservation.write(MIB - 1, b"ab")
    with pytest.raises(ValueError, match="finished"):
        reservation.write(0, b"a")
    assert not reservation.publish(ByteRange(0, 100))


def test_what_was_not_used_is_returned(cache):
    entry = an_entry(size=8 * MIB)
    cache.sync()
    before = cache.statistics().used
    reservation = cache.reserve(entry, ByteRange(0, 8 * MIB))
    assert cache.statistics().used >= before + 8 * MIB
    reservation.write(0, content(entry, 0, MIB))
    reservation.publish(ByteRange(0, MIB))
    reservation.finish()
    reservation.finish()
    for _ in range(3):  # the segment is let go when nothing was written for a sync
        cache.sync()
        check_accounts(cache)
    assert cache.statistics().used <= before + MIB + 200 * KIB
    assert get(cache, entry, 0, MIB)


@pytest.mark.parametrize("wanted", [(0, 0), (5, 4), (-1, 4), (0, MIB + 1)])
def test_reserving_what_is_no_part_of_the_object_is_a_mistake(cache, wanted):
    with pytest.raises(ValueError, match="no part"):
        cache.reserve(an_entry(), ByteRange(*wanted))


def test_object_that_cannot_be_told_from_its_next_version_is_not_cached():
    assert entry_id(BUCKET, ObjectInfo("a", 10)) is None
    assert entry_id(BUCKET, ObjectInfo("a" * 5000, 10, version="1")) is None


def test_each_part_of_the_identity_counts():
    infos = [
        (BUCKET, ObjectInfo("a", 10, version="1")),
        (Bucket("dogs"), ObjectInfo("a", 10, version="1")),
        (Bucket("pets", namespace="@other"), ObjectInfo("a", 10, version="1")),
        (BUCKET, ObjectInfo("b", 10, version="1")),
        (BUCKET, ObjectInfo("a\udcff", 10, version="1")),
        (BUCKET, ObjectInfo("a", 11, version="1")),
        (BUCKET, ObjectInfo("a", 10, version="2")),
        (BUCKET, ObjectInfo("a", 10, version="1", checksum="md5:00")),
        (BUCKET, ObjectInfo("a", 10, checksum="1")),
    ]
    assert len({entry_id(*info) for info in infos}) == len(infos)
    assert entry_id(*infos[0]) == entry_id(BUCKET, ObjectInfo("a", 10, version="1", mtime_ns=5))


def test_restart_is_warm(tmp_path):
    entries = [an_entry(f"{n}.tar", size=300_000) for n in range(20)]
    with_cache = BlockCache.open(tmp_path, 64 * MIB)
    for entry in entries:
        fill(with_cache, entry, 1, 250_000)
    with_cache.close()
    with_cache = BlockCache.open(tmp_path, 64 * MIB)
    assert all(get(with_cache, entry, 1, 250_000) for entry in entries)
    assert not get(with_cache, entries[0], 0, 10)
    assert with_cache.missing(entries[0], ByteRange(0, 300_000)) == [
        ByteRange(0, 1),
        ByteRange(250_000, 300_000),
    ]
    assert fill(with_cache, entries[0], 250_000)  # goes on where it was left
    assert get(with_cache, entries[0], 1)
    check_accounts(with_cache)
    with_cache.close()


def test_nothing_is_kept_beyond_the_limit(tmp_path):
    limit = 8 * MIB
    cache = BlockCache.open(tmp_path, limit)
    entries = [an_entry(f"{n}.tar", size=MIB) for n in range(20)]
    kept = [fill(cache, entry) for entry in entries]
    assert 4 <= sum(kept) <= 7
    assert du(tmp_path) <= limit
    assert cache.counts().rejected == 20 - sum(kept)
    assert cache.reserve(an_entry("large", size=9 * MIB), ByteRange(0, 9 * MIB)) is None
    assert [get(cache, entry) for entry in entries] == kept
    cache.close()


def test_scattered_samples_stay_within_the_limit(tmp_path):
    """Their files have an extent for each sample, and the disk needs room for the list of extents."""
    import random

    limit = 24 * MIB
    cache = BlockCache.open(tmp_path, limit)
    entries = [an_entry(f"{n}.tar", size=SEGMENT) for n in range(4)]
    samples = [(entry, start) for entry in entries for start in range(1536, SEGMENT - 2560, 10_240)]
    random.Random(3).shuffle(samples)
    kept = sum(fill(cache, entry, start, start + 2560) for entry, start in samples)
    assert 2500 < kept < len(samples)
    os.sync()
    assert 20 * MIB < du(tmp_path) <= limit
    cache.sync()
    check_accounts(cache)
    assert sum(get(cache, entry, start, start + 2560) for entry, start in samples) == kept
    cache.close()


def released(cache):
    """Wait until nothing is leased any more: a segment is let go when a sync finds it idle."""
    for _ in range(3):
        cache.sync()
    check_accounts(cache)


def test_what_files_take_is_corrected_when_they_are_on_the_disk(tmp_path, monkeypatch):
    """Room for extents is charged; a small file needs none, and many of them would waste a lot."""
    cache = BlockCache.open(tmp_path, 64 * MIB)
    entries = [an_entry(f"{n}.jpg", size=5 * 4096) for n in range(200)]
    assert all(fill(cache, entry) for entry in entries)
    released(cache)
    charged = cache.statistics().used
    assert charged >= du(tmp_path) + 200 * 4096
    monkeypatch.setattr("aisfs.cache.maintenance._WRITTEN_SECONDS", -1.0)
    assert fill(cache, entries[0])
    for _ in range(5):  # some of them with each
        released(cache)
    os.sync()
    assert cache.statistics().used == du(tmp_path)
    assert all(get(cache, entry) for entry in entries)
    cache.close()


def test_a_file_system_that_counts_blocks_late(tmp_path, monkeypatch):
    """On ZFS a file takes next to nothing until seconds after it was written."""
    monkeypatch.setattr("aisfs.cache.directory.CacheDirectory.taken_by", lambda *_: 512)
    cache = BlockCache.open(tmp_path, 8 * MIB)
    entries = [an_entry(f"{n}.tar", size=MIB) for n in range(20)]
    assert 4 <= sum(fill(cache, entry) for entry in entries) <= 7
    released(cache)
    assert du(tmp_path) <= cache.statistics().used <= 8 * MIB
    cache.close()


def hot(cache, old, new):
    """Let `new` be requested until it has driven out one of `old`, which is not used any more."""
    for _ in range(100):
        for entry in new:
            if not get(cache, entry):
                fill(cache, entry)
        if cache.counts().evictions:
            return
    raise AssertionError("nothing was evicted")


def test_read_while_evicted(tmp_path):
    cache = BlockCache.open(tmp_path, 8 * MIB)
    old = [an_entry(f"old{n}", size=MIB) for n in range(8)]
    views = {}
    for entry in old:
        if fill(cache, entry):
            views[entry] = cache.read(entry, ByteRange(0, MIB))
    hot(cache, old, [an_entry(f"new{n}", size=MIB) for n in range(4)])
    check_accounts(cache)
    gone = [entry for entry in views if not get(cache, entry)]
    assert gone
    for entry, view in views.items():
        assert bytes(view) == content(entry)
    assert du(tmp_path) <= 8 * MIB
    cache.close()


@pytest.mark.parametrize("kind", ["xxhash2", "md5", "sha256", "sha512"])
def test_whole_object_is_compared_with_its_checksum(cache, kind):
    import hashlib

    import xxhash

    plain = an_entry("a.tar", size=SEGMENT + 5000)
    for name, right in (("good", True), ("bad", False)):
        entry = an_entry(name, size=plain.size, checksum="?")
        hasher = xxhash.xxh64() if kind == "xxhash2" else hashlib.new(kind)
        # The checksum is part of the identity and so of the content; hence the content of `plain`.
        hasher.update(content(plain) if right else b"something else")
        entry = an_entry(name, size=plain.size, checksum=f"{kind}:{hasher.hexdigest()}")
        assert cache.verify_object(entry)  # not complete: nothing to say
        with cache.reserve(entry, ByteRange(0, entry.size)) as reservation:
            reservation.write(0, content(plain))
            assert reservation.publish(ByteRange(0, entry.size))
        assert cache.verify_object(entry) is right
        assert (cache.missing(entry, ByteRange(0, entry.size)) == []) is right


def test_unknown_checksum_is_believed(cache):
    entry = an_entry(checksum="crc32c:01234567")
    fill(cache, entry)
    assert cache.verify_object(entry)


def test_drop_removes_one_entry(cache):
    first, second = an_entry("a.tar", 20 * MIB), an_entry("b.tar")
    assert fill(cache, first)
    assert fill(cache, second)
    cache.drop(first)
    assert cache.missing(first, ByteRange(0, first.size)) == [ByteRange(0, first.size)]
    assert cache.read(second, ByteRange(0, second.size)) == content(second)


def test_content_made_of_an_object_is_another_entry(cache):
    info = ObjectInfo("a.tgz", MIB, version="1")
    whole = entry_id(BUCKET, info)
    made = content_id(BUCKET, info, "decompressed", 5 * MIB)
    same = content_id(BUCKET, info, "decompressed", 7 * MIB)
    others = [
        content_id(BUCKET, info, "something else", 5 * MIB),
        content_id(BUCKET, ObjectInfo("a.tgz", MIB, version="2"), "decompressed", 5 * MIB),
    ]
    assert made == same
    assert len({whole, made, *others}) == 4
    assert content_id(BUCKET, ObjectInfo("a.tgz", MIB), "decompressed", 1) is None
    assert fill(cache, made)
    assert cache.read(made, ByteRange(0, made.size)) == content(made)
    assert cache.read(whole, ByteRange(0, 10)) is None


def test_clear_and_check(cache, tmp_path):
    entries = [an_entry(f"{n}") for n in range(5)]
    for entry in entries:
        fill(cache, entry)
    told = []
    report = cache.check(lambda done, total: told.append((done, total)))
    assert (report.segments, report.bytes, report.damaged) == (5, 5 * MIB, 0)
    assert told[-1][0] == told[-1][1] > 5 * MIB
    reservation = cache.reserve(entries[0], ByteRange(0, 100))
    cache.clear()
    assert not data_files(tmp_path)
    assert not any(get(cache, entry) for entry in entries)
    reservation.write(0, b"1234")  # of no use any more, but no error
    assert not reservation.publish(ByteRange(0, 4))
    reservation.finish()
    assert fill(cache, entries[0])


def test_closed_cache_says_no(tmp_path):
    cache = BlockCache.open(tmp_path, 8 * MIB)
    entry = an_entry()
    fill(cache, entry)
    view = cache.read(entry, ByteRange(0, 100))
    reservation = cache.reserve(entry, ByteRange(0, 100))
    cache.close()
    cache.close()
    assert bytes(view) == content(entry, 0, 100)
    assert not get(cache, entry)
    assert cache.reserve(entry, ByteRange(0, 10)) is None
    reservation.write(0, b"1234")
    assert not reservation.publish(ByteRange(0, 4))
    reservation.finish()
    cache.sync()
    assert cache.missing(entry, ByteRange(0, 10)) == [ByteRange(0, 10)]
    assert cache.statistics().segments == 0


# The directory --------------------------------------------------------------------------------


def test_files_are_for_their_owner_only(cache, tmp_path):
    fill(cache, an_entry())
    root = tmp_path / "v1"
    assert root.stat().st_mode & 0o777 == 0o700
    for path in (*root.iterdir(), *data_files(tmp_path)):
        assert path.stat().st_mode & 0o077 == 0 or path.name.startswith("ledger.db")
    assert (root / "ledger.db").stat().st_mode & 0o077 == 0


def test_limit_that_is_too_small_is_named(tmp_path):
    with pytest.raises(ConfigError, match="4096 bytes is too small"):
        BlockCache.open(tmp_path, 4096)
    BlockCache.open(tmp_path, LEAST).close()


def test_file_in_the_place_of_the_directory_is_named(tmp_path):
    path = tmp_path / "cache"
    path.touch()
    with pytest.raises(ConfigError, match=f"{path} cannot be used"):
        BlockCache.open(path, LEAST)


def test_directory_of_somebody_else_is_named(tmp_path):
    (tmp_path / "v1").mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(tmp_path / "v1", 12345, -1)
    with pytest.raises(ConfigError, match=f"{tmp_path}.*not ours"):
        BlockCache.open(tmp_path, LEAST)


def test_directory_without_permission_is_named(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    code = """
import os, sys
from pathlib import Path
from aisfs.cache.block_cache import BlockCache
from aisfs.errors import ConfigError
os.setuid(12345)
try:
    BlockCache.open(Path(sys.argv[1]), 2**23)
except ConfigError as error:
    print(error)
"""
    command = [sys.executable, "-c", code, str(closed / "cache")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"{closed}/cache cannot be used: Permission denied" in said


def test_observer_changes_nothing(tmp_path):
    cache = BlockCache.open(tmp_path, 8 * MIB)
    entry = an_entry()
    fill(cache, entry)
    cache.sync()
    observer = BlockCache.open(tmp_path, None)
    assert observer.limit == cache.limit == 8 * MIB
    assert observer.statistics().segments == 1
    assert get(observer, entry)
    observer.close()
    cache.close()
    observer = BlockCache.open(tmp_path, None)
    assert observer.limit == 0
    assert get(observer, entry)
    assert not fill(observer, an_entry("b"))
    observer.close()


# Threads --------------------------------------------------------------------------------------


def test_threads_write_and_read_at_once(tmp_path):
    cache = BlockCache.open(tmp_path, 24 * MIB)
    entries = [an_entry(f"{n}", size=SEGMENT + MIB) for n in range(4)]
    failures = []

    def work(seed):
        import random

        chance = random.Random(seed)
        try:
            for _ in range(150):
                entry = chance.choice(entries)
                start = chance.randrange(entry.size - 1)
                stop = min(entry.size, start + chance.choice([1, 5000, 300_000]))
                if not get(cache, entry, start, stop):
                    fill(cache, entry, start, stop)
                if chance.random() < 0.05:
                    cache.sync()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert du(tmp_path) <= 24 * MIB
    cache.sync()
    check_accounts(cache)
    assert cache.check().damaged == 0
    cache.close()
