"""Volumes that Kubernetes has made for claims: a bucket of AIStore each, or a directory of one.

A record among the objects of a volume, at a key that no mount shows, says that the volume was made here, and what for. It
is all that the controller keeps, and without it nothing is ever removed.
"""

import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import msgspec
import trio

from aisfs.core.names.listing import INDEX_DIRECTORY, check_new_bucket
from aisfs.core.names.sources import BucketSource, parse_source
from aisfs.csi.volumes import TOKEN, Code, VolumeError, parse_settings
from aisfs.errors import (
    AlreadyExists,
    BucketNotFound,
    ConfigError,
    InvalidName,
    NotFound,
    SourceMissing,
    Stale,
    Unsupported,
)
from aisfs.model import SERVED
from aisfs.settings import ClusterSettings
from aisfs.stores.ais.client import AISClient
from aisfs.stores.pipeline import CallPipeline, Retrier
from aisfs.stores.port import BytesContent, Upload
from aisfs.work.buckets import remove

T = TypeVar("T")

_RECORD = f"{INDEX_DIRECTORY}/volume.json"
_SOURCE = "source"
_PLAIN_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_PLAIN_ID = re.compile(r"[a-z]+://[\w.@#/-]+", re.ASCII)
"""Nothing in it means more than itself where sources of a mount are read."""
_ID_MOST = 128
"""Characters of a volume's id, by the specification of CSI."""
_RECORD_MOST = 64 << 10
_REMOVALS = 16
"""Objects removed at once."""


class Made(msgspec.Struct, frozen=True):
    """What a volume was made for, as its record says it."""

    id: str
    size: int
    """Bytes that were asked for, which nothing limits."""
    parameters: dict[str, str]
    """Attributes of the volume."""

    @property
    def context(self) -> dict[str, str]:
        """The attributes by which a node mounts it."""
        return {"writable": "true", **self.parameters, _SOURCE: self.id}


@dataclass(slots=True)
class Provisioner:
    """Makes volumes and removes them. For any thread."""

    _busy: dict[str, object] = field(default_factory=dict)
    """Volumes that a call is at work on. Each step on this is atomic."""

    def create(
        self, name: str, size: int, parameters: Mapping[str, str], secrets: Mapping[str, str]
    ) -> Made:
        """Make a volume, or return the one that an earlier call for it has made.

        Args:
            name: What Kubernetes calls it.
            size: Bytes that were asked for.
            parameters: Those of the storage class.
            secrets: Of them the token counts.

        Raises:
            VolumeError: there is something else of this name.
            AisfsError: it cannot be made.
        """
        made = planned(name, size, parameters)
        with self._alone(made.id):
            _run(secrets, partial(_create, made))
        return made

    def delete(self, volume: str, secrets: Mapping[str, str]) -> None:
        """Remove a volume with all that is in it; nothing to do if there is none.

        Raises:
            VolumeError: it is not proven that it was made here; nothing is removed.
            AisfsError: it could not be removed, or not all of it.
        """
        with self._alone(volume), suppress(ConfigError, BucketNotFound):
            place = _place(volume)
            _run(secrets, partial(_delete, volume, place, secrets))

    def find(self, volume: str, secrets: Mapping[str, str]) -> Made | None:
        """Return what a volume was made for; None if it was not made here."""
        try:
            place = _place(volume)
        except ConfigError:
            return None
        with suppress(BucketNotFound):
            made = _run(secrets, partial(_read, place))
            return made if made is not None and made.id == volume else None
        return None

    @contextmanager
    def _alone(self, volume: str) -> Iterator[None]:
        turn = object()
        if self._busy.setdefault(volume, turn) is not turn:
            raise VolumeError(Code.ABORTED, f"{volume}: another call is at work on it")
        try:
            yield
        finally:
            del self._busy[volume]


def planned(name: str, size: int, parameters: Mapping[str, str]) -> Made:
    """Return what is to be made for a claim.

    Raises:
        ConfigError: the parameters make no sense.
    """
    given = {k: v for k, v in parameters.items() if not k.startswith("csi.storage.k8s.io/")}
    above = given.pop(_SOURCE, "")
    for word in ("endpoint", "direct", "anonymous", "create-bucket", "create_bucket"):
        if word in given:
            raise ConfigError(f"{word}: no parameter of a storage class (see docs/KUBERNETES.md)")
    parse_settings(given)
    if not _PLAIN_NAME.fullmatch(name):
        name = f"volume-{hashlib.sha256(name.encode()).hexdigest()[:40]}"
    if not above:
        return Made(f"ais://{name}", size, given)
    place = parse_source(above)
    if not isinstance(place, BucketSource) or place.bucket.provider not in SERVED:
        raise ConfigError(f"source {above}: expected a bucket of AIStore, or a directory of one")
    volume = f"{place.bucket}/{place.prefix}{name}/"
    if len(volume) > _ID_MOST or not _PLAIN_ID.fullmatch(volume):
        raise ConfigError(
            f"source {above}: too long, or with other characters than letters, digits and ._-@#"
        )
    return Made(volume, size, given)


