"""The shards of a dataset: found when it is mounted, followed when one of them turns out to have changed."""

import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from aisfs.core.namespace.keys import entry_name, is_shard
from aisfs.core.namespace.patterns import GlobPattern, KeyFilter
from aisfs.core.namespace.sources import DatasetSource, ShardPattern, SourceArg
from aisfs.core.views.shard_names import folder_names
from aisfs.engine.dataset.exclusions import summarize
from aisfs.engine.dataset.loose_objects import walk
from aisfs.engine.listing.lister import Lister
from aisfs.errors import NotFound, SourceMissing
from aisfs.metrics import Metrics
from aisfs.model import Bucket, ObjectInfo
from aisfs.store.port import ObjectStore

log = logging.getLogger(__name__)

NAMED_MAX = 5
"""Missing shards that a line of the log names."""
MISSING = "missing shard"
EXCLUDED = "excluded shard"
NO_SHARD = "not a shard"
_STATES = {MISSING: "missing", EXCLUDED: "excluded", NO_SHARD: "not_a_shard"}


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of the dataset, in the version that is shown."""

    bucket: Bucket
    info: ObjectInfo
    name: bytes
    """Of its folder, and what tells its members from others of the same name."""


class ShardSet:
    """Shards in order, and how many there are not."""

    def __init__(
        self,
        store: ObjectStore,
        metrics: Metrics,
        shards: list[Shard],
        exclusions: Counter[str],
        missing: Sequence[str] = (),
    ) -> None:
        """Show `shards`; ask `store` when one of them changed."""
        self.missing = missing
        """What the sources named one by one and does not exist."""
        self._store = store
        self._shards = shards
        self._places = {(shard.bucket, shard.info.key): at for at, shard in enumerate(shards)}
        self._names = {shard.name: at for at, shard in enumerate(shards)}
        self._gone: set[int] = set()
        self._changed: set[int] = set()
        self._exclusions = exclusions
        self._metrics = metrics
        self._count()

    def __len__(self) -> int:
        return len(self._shards) - len(self._gone)

    @property
    def exclusions(self) -> Counter[str]:
        """What the sources named and is not shown: reason and how many."""
        return self._exclusions + Counter({MISSING: len(self._gone)})

    @property
    def current(self) -> list[tuple[int, Shard]]:
        """The shards that exist, each with its place, which never changes."""
        return [(at, shard) for at, shard in enumerate(self._shards) if at not in self._gone]

    def find(self, name: bytes) -> Shard | None:
        """Return the shard whose folder has this name."""
        at = self._names.get(name)
        return self._shards[at] if at is not None and at not in self._gone else None

    def changed(self, bucket: Bucket, info: ObjectInfo) -> bool:
        """Mark this version as no longer what the store has; return whether it was shown."""
        at = self._places.get((bucket, info.key))
        if at is None or self._shards[at].info != info:
            return False
        self._changed.add(at)
        return True

    @property
    def settled(self) -> bool:
        """Whether no shard is known to have changed."""
        return not self._changed

    async def settle(self) -> None:
        """Ask for the versions of the shards that changed."""
        while self._changed:
            at = min(self._changed)
            shard = self._shards[at]
            try:
                info = await self._store.head(shard.bucket, shard.info.key)
            except NotFound:
                log.warning("%s/%s is gone and left out", shard.bucket, shard.info.key)
                self._gone.add(at)
            else:
                self._shards[at] = replace(shard, info=info)
            self._changed.discard(at)
            self._count()

    def _count(self) -> None:
        states = {"shown": len(self)}
        states |= {_STATES[reason]: count for reason, count in self.exclusions.items()}
        for state, count in states.items():
            self._metrics.dataset_shards.labels(state).set(count)


async def find_shards(
    source: DatasetSource, lister: Lister, store: ObjectStore, metrics: Metrics
) -> ShardSet:
    """Find all shards of a source, each once, in the order in which the words name them.

    Raises:
        SourceMissing: a word leads to no shard.
    """
    found: dict[tuple[Bucket, str], ObjectInfo] = {}
    exclusions: Counter[str] = Counter()
    missing: list[str] = []
    for word in source.words:
        before = exclusions.copy()
        some = False
        async for bucket, info in _of_word(word, source.keys, lister, exclusions, missing):
            found.setdefault((bucket, info.key), info)
            some = True
        if not some:
            raise SourceMissing(_nothing(word, exclusions - before))
    names = folder_names([(bucket.name, key) for bucket, key in found])
    shards = [
        Shard(bucket, info, name)
        for ((bucket, _), info), name in zip(found.items(), names, strict=True)
    ]
    log.info("%d shards of %s", len(shards), source)
    return ShardSet(store, metrics, shards, exclusions, missing)


def _nothing(word: SourceArg, why: Counter[str]) -> str:
    reasons = summarize(why)
    return f"{word.text}: no shard (X.tar) there" + (f": {reasons}" if reasons else "")


async def _of_word(
    word: SourceArg,
    keys: KeyFilter,
    lister: Lister,
    exclusions: Counter[str],
    all_missing: list[str],
) -> AsyncIterator[tuple[Bucket, ObjectInfo]]:
    missing: list[str] = []
    for pattern in word.patterns:
        empty = True
        async for bucket, info in _of_pattern(pattern, keys, lister, exclusions):
            empty = False
            if keys.wants(info.key[len(pattern.directory) :]):
                yield bucket, info
            else:
                exclusions[EXCLUDED] += 1
        if empty:
            missing.append(str(pattern))
    if missing:
        all_missing += missing
        exclusions[MISSING] += len(missing)
        names = ", ".join(missing[:NAMED_MAX]) + (", …" if len(missing) > NAMED_MAX else "")
        log.warning("%s: %d missing: %s", word.text, len(missing), names)


async def _of_pattern(
    pattern: ShardPattern, keys: KeyFilter, lister: Lister, exclusions: Counter[str]
) -> AsyncIterator[tuple[Bucket, ObjectInfo]]:
    bucket = pattern.bucket
    assert bucket is not None, "local files have a bucket once their root is known"
    if pattern.one:
        directory, slash, base = (pattern.directory + pattern.rest).rpartition("/")
        listed = await lister.find(bucket, directory + slash, entry_name("", base))
        if listed is not None and listed.value is not None:
            yield bucket, listed.value
        return
    glob = GlobPattern(pattern.rest) if pattern.rest else None

    def enters(path: str) -> bool:
        return keys.enters(path) and (glob is None or glob.enters(path))

    async for path, info in walk(lister, bucket, pattern.directory, enters):
        if glob is not None and not glob.matches(path):
            continue
        if is_shard(os.fsencode(path.rpartition("/")[2])):
            yield bucket, info
        elif glob is not None:
            exclusions[NO_SHARD] += 1
