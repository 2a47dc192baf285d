"""Bytes that are written past the page cache are read like all others, also by who looked before."""

import ctypes
import errno
import mmap
import os
import random
import time
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aisfs.cache.block_cache import BlockCache
from aisfs.cache.directory import HEADER, SEGMENT
from aisfs.cache.segments import SegmentFile
from aisfs.model import ByteRange
from tests.cache.block_helpers import MIB, an_entry, content, data_files

FIRST, SIZE = SEGMENT - 2 * MIB - 100, SEGMENT + MIB + 777
"""What is written: around the border of two files."""
PAGE = mmap.PAGESIZE


@pytest.fixture
def cache(tmp_path):
    cache = BlockCache.open(tmp_path, 64 * MIB)
    yield cache
    cache.close()


def in_memory(data, shift=0):
    """Give a view of the bytes that begins `shift` bytes behind the start of a page."""
    view = memoryview(mmap.mmap(-1, len(data) + shift))[shift:]
    view[:] = data
    return view


def write(cache, entry, start, stop, *, shift=0, past=True):
    part = ByteRange(start, stop)
    with cache.reserve(entry, part) as reservation:
        data = in_memory(content(entry, start, stop), shift)
        reservation.write(start, data, past_page_cache=past)
        assert reservation.publish(part)


def cached_pages(path):
    """Count the pages of a file that are in memory; a read would bring some in, also RWF_NOWAIT."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        resident = (ctypes.c_ubyte * -(-len(view) // PAGE))()
        start = ctypes.c_char.from_buffer(view)
        failed = ctypes.CDLL(None).mincore(
            ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(len(view)), resident
        )
        del start
    assert not failed
    return sum(page & 1 for page in resident[HEADER // PAGE :])


def has_a_disk(directory):
    """Whether what is written past the page cache is not in memory then; tmpfs is nothing else."""
    probe = directory / "probe"
    try:
        with open(os.open(probe, os.O_CREAT | os.O_WRONLY | os.O_DIRECT), "wb", 0) as file:
            file.write(in_memory(bytes(HEADER + PAGE)))
    except OSError:
        return False
    return not cached_pages(probe)


@pytest.mark.parametrize(("past", "pages"), [(True, range(1)), (False, range(512, 513))])
def test_it_takes_no_page_cache(cache, tmp_path, past, pages):
    if not has_a_disk(tmp_path):
        pytest.skip(f"{tmp_path} is not on a disk: try --basetemp")
    entry = an_entry(size=2 * MIB)
    with cache.reserve(entry, ByteRange(0, entry.size)) as reservation:
        data = in_memory(content(entry))
        reservation.write(0, data, past_page_cache=past)
        assert reservation.publish(ByteRange(0, entry.size), data)
        (file,) = data_files(tmp_path)
        assert cached_pages(file) in pages
    assert cache.read(entry, ByteRange(0, entry.size)) == content(entry)


def test_what_will_be_read_is_brought_from_the_disk_and_nothing_around_it(cache, tmp_path):
    if not has_a_disk(tmp_path):
        pytest.skip(f"{tmp_path} is not on a disk: try --basetemp")
    entry, there = an_entry(size=4 * MIB), ByteRange(0, 2 * MIB)
    with cache.reserve(entry, there) as reservation:
        data = in_memory(content(entry, 0, 2 * MIB))
        reservation.write(0, data, past_page_cache=True)
        assert reservation.publish(there, data)
    (file,) = data_files(tmp_path)
    assert not cached_pages(file)
    cache.will_need(entry, ByteRange(3 * MIB, 3 * MIB + PAGE))
    cache.will_need(entry, ByteRange(MIB, MIB))
    time.sleep(0.1)
    assert not cached_pages(file), "the one is not there yet, the other is empty"
    cache.will_need(entry, ByteRange(MIB + 100, MIB + 5 * PAGE))
    deadline = time.monotonic() + 20
    while cached_pages(file) < 5 and time.monotonic() < deadline:  # the kernel does not wait
        time.sleep(0.01)
    assert cached_pages(file) == 5
    assert cache.hit(entry, ByteRange(MIB, MIB + PAGE)) == content(entry, MIB, MIB + PAGE)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    cuts=st.sets(
        st.integers(FIRST + 1, SIZE - 1) | st.sampled_from([SEGMENT - MIB, SEGMENT]), max_size=6
    ),
    seed=st.integers(0, 1 << 20),
)
def test_whoever_reads_around_it_sees_what_was_published(tmp_path_factory, cuts, seed):
    chance = random.Random(seed)
    directory = tmp_path_factory.mktemp("cache")
    cache, other = BlockCache.open(directory, 64 * MIB), BlockCache.open(directory, 64 * MIB)
    entry = an_entry(size=SIZE)
    pieces = list(pairwise([FIRST, *sorted(cuts), SIZE]))
    chance.shuffle(pieces)
    for start, stop in pieces:
        write(
            cache, entry, start, stop, shift=chance.choice([0, 512, 1]), past=chance.random() < 0.8
        )
        # The kernel maps pages around what is read: zeros, where nothing was written yet.
        cache.sync()
        other.sync()
        for each in (cache, other):
            assert each.read(entry, ByteRange(start, stop)) == content(entry, start, stop)
    assert cache.read(entry, ByteRange(FIRST, SIZE)) == content(entry, FIRST, SIZE)
    other.close()
    cache.close()
    again = BlockCache.open(directory, 64 * MIB)
    assert again.read(entry, ByteRange(FIRST, SIZE)) == content(entry, FIRST, SIZE)
    again.close()


def test_a_file_system_that_cannot_do_it(cache, monkeypatch, caplog):
    caplog.set_level("INFO", "aisfs.cache.segments")
    monkeypatch.setattr(SegmentFile, "_refusals", 0)
    plain = os.open

    def refusing(path, flags, *rest, **more):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct access")
        return plain(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refusing)
    for entry in (an_entry("a.tar", 2 * MIB), an_entry("b.tar", 2 * MIB)):
        write(cache, entry, 0, entry.size)
        assert cache.read(entry, ByteRange(0, entry.size)) == content(entry)
    assert caplog.text.count("through the page cache") == 1


def test_a_kernel_that_stops_half_way(cache, monkeypatch):
    plain, calls = os.pwrite, []

    def half(descriptor, data, at):
        calls.append(len(data))
        if len(calls) == 1:
            return plain(descriptor, data[: MIB + 512], at)
        if len(calls) == 2:
            raise OSError(errno.EINVAL, "not on a page")
        return plain(descriptor, data, at)

    entry = an_entry(size=2 * MIB)
    with cache.reserve(entry, ByteRange(0, entry.size)) as reservation:
        monkeypatch.setattr(os, "pwrite", half)
        reservation.write(0, in_memory(content(entry)), past_page_cache=True)
        monkeypatch.undo()
        assert reservation.publish(ByteRange(0, entry.size))
    assert len(calls) == 3
    assert cache.read(entry, ByteRange(0, entry.size)) == content(entry)


def test_a_full_disk_is_a_full_disk(cache, monkeypatch, caplog):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    entry = an_entry(size=2 * MIB)
    with cache.reserve(entry, ByteRange(0, entry.size)) as reservation:
        monkeypatch.setattr(os, "pwrite", full)
        reservation.write(0, in_memory(content(entry)), past_page_cache=True)
        monkeypatch.undo()
        assert not reservation.publish(ByteRange(0, entry.size))
    assert cache.read(entry, ByteRange(0, entry.size)) is None
    assert "the disk is full" in caplog.text
