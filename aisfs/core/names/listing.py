"""Names in a directory of a bucket: from keys and back, which are archives, where indexes lie, and an order that survives the next listing.

The slashes of a key make it a path. Three components that no path can have get names of their own: the
empty one is `aisfs-empty`, `.` and `..` are `aisfs-dot` and `aisfs-dotdot`. A component that really has
such a name gets `aisfs-` once more before it, so no two components meet under one name. What else Linux
does not allow (over 255 bytes, a NUL) is refused. Names are bytes, as in the kernel; keys are `str` with surrogates for bytes
that are not UTF-8.

A reader of a directory continues at the offset of the last entry it got, perhaps after the directory changed. Therefore each
name keeps its offset as long as every listing contains it: a new listing is merged with the previous one, names in both keep
their offsets, and new ones get higher offsets. So no reader sees a name twice or misses one that existed all the time.

Published indexes lie beside their shards, or in a bucket of their own:

    beside       DIR/NAME.tar  ->  DIR/.aisfs-index/NAME.tar.idx
    on AIStore   ais://BUCKET/DIR/NAME.tar  ->  ais://aisfs-index/ais/BUCKET/DIR/NAME.tar.idx

Programs that read a whole bucket find what lies beside its shards. So one bucket has the indexes of all others, and in it a
bucket is named as in a mount of all buckets: no two shards have one name there.
"""

import os
import re
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from itertools import islice

from aisfs.errors import InvalidName, NameTooLong, ProtocolError, Unsupported
from aisfs.model import Bucket, ObjectInfo, Page, Provider
from aisfs.redaction import shown

HEAD = 262 + 3
"""Bytes from the start of an object that `form_of_content` needs."""


class Form(IntEnum):
    """An archive format. Stored indexes contain the numbers: never reuse one."""

    TAR = 1
    ZIP = 2
    TAR_GZ = 3
    TAR_BZ2 = 4
    TAR_XZ = 5
    TAR_ZST = 6
    TAR_LZ4 = 7

    @property
    def compressed(self) -> bool:
        """Whether it is compressed as a whole, so that members are no ranges of the object."""
        return self not in (Form.TAR, Form.ZIP)

    @property
    def label(self) -> str:
        """What it is called in a message, such as `a tar.gz`."""
        return f"a {self.name.lower().replace('_', '.')}"


STORED = 0
DEFLATED = 8
BZIP2 = 12
LZMA = 14
METHODS = (STORED, DEFLATED, BZIP2, LZMA)
"""The compression methods of zips that are supported, by their numbers there."""

_SUFFIXES = {
    b".tar": Form.TAR,
    b".zip": Form.ZIP,
    b".tgz": Form.TAR_GZ,
    b".tar.gz": Form.TAR_GZ,
    b".tar.bz2": Form.TAR_BZ2,
    b".tar.xz": Form.TAR_XZ,
    b".tar.zst": Form.TAR_ZST,
    b".tar.lz4": Form.TAR_LZ4,
}
SUFFIXES = tuple(_SUFFIXES)

_MAGIC = [
    (0, b"PK\x03\x04", Form.ZIP),
    (0, b"PK\x05\x06", Form.ZIP),
    (0, b"\x1f\x8b", Form.TAR_GZ),
    (0, b"BZh", Form.TAR_BZ2),
    (0, b"\xfd7zXZ\x00", Form.TAR_XZ),
    (0, b"\x28\xb5\x2f\xfd", Form.TAR_ZST),
    (0, b"\x04\x22\x4d\x18", Form.TAR_LZ4),
    (0, b"\x02\x21\x4c\x18", Form.TAR_LZ4),  # legacy
    (257, b"ustar", Form.TAR),
]


def form_of_name(name: bytes) -> Form | None:
    """Return the format of a suffix; None when the name has none, or is only the suffix."""
    return _SUFFIXES.get(suffix_of(name))


def suffix_of(name: bytes) -> bytes:
    """Return the suffix of an archive format; empty when there is none."""
    if not name.endswith(SUFFIXES):
        return b""
    for suffix in SUFFIXES:
        if name.endswith(suffix) and name != suffix:
            return suffix
    return b""


