"""The plain values every layer speaks in: buckets, objects with their checksums, pages of a listing, ranges of bytes.

Keys are `str`; bytes that are not UTF-8 stand in them as lone surrogates (PEP 383), so that
`os.fsencode(key)` gives back what the server stores. Nothing here waits or knows a protocol.

There may be millions of objects, so they are msgspec's structs: made in a tenth of the time that a
frozen dataclass takes, and not looked through by Python's collector of cycles, of which they have
none.
"""

import hashlib
import sys
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from types import MappingProxyType
from typing import Protocol

import msgspec
import xxhash
from crc32c import CRC32CHash
from msgspec import structs

# Checksums of whole objects are texts `<type>:<hex>`, with AIStore's names for the types.

DEFAULT_TYPE = "xxhash2"
"""The type of checksum of a bucket of AIStore by default."""


class Hasher(Protocol):
    """The part of hashlib's interface that is used."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Add the next bytes."""

    def hexdigest(self) -> str:
        """Return the checksum of all bytes so far, in hexadecimal digits."""
        ...


_HASHERS: dict[str, Callable[[], Hasher]] = {
    "xxhash": xxhash.xxh64,
    "xxhash2": xxhash.xxh64,
    "md5": lambda: hashlib.md5(usedforsecurity=False),
    "crc32c": CRC32CHash,
    "sha256": hashlib.sha256,
    "sha512": hashlib.sha512,
}


def is_known(kind: str) -> bool:
    """Return whether checksums of this type can be computed."""
    return kind in _HASHERS


def hasher_of(kind: str) -> Hasher:
    """Begin a checksum of a known type."""
    return _HASHERS[kind]()


def hasher_for_cache(checksum: str) -> Hasher | None:
    """Begin a checksum like this one; None if whole objects in the cache are not verified by it."""
    kind = checksum.partition(":")[0]
    # crc32c without the processor's instruction for it is slower than the network.
    return hasher_of(kind) if is_known(kind) and kind != "crc32c" else None


class Provider(StrEnum):
    """Where a bucket's objects live, and who serves them: an AIStore, or that place itself."""

    AIS = "ais"
    AWS = "aws"
    GCP = "gcp"
    AZURE = "azure"
    OCI = "oci"

    # Without AIStore in between:
    S3 = "s3+direct"
    GS = "gs+direct"
    AZ = "az+direct"
    HTTP = "http"
    HTTPS = "https"
    HF = "hf"
    FSSPEC = "fsspec"
    """Whatever fsspec opens; the scheme is a part of the bucket's name: `sftp://host`."""

    @property
    def scheme(self) -> str:
        """The name users type: `s3` for aws, `gs` for gcp, otherwise the canonical name."""
        return _SCHEMES.get(self, self.value)

    @property
    def is_direct(self) -> bool:
        """Whether it is reached without AIStore."""
        return self not in SERVED

    @property
    def is_web(self) -> bool:
        """Whether it is a web server."""
        return self in (Provider.HTTP, Provider.HTTPS)

    @classmethod
    def parse(cls, text: str) -> "Provider":
        """Accept canonical names and the schemes users type.

        Raises:
            ValueError: for anything else.
        """
        found = _PROVIDER_OF_SCHEME.get(text) or cls(text)
        if found is cls.FSSPEC:
            raise ValueError("a bucket has the scheme of what fsspec opens")
        return found


