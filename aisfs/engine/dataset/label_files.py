"""Files that say labels of a dataset: the table of `--label csv:OBJECT`, and the names of classes of `aisfs pack --class-to`.

Labels in the names and contents of members are not read here: see `engine.labels`.
"""

import logging
import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import trio

from aisfs.core.names.listing import CLASSES_NAME
from aisfs.core.names.sources import BucketSource, DatasetSource, parse_source, without_aistore
from aisfs.core.views.sample_views import parse_table
from aisfs.core.views.spec import is_path, parse_classes
from aisfs.engine.dataset.shard_set import ShardSet
from aisfs.engine.listing import Lister
from aisfs.errors import AccessDenied, ConfigError, NotFound, SourceMissing, Stale, Unsupported
from aisfs.model import Bucket, ObjectInfo
from aisfs.stores.port import ObjectStore

log = logging.getLogger(__name__)

TABLE_MAX = 256 << 20
"""Bytes of a table; ImageNet's has 40 MB."""
CLASSES_MAX = 16 << 20
"""Bytes of names of classes: enough for a million; ImageNet has 21,841."""
DIRECTORIES_MAX = 64
"""Directories of shards in which names of classes are looked for, which is a request each."""


async def read_table(store: ObjectStore, source: DatasetSource, place: str) -> dict[bytes, bytes]:
    """Read the table: an object of the first bucket, or of the one that a URL names, or a local file.

    Args:
        store: Where objects are.
        source: What is mounted.
        place: As typed, or absolute; a file if the shards are files, or if it begins as a path.

    Raises:
        SourceMissing: it does not exist.
        ConfigError: it is no table.
    """
    if "://" in place:
        data = await _read_object(store, *_locate(place, source))
    elif source.local or is_path(place):
        data = await trio.to_thread.run_sync(_read_file, place)
    else:
        data = await _read_object(store, *_locate(f"{source.buckets[0]}/{place}", source))
    return await trio.to_thread.run_sync(parse_table, place, data)


def _locate(url: str, source: DatasetSource) -> tuple[Bucket, str]:
    mounted = "" if source.local else source.buckets[0].store
    try:
        place = parse_source(url)
        if mounted:
            place = without_aistore(place)
    except ConfigError as error:
        raise ConfigError(f"--label csv: {error}") from error
    assert isinstance(place, BucketSource), "what has a scheme is a bucket"
    if not place.prefix:
        raise ConfigError(f"--label csv: {url} names a bucket, not an object of it")
    if place.bucket.store != mounted:
        raise ConfigError(f"--label csv: {url} is in another store than the shards; copy it first")
    return place.bucket, place.prefix.removesuffix("/")


async def _read_object(store: ObjectStore, bucket: Bucket, key: str) -> bytes:
    try:
        info = await store.sized(bucket, await store.head(bucket, key))
    except NotFound as error:
        raise SourceMissing(f"--label csv: {bucket}/{key} does not exist") from error
    _check_size(key, info.size)
    buffer = bytearray(info.size)
    if info.size:
        await store.read_range(bucket, info, 0, memoryview(buffer))
    return bytes(buffer)


def _read_file(name: str) -> bytes:
    path = Path(name)
    try:
        _check_size(name, path.stat().st_size)
        return path.read_bytes()
    except OSError as error:
        raise SourceMissing(f"--label csv: {name}: {error.strerror}") from error


def _check_size(name: str, size: int) -> None:
    if size > TABLE_MAX:
        raise ConfigError(f"--label csv: {name} has {size:,} bytes, more than {TABLE_MAX:,}")


@dataclass(frozen=True, slots=True)
class StoredClasses:
    """Names of classes as they are stored beside shards."""

    names: tuple[bytes, ...] = ()
    """Of the labels 0, 1, …; none if nothing is stored."""
    place: str = ""
    """Where they are."""


NO_CLASSES = StoredClasses()


async def find_classes(shards: ShardSet, lister: Lister, store: ObjectStore) -> StoredClasses:
    """Return the names of classes that lie beside the shards, the same in each directory that has any."""
    places = dict.fromkeys(
        (shard.bucket, shard.info.key[: shard.info.key.rfind("/") + 1])
        for _, shard in shards.current
    )
    found = NO_CLASSES
    for bucket, directory in islice(places, DIRECTORIES_MAX):
        try:
            listed = await lister.find(bucket, directory, os.fsencode(CLASSES_NAME))
            info = listed.value if listed is not None else None
            if info is None:
                continue
            classes = StoredClasses(
                await read_classes(store, bucket, info), f"{bucket}/{directory}{CLASSES_NAME}"
            )
        except (AccessDenied, NotFound, Stale, Unsupported) as error:
            log.info("%s/%s%s is not used: %s", bucket, directory, CLASSES_NAME, error)
            continue
        except ConfigError as error:
            log.info("%s", error)
            continue
        if found is not NO_CLASSES and classes.names != found.names:
            log.warning(
                "%s and %s differ, so labels are shown as numbers", found.place, classes.place
            )
            return NO_CLASSES
        found = found if found is not NO_CLASSES else classes
    return found


async def read_classes(store: ObjectStore, bucket: Bucket, info: ObjectInfo) -> tuple[bytes, ...]:
    """Return the names of the labels 0, 1, … that a file beside shards has.

    Raises:
        ConfigError: it is no list of names.
    """
    key = info.key
    if info.size > CLASSES_MAX:
        raise ConfigError(f"{bucket}/{key}: {info.size:,} bytes are too many for names of classes")
    buffer = bytearray(info.size)
    if info.size:
        await store.read_range(bucket, info, 0, memoryview(buffer))
    return parse_classes(bytes(buffer).splitlines(), f"{bucket}/{key}")