def form_of_content(head: bytes) -> Form | None:
    """Return the format of an object, given its first `HEAD` bytes or all of it.

    A compressed file counts as a compressed tar: its content is known only after decompression.
    Tars older than POSIX have no magic number and are not recognised.
    """
    for offset, magic, form in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return form
    return None


NAME_MAX = 255
"""Most bytes of a path component on Linux and on most file systems that people copy to."""

PATH_MAX = 4096
"""Bytes of a path that Linux takes, with the NUL at its end."""
_TARGET_PATH = 256
"""Bytes for the path at which a target keeps the objects of a bucket, as files; it is not known here."""

SHARD_DIRECTORY_SUFFIX = b".d"
"""`X.tar` + this is the folder of its members. Shells leave a letter alone, unlike `#` and `!`."""
SHARD_BYTES_SUFFIX = b".raw"
"""`X.tar` + this is the shard's content where `X.tar` itself is listed as a directory."""

INDEX_DIRECTORY = ".aisfs-index"
CLASSES_NAME = "classes.txt"
"""The file beside shards that has the names of the labels 0, 1, …, one a line."""
"""The directory beside shards that has their published indexes; found by name and not listed."""

_ODD_MARK = b"aisfs-"
_NAME_OF_ODD = {b"": b"aisfs-empty", b".": b"aisfs-dot", b"..": b"aisfs-dotdot"}
_ODD_OF_NAME = {name: component for component, name in _NAME_OF_ODD.items()}
_MARKED = re.compile(rb"(?:aisfs-)+(?:empty|dot|dotdot)")
"""Names with one mark stand for components that no path can have, those with more for real ones."""

_ODD_PATH = re.compile(r"(?:^|/)(?:\.{0,2}|(?:aisfs-)+(?:empty|dot|dotdot))(?:/|$)")

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NO_CONTROL = frozenset({Provider.GS, Provider.AZ})
"""Where the cloud's client takes no control characters in names."""


class Refusal(StrEnum):
    """Why an object of a listing is not in the tree."""

    EMPTY_COMPONENT = "empty component"
    DOTS = "a component is . or .."
    TOO_LONG = f"over {NAME_MAX} bytes"
    NUL = "contains NUL"
    HIDDEN_BY_DIRECTORY = "a directory has the same name"
    EXCLUDED = "excluded"
    NO_FILE = "a link that is not followed, or no file"


def refusal(name: bytes) -> Refusal | None:
    """Return why `name` cannot be a directory entry; None when it can."""
    if not name:
        return Refusal.EMPTY_COMPONENT
    if name in (b".", b".."):
        return Refusal.DOTS
    if len(name) > NAME_MAX:
        return Refusal.TOO_LONG
    if b"\0" in name:
        return Refusal.NUL
    return None


def check_new_key(bucket: Bucket, key: str, *, directory: bool = False) -> None:
    """Check that a store takes, and lists, an object of this name, or objects in a `directory` of it.

    Raises:
        InvalidName, NameTooLong: with the reason.
    """
    try:
        encoded = os.fsencode(key)
    except UnicodeEncodeError:
        raise InvalidName(f"{bucket}: {key!r} is not a name any store could hold") from None
    parts = encoded.split(b"/")
    takes_odd = bucket.provider is Provider.S3
    for at, part in enumerate(parts):
        is_marker = not part and at + 1 == len(parts) and not directory
        if takes_odd and part in _NAME_OF_ODD and not is_marker:
            continue
        why = refusal(part)
        if why is Refusal.TOO_LONG:
            raise NameTooLong(f"{bucket}/{key}: a component is {why}")
        if why:
            raise InvalidName(f"{bucket}: {key!r} cannot be written: {why}")
    most = PATH_MAX - 1 - (len(os.fsencode(bucket.path)) + 1 if bucket.path else _TARGET_PATH)
    if len(encoded) > most:
        raise NameTooLong(f"{bucket}: a path below it has at most {most} bytes")
    if bucket.provider in _NO_CONTROL and _CONTROL.search(key):
        raise InvalidName(f"{bucket}: {key!r} cannot be written: a control character")
    if parts[0] == b"~" and len(parts) > 1:
        raise InvalidName(f"{bucket}: {key!r} cannot be written: AIStore refuses a leading ~/")


