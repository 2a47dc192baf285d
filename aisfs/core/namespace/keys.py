"""From keys of objects to names of directory entries and back, without loss.

The slashes of a key make it a path. Three components that no path can have get names of their own: the
empty one is `aisfs-empty`, `.` and `..` are `aisfs-dot` and `aisfs-dotdot`. A component that really has
such a name gets `aisfs-` once more before it, so no two components meet under one name. What else Linux
does not allow (over 255 bytes, a NUL) is refused.

Names are bytes, as in the kernel; keys are `str` with surrogates for bytes that are not UTF-8.
"""

import os
import re
from enum import StrEnum

from aisfs.core.archive.formats import Form, form_of_name, suffix_of
from aisfs.errors import InvalidName, NameTooLong, Unsupported
from aisfs.model import Bucket, Provider

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
