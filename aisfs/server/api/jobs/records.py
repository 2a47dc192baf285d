"""The records of dSort: the members of shards grouped into samples, ordered, cut into shards.

The rules are AIStore's. A record is what has one name up to the first dot of its last component, in
one shard: the same name in two shards is two records. Of two members with one name, the later one
stays. Sorting by `md5` sorts by name, since AIStore appends the checksum of nothing to the name.
"""

import hashlib
import os
import random
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aisfs.server.api import archives
from aisfs.server.api.jobs.registry import JobFailed
from aisfs.server.failures import Failure, uri_of
from aisfs.server.storage.bucket import Bucket

Key = bytes | int | float | None
Reaction = Callable[[str], None]
"""Does what is configured for an event: nothing, a warning, or an error that ends the job."""

KINDS = ("", "alphanumeric", "md5", "shuffle", "content", "none")
KEY_TYPES = ("int", "float", "string")
_NO_MD5 = hashlib.md5(usedforsecurity=False).digest()


@dataclass(frozen=True, slots=True)
class Algorithm:
    """How records are ordered."""

    kind: str
    decreasing: bool = False
    seed: str = ""
    extension: str = ""
    key_type: str = "string"


@dataclass(frozen=True, slots=True)
class Member:
    """A member, and the shard that has it."""

    shard: bytes
    info: tarfile.TarInfo


@dataclass(slots=True)
class Record:
    """Members whose names differ only in the extension."""

    name: str
    key: Key = None
    parts: dict[str, Member] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of the contents."""
        return sum(member.info.size for member in self.parts.values())


def extension_of(name: str) -> str:
    """Return what follows the first dot of the last component, with the dot."""
    base = name.rpartition("/")[2]
    _, dot, rest = base.partition(".")
    return dot + rest


def extract(bucket: Bucket, key: bytes, algorithm: Algorithm, duplicate: Reaction) -> list[Record]:
    """Return the records of one shard.

    Raises:
        JobFailed: it is damaged, or has a name or a key that cannot be.
    """
    records: dict[str, Record] = {}
    try:
        with (
            os.fdopen(bucket.open(key), "rb") as file,
            archives.open_tar(file, archives.Format.TAR) as tar,
        ):
            for info in tar:
                if info.isreg():
                    _add(records, key, info, tar, algorithm, duplicate)
    except (Failure, *archives.BROKEN) as error:
        where = uri_of(bucket.name, key)
        raise JobFailed(f"failed to extract shard {where}: archive/tar: {error}") from error
    return list(records.values())


def _add(
    records: dict[str, Record],
    shard: bytes,
    info: tarfile.TarInfo,
    tar: tarfile.TarFile,
    algorithm: Algorithm,
    duplicate: Reaction,
) -> None:
    if info.name.startswith("/") or ".." in info.name.split("/"):
        raise JobFailed(f'invalid archive record name "{info.name}"')
    extension = extension_of(info.name)
    name = info.name.removesuffix(extension) if extension else info.name
    record = records.setdefault(name, Record(name))
    if record.parts.pop(extension, None) is not None:
        duplicate(f'record "{info.name}" is duplicated')
    if algorithm.kind != "content":
        whole = info.name.encode("utf-8", "surrogateescape")
        key: Key = whole + _NO_MD5 if algorithm.kind == "md5" else whole
        record.key = key if record.key is None else record.key
    elif extension == algorithm.extension:
        content = tar.extractfile(info)
        assert content is not None, "a regular file has a content"
        record.key = _key(content.read(), algorithm.key_type)
    record.parts[extension] = Member(shard, info)


def _key(content: bytes, kind: str) -> Key:
    if kind == "string":
        return content
    text = content.decode("utf-8", "replace")
    try:
        if text != text.strip():  # Go takes no blanks, and a label often ends in a line break
            raise ValueError
        return int(text) if kind == "int" else float(text)
    except ValueError as error:
        parser = "ParseInt" if kind == "int" else "ParseFloat"
        raise JobFailed(f'strconv.{parser}: parsing "{text[:40]}": invalid syntax') from error


def order(records: list[Record], algorithm: Algorithm) -> None:
    """Put records into the requested order.

    Raises:
        JobFailed: one has no key.
    """
    if algorithm.kind == "shuffle":
        random.Random(algorithm.seed or None).shuffle(records)
    elif algorithm.kind != "none":
        for record in records:
            if record.key is None and len(records) > 1:
                raise JobFailed(f'key is missing for "{record.name}"')
        records.sort(key=lambda record: record.key, reverse=algorithm.decreasing)  # type: ignore[arg-type,return-value]


def split(
    records: list[Record], limit: int, names: Iterator[str], count: int
) -> list[tuple[str, list[Record]]]:
    """Return names and records of the new shards; one is full when its contents reach the limit.

    Raises:
        JobFailed: there are more shards than names, which are `count`; none is made then.
    """
    if limit <= 0:
        limit = -(-sum(record.size for record in records) // count)
    shards: list[tuple[str, list[Record]]] = []
    begun: list[Record] = []
    size = 0
    for at, record in enumerate(records):
        begun.append(record)
        size += record.size
        if size < limit and at < len(records) - 1:
            continue
        if (name := next(names, None)) is None:
            text = f"number of shards to be created exceeds expected number of shards ({count})"
            raise JobFailed(text)
        shards.append((name, begun))
        begun, size = [], 0
    return shards


def write_shard(bucket: Bucket, records: list[Record], work: Path) -> None:
    """Write the members of records, which are in the shards of `bucket`, into a tar."""
    with tarfile.open(work, "w", format=tarfile.PAX_FORMAT) as tar:
        for record in records:
            for member in record.parts.values():
                with os.fdopen(bucket.open(member.shard), "rb") as file:
                    file.seek(member.info.offset_data)
                    tar.addfile(member.info, file)