def never_below(prefix: str) -> bool:
    """Return whether AIStore refuses, or never lists, every key below this directory."""
    parts = prefix.split("/")[:-1]
    return parts[:1] == ["~"] or not {"", ".", ".."}.isdisjoint(parts)


def odd_component(prefix: str, key: str) -> Refusal | None:
    """Return what is odd about the name of a key or prefix in its directory; None when nothing is."""
    component = _component(prefix, key)
    return refusal(component) if component in _NAME_OF_ODD else None


def check_new_member(member: str) -> None:
    """Check that tools extract a member of this name to that very path.

    Raises:
        InvalidName, NameTooLong: with the reason.
    """
    check_new_key(Bucket("member"), member)


def entry_name(prefix: str, key: str) -> bytes:
    """Return the name of a key or prefix in its directory; it may still be refused."""
    component = _component(prefix, key)
    if component in _NAME_OF_ODD:
        return _NAME_OF_ODD[component]
    return _ODD_MARK + component if _is_marked(component) else component


def _component(prefix: str, key: str) -> bytes:
    return os.fsencode(key[len(prefix) :].removesuffix("/"))


def _is_marked(text: bytes) -> bool:
    return text.startswith(_ODD_MARK) and _MARKED.fullmatch(text) is not None


def has_marks(names: bytes) -> bool:
    """Return whether one of several components may have another name than its own."""
    return _ODD_MARK in names


def child_key(prefix: str, name: bytes) -> str:
    """Return the key of the object called `name` in the directory `prefix`.

    It is empty, or ends in a slash, for the name of the empty component: no file has that.
    """
    if _is_marked(name):
        name = _ODD_OF_NAME.get(name, name.removeprefix(_ODD_MARK))
    return prefix + os.fsdecode(name)


def path_of(key: str) -> str:
    """Return the path of a key in a mount, for the names of members that are made of objects."""
    if _ODD_PATH.search(key) is None:
        return key
    return "/".join(os.fsdecode(entry_name("", component)) for component in key.split("/"))


def is_key(key: str) -> bool:
    """Return whether a key may be that of a file, not the marker of a directory."""
    return bool(key) and not key.endswith("/")


def child_prefix(prefix: str, name: bytes) -> str:
    """Return the prefix of the directory called `name` in the directory `prefix`."""
    return f"{child_key(prefix, name)}/"


def is_shard(name: bytes) -> bool:
    """Return whether an object of this name is opened up as a shard."""
    return form_of_name(name) is not None


def is_shard_of_dataset(name: bytes) -> bool:
    """Return whether an object of this name is a shard of a dataset: its suffix may be in capitals."""
    return is_shard(name.lower())


def is_plain_tar(name: bytes) -> bool:
    """Return whether an object of this name is a shard to which members can be appended."""
    return form_of_name(name) is Form.TAR


def shard_stem(name: str) -> str:
    """Return the name of a shard without its suffix, which may be in capitals."""
    return name[: len(name) - len(suffix_of(os.fsencode(name).lower()))]


def shard_of_directory(name: bytes) -> bytes | None:
    """Return `X.tar` for `X.tar.d`, None for any other name."""
    owner = owner_of_directory(name)
    return owner if owner and is_shard(owner) else None


def owner_of_directory(name: bytes) -> bytes | None:
    """Return `X` for `X.d`, even if `X` is no shard, and None for any other name."""
    return (name.endswith(SHARD_DIRECTORY_SUFFIX) and name[: -len(SHARD_DIRECTORY_SUFFIX)]) or None


def shard_of_bytes(name: bytes) -> bytes | None:
    """Return `X.tar` for `X.tar.raw`, None for any other name."""
    owner = name.removesuffix(SHARD_BYTES_SUFFIX)
    return owner if owner != name and is_shard(owner) else None


def bucket_name(bucket: Bucket) -> bytes:
    """Return the name of a bucket in its provider's directory.

    A bucket's name has no `@` or `#`, so name and namespace can be separated again.
    """
    return os.fsencode(bucket.name + bucket.namespace)


_BUCKET_NAME = re.compile(rb"[A-Za-z0-9_.-]+([@#][A-Za-z0-9_.@#-]*)?")


