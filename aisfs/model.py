"""The plain values every layer speaks in: buckets, objects, pages of a listing.

Keys are `str`; bytes that are not UTF-8 stand in them as lone surrogates (PEP 383), so that
`os.fsencode(key)` gives back what the server stores. Nothing here waits or knows a protocol.

There may be millions of objects, so they are msgspec's structs: made in a tenth of the time that a
frozen dataclass takes, and not looked through by Python's collector of cycles, of which they have
none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

import msgspec


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


class ObjectInfo(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One version of one object, as a listing or a HEAD told it."""

    key: str
    size: int
    """Length in bytes."""
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

    def __hash__(self) -> int:
        return hash((self.key, self.size, self.version, self.checksum, self.mtime_ns))

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
