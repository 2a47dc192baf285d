"""Several processes on one directory: the limit holds, the bytes are right, death is survived."""

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from aisfs.cache import ledger
from aisfs.cache.block_cache import BlockCache
from aisfs.cache.directory import SEGMENT
from aisfs.model import ByteRange
from tests.cache.block_helpers import (
    MIB,
    an_entry,
    check_accounts,
    content,
    data_files,
    du,
    fill,
    get,
)

ENTRIES = [an_entry(f"{n}.tar", size=2 * MIB) for n in range(10)]
ENTRIES += [an_entry("large.tar", size=SEGMENT + 3 * MIB)]
ENTRIES += [an_entry(f"{n}.jpg", size=5000 + n) for n in range(40)]


def hammer(directory, limit, seed, seconds):
    """Read and fill at random; say how it went."""
    chance = random.Random(seed)
    cache = BlockCache.open(directory, limit)
    kept = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        entry = chance.choice(ENTRIES)
        start = chance.randrange(entry.size)
        stop = min(entry.size, start + chance.choice([100, 4096, 100_000, MIB]))
        if get(cache, entry, start, stop):
            continue
        reservation = cache.reserve(entry, ByteRange(start, stop))
        if reservation is None:
            continue
        with reservation:
            if chance.random() < 0.1:  # changes its mind
                reservation.write(start, content(entry, start, (start + stop) // 2))
                continue
            reservation.write(start, content(entry, start, stop))
            kept += reservation.publish(ByteRange(start, stop))
        if chance.random() < 0.01:
            cache.sync()
    counts = cache.counts()
    cache.sync()
    check_accounts(cache)
    cache.close()
    print(json.dumps({"kept": kept, "hits": counts.hits, "misses": counts.misses}))


def start(directory, limit, seed, seconds):
    code = f"""
from pathlib import Path
from tests.cache.test_block_cache_processes import hammer
hammer(Path({str(directory)!r}), {limit}, {seed}, {seconds})
"""
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_limit_holds_while_processes_hammer(tmp_path):
    limit = 12 * MIB
    directory = tmp_path / "cache"
    processes = [start(directory, limit + seed * MIB, seed, 4) for seed in range(3)]
    most, samples = 0, 0
    while any(process.poll() is None for process in processes):
        most = max(most, du(directory))
        samples += 1
    reports = [json.loads(process.communicate()[0]) for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert samples > 100
    assert limit // 2 < most <= limit
    assert all(report["kept"] and report["hits"] for report in reports)
    cache = BlockCache.open(directory, limit)
    assert cache.check().damaged == 0
    check_accounts(cache)
    cache.close()


def test_killed_process_leaves_nothing_behind(tmp_path):
    limit = 12 * MIB
    directory = tmp_path / "cache"
    chance = random.Random(1)
    for seed in range(8):
        process = start(directory, limit, seed, 60)
        while not (directory / "v1" / "ledger.db").exists():
            time.sleep(0.01)
        time.sleep(0.25 + chance.random() * 0.4)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert du(directory) <= limit
        cache = BlockCache.open(directory, limit)
        check_accounts(cache)
        assert cache.check().damaged == 0
        bookkeeper = cache._bookkeeper
        assert len(bookkeeper.ledger.owners()) == 1
        assert {
            row.id for row in bookkeeper.ledger.changes(-1).rows
        } == bookkeeper.directory.segments()
        # What is on the disk is what is published: pages of unfinished pieces were given back.
        os.sync()
        for segment in cache._resident.segments.values():
            facts = bookkeeper.directory.path(segment.id).stat()
            fragments = 4096  # the disk may have cut one run into several extents
            assert facts.st_blocks * 512 <= segment.bytes + fragments
        assert du(directory) <= cache.statistics().used
        cache.close()
    process = start(directory, limit, 8, 60)
    while not count_readable(directory, limit):  # a busy machine may have published nothing so far
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert count_readable(directory, limit)


def count_readable(directory, limit):
    """Read everything that is there, and compare it."""
    cache = BlockCache.open(directory, limit)
    count = 0
    for segment in list(cache._resident.segments.values()):
        entry = next(each for each in ENTRIES if each.key(0)[:16] == segment.key[:16])
        cache._bookkeeper.load(segment)
        for found in segment.valid:
            assert get(cache, entry, found.start, found.stop)
            count += 1
    cache.close()
    return count


def test_killed_process_is_noticed_by_the_living(tmp_path, monkeypatch):
    monkeypatch.setattr("aisfs.cache.maintenance._RECLAIM_SECONDS", -1.0)
    limit = 12 * MIB
    cache = BlockCache.open(tmp_path, limit)
    process = start(tmp_path, 8 * MIB, 1, 60)
    while not cache._resident.segments:
        cache.sync()
    assert cache.limit == 8 * MIB  # the smallest
    process.kill()
    process.communicate()
    cache.sync()
    cache.sync()
    assert cache.limit == limit
    assert len(cache._bookkeeper.ledger.owners()) == 1
    assert cache._bookkeeper.ledger.used()[1] == 0
    check_accounts(cache)
    cache.close()


def test_processes_share_what_they_keep(tmp_path):
    one, two = (BlockCache.open(tmp_path, 64 * MIB) for _ in range(2))
    entry = an_entry()
    fill(one, entry, 0, 100_000)
    one.sync()
    assert not get(two, entry, 0, 100_000)
    two.sync()
    assert get(two, entry, 0, 100_000)
    assert fill(two, entry, 100_000)
    two.sync()
    one.sync()
    assert get(one, entry)
    assert len(data_files(tmp_path)) == 1
    for cache in (one, two):
        check_accounts(cache)
        cache.close()


def test_eviction_by_another_process_is_noticed(tmp_path):
    one, two = (BlockCache.open(tmp_path, 64 * MIB) for _ in range(2))
    entry = an_entry()
    fill(one, entry)
    one.sync()
    view = one.read(entry, ByteRange(0, MIB))
    two.sync()
    two.clear()
    assert get(one, entry)  # versions are immutable, so the mapped file is still right
    descriptors = len(os.listdir("/proc/self/fd"))
    one.sync()
    assert not get(one, entry)
    del view
    assert len(os.listdir("/proc/self/fd")) == descriptors - 2
    assert fill(one, entry)
    assert get(one, entry)
    for cache in (one, two):
        check_accounts(cache)
        cache.close()


def test_both_write_to_one_segment_and_one_is_killed(tmp_path):
    """Pages of the living must not be given back with those of the dead."""
    from tests.cache.test_block_cache_model import kill

    living, dying = (BlockCache.open(tmp_path, 64 * MIB) for _ in range(2))
    entry = an_entry(size=8 * MIB)
    fill(living, entry, 0, MIB)
    living.sync()
    dying.sync()
    half_done = dying.reserve(entry, ByteRange(4 * MIB, 8 * MIB))
    half_done.write(4 * MIB, content(entry, 4 * MIB, 6 * MIB))
    under_way = living.reserve(entry, ByteRange(MIB, 2 * MIB))
    under_way.write(MIB, content(entry, MIB, 2 * MIB))
    kill(dying)
    third = BlockCache.open(tmp_path, 64 * MIB)  # sees the dead one, but may not touch the segment
    assert len(third._bookkeeper.ledger.owners()) == 3
    assert under_way.publish(ByteRange(MIB, 2 * MIB))
    under_way.finish()
    assert get(living, entry, 0, 2 * MIB)
    for _ in range(3):
        living.sync()
    third.close()
    third = BlockCache.open(tmp_path, 64 * MIB)
    assert len(third._bookkeeper.ledger.owners()) == 2
    assert get(third, entry, 0, 2 * MIB)
    assert du(tmp_path) < 4 * MIB
    third._resident.segments.clear()
    assert get(living, entry, 0, 2 * MIB)
    living.close()


def test_smaller_limit_takes_effect_when_it_is_given(tmp_path):
    entries = [an_entry(f"{n}", size=MIB) for n in range(12)]
    large = BlockCache.open(tmp_path, 20 * MIB)
    assert all(fill(large, entry) for entry in entries)
    large.sync()
    small = BlockCache.open(tmp_path, 8 * MIB)
    assert du(tmp_path) <= 8 * MIB
    assert 4 <= small.statistics().segments < 8
    large.sync()
    assert large.limit == 8 * MIB
    assert not fill(large, an_entry("more", size=4 * MIB))
    check_accounts(large)
    small.close()
    large.sync()
    assert large.limit == 20 * MIB
    assert fill(large, an_entry("more", size=4 * MIB))
    large.close()


def test_last_uses_survive(tmp_path, monkeypatch):
    monkeypatch.setattr("aisfs.cache.maintenance._USE_SECONDS", -1)
    clock = [1_700_000_000.0]
    monkeypatch.setattr("time.time", lambda: clock[0])
    entries = [an_entry(f"{n}", size=MIB) for n in range(10)]
    cache = BlockCache.open(tmp_path, 20 * MIB)
    for entry in entries:
        fill(cache, entry)
    clock[0] += 100
    for entry in entries[:3]:
        assert get(cache, entry)
    cache.sync()
    cache.close()
    cache = BlockCache.open(tmp_path, 6 * MIB)
    assert cache.statistics().segments < 6
    assert all(get(cache, entry) for entry in entries[:3])
    cache.close()


def fill_up(path):
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.mark.parametrize("place", ["write", "record"])
def test_full_disk_is_a_bypass(tmp_path, place, caplog):
    """On a real, small file system, which is full long before the limit."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=6m,mode=0700", "none", str(disk)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not permitted")
    try:
        cache = BlockCache.open(disk / "cache", 64 * MIB)
        kept = an_entry("kept")
        assert fill(cache, kept)
        cache.sync()
        if place == "record":
            filler = disk / "filler"
            with pytest.raises(OSError, match="No space"):
                fill_up(filler)
        entries = [an_entry(f"{n}", size=3 * MIB) for n in range(4)]
        outcome = [fill(cache, entry) for entry in entries]
        assert not all(outcome)
        assert not cache._health.admits
        assert caplog.text.count("cache bypassed") == 1
        assert cache.reserve(an_entry("later"), ByteRange(0, 100)) is None
        assert get(cache, kept)
        assert [get(cache, entry) for entry in entries] == outcome
        cache.sync()
        cache._health._paused_until = 0.0
        if place == "record":
            filler.unlink()
        else:
            cache.clear()
        assert fill(cache, an_entry("later"))
        cache.sync()
        check_accounts(cache)
        cache.close()
        cache = BlockCache.open(disk / "cache", 64 * MIB)
        assert cache.check().damaged == 0
        assert get(cache, an_entry("later"))
        cache.close()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_ledger_that_stays_locked_holds_up_nobody_twice(tmp_path, monkeypatch, caplog):
    """A process was stopped amid a transaction: who wants to keep something waits for it once."""
    monkeypatch.setattr(ledger, "BUSY_SECONDS", 0.1)
    waits = []
    transaction = ledger.Ledger.transaction

    def counted(self):
        waits.append(self)
        return transaction(self)

    cache = BlockCache.open(tmp_path, 64 * MIB)
    assert fill(cache, an_entry("kept"))
    cache.sync()
    with contextlib.closing(sqlite3.connect(tmp_path / "v1" / "ledger.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert not fill(cache, an_entry("a"))
        monkeypatch.setattr(ledger.Ledger, "transaction", counted)
        cache._maintenance._synced -= 60  # a second sync is due
        assert not fill(cache, an_entry("b"))
        assert waits == []
        assert get(cache, an_entry("kept"))
        other.execute("ROLLBACK")
    assert caplog.text.count("cache bypassed") == 1
    cache._health._paused_until = 0.0
    assert fill(cache, an_entry("b"))
    assert waits
    cache.sync()
    check_accounts(cache)
    cache.close()