_BUCKET_NAME_MAX = 64
"""Characters that AIStore takes."""


def check_new_bucket(bucket: Bucket) -> None:
    """Check that AIStore makes a bucket of this name.

    Raises:
        InvalidName, Unsupported: with the reason.
    """
    if bucket.provider is not Provider.AIS:
        raise Unsupported(
            f"{bucket}: AIStore makes only ais:// buckets; make this one in its cloud"
        )
    name = bucket.name
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise InvalidName(f"{bucket}: a bucket's name has only letters, digits, `.`, `-` and `_`")
    if len(name) > _BUCKET_NAME_MAX:
        raise InvalidName(f"{bucket}: a bucket's name has at most {_BUCKET_NAME_MAX} characters")
    if name.startswith(".") or ".." in name:
        raise InvalidName(f"{bucket}: a bucket's name neither begins with `.` nor has `..` in it")


def is_bucket_name(name: bytes) -> bool:
    """Return whether a bucket, with its namespace, can have this name."""
    return _BUCKET_NAME.fullmatch(name) is not None


def parse_bucket_name(provider: Provider, name: bytes) -> Bucket:
    """Return the bucket that `bucket_name` named."""
    text = os.fsdecode(name)
    at = min((i for i in (text.find("@"), text.find("#")) if i > 0), default=len(text))
    return Bucket(text[:at], provider, text[at:])


PENDING_VERSION = "pending"
"""The version of an object that is being written and is not in the store yet."""

ENTRIES_MAX = 10_000_000
"""Most names of one directory. At half a kilobyte each they take 5 GB of memory."""
NAME_BYTES_MAX = 2 << 30
"""Most bytes of all names of one directory: 200 for each."""
SHORT_PAGE, SHORT_PAGES_MAX = 10, 1000
"""How many pages may have fewer names than this. Usual pages have 1,000 or 10,000 names, but after
many objects of a cloud were deleted they may be almost empty for a while."""

UNLISTED = INDEX_DIRECTORY.encode()
"""The name that is found and not listed, like the folder of a shard."""

Listed = ObjectInfo | None
"""What a name stands for: an object, or None for a directory."""
Wanted = Callable[[str], bool]
"""Returns whether a key, or a prefix with its slash, is shown."""


