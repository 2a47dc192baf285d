"""Checksums of whole objects out of parts in memory, in any order."""

import os
import random
import weakref
from itertools import pairwise

import xxhash
from hypothesis import given
from hypothesis import strategies as st

from aisfs.cache.directory import entry_id
from aisfs.engine.buffers import BufferPool
from aisfs.engine.parts import Part, RunningSums
from aisfs.model import Bucket, ByteRange, ObjectInfo
from tests.support.for_each import for_each

CONTENT = os.urandom(10_000)


class WatchedPool(BufferPool):
    """Asks for the part while its memory is being given back, as another thread may."""

    def __init__(self) -> None:
        super().__init__(0)
        self.reference = None
        self.found = []

    def give_back(self, buffer):
        self.found.append(self.reference())


POOL = BufferPool(0)


def an_entry(checksum="xxhash2:00"):
    return entry_id(Bucket("b"), ObjectInfo("o", len(CONTENT), version="1", checksum=checksum))


def a_part(start, stop):
    part = Part(ByteRange(start, stop), POOL)
    part.allocate()[:] = CONTENT[start:stop]
    return part


@given(st.sets(st.integers(1, len(CONTENT) - 1), max_size=12), st.integers(0, 1 << 20))
def test_the_order_does_not_matter(cuts, seed):
    parts = [a_part(*pair) for pair in pairwise([0, *sorted(cuts), len(CONTENT)])]
    random.Random(seed).shuffle(parts)
    sums = RunningSums()
    for part in parts:
        assert sums.finish(an_entry("xxhash2:other")) is None
        sums.add(an_entry(), part)
    assert sums.finish(an_entry()) == xxhash.xxh64(CONTENT).hexdigest()
    assert sums.finish(an_entry()) is None, "only once"


@for_each("left_out", [0, 1, 2])
def test_a_part_that_did_not_come_leaves_it_open(left_out):
    parts = [a_part(0, 100), a_part(100, 5000), a_part(5000, len(CONTENT))]
    del parts[left_out]
    sums = RunningSums()
    for part in parts:
        sums.add(an_entry(), part)
    assert sums.finish(an_entry()) is None


def test_bytes_that_come_once_more_count_instead_of_those_before():
    sums, other = RunningSums(), a_part(0, 100)
    other.content[:] = bytes(100)
    sums.add(an_entry(), other)
    parts = [a_part(0, 100), a_part(100, len(CONTENT))]
    for part in parts:
        sums.add(an_entry(), part)
    assert sums.finish(an_entry()) == xxhash.xxh64(CONTENT).hexdigest()
    sums.add(an_entry(), other)
    sums.add(an_entry(), parts[1])
    sums.add(an_entry(), parts[1])
    assert sums.finish(an_entry()) is None, "who read it anew did not begin at its start"


def test_a_part_that_went_before_its_turn_leaves_it_open():
    sums = RunningSums()
    sums.add(an_entry(), a_part(100, len(CONTENT)))  # nobody holds it
    sums.add(an_entry(), a_part(0, 100))
    assert sums.finish(an_entry()) is None


@for_each("checksum", ["", "crc32c:00"])
def test_what_is_not_computed_here(checksum):
    sums = RunningSums()
    sums.add(an_entry(checksum), a_part(0, len(CONTENT)))
    assert sums.finish(an_entry(checksum)) is None


def test_a_part_whose_memory_goes_is_not_found_any_more():
    pool = WatchedPool()
    part = Part(ByteRange(0, 100), pool)
    part.allocate()
    pool.reference = weakref.ref(part)
    del part
    assert pool.found == [None]
