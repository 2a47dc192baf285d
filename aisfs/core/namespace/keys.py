"""Keys of objects to names of directory entries and back, without loss, or not at all.

A key becomes a path by its slashes. What cannot be a path component on Linux (nothing, `.`, `..`,
over 255 bytes, a NUL) is refused, never rewritten: a rewritten name would be somebody else's name.
Names are bytes, as the kernel has them; keys are `str` with surrogates for what is not UTF-8.
"""

import os
import re
from enum import StrEnum

from aisfs.core.archive.formats import Form, form_of_name, suffix_of
from aisfs.errors import InvalidName, NameTooLong
from aisfs.model import Bucket, Provider

NAME_MAX = 255
"""Bytes in a path component; the limit of Linux and of most file systems people copy to."""

SHARD_DIRECTORY_SUFFIX = b".d"
"""`X.tar` + this is the folder of its members. A letter survives every shell; `#` and `!` do not."""
SHARD_BYTES_SUFFIX = b".raw"
"""`X.tar` + this is the shard's bytes where `X.tar` itself is listed as a directory."""


class Refusal(StrEnum):
    """Why an object of a listing is not in the tree."""

    EMPTY_COMPONENT = "empty component"
    DOTS = "a component is . or .."
    TOO_LONG = f"over {NAME_MAX} bytes"
    NUL = "contains NUL"
    HIDDEN_BY_DIRECTORY = "a directory has the same name"
    EXCLUDED = "excluded"


def refusal(name: bytes) -> Refusal | None:
    """Say why `name` cannot be a directory entry, or None when it can."""
    if not name:
        return Refusal.EMPTY_COMPONENT
    if name in (b".", b".."):
        return Refusal.DOTS
    if len(name) > NAME_MAX:
        return Refusal.TOO_LONG
    if b"\0" in name:
        return Refusal.NUL
    return None


def check_new_key(bucket: Bucket, key: str) -> None:
    """Refuse to write an object whose name a store refuses, or would never list again.

    Raises:
        InvalidName, NameTooLong: with the reason.
    """
    try:
        parts = os.fsencode(key).split(b"/")
    except UnicodeEncodeError:
        raise InvalidName(f"{bucket}: {key!r} is not a name any store could hold") from None
    for part in parts:
        why = refusal(part)
        if why is Refusal.TOO_LONG:
            raise NameTooLong(f"{bucket}/{key}: a component is {why}")
        if why:
            raise InvalidName(f"{bucket}: {key!r} cannot be written: {why}")
    if parts[0] == b"~" and len(parts) > 1:
        raise InvalidName(f"{bucket}: {key!r} cannot be written: AIStore refuses a leading ~/")


def never_below(prefix: str) -> bool:
    """Say whether AIStore refuses, or never lists, every key that begins with this directory."""
    parts = prefix.split("/")[:-1]
    return parts[:1] == ["~"] or not {"", ".", ".."}.isdisjoint(parts)


def check_new_member(member: str) -> None:
    """Refuse a path of a member that tools would not extract to that very path.

    Raises:
        InvalidName, NameTooLong: with the reason.
    """
    check_new_key(Bucket("member"), member)


def entry_name(prefix: str, key: str) -> bytes:
    """Cut the directory off a key or off a whole prefix; the result may still be refused."""
    return os.fsencode(key[len(prefix) :].removesuffix("/"))


def child_key(prefix: str, name: bytes) -> str:
    """Give the key of the object called `name` in the directory `prefix`."""
    return prefix + os.fsdecode(name)


def child_prefix(prefix: str, name: bytes) -> str:
    """Give the prefix of the directory called `name` in the directory `prefix`."""
    return f"{child_key(prefix, name)}/"


def is_shard(name: bytes) -> bool:
    """Say whether an object of this name is opened up as a shard."""
    return form_of_name(name) is not None


def is_plain_tar(name: bytes) -> bool:
    """Say whether an object of this name is a shard to which members can be appended."""
    return form_of_name(name) is Form.TAR


def shard_stem(name: str) -> str:
    """Give the name of a shard without its suffix."""
    return name[: len(name) - len(suffix_of(os.fsencode(name)))]


def shard_of_directory(name: bytes) -> bytes | None:
    """Give `X.tar` for `X.tar.d`, None for any other name."""
    return _without(name, SHARD_DIRECTORY_SUFFIX)


def owner_of_directory(name: bytes) -> bytes | None:
    """Give `X` for `X.d`, whatever `X` is called, None for any other name."""
    suffix = SHARD_DIRECTORY_SUFFIX
    return name[: -len(suffix)] if name.endswith(suffix) and name != suffix else None


def shard_of_bytes(name: bytes) -> bytes | None:
    """Give `X.tar` for `X.tar.raw`, None for any other name."""
    return _without(name, SHARD_BYTES_SUFFIX)


def _without(name: bytes, suffix: bytes) -> bytes | None:
    if not name.endswith(suffix):
        return None
    shard = name[: -len(suffix)]
    return shard if is_shard(shard) else None


def bucket_name(bucket: Bucket) -> bytes:
    """Name a bucket inside its provider's directory.

    A bucket's name has no `@` or `#`, so name and namespace can be told apart again.
    """
    return os.fsencode(bucket.name + bucket.namespace)


_BUCKET_NAME = re.compile(rb"[A-Za-z0-9_.-]+([@#][A-Za-z0-9_.@#-]*)?")


def is_bucket_name(name: bytes) -> bool:
    """Say whether a bucket, with its namespace, can have this name."""
    return _BUCKET_NAME.fullmatch(name) is not None


def parse_bucket_name(provider: Provider, name: bytes) -> Bucket:
    """Undo `bucket_name`."""
    text = os.fsdecode(name)
    at = min((i for i in (text.find("@"), text.find("#")) if i > 0), default=len(text))
    return Bucket(text[:at], provider, text[at:])