class Listing:
    """One complete listing; once built, nothing of it changes but that sizes become known."""

    __slots__ = ("_entries", "_names", "_offsets", "is_first", "is_part", "refused")

    def __init__(
        self,
        entries: dict[bytes, Listed],
        refused: Counter[Refusal],
        previous: "Listing | None" = None,
    ) -> None:
        """Order `entries` like `previous`, the last listing of the same directory."""
        self._entries = entries
        self.refused = refused
        """How many keys are not shown, by reason."""
        self.is_first = previous is None
        """Whether its order is the store's, and owes nothing to listings before."""
        self.is_part = False
        """Whether it is what was given of a listing that was not completed: other names are no news."""
        if previous is None:
            self._names = _listed(entries)
            self._offsets = array("Q", range(1, len(self._names) + 1))
        else:
            self._names, self._offsets = _merge(previous, entries)
            self.is_first = previous.is_first and self._names is previous._names

    @classmethod
    def of_order(cls, names: list[bytes], offsets: Iterable[int]) -> "Listing":
        """Return what only a later listing is to be ordered like; see `order`."""
        listing = cls(dict.fromkeys(names), Counter())
        listing._offsets, listing.is_first = array("Q", offsets), False
        return listing

    @property
    def order(self) -> tuple[Sequence[bytes], Sequence[int]]:
        """Names and their offsets."""
        return self._names, self._offsets

    def with_changes(
        self, present: Mapping[bytes, Listed], absent: Collection[bytes], previous: "Listing"
    ) -> "Listing":
        """Return this listing with names added, changed or removed, ordered like `previous`."""
        entries = {**self._entries, **present}
        for name in absent:
            entries.pop(name, None)
        return Listing(entries, self.refused, previous)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: bytes) -> bool:
        return name in self._entries

    def __getitem__(self, name: bytes) -> Listed:
        return self._entries[name]

    @property
    def names(self) -> KeysView[bytes]:
        """All names, also the one that is not listed."""
        return self._entries.keys()

    def total_size(self) -> int:
        """Return the bytes of all objects together, as far as known."""
        return sum(listed.size for listed in self._entries.values() if listed and listed.is_sized)

    def size_became_known(self, name: bytes, info: ObjectInfo) -> None:
        """Put what has a size in place of an object that had none."""
        self._entries[name] = info

    def place(self, name: bytes, start: int) -> int | None:
        """Return the place of a name in the order: `start` is a guess, and orders other than by name are not searched."""
        if self._names[start : start + 1] == [name]:
            return start
        place = bisect_left(self._names, name)
        return place if self._names[place : place + 1] == [name] else None

    def unsized(self, start: int, stop: int) -> list[tuple[bytes, ObjectInfo]]:
        """Return the objects in these places whose size is not known."""
        named = ((name, self._entries[name]) for name in self._names[start:stop])
        return [(name, listed) for name, listed in named if listed and not listed.is_sized]

    @property
    def has_indexes(self) -> bool:
        """Whether indexes of the shards in the directory are published."""
        return UNLISTED in self._entries

    def changes_since(self, previous: "Listing") -> list[bytes]:
        """Return the names that are new, gone, or of another version than in `previous`."""
        ours, theirs = self._entries, previous._entries
        gone = [name for name in theirs if name not in ours]
        if previous.is_part:
            return gone + [n for n, listed in theirs.items() if n in ours and ours[n] != listed]
        return gone + [n for n, listed in ours.items() if n not in theirs or theirs[n] != listed]

    def after(self, offset: int) -> Iterator[tuple[int, bytes, Listed]]:
        """Yield (offset, name, object) of each entry after `offset`; 0 is before the first."""
        entries = self._entries
        for position in range(bisect_right(self._offsets, offset), len(self._names)):
            name = self._names[position]
            yield self._offsets[position], name, entries[name]

    def objects_after(
        self, offset: int, most: int, wanted: Callable[[bytes], bool] | None = None
    ) -> tuple[Sequence[int], list[bytes], list[ObjectInfo]]:
        """Return offsets, names and objects after `offset`: at most `most`, and up to the first
        directory, object without a size, or name that is not `wanted`."""
        start = bisect_right(self._offsets, offset)
        names, entries = self._names[start : start + most], self._entries
        objects: list[ObjectInfo] = []
        for name in names:
            listed = entries[name]
            if listed is None or listed.size < 0 or (wanted is not None and not wanted(name)):
                break
            objects.append(listed)
        return self._offsets[start : start + len(objects)], names[: len(objects)], objects


class ArrivingListing(Listing):
    """The objects of a listing under way, with the offsets that they have in the end.

    Directories come with the end: whether there is anything in them is asked then. So do all objects from the first page on
    that has others than came next in the listing before, or one that is a directory's, too. trio's thread adds names, others
    read meanwhile.
    """

    __slots__ = ("_before", "_fits")

    def __init__(self, objects: dict[bytes, Listed], before: Listing | None) -> None:
        """Begin with none of `objects`, which grow; the listing is going to be ordered like `before`."""
        super().__init__({}, Counter())
        self._entries = objects
        self._before = before.order if before is not None else ([], [])
        self._fits = True

    def grow(self, new: list[bytes], *, fit: bool) -> None:
        """Add the names of a page, unless they do not fit."""
        names, offsets = self._before
        start = len(self._names)
        following = names[start : start + len(new)]
        self._fits = self._fits and fit and following == new[: len(following)]
        if not self._fits:
            return
        # First the offsets: readers look only for those of names.
        self._offsets.extend(offsets[start : start + len(following)])
        free = self._offsets[-1] + 1 if self._offsets else 1
        self._offsets.extend(range(free, free + len(new) - len(following)))
        self._names.extend(new)

    def read_at(self, offset: int) -> int:
        """Return how many names lie before an offset, or at it."""
        return bisect_right(self._offsets, offset, hi=len(self._names))

    def so_far(self) -> Listing:
        """Return what there is as a listing of its own, for a later one to be ordered like."""
        listing = Listing({name: self._entries[name] for name in self._names}, Counter())
        listing._offsets, listing.is_first, listing.is_part = self._offsets[:], False, True
        return listing

    def given(self, names: Collection[bytes]) -> list[bytes]:
        """Return which of some names readers may have had."""
        return [name for name in self._names if name in names] if names else []