_SCHEMES = {Provider.AWS: "s3", Provider.GCP: "gs", Provider.AZURE: "az", Provider.OCI: "oc"}
_PROVIDER_OF_SCHEME = {scheme: provider for provider, scheme in _SCHEMES.items()} | {
    "aws+direct": Provider.S3,
    "gcp+direct": Provider.GS,
    "azure+direct": Provider.AZ,
}
SERVED = (Provider.AIS, Provider.AWS, Provider.GCP, Provider.AZURE, Provider.OCI)
"""What an AIStore can have buckets of."""


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """The identity of a bucket: provider, namespace and name.

    What is no bucket elsewhere is one here: an account's container, a web server, a repository of
    Hugging Face, the host of a URL.
    """

    name: str
    provider: Provider = Provider.AIS
    namespace: str = ""
    """AIStore's `@uuid#name` form; empty means the global namespace of this cluster."""
    path: str = field(default="", compare=False)
    """Where a directory lies that stands for a bucket; messages then call it by that."""

    def __hash__(self) -> int:
        # Every table of names is asked with one; the hash of a tuple and of an enum takes five times as long.
        return hash(self.name)

    @property
    def cluster(self) -> str:
        """Uuid or alias of the other AIStore cluster that it is in; empty for this one."""
        space = self.namespace
        return space[1:].partition("#")[0] if space.startswith("@") else ""

    @property
    def is_local(self) -> bool:
        """Whether its objects are in this cluster and nowhere else."""
        return self.provider is Provider.AIS and not self.cluster

    @property
    def is_attached(self) -> bool:
        """Whether its objects are in an AIStore cluster that is attached to this one, with copies here."""
        return self.provider is Provider.AIS and bool(self.cluster)

    @property
    def store(self) -> str:
        """What one store serves, in a word; empty for AIStore, and for a local directory."""
        if self.provider.is_web:
            return "web"
        if self.provider is Provider.FSSPEC:
            return self.name.partition("://")[0]
        return self.provider.scheme.removesuffix("+direct") if self.provider.is_direct else ""

    @property
    def hides_names(self) -> bool:
        """Whether there may be more than its listings name, as of what the index of a web server leaves out."""
        return self.provider.is_web

    def __str__(self) -> str:
        if self.path:
            return self.path.rstrip("/")
        if self.provider is Provider.FSSPEC:
            return self.name
        space = f"{self.namespace}/" if self.namespace else ""
        return f"{self.provider.scheme}://{space}{self.name}"


NO_CUSTOM: Mapping[str, str] = MappingProxyType({})
"""No custom metadata: one mapping for all the objects of a listing that have none."""


FAILURE = "aisfs-error"
"""The custom metadata of an object that is only listed: why it has no content."""


class ObjectInfo(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One version of one object, as a listing or a HEAD told it."""

    key: str
    size: int
    """Length in bytes; negative while it is not known, see `unsized`."""
    version: str = ""
    """AIStore's version; empty when the bucket keeps none."""
    checksum: str = ""
    """`<type>:<hex>`, for example `xxhash2:92f0de5a88a3c094`; empty when unknown."""
    mtime_ns: int = 0
    """Modification time, nanoseconds since the epoch; docs/SEMANTICS.md says where it comes from."""
    custom: Mapping[str, str] = NO_CUSTOM
    """Custom metadata that was written for exactly this content; see `WritableStore`. Two that
    differ in nothing else are equal."""

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, ObjectInfo):
            return NotImplemented
        return (
            self.key == other.key
            and self.size == other.size
            and self.version == other.version
            and self.checksum == other.checksum
            and self.mtime_ns == other.mtime_ns
        )

    def __ne__(self, other: object) -> bool:
        return not self == other  # that of msgspec compares whether they are the same object

    def __hash__(self) -> int:
        return hash((self.key, self.size, self.version, self.checksum, self.mtime_ns))

    @property
    def is_sized(self) -> bool:
        """Whether the size is known."""
        return self.size >= 0

    @property
    def unsized(self) -> "ObjectInfo":
        """This, of something that is made of these bytes when it is wanted, and whose size nobody knows before.

        No such value can be taken for a size. `ObjectStore.sized` returns what has one.
        """
        return structs.replace(self, size=~self.size)

    @property
    def source(self) -> "ObjectInfo":
        """What `unsized` was called of."""
        assert not self.is_sized, "it is none that was"
        return structs.replace(self, size=~self.size)

    def same_content(self, other: "ObjectInfo") -> bool:
        """Return whether both describe the same bytes, comparing only what both of them know."""
        return (
            self.size == other.size
            and (not self.version or not other.version or self.version == other.version)
            and (not self.checksum or not other.checksum or self.checksum == other.checksum)
        )

    def same_bytes(self, other: "ObjectInfo") -> bool:
        """Return whether both have the same bytes as far as known, whatever their versions are.

        Checksums of different types say nothing about each other.
        """
        (kind, _, value), (other_kind, _, other_value) = (
            self.checksum.partition(":"),
            other.checksum.partition(":"),
        )
        comparable = kind == other_kind and kind
        return self.size == other.size and (not comparable or value == other_value)


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a directory of a bucket."""

    objects: list[ObjectInfo]
    """Objects directly in the directory; keys are whole."""
    directories: list[str]
    """Whole prefixes of the directories directly below, each ending in `/`."""
    next_token: str
    """Page token of the next page; empty when this is the last one."""
    unusable: Sequence[str] = ()
    """Whole keys and prefixes besides these that the store cannot be asked for."""
    complete: bool = True
    """Whether no name is missing between the page before and the next one; False while the store moves objects."""
    left_out: int = 0
    """How many links in a local directory are not followed, and how many things are neither files nor directories."""

    @property
    def names(self) -> list[str]:
        """All keys and prefixes."""
        return [*(info.key for info in self.objects), *self.directories]


@dataclass(frozen=True, slots=True)
class Keys:
    """The first keys that a store gives of all that begin with a prefix."""

    found: list[str]
    complete: bool
    """Whether these are all."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A half-open range `[start, stop)` of bytes of an object."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


