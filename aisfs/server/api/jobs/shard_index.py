"""The job `index-shard`: for each plain tar of a bucket, an object that says where its members are.

The layout is in `aisfs.stores.ais.shard_index`. The index of a shard goes when the shard is deleted,
and stays, out of date, when the shard is overwritten. Entries come in any order, as from a Go map.
"""

import os
import random
import tarfile
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from xxhash import xxh64_intdigest

from aisfs.server.api import archives
from aisfs.server.api.jobs.registry import INDEX_SHARD, Job, Registry
from aisfs.server.api.objects import Objects
from aisfs.server.failures import Failure, uri_of
from aisfs.server.messages import Reply, text_reply
from aisfs.server.storage.bucket import Bucket, Directories, Found, keys_below
from aisfs.server.storage.objects import Storage

BUCKET = ".sys-shardidx"
_SEED = 1103515245
_BLOCK = 512
_MOST_ENTRIES = 1 << 20
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE)
_COUNTS = ("skip-nontar", "skip-indexed", "index", "re-stale", "skip-busy")


@dataclass(slots=True)
class _Run:
    """One job and what it has done so far."""

    job: Job
    skip_verify: bool
    counts: Counter[str] = field(default_factory=Counter)

    def describe(self) -> str:
        """Return the counts as AIStore writes them."""
        parts = [f"prefix:{self.job.prefix}"] if self.job.prefix else []
        parts += ["skip-verify:true"] if self.skip_verify else []
        parts += [f"{name}:{self.counts[name]}" for name in _COUNTS if self.counts[name]]
        parts += [f"errs:{len(self.job.errors)}"] if self.job.errors else []
        return ", ".join(parts)


class ShardIndexes:
    """Builds and removes shard indexes."""

    def __init__(self, storage: Storage, objects: Objects, registry: Registry) -> None:
        self._storage = storage
        self._objects = objects
        self._registry = registry

    def start(self, bucket: Bucket, value: dict[str, Any]) -> Reply:
        """Start a job over a bucket or a prefix."""
        if INDEX_SHARD in self._registry.rules.lacking:
            raise Failure(400, f'invalid action "{INDEX_SHARD}"')
        prefix = str(value.get("prefix") or "")
        for other in self._registry.running(INDEX_SHARD):
            overlap = prefix.startswith(other.prefix) or other.prefix.startswith(prefix)
            if other.source == bucket.name and overlap:
                running = f"x-{INDEX_SHARD}[{other.uuid}]-ais://{bucket.name}"
                text = (
                    f"t[{{node}}]: failed to start {INDEX_SHARD} {running}, err: prefix "
                    f'"{prefix}" overlaps with already running prefix "{other.prefix}"; '
                    "abort it first"
                )
                raise Failure(400, text, "ErrFailedTo")
        self._storage.system_bucket(BUCKET)
        job = Job(INDEX_SHARD, bucket.name, prefix=prefix)
        run = _Run(job, value.get("skip-verify") is True)
        job.describe = run.describe
        self._registry.start(job, lambda: self._walk(run, bucket))
        return text_reply(job.uuid)

    def forget(self, bucket: Bucket, key: bytes) -> None:
        """Remove the index of a shard that was deleted."""
        if (
            bucket.name != BUCKET
            and key.endswith(b".tar")
            and (self._storage.root / BUCKET).is_dir()
        ):
            self._storage.delete(self._storage.bucket(BUCKET), _index_key(bucket, key))

    def _walk(self, run: _Run, bucket: Bucket) -> None:
        prefix = os.fsencode(run.job.prefix)
        for key in list(keys_below(Directories(), bucket, prefix, continued=False)):
            self._registry.step(run.job)
            if not key.endswith(b".tar"):
                run.counts["skip-nontar"] += 1
                continue
            try:
                self._index(run, bucket, key)
            except (Failure, OSError) as error:
                run.job.errors.append(f"{uri_of(bucket.name, key)}: {error}")

    def _index(self, run: _Run, bucket: Bucket, key: bytes) -> None:
        indexes = self._storage.bucket(BUCKET)
        index_key = _index_key(bucket, key)
        with self._storage.locks.reading((bucket.name, key)):
            found = bucket.find(key)
            if found is None:
                return
            bucket.load(key, found)
            known = self._existing(indexes, index_key)
            if known is not None and (run.skip_verify or known.startswith(_source(found))):
                run.counts["skip-indexed"] += 1
                return
            data = _pack(_source(found), _members(bucket, key))
        with self._storage.work_file() as work:
            work.write_bytes(data)
            self._objects.publish(indexes, index_key, work)
        with self._storage.locks.trying_to_write((bucket.name, key)) as is_free:
            if not is_free:
                run.counts["skip-busy"] += 1
                raise Failure(409, f"shard {uri_of(bucket.name, key)} is busy", "ErrBusy")
        run.counts["index" if known is None else "re-stale"] += 1
        run.job.objects += 1
        run.job.size += found.size

    @staticmethod
    def _existing(indexes: Bucket, index_key: bytes) -> bytes | None:
        """Return the payload of an index; empty if it is damaged, None if there is none."""
        if indexes.find(index_key) is None:
            return None
        with os.fdopen(indexes.open(index_key), "rb") as file:
            data = file.read()
        stated = int.from_bytes(data[3:11], "big")
        return data[11:] if xxh64_intdigest(data[11:], _SEED) == stated else b""


def _index_key(bucket: Bucket, key: bytes) -> bytes:
    return b"ais/@#/" + os.fsencode(bucket.name) + b"/" + key + b".idx"


def _source(found: Found) -> bytes:
    """Return what an index says of its shard: checksum and size."""
    kind, value = found.record.checksum_type or "none", found.record.checksum
    return _text(kind.encode()) + _text(value.encode()) + _uvarint(found.size)


def _members(bucket: Bucket, key: bytes) -> list[tuple[bytes, int, int]]:
    """Return name, offset of the header, and size of all regular files of a tar."""
    entries: dict[bytes, tuple[int, int]] = {}
    with os.fdopen(bucket.open(key), "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return []
        try:
            with archives.open_tar(file, archives.Format.TAR) as tar:
                for info in tar:
                    if info.type in _REGULAR:
                        name = info.name.encode("utf-8", "surrogateescape")
                        entries.setdefault(name, (info.offset_data - _BLOCK, info.size))
        except (Failure, *archives.BROKEN) as error:
            raise Failure(500, f"shard index: tar reader failure: {error}") from error
    if len(entries) > _MOST_ENTRIES:
        raise Failure(500, f"shard index: too many entries (max {_MOST_ENTRIES})")
    found = [(name, *place) for name, place in entries.items()]
    random.shuffle(found)
    return found


def _pack(source: bytes, members: list[tuple[bytes, int, int]]) -> bytes:
    payload = bytearray(source + _uvarint(len(members)))
    for name, offset, size in members:
        payload += _text(name) + _uvarint(offset) + _uvarint(size)
    digest = xxh64_intdigest(bytes(payload), _SEED)
    return b"\x01\x00\x01" + digest.to_bytes(8, "big") + bytes(payload)


def _text(value: bytes) -> bytes:
    return _uvarint(len(value)) + value


def _uvarint(value: int) -> bytes:
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    return bytes([*data, value])