class ListingBounds:
    """Ends a listing that makes no progress, or that is too large for memory."""

    def __init__(self, subject: str) -> None:
        """Watch the pages of one listing; `subject` begins each message."""
        self._subject = subject
        self._tokens: set[str] = set()
        self._entries = self._bytes = 0

    def check(self, names: Collection[str], token: str) -> None:
        """Check a page and the token of the next one.

        Raises:
            ProtocolError: the listing does not end, or not within the bounds.
        """
        self._entries += len(names)
        self._bytes += sum(map(len, names))
        pages = len(self._tokens)
        if token and token in self._tokens:
            raise self._error(f"it goes in circles, and is at {shown(token)[:100]!r} again")
        if self._entries > ENTRIES_MAX or self._bytes > NAME_BYTES_MAX:
            raise self._error(f"more than {self._entries} names, {self._bytes >> 20} MiB of them")
        if pages > SHORT_PAGES_MAX + self._entries // SHORT_PAGE:
            raise self._error(f"{pages} pages brought {self._entries} names only")
        self._tokens.add(token)

    def _error(self, why: str) -> ProtocolError:
        return ProtocolError(f"{self._subject}: the listing has no end: {why}")


class ListingBuilder:
    """Builds a listing from the pages of one directory as they arrive."""

    def __init__(self, prefix: str, wanted: Wanted | None = None) -> None:
        """Begin the listing of the directory `prefix`, with the names that are `wanted`."""
        self._prefix = prefix
        self._wanted = wanted
        self._directories: dict[bytes, Listed] = {}
        self._objects: dict[bytes, Listed] = {}
        self._refused: Counter[Refusal] = Counter()

    def show(self, before: Listing | None) -> ArrivingListing:
        """Return a listing of objects that were added, to which they are still to be `shown`; ordered like `before`."""
        return ArrivingListing(self._objects, before)

    def shown(self, arriving: ArrivingListing, known: int) -> None:
        """Add to what `show` has returned all objects but the first `known`."""
        new = list(islice(reversed(self._objects), len(self._objects) - known))
        new.reverse()
        arriving.grow(_listed(new), fit=self._directories.keys().isdisjoint(new))

    @property
    def objects(self) -> int:
        """How many objects were added."""
        return len(self._objects)

    def __len__(self) -> int:
        return len(self._directories) + len(self._objects)

    def __contains__(self, name: bytes) -> bool:
        return name in self._objects or name in self._directories

    @property
    def directories(self) -> KeysView[bytes]:
        """The names of directories."""
        return self._directories.keys()

    @property
    def ambiguous(self) -> set[bytes]:
        """The names that stand for an object and for a directory."""
        return self._directories.keys() & self._objects.keys()

    def lacking(self, previous: Listing) -> dict[bytes, Listed]:
        """Return the entries of an earlier listing that this one lacks."""
        gone = previous.names - self._objects.keys() - self._directories.keys()
        return {name: previous[name] for name in gone}

    def drop(self, directories: Iterable[bytes]) -> None:
        """Leave directories out."""
        for name in directories:
            self._directories.pop(name, None)

    def add(self, page: Page) -> None:
        """Add the next page."""
        for whole in page.directories:
            name = entry_name(self._prefix, whole)
            if name == UNLISTED:  # whatever is wanted
                self._directories[name] = None
            elif reason := self._refusal(name, whole):
                self._refused[reason] += 1
            else:
                self._directories[name] = None
        self._refused[Refusal.NO_FILE] += page.left_out
        self._refused.update(filter(None, (odd_component(self._prefix, n) for n in page.unusable)))
        names = self._usual_names(page.objects)
        if names is not None:
            self._objects.update(zip(names, page.objects, strict=True))
            return
        for info in page.objects:
            if info.key == self._prefix:  # the zero-size marker some tools leave for a directory
                continue
            name = entry_name(self._prefix, info.key)
            if info.key.endswith("/"):
                self._refused[Refusal.EMPTY_COMPONENT] += 1
            elif reason := self._refusal(name, info.key):
                self._refused[reason] += 1
            else:
                self._objects[name] = info

    def finish(self, previous: Listing | None = None) -> Listing:
        """Return the listing, ordered like `previous`, the last one of the same directory."""
        refused = +self._refused
        hidden = self.ambiguous
        if hidden:
            refused[Refusal.HIDDEN_BY_DIRECTORY] += len(hidden)
        entries = self._objects | self._directories if self._directories else self._objects
        return Listing(entries, refused, previous)

    def _refusal(self, name: bytes, key: str) -> Refusal | None:
        reason = refusal(name)
        if reason is None and self._wanted is not None and not self._wanted(key):
            return Refusal.EXCLUDED
        return reason

    def _usual_names(self, objects: list[ObjectInfo]) -> list[bytes] | None:
        """Return the names of objects, or None when one of them needs a closer look.

        Encoding and checking all names as one string takes a third of the time.
        """
        if self._wanted is not None:
            return None
        cut = len(self._prefix)
        joined = os.fsencode("/".join([info.key[cut:] for info in objects]))
        names = joined.split(b"/")
        if len(names) != len(objects) or b"\0" in joined or len(max(names, key=len)) > NAME_MAX:
            return None
        if has_marks(joined):
            return None
        return None if any(special in names for special in (b"", b".", b"..")) else names