def _place(volume: str) -> BucketSource:
    """Return where a volume is.

    Raises:
        ConfigError: no volume has such an id.
    """
    place = parse_source(volume)
    if not isinstance(place, BucketSource) or place.bucket.provider not in SERVED:
        raise ConfigError(f"{volume}: no volume")
    if not place.prefix:
        try:
            check_new_bucket(place.bucket)
        except (InvalidName, Unsupported) as error:
            raise ConfigError(str(error)) from error
    return place


@dataclass(frozen=True, slots=True)
class _Cluster:
    client: AISClient
    store: CallPipeline
    seconds: float
    """For a call, with its retries."""


def _run(secrets: Mapping[str, str], work: Callable[[_Cluster], Awaitable[T]]) -> T:
    """Run something on the cluster of this process."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[_Cluster]:
        settings = ClusterSettings.load({"token": secrets.get(TOKEN) or None})
        client = AISClient(settings)
        try:
            store = CallPipeline(client, deadline=settings.io_timeout)
            yield _Cluster(client, store, settings.io_timeout)
        finally:
            with trio.CancelScope(shield=True):
                await client.aclose()

    async def main() -> T:
        async with opened() as cluster:
            return await work(cluster)

    return trio.run(main)


async def _create(made: Made, cluster: _Cluster) -> None:
    place, store = _place(made.id), cluster.store
    if not place.prefix:
        with suppress(
            AlreadyExists
        ):  # what an earlier call made, or somebody else: its record tells
            await store.create_bucket(place.bucket)
    there = await _read(place, cluster)
    if there is None:
        if (await store.first_keys(place.bucket, place.prefix, 1, sure=True)).found:
            raise VolumeError(Code.ALREADY_EXISTS, f"{made.id}: has objects, and is no volume")
        key, content = f"{place.prefix}{_RECORD}", BytesContent(msgspec.json.encode(made))
        try:
            await store.upload(Upload(place.bucket, key, content, only_new=f"volume {made.id}"))
            return
        except AlreadyExists:  # another controller was faster
            there = await _read(place, cluster)
    if there != made:
        raise VolumeError(
            Code.ALREADY_EXISTS, f"{made.id}: was made with another size or other parameters"
        )


async def _read(place: BucketSource, cluster: _Cluster) -> Made | None:
    """Return the record of a volume; None if there is none.

    Raises:
        BucketNotFound: there is no such bucket.
    """
    store, key = cluster.store, f"{place.prefix}{_RECORD}"
    try:
        info = await store.head(place.bucket, key)
        data = bytearray(min(info.size, _RECORD_MOST))
        if data:
            await store.read_range(place.bucket, info, 0, memoryview(data))
        return msgspec.json.decode(data, type=Made)
    except BucketNotFound:
        raise
    except (NotFound, Stale, msgspec.MsgspecError, UnicodeDecodeError):
        return None


async def _delete(
    volume: str, place: BucketSource, secrets: Mapping[str, str], cluster: _Cluster
) -> None:
    made = await _read(place, cluster)
    if made is None or made.id != volume:
        keys = await cluster.store.first_keys(place.bucket, place.prefix, 1, sure=True)
        if place.prefix and not keys.found:
            return
        raise VolumeError(
            Code.FAILED_PRECONDITION,
            f"{volume}: nothing proves that it was made as this volume ({place.prefix}{_RECORD} is missing, or"
            " of another one): nothing is removed; if it may be, remove it yourself, then the PersistentVolume",
        )
    token = {TOKEN: secrets[TOKEN]} if secrets.get(TOKEN) else {}
    with suppress(SourceMissing):  # there is nothing in it
        await remove([volume], token, recursive=True, jobs=_REMOVALS, dry_run=False)
    if not place.prefix:
        retrier = Retrier(deadline=cluster.seconds)
        await retrier.run(volume, partial(cluster.client.destroy_bucket, place.bucket))
        return
    keys = await cluster.store.first_keys(place.bucket, place.prefix, 2, sure=True)
    if left := [key for key in keys.found if key != f"{place.prefix}{_RECORD}"]:
        raise VolumeError(
            Code.FAILED_PRECONDITION,
            f"{place.bucket}/{left[0]!a}: is still there: it was written meanwhile, or has a name that can be no path",
        )
    await cluster.store.remove(place.bucket, f"{place.prefix}{_RECORD}")
