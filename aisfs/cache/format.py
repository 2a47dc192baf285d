"""The identity of a cached entry, and the format of its files.

An entry is one version of one object. It is kept in segments of `SEGMENT` bytes, one sparse file
each, so that eviction, which is always `unlink`, has a grain:

    0       header page: magic, checksum of what follows, number of the segment, identity, zeros
    4096    the bytes of the segment, at the offset they have in it; the file has its full length
            from the start, what is not there yet is a hole

Which bytes are there, and their checksums, is in the ledger. The identity holds everything in which
two contents could differ, so a file whose header names an entry belongs to it.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec
import xxhash

from aisfs.model import Bucket, ByteRange, ObjectInfo

SEGMENT = 16 * 1024 * 1024
"""Bytes of an object in one file. Small enough that a cache of 64 MiB holds a few and that swapping
one is no loss; large enough that 10 GiB are 640 files and one read in a hundred crosses a border."""
PAGE = 4096
"""Grain of the disk: file system blocks and pages of memory."""
HEADER = PAGE
STEP = 256 * 1024
"""Bytes under one checksum: at most so much more than it wants is verified at each end of a first read."""

CONTENT_MAX = 1 << 40
"""Bytes of content whose size is known only at its end."""

_MAGIC = b"aisfs\x00\x00\x01"
_HEAD = struct.Struct("<8sQII")
_IDENTITY_MAX = HEADER - _HEAD.size
_DIGEST = 16


class Damaged(Exception):
    """A file of the cache is not what it should be; never leaves the cache."""


@dataclass(frozen=True, slots=True)
class EntryId:
    """The identity of one version of one object."""

    digest: bytes
    """Hash of the identity; all that is compared."""
    identity: bytes = field(compare=False, repr=False)
    size: int = field(compare=False)
    checksum: str = field(compare=False)
    """`<type>:<hex>` or empty."""
    name: str = field(compare=False)
    """For messages."""

    def key(self, number: int) -> bytes:
        """Return the key of the segment `number`."""
        return self.digest + number.to_bytes(4, "big")

    def numbers(self, wanted: ByteRange) -> range:
        """Return the numbers of the segments that `wanted` lies in."""
        return range(wanted.start // SEGMENT, -(-wanted.stop // SEGMENT))

    def parts(self, wanted: ByteRange) -> Iterator[tuple[bytes, ByteRange]]:
        """Split a range at the borders of segments; yield the key of each with its part."""
        for number in self.numbers(wanted):
            start = number * SEGMENT
            part = ByteRange(max(wanted.start, start), min(wanted.stop, start + SEGMENT))
            yield self.key(number), part

    def segment_length(self, key: bytes) -> int:
        """Return how many bytes of the object belong to the segment `key`."""
        return min(SEGMENT, self.size - segment_start(key))


def entry_id(bucket: Bucket, info: ObjectInfo) -> EntryId | None:
    """Return the identity of the version `info`; None if nothing distinguishes it from others."""
    if not info.version and not info.checksum:
        return None
    key = info.key.encode("utf-8", "surrogateescape")
    parts = (bucket.provider.value, bucket.namespace, bucket.name, key)
    identity = msgspec.msgpack.encode((*parts, info.version, info.checksum, info.size))
    if len(identity) > _IDENTITY_MAX:
        return None
    name = f"{bucket}/{info.key}"
    digest = blake2b(identity, digest_size=_DIGEST).digest()
    return EntryId(digest, identity, info.size, info.checksum, name)


def content_id(bucket: Bucket, info: ObjectInfo, what: str, size: int) -> EntryId | None:
    """Return the identity of content that is made of the version `info`; None as for `entry_id`.

    Args:
        bucket: The object's.
        info: The object.
        what: Names this content among others that are made of the object.
        size: Of the content as far as it is known: the identity does not depend on it.
    """
    made_of = entry_id(bucket, info)
    if made_of is None:
        return None
    # The object's own identity has seven parts, so no object can have this one.
    identity = msgspec.msgpack.encode((what, made_of.digest, CONTENT_MAX))
    digest = blake2b(identity, digest_size=_DIGEST).digest()
    return EntryId(digest, identity, size, "", f"{made_of.name} ({what})")


def segment_start(key: bytes) -> int:
    """Return the offset in the object of the first byte of the segment `key`."""
    return int.from_bytes(key[_DIGEST:], "big") * SEGMENT


def header(entry: EntryId, number: int) -> bytes:
    """Return the first page of a segment's file."""
    rest = struct.pack("<II", number, len(entry.identity)) + entry.identity
    rest += bytes(HEADER - 16 - len(rest))
    return _MAGIC + xxhash.xxh3_64_intdigest(rest).to_bytes(8, "little") + rest


def object_size(page: bytes, key: bytes) -> int:
    """Verify the first page of the file of the segment `key` and read the size of its object.

    Raises:
        Damaged: it is not the header of that segment.
    """
    if len(page) != HEADER:
        raise Damaged("shorter than its header")
    magic, checksum, number, length = _HEAD.unpack_from(page)
    if magic != _MAGIC or checksum != xxhash.xxh3_64_intdigest(page[16:]):
        raise Damaged("its header is broken")
    identity = page[_HEAD.size : _HEAD.size + length]
    digest = blake2b(identity, digest_size=_DIGEST).digest()
    if digest + number.to_bytes(4, "big") != key:
        raise Damaged("it belongs to another object")
    size: int = msgspec.msgpack.decode(identity)[-1]
    return size