def _merge(previous: Listing, entries: dict[bytes, Listed]) -> tuple[list[bytes], "array[int]"]:
    if previous._entries.keys() == entries.keys():
        return previous._names, previous._offsets
    kept = [
        (offset, name)
        for offset, name in zip(previous._offsets, previous._names, strict=True)
        if name in entries
    ]
    names = [name for _, name in kept]
    offsets = array("Q", (offset for offset, _ in kept))
    following = previous._offsets[-1] + 1 if previous._offsets else 1
    new = _listed(name for name in entries if name not in previous._entries)
    names.extend(new)
    offsets.extend(range(following, following + len(new)))
    return names, offsets


def _listed(names: Iterable[bytes]) -> list[bytes]:
    """Return the names that a directory lists."""
    listed = list(names)
    if UNLISTED in listed:
        listed.remove(UNLISTED)
    return listed


_SUFFIX = ".idx"


def published_key(key: str) -> str:
    """Return the key of the index that lies beside a shard."""
    directory, slash, name = key.rpartition("/")
    return f"{directory}{slash}{INDEX_DIRECTORY}/{name}{_SUFFIX}"


def shard_of_published(key: str) -> str | None:
    """Return the shard beside which an index of this key lies; None if it is no such key."""
    directory, _, name = key.rpartition("/")
    above, slash, own = directory.rpartition("/")
    shard = name.removesuffix(_SUFFIX)
    if own != INDEX_DIRECTORY or not shard or shard == name:
        return None
    return f"{above}{slash}{shard}"


@dataclass(frozen=True, slots=True)
class IndexPlace:
    """Where the indexes of the shards of one bucket lie."""

    bucket: Bucket
    """What has them."""
    root: str | None = None
    """What the keys of indexes begin with before the key of the shard; None for beside the shards."""
    renewable: bool = False
    """Whether the bucket of the shards may be made again while these indexes stay: its versions are numbers
    that begin anew then, and only with their times do they tell shards apart."""

    def key(self, shard: str) -> str:
        """Return the key of the index of a shard."""
        return published_key(shard) if self.root is None else f"{self.root}{shard}{_SUFFIX}"

    def directory(self, prefix: str) -> str:
        """Return the directory that has the indexes of the shards of a directory."""
        return f"{prefix}{INDEX_DIRECTORY}/" if self.root is None else f"{self.root}{prefix}"

    def sizes_key(self, prefix: str, name: str) -> str:
        """Return the key of the table of sizes that transformations called `name` have below a directory."""
        return f"{self.root or ''}{prefix}{INDEX_DIRECTORY}/{name}.sizes"


def place_in(indexes: Bucket, bucket: Bucket) -> IndexPlace:
    """Return the place of a bucket's indexes in the bucket `indexes`."""
    root = f"{bucket.provider.scheme}/{bucket.name}{bucket.namespace}/"
    return IndexPlace(indexes, root, renewable=bucket.provider is Provider.AIS)
