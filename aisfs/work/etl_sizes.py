"""The work of `aisfs index --etl`: results of ETLs are made, and their sizes and checksums published."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import trio

from aisfs.core.index.sizes import ROWS_MOST, Row, encode_sizes
from aisfs.core.names.sources import BucketSource, DatasetSource
from aisfs.engine.dataset.shard_set import find_shards, walk
from aisfs.engine.index_sources import IndexBucket
from aisfs.errors import ConfigError, NotFound, Stale, TransformFailed, Unavailable
from aisfs.model import FAILURE, Bucket, ObjectInfo
from aisfs.mount.services import Services, open_services
from aisfs.mount.setup import SourceSetup, transformed_setup
from aisfs.mount.transforming import SizeTables
from aisfs.stores.pipeline import all_of
from aisfs.stores.posix_metadata import is_link
from aisfs.stores.registry import refuse_read_only
from aisfs.stores.transformed import TransformedStore, result_of
from aisfs.work.publishing import Shelf, Watcher, put

_TWICE = 3
"""Objects that are transformed twice, to see whether results are the same each time."""


@dataclass(slots=True)
class SizesReport:
    """What was found and done."""

    objects: int = 0
    current: int = 0
    """Objects whose size was published."""
    published: int = 0
    wanting: list[str] = field(default_factory=list)
    """Objects whose size was not."""
    failures: dict[str, str] = field(default_factory=dict)
    """By object, why it could not be transformed."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The objects of one bucket, and where the table of their sizes is."""

    bucket: Bucket
    directory: str
    objects: list[ObjectInfo]
    whole: bool
    """Whether these are all below the directory: then the table has no others."""


async def publish_sizes(
    words: Sequence[str],
    settings: Mapping[str, object],
    *,
    check: bool,
    jobs: int,
    progress: Watcher,
) -> SizesReport:
    """Publish the sizes of what ETLs make of the objects of a source, as far as they are not published yet.

    Args:
        words: SOURCE as it was typed.
        settings: Options that were given, by name of the setting.
        check: Only look which are published.
        jobs: Objects at once.
        progress: Shows the progress.

    Raises:
        ConfigError: the source or an option makes no sense.
        TransformFailed: results are not the same each time.
        AisfsError: the source cannot be listed, or nothing can be published.
    """
    setup = transformed_setup(list(words), settings)
    if not check:
        refuse_read_only(setup.source, setup.cluster, "--etl: ")
    report = SizesReport()
    async with open_services(setup) as services:
        places = await _find(setup, services)
        report.objects = sum(len(place.objects) for place in places)
        progress.found(
            report.objects, sum(_length(info) for place in places for info in place.objects)
        )
        for place in places:
            await _Work(setup, services, place, report, progress).run(check=check, jobs=jobs)
    return report


def _length(info: ObjectInfo) -> int:
    return info.size if info.is_sized else info.source.size


async def _find(setup: SourceSetup, services: Services) -> list[_Place]:
    """Find what a mount of the source would transform."""
    source, lister = services.source, services.lister
    if isinstance(source, BucketSource):
        found = [
            info
            async for _, info in walk(lister, source.bucket, source.prefix, lambda _: True)
            if not is_link(info)
        ]
        return [_Place(source.bucket, source.prefix, found, whole=not setup.keys)]
    if not isinstance(source, DatasetSource):
        raise ConfigError("--etl: give a bucket, a prefix or shards as the SOURCE")
    shards = await find_shards(source, lister, services.store, services.metrics)
    by_bucket: defaultdict[Bucket, list[ObjectInfo]] = defaultdict(list)
    for _, shard in shards.current:
        by_bucket[shard.bucket].append(shard.info)
    directories: dict[Bucket, str] = {}
    for bucket, directory in source.directories:
        before = directories.setdefault(bucket, directory)
        directories[bucket] = _common(before, directory)
    return [
        _Place(bucket, directories[bucket], objects, whole=False)
        for bucket, objects in by_bucket.items()
    ]


def _common(one: str, other: str) -> str:
    """Return the directory that two are in."""
    while not other.startswith(one):
        one = one[: one.rstrip("/").rfind("/") + 1]
    return one


class _Work:
    """One run over the objects of one bucket."""

    def __init__(
        self,
        setup: SourceSetup,
        services: Services,
        place: _Place,
        report: SizesReport,
        progress: Watcher,
    ) -> None:
        assert isinstance(services.store, TransformedStore), "the setup transforms"
        self._store = services.store
        self._setup = setup
        self._own: IndexBucket | None = services.index_bucket
        self._place = place
        self._report = report
        self._progress = progress
        self._made: dict[bytes, Row] = {}

    async def run(self, *, check: bool, jobs: int) -> None:
        place, report = self._place, self._report
        tables = SizeTables(self._store.sources, self._own, self._setup.transform)
        published = await tables.read(place.bucket, place.directory)
        digests = [await self._store.digest(place.bucket, info) for info in place.objects]
        wanting = [
            info
            for info, digest in zip(place.objects, digests, strict=True)
            if digest not in published
        ]
        report.current += len(place.objects) - len(wanting)
        report.wanting += [f"{place.bucket}/{info.key}" for info in wanting]
        if check:
            return
        if len(published) + len(wanting) > ROWS_MOST:
            raise ConfigError(
                f"{place.bucket}/{place.directory}: a table has {ROWS_MOST:,} sizes at most; give its directories one by one"
            )
        for _ in range(len(place.objects) - len(wanting)):
            self._progress.done(0)
        await self._compare(wanting[:: max(1, len(wanting) // _TWICE)][:_TWICE])
        await all_of((partial(self._size, info) for info in wanting), jobs)
        kept = set(digests)
        rows = {d: row for d, row in published.items() if d in kept or not place.whole}
        rows |= self._made
        report.published += len(self._made)
        if rows != published:
            data = await trio.to_thread.run_sync(encode_sizes, rows)
            where = await tables.place(place.bucket)
            shelf = Shelf(self._store.sources, self._own)
            await put(shelf, where.bucket, tables.key(where, place.directory), data)

    async def _compare(self, some: Sequence[ObjectInfo]) -> None:
        """Compare results of objects that can be transformed twice; one that cannot this time says nothing of the others."""
        for info in some:
            same = True
            with suppress(NotFound):
                made = await self._store.sized(self._place.bucket, info)
                if result_of(made) is None:
                    continue
                with suppress(Stale, TransformFailed, Unavailable):
                    same = await self._store.gives_again(self._place.bucket, made)
            if not same:
                raise TransformFailed(
                    f"{self._place.bucket}/{info.key}: {self._setup.transform.etl} gives other bytes each time,"
                    " so there are no sizes to publish"
                )

    async def _size(self, info: ObjectInfo) -> None:
        name = f"{self._place.bucket}/{info.key}"
        try:
            made = await self._store.sized(self._place.bucket, info)
        except NotFound:
            return  # since it was listed
        result = result_of(made)
        if result is None:
            self._report.failures[name] = made.custom.get(FAILURE, "it has no result")
        else:
            self._made[result[0]] = result[1]
        self._progress.done(_length(info))
