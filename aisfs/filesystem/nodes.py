"""What an inode can be, apart from members, which are rows of their shard's index."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

import msgspec

from aisfs.core.views.shuffled_tar import VirtualShard
from aisfs.model import Bucket, ObjectInfo, Provider


@dataclass(frozen=True, slots=True)
class RootNode:
    """The root of a mount of everything: a directory of providers."""


@dataclass(frozen=True, slots=True)
class ProviderNode:
    """A directory of the buckets of one provider."""

    provider: Provider


@dataclass(frozen=True, slots=True)
class DirectoryNode:
    """A bucket or a directory in it."""

    bucket: Bucket
    prefix: str


@dataclass(frozen=True, slots=True)
class RemovedDirectoryNode:
    """A directory that was removed or replaced here, while a program may still have it open.

    Its inode is dead in the kernel, which lets nothing be made in it ever again.
    """

    bucket: Bucket
    prefix: str
    mode: int | None
    mtime_ns: int | None
    serial: int
    """Tells it from all others that had its name."""


@dataclass(frozen=True, slots=True)
class DatasetNode:
    """The root of a mount of shards that are shown together."""


@dataclass(frozen=True, slots=True)
class MergedDirectoryNode:
    """A directory with members of many shards."""

    layout: str
    """The options of the view: under others the same path is something else."""
    path: bytes
    generation: int = 0
    """How often shards had changed when it was built: the kernel may keep what it lists."""


class ObjectNode(msgspec.Struct, frozen=True, gc=False):
    """One version of an object, as a file. A struct, as `ObjectInfo` is."""

    bucket: Bucket
    info: ObjectInfo
    parent: int
    """Inode of the directory it was found in."""
    name: bytes


@dataclass(frozen=True, slots=True)
class ShardNode:
    """One version of a shard, opened up; the same numbers as all its members."""

    bucket: Bucket
    info: ObjectInfo
    parent: int
    name: bytes
    """The directory's name, for example `x.tar.d`."""


@dataclass(frozen=True, slots=True)
class VirtualShardNode:
    """A tar file that is made of objects, each of one version."""

    shard: VirtualShard


FileNode = ObjectNode | VirtualShardNode
"""What is a file by itself, and not in a shard."""

Node = (
    RootNode
    | ProviderNode
    | DirectoryNode
    | RemovedDirectoryNode
    | DatasetNode
    | MergedDirectoryNode
    | ObjectNode
    | ShardNode
    | VirtualShardNode
)


def describe(node: Node) -> str:
    """Return which file or directory a node is, for the log."""
    match node:
        case DirectoryNode(bucket, prefix):
            return f"{bucket}/{prefix}"
        case RemovedDirectoryNode(bucket, prefix):
            return f"{bucket}/{prefix} (removed)"
        case ObjectNode():
            return f"{node.bucket}/{node.info.key}"
        case ShardNode():
            return f"{node.bucket}/{node.info.key}"
        case ProviderNode(provider):
            return f"{provider.value}/"
        case MergedDirectoryNode(_, path):
            return f"{os.fsdecode(path)}/"
        case VirtualShardNode():
            return "a virtual shard"
        case RootNode() | DatasetNode():
            return "/"
    assert_never(node)


def identity(node: Node) -> bytes:
    """Spell what the inode number of a node is computed from.

    The version alone is not enough: it starts again at 1 when an object is deleted and made anew.
    """
    parts: tuple[object, ...]
    match node:
        case RootNode():
            parts = ("root",)
        case DatasetNode():
            parts = ("dataset",)
        case MergedDirectoryNode(layout, path, generation):
            parts = ("merged", layout, os.fsdecode(path), generation)
        case ProviderNode(provider):
            parts = ("provider", provider)
        case DirectoryNode(bucket, prefix):
            parts = ("directory", bucket, prefix)
        case RemovedDirectoryNode():
            parts = ("removed directory", node.serial)
        case VirtualShardNode(shard):
            parts = ("virtual shard", shard.digest)
        case ObjectNode(bucket, info):
            return object_identities(bucket, [info])[0]
        case ShardNode(bucket, info):
            parts = ("shard", bucket, info.key, info.version, info.checksum, info.size)
    return "\0".join(map(str, parts)).encode(errors="surrogateescape")


def object_identities(bucket: Bucket, objects: Iterable[ObjectInfo]) -> list[bytes]:
    """Spell the identities of objects of a bucket."""
    start = f"object\0{bucket}\0"
    return [
        f"{start}{each.key}\0{each.version}\0{each.checksum}\0{each.size}".encode(
            errors="surrogateescape"
        )
        for each in objects
    ]