_LAYOUT = b"\x01"
"""First byte of the packed form: 0x01, then a zlib stream of gaps and lengths in turn."""
_LEVEL = 1  # block-aligned ranges are mostly zeros; a higher level gains nothing
MAX_RANGES = 1 << 24
"""Most ranges that `unpack` accepts, so that damaged bytes cannot fill memory: a shard has no more
members (`inodes.MAX_MEMBERS`)."""
GROWTH = 4
"""Growth factor of the first pieces of a stream. A piece costs a request or two: of 2, 4 and 8
this was the fastest for the members of a shard of 8 MB."""
_MAX_OFFSET = (1 << 63) - 1  # what `lseek` and AIStore take


class RangeSet:
    """A set of bytes of one object, as ranges: which bytes are present.

    A set may hold 100,000 ranges (every other sample of a large shard), so every operation is a binary
    search and visits only the ranges concerned. Ranges of a set are sorted, not empty, and separated by
    gaps: adjacent ranges are joined, so that equal sets have equal ranges.
    """

    __slots__ = ("_starts", "_stops", "total")

    def __init__(self, ranges: Iterable[ByteRange] = ()) -> None:
        """Start with the bytes of `ranges`, which may overlap and be in any order."""
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.total = 0
        """Bytes in the set."""
        for each in ranges:
            self.add(each)

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[ByteRange]:
        return map(ByteRange, self._starts, self._stops)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._starts == other._starts and self._stops == other._stops

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"<RangeSet {self.total} bytes in {len(self)} ranges>"

    def add(self, added: ByteRange) -> None:
        """Add all bytes of a range."""
        start, stop = added.start, added.stop
        if start >= stop:
            return
        first = bisect_left(self._stops, start)
        behind = bisect_right(self._starts, stop)
        if first < behind:  # these overlap or adjoin it
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[behind - 1])
        self._replace(first, behind, [start], [stop])

    def subtract(self, removed: ByteRange) -> None:
        """Remove all bytes of a range."""
        start, stop = removed.start, removed.stop
        if start >= stop:
            return
        first = bisect_right(self._stops, start)
        behind = bisect_left(self._starts, stop)
        if first >= behind:
            return
        starts, stops = [], []
        if self._starts[first] < start:
            starts.append(self._starts[first])
            stops.append(start)
        if stop < self._stops[behind - 1]:
            starts.append(stop)
            stops.append(self._stops[behind - 1])
        self._replace(first, behind, starts, stops)

    def covers(self, wanted: ByteRange) -> bool:
        """Return whether every byte of `wanted` is in the set."""
        if wanted.start >= wanted.stop:
            return True
        place = bisect_right(self._starts, wanted.start) - 1
        return place >= 0 and wanted.stop <= self._stops[place]

    def missing(self, wanted: ByteRange) -> list[ByteRange]:
        """Return the parts of `wanted` that are not in the set, in order."""
        gaps = []
        start = wanted.start
        for place in range(bisect_right(self._stops, start), len(self._starts)):
            if self._starts[place] >= wanted.stop:
                break
            if start < self._starts[place]:
                gaps.append(ByteRange(start, self._starts[place]))
            start = self._stops[place]
        if start < wanted.stop:
            gaps.append(ByteRange(start, wanted.stop))
        return gaps

    def pack(self) -> bytes:
        """Return a compact form that `unpack` reads on any machine."""
        steps = array("Q", bytes(16 * len(self)))
        before = [0, *self._stops]
        steps[0::2] = array("Q", map(int.__sub__, self._starts, before))
        steps[1::2] = array("Q", map(int.__sub__, self._stops, self._starts))
        if sys.byteorder == "big":
            steps.byteswap()
        return _LAYOUT + zlib.compress(steps.tobytes(), _LEVEL)

    @classmethod
    def unpack(cls, packed: bytes) -> "RangeSet":
        """Return the set that `pack` packed.

        Raises:
            ValueError: these are not the bytes of a set.
        """
        if packed[:1] != _LAYOUT:
            raise ValueError("ranges of an unknown layout")
        unzip = zlib.decompressobj()
        try:
            raw = unzip.decompress(packed[1:], 16 * MAX_RANGES)
        except zlib.error as error:
            raise ValueError(f"damaged ranges: {error}") from None
        if not unzip.eof or unzip.unused_data or len(raw) % 16:
            raise ValueError("ranges cut off or with something behind")
        steps = array("Q", raw)
        if sys.byteorder == "big":
            steps.byteswap()
        if 0 in steps[1:]:  # only the first range may start without a gap
            raise ValueError("an empty range, or two that touch")
        borders = list(accumulate(steps))
        if borders and borders[-1] > _MAX_OFFSET:
            raise ValueError("a range beyond the end of any object")
        ranges = cls()
        ranges._starts, ranges._stops = borders[0::2], borders[1::2]
        ranges.total = sum(steps[1::2])
        return ranges

    def _replace(self, first: int, behind: int, starts: list[int], stops: list[int]) -> None:
        gone = sum(self._stops[first:behind]) - sum(self._starts[first:behind])
        self.total += sum(stops) - sum(starts) - gone
        self._starts[first:behind] = starts
        self._stops[first:behind] = stops


def aligned(wanted: ByteRange, block: int, size: int) -> ByteRange:
    """Return `wanted` extended to block boundaries and cut at `size`, the end of the object.

    An empty range stays empty.
    """
    start, stop = min(wanted.start, size), min(wanted.stop, size)
    if start >= stop:
        return ByteRange(start, start)
    return ByteRange(start // block * block, min(-(-stop // block) * block, size))


def pieces(whole: ByteRange, length: int) -> Iterator[ByteRange]:
    """Yield `whole` in ranges of `length` bytes; the last one may be shorter."""
    for start in range(whole.start, whole.stop, length):
        yield ByteRange(start, min(start + length, whole.stop))


def growing_pieces(whole: ByteRange, first: int, most: int) -> Iterator[ByteRange]:
    """Yield `whole` in ranges cut at `first` bytes, `GROWTH` times that, and so on; at most `most` long."""
    start, edge = whole.start, first
    while start < whole.stop:
        stop = min(whole.start + edge, whole.stop)
        yield ByteRange(start, stop)
        edge = edge + most if edge >= most else min(GROWTH * edge, most)
        start = stop
