"""Pages of a segment as bit masks, and what they take on a real disk."""

import os
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from aisfs.cache.disk.format import HEADER, PAGE
from aisfs.cache.disk.segment_file import write
from aisfs.cache.disk.segments import OPEN_FILES, disk_bytes, pages_of, runs_of
from tests.cache.disk.block_helpers import an_entry, fill, get

places = st.sets(st.integers(0, 200))


@given(places)
def test_runs_are_the_runs_of_the_mask(pages):
    mask = sum(1 << page for page in pages)
    runs = list(runs_of(mask))
    assert {page for first, behind in runs for page in range(first, behind)} == pages
    assert all(left[1] < right[0] for left, right in pairwise(runs))


@given(st.integers(0, 100_000), st.integers(1, 100_000))
def test_pages_are_those_the_bytes_lie_on(start, length):
    mask = pages_of(start, start + length)
    (run,) = runs_of(mask)
    assert run == (start // PAGE, -(-(start + length) // PAGE))


def test_disk_takes_no_more_than_computed(tmp_path):
    for step in (1, 2, 3, 17):
        pages = list(range(0, 4096, step))
        path = tmp_path / f"{step}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        for page in sorted(pages, key=lambda page: page * 2654435761 % 4096):
            write(descriptor, HEADER + page * PAGE, b"x" * PAGE)
        write(descriptor, 0, b"h" * HEADER)
        os.fsync(descriptor)
        os.close(descriptor)
        assert path.stat().st_blocks * 512 <= disk_bytes(sum(1 << page for page in pages))


def test_few_files_are_open_at_a_time(tmp_path):
    from aisfs.cache.disk.block_cache import BlockCache

    before = len(os.listdir("/proc/self/fd"))
    cache = BlockCache.open(tmp_path, 64 * 2**20)
    entries = [an_entry(f"{n}", size=100) for n in range(OPEN_FILES + 50)]
    assert all(fill(cache, entry) for entry in entries)
    assert all(get(cache, entry) for entry in entries)
    assert len(os.listdir("/proc/self/fd")) - before < 2 * OPEN_FILES + 20
    cache.close()
    assert len(os.listdir("/proc/self/fd")) == before
