"""Objects with known bytes, and what a directory takes on the disk."""

import os
import random

from aisfs.cache.directory import entry_id
from aisfs.model import Bucket, ByteRange, ObjectInfo

BUCKET = Bucket("pets")
KIB = 1024
MIB = 1024 * KIB
_NOISE = random.Random(7).randbytes(2 * MIB + 4099)


def an_entry(key="a.tar", size=MIB, version="1", checksum=""):
    return entry_id(BUCKET, ObjectInfo(key, size, version=version, checksum=checksum))


def content(entry, start=0, stop=None):
    """The bytes of an object: different at each place, and in each object."""
    stop = entry.size if stop is None else stop
    shift = int.from_bytes(entry.digest[:2], "big")
    period = len(_NOISE)
    first = (start + shift) % period
    data = _NOISE[first : first + stop - start]
    while len(data) < stop - start:
        data += _NOISE[: stop - start - len(data)]
    return data


def fill(cache, entry, start=0, stop=None):
    """Keep a range; says whether it was admitted and published."""
    wanted = ByteRange(start, entry.size if stop is None else stop)
    reservation = cache.reserve(entry, wanted)
    if reservation is None:
        return False
    with reservation:
        reservation.write(wanted.start, content(entry, wanted.start, wanted.stop))
        return reservation.publish(wanted)


def get(cache, entry, start=0, stop=None):
    """Read a range; the bytes are right or there are none."""
    stop = entry.size if stop is None else stop
    view = cache.read(entry, ByteRange(start, stop))
    if view is None:
        return False
    assert bytes(view) == content(entry, start, stop)
    return True


def du(directory):
    """What `du -s --block-size=1` says, also while files come and go."""
    total = 0
    stack = [str(directory)]
    while stack:
        path = stack.pop()
        try:
            facts = os.lstat(path)
            total += facts.st_blocks * 512
            if os.path.isdir(path):
                stack += [entry.path for entry in os.scandir(path)]
        except FileNotFoundError:
            continue
    return total


def data_files(directory):
    return sorted((directory / "v1" / "data").iterdir())


def check_accounts(cache):
    """What the ledger, the files and the memory say of the same things must agree."""
    bookkeeper, resident = cache._bookkeeper, cache._resident
    query = "SELECT (SELECT bytes FROM totals), (SELECT total(bytes) FROM segments)"
    total, summed = bookkeeper.ledger._writing.execute(query).fetchone()
    assert total == summed
    owed = sum(segment.owed for segment in resident.leased)
    assert bookkeeper.ledger.granted(bookkeeper.owner) == resident.free + owed
    assert resident.free >= 0
    assert all(segment.owed >= 0 for segment in resident.leased)
    assert resident.admission.used == sum(
        each.bytes + each.owed for each in resident.segments.values()
    )
    assert len(resident.admission) == len(resident.segments) == len(resident.by_id)
