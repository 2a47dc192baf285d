"""What writing to a segment takes of a real disk, at most, and how many segments are open."""

import errno
import os
import random

import pytest

from aisfs.cache import segments
from aisfs.cache.block_cache import BlockCache
from aisfs.cache.directory import HEADER, PAGE, start_writing
from aisfs.cache.segments import OPEN_FILES, booked_bytes, part_bytes, write
from aisfs.model import ByteRange
from tests.cache.block_helpers import an_entry, data_files, fill, get


def bisected(pages):
    """The middle, then the middles of both halves, and so on: leaves blocks of the tree half full."""
    halves, order = [(0, len(pages))], []
    for first, behind in halves:
        if first < behind:
            middle = (first + behind) // 2
            order.append(pages[middle])
            halves += [(first, middle), (middle + 1, behind)]
    return order


ORDERS = {
    "as they come": list,
    "backwards": lambda pages: pages[::-1],
    "shuffled": lambda pages: random.Random(1).sample(pages, len(pages)),
    "bisected": bisected,
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pages", [range(3), range(0, 10, 2), range(4096), range(0, 4096, 2)])
@pytest.mark.parametrize("burst", [1, 100, 5000])
def test_disk_takes_no_more_than_charged(tmp_path, order, pages, burst):
    """Also when the kernel writes pages out in between, each into an extent of its own."""
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    write(descriptor, 0, b"h" * HEADER)
    for done, page in enumerate(ORDERS[order](list(pages)), 1):
        write(descriptor, HEADER + page * PAGE, b"x" * PAGE)
        if done % burst == 0:
            start_writing(descriptor)
    booked = booked_bytes(os.fstat(descriptor).st_blocks * 512)
    start_writing(descriptor)
    corrected = os.fstat(descriptor).st_blocks * 512
    os.fsync(descriptor)
    taken = os.fstat(descriptor).st_blocks * 512
    os.close(descriptor)
    assert taken <= corrected <= booked
    assert taken <= HEADER + part_bytes(ByteRange(0, (pages[-1] + 1) * PAGE))


def test_few_files_are_open_at_a_time(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    cache = BlockCache.open(tmp_path, 64 * 2**20)
    entries = [an_entry(f"{n}", size=100) for n in range(OPEN_FILES + 50)]
    assert all(fill(cache, entry) for entry in entries)
    assert all(get(cache, entry) for entry in entries)
    assert len(os.listdir("/proc/self/fd")) - before < 2 * OPEN_FILES + 20
    cache.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_bytes_that_the_disk_lost_are_not_trusted_when_their_file_is_opened_again(
    tmp_path, monkeypatch
):
    """The kernel tells of the loss once, to the file that was open then."""
    cache = BlockCache.open(tmp_path, 64 * 2**20)
    lost = an_entry("lost", size=100)
    assert fill(cache, lost)
    cache.sync()
    with data_files(tmp_path)[0].open("r+b") as file:
        os.pwrite(file.fileno(), bytes(100), HEADER)
    errors = [OSError(errno.EIO, "lost")]
    monkeypatch.setattr(segments, "lost_writes", lambda _: errors.pop() if errors else None)
    monkeypatch.setattr(segments, "OPEN_FILES", 1)
    assert fill(cache, an_entry("another", size=100))
    assert not errors, "its file is closed"
    assert not get(cache, lost)
    cache.close()
