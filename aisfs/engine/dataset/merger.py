"""Builds the common directories of all shards, once they are asked for, and again when one changed."""

import logging
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import trio

from aisfs.cache.single_flight import SingleFlight
from aisfs.config import View
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.views.class_view import (
    Labelled,
    class_homes,
    class_namer,
    class_names,
    labelled_samples,
)
from aisfs.core.views.flat_view import flat_home, flat_name, flat_rows
from aisfs.core.views.merged import MergedView, Placed
from aisfs.core.views.spec import ViewSpec
from aisfs.engine.dataset.exclusions import DAMAGED
from aisfs.engine.dataset.open_many import open_each
from aisfs.engine.dataset.shard_set import Shard, ShardSet
from aisfs.engine.read.indexer import Indexer, ReadContent
from aisfs.errors import NotFound, Stale
from aisfs.metrics import Metrics
from aisfs.model import Bucket, ObjectInfo

log = logging.getLogger(__name__)

TRIES = 8
"""Rounds of opening before a dataset that goes on changing is an error."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The tree as of certain versions of the shards."""

    view: MergedView
    shards: list[Shard]
    """By their place in the view."""
    indexes: list[MemberIndex]
    generation: int
    """How many trees of this dataset this mount had built before."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What one shard brings along."""

    shard: Shard
    index: MemberIndex
    found: Labelled
    """The rows that are shown; without labels where the view has none."""


class Merger:
    """Opens all shards and merges their members."""

    def __init__(
        self,
        shards: ShardSet,
        indexer: Indexer,
        read: ReadContent,
        spec: ViewSpec,
        services: trio.Nursery,
        metrics: Metrics,
        *,
        table: Mapping[bytes, bytes] | None = None,
    ) -> None:
        """Merge `shards`; the work runs in `services`.

        Args:
            shards: The dataset.
            indexer: Opens them.
            read: Reads labels where no scan passes them.
            spec: The view.
            services: Outlives every reader.
            metrics: Count what is excluded.
            table: Labels by sample key, for a view that takes them from a table.
        """
        self._shards = shards
        self._indexer = indexer
        self._read = read
        self._spec = spec
        self._metrics = metrics
        self._table = table
        self._builds: SingleFlight[str, Merged] = SingleFlight(services)
        self._parts: dict[int, _Part] = {}
        """By place in the dataset, while they are of the current version."""
        self._skipped: Counter[str] = Counter()
        self._built = 0
        self.known: Merged | None = None
        """The tree if it is built and no shard is known to have changed since."""

    @property
    def exclusions(self) -> Mapping[str, int]:
        """What is not shown: reason and how many. Samples are counted once they were looked at."""
        return self._shards.exclusions + self._skipped

    async def merged(self) -> Merged:
        """Return the tree; open all shards if that was not done before.

        Raises:
            AisfsError: a shard cannot be opened; those that could are not opened again next time.
        """
        return self.known or await self._builds.fetch("", self._build)

    def changed(self, bucket: Bucket, info: ObjectInfo) -> list[bytes]:
        """Mark a shard as no longer this version; return the names in the root it is in."""
        known = self.known
        if not self._shards.changed(bucket, info) or known is None:
            return []
        self.known = None
        self._indexer.forget(bucket, info)
        at = next(i for i, s in enumerate(known.shards) if (s.bucket, s.info) == (bucket, info))
        return list(known.view.touching(at))

    async def _build(self) -> Merged:
        for _ in range(TRIES):
            await self._shards.settle()
            await self._open_all()
            if self._shards.settled:
                break
        else:
            raise Stale("shards go on changing while they are opened")
        merged = await trio.to_thread.run_sync(
            self._merge, [p for _, p in sorted(self._parts.items())]
        )
        if self._shards.settled:
            self.known = merged
        return merged

    async def _open_all(self) -> None:
        """Open the shards that are not opened yet, some at a time."""
        current = dict(self._shards.current)
        self._parts = {
            at: part for at, part in self._parts.items() if current.get(at) == part.shard
        }
        missing = [(at, shard) for at, shard in current.items() if at not in self._parts]

        async def open_one(item: tuple[int, Shard]) -> None:
            at, shard = item
            try:
                self._parts[at] = await self._open(shard)
            except (Stale, NotFound):
                self._shards.changed(shard.bucket, shard.info)

        await open_each(missing, open_one)

    async def _open(self, shard: Shard) -> _Part:
        spec, column = self._spec, None
        if spec.view is View.CLASS and spec.label.component is not None:
            index, column = await self._indexer.labels(
                shard.bucket, shard.info, spec.label, self._read
            )
        else:
            index = (await self._indexer.open(shard.bucket, shard.info)).index

        def choose() -> _Part:
            if spec.view is View.FLAT:
                rows, skipped = flat_rows(index, spec)
                return _Part(shard, index, Labelled(rows, array("I"), [], skipped))
            return _Part(shard, index, labelled_samples(index, spec, column, self._table))

        return await trio.to_thread.run_sync(choose)

    def _merge(self, parts: list[_Part]) -> Merged:
        """Put the parts together. Runs in a worker thread."""
        spec = self._spec
        generation, self._built = self._built, self._built + 1
        skipped: Counter[str] = Counter()
        placed = []
        names = class_names((label for part in parts for label in part.found.table), spec.classes)
        for part in parts:
            index, found = part.index, part.found
            skipped.update(found.skipped)
            skipped.update(index.skipped)
            skipped[DAMAGED] += bool(index.warnings)
            if spec.view is View.FLAT:
                rows, homes = found.rows, [flat_home(index, row) for row in found.rows]
            else:
                rows, homes, out = class_homes(index, found, spec, names)
                skipped.update(out)
            placed.append(Placed(part.shard.name, index, rows, homes))
        name_of = flat_name if spec.view is View.FLAT else class_namer(spec.rule)
        view = MergedView(placed, name_of)
        self._skipped = +(skipped + view.skipped)
        for reason, number in self._skipped.items():
            self._metrics.exclusions.labels(reason.replace(" ", "_")).set(number)
            log.info("%d left out: %s", number, reason)
        if not view.files:
            log.warning("--view %s shows nothing: all was left out", spec.view)
        log.info("%s: %d files", spec.view, view.files)
        return Merged(view, [p.shard for p in parts], [p.index for p in parts], generation)
