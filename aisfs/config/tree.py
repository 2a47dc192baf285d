"""What a mount looks like, and how the kernel is served."""

import codecs
import os
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeFloat

from aisfs.choices import Scan, ShardIndex, Shards
from aisfs.config.values import FileMode, Settings, flag_of


def _when(value: object) -> object:
    """Read what was a flag once: `-o shard_index` has no value, and may have a word for yes."""
    return ShardIndex.ALWAYS if flag_of(value) is True else value


def _codec(name: str) -> str:
    """Return Python's name of an encoding in which ASCII is ASCII."""
    ascii_bytes = bytes(range(128))
    try:
        if name and ascii_bytes.decode(name) != ascii_bytes.decode("ascii"):
            raise LookupError
        return codecs.lookup(name).name if name else ""
    except (LookupError, ValueError):
        raise ValueError(
            f"{name!r} is no encoding of names; give one such as cp932, gbk or cp866"
        ) from None


class TreeSettings(Settings):
    """What the tree looks like, and how long names and listings stay valid."""

    shards: Shards = Shards.FILE
    ignore_zeros: bool = False
    """Read past blocks of zeros, which end a tar: for tars that were joined with cat."""
    recursive: bool = False
    """Open tars that are members of shards. Off, as ratarmount: to most readers such a tar is one
    member of a sample."""
    encoding: Annotated[str, AfterValidator(_codec)] = ""
    """Of names in zips that do not say theirs. Empty: UTF-8 if a name is that, otherwise DOS's code
    page 437, as unzip takes it."""
    magic: bool = False
    """Recognize archives by their first bytes instead of their names. Off, since it costs a request
    for each archive."""
    published_index: bool = True
    """Use the index that was published beside a shard, instead of scanning the shard: it says what a
    scan would, and is checked like any input."""
    shard_index: Annotated[ShardIndex, BeforeValidator(_when)] = ShardIndex.AUTO
    """When to use AIStore's own index of a shard where there is one, instead of scanning the shard. It
    has no times and modes of members, so only views that are not about them use it unasked."""
    scan: Scan = Scan.AUTO
    """How shards without an index are scanned. What is streamed need not be fetched again when it is
    read, unless the cache is too small to keep it."""
    list_xattrs: bool = False
    """List the extended attributes of aisfs. Off, since `rsync -aX` and `cp -a` copy what is listed,
    and fail where the names are not permitted or the values mean nothing."""
    attr_ttl: NonNegativeFloat = 60.0
    """Seconds; gcsfuse and mountpoint-s3 (with a cache) use the same."""
    list_ttl: NonNegativeFloat = 60.0
    """Seconds that a listing answers lookups and stats before the cluster is asked again."""
    negative_ttl: NonNegativeFloat = 5.0
    """Seconds that a missing name stays missing; short, so that new objects appear. As gcsfuse."""
    uid: int = Field(default_factory=os.getuid, ge=0)
    gid: int = Field(default_factory=os.getgid, ge=0)
    file_mode: FileMode = 0o444
    dir_mode: FileMode = 0o555


class KernelSettings(Settings):
    """How the kernel is served."""

    fastpath: bool = True
    """Answer in a thread before pyfuse3 what needs no waiting, and let the kernel open files and
    keep listings by itself. Without it every request goes through pyfuse3: slower, same results."""
