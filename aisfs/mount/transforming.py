"""Puts a transformer in front of the store of a mount, as `--etl` or `--transform` asks."""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import blake2b

import trio

from aisfs.core.index.sizes import BYTES_MOST, Row, decode_sizes
from aisfs.core.names.listing import IndexPlace, is_shard
from aisfs.core.names.sources import BucketSource, DatasetSource, Source
from aisfs.engine.index_sources import IndexBucket
from aisfs.errors import AisfsError, ConfigError, IndexRefused, JobNotFound, NotFound, Stale
from aisfs.filesystem.nodes import DirectoryNode, Node
from aisfs.metrics import Metrics
from aisfs.model import Bucket
from aisfs.mount.setup import SourceSetup, origin_of
from aisfs.settings import TransformSettings, View
from aisfs.stores.ais.client import AISClient
from aisfs.stores.ais.etls import EtlTransformer
from aisfs.stores.epochs import EpochStore
from aisfs.stores.port import ObjectStore, WritableStore
from aisfs.stores.results import Results
from aisfs.stores.transformed import CommandTransformer, TransformedStore, Transformer

log = logging.getLogger(__name__)

SHARE = 2
"""Results take half of the disk cache: the other half is for indexes and for what is decompressed of results."""


def results_limit(limit: int) -> int:
    """Return the bytes of a disk cache of `limit` bytes that are for results."""
    return limit // SHARE


class SizeTables:
    """The published tables of the sizes of what some ETLs make, in the bucket of indexes."""

    def __init__(
        self, store: ObjectStore, own: IndexBucket | None, settings: TransformSettings
    ) -> None:
        """Read from `store`: from the bucket of indexes, or beside the objects."""
        self._store = store
        self._own = own
        self._name = settings.etl
        if settings.etl_args:
            arguments = settings.etl_args.encode(errors="surrogateescape")
            self._name += f"-{blake2b(arguments, digest_size=8).hexdigest()}"

    async def place(self, bucket: Bucket) -> IndexPlace:
        """Return where the tables of a bucket are."""
        return await self._own.place(bucket) if self._own is not None else IndexPlace(bucket)

    def key(self, place: IndexPlace, directory: str) -> str:
        """Return the key of the table of a directory."""
        return place.sizes_key(directory, self._name)

    async def read(self, bucket: Bucket, directory: str) -> dict[bytes, Row]:
        """Return the table of a directory, empty if there is none; a damaged one is worth a warning."""
        place = await self.place(bucket)
        key = self.key(place, directory)
        try:
            info = await self._store.head(place.bucket, key)
            if info.size > BYTES_MOST:
                raise IndexRefused(f"{info.size} bytes are too many")
            data = bytearray(info.size)
            if data:
                await self._store.read_range(place.bucket, info, 0, memoryview(data))
            return await trio.to_thread.run_sync(decode_sizes, bytes(data))
        except IndexRefused as error:
            log.warning("the sizes in %s/%s are not used: %s", place.bucket, key, error)
        except (NotFound, Stale):
            pass
        return {}

    async def read_above(self, places: Iterable[tuple[Bucket, str]]) -> dict[bytes, Row]:
        """Return all that is published of directories, or of those above them."""
        wanted = {
            (bucket, directory[: at + 1])
            for bucket, directory in places
            for at, character in enumerate("/" + directory, -1)
            if character == "/"
        }
        found: dict[bytes, Row] = {}
        try:
            for bucket, directory in sorted(wanted):
                found |= await self.read(bucket, directory)
        except AisfsError as error:
            log.warning("published sizes are not used: %s", error)
        return found


async def transformed(
    setup: SourceSetup,
    source: Source,
    root: Node,
    store: WritableStore,
    pipeline: WritableStore,
    own: IndexBucket | None,
    limit: int,
    metrics: Metrics,
    *,
    restarted: bool,
) -> WritableStore:
    """Return the store that shows the objects of a source as the setup has them transformed, in each epoch anew.

    Args:
        setup: How.
        source: As it is served.
        root: What is mounted.
        store: What has the objects.
        pipeline: The same, with retries.
        own: Has the published sizes; None where they lie beside the objects.
        limit: Bytes of the disk cache.
        metrics: Count transformations.
        restarted: Whether another daemon has served this mount before, with ETLs that need not run now.

    Raises:
        ConfigError, Unsupported: there is no such transformer.
    """
    room = results_limit(limit)
    if not room:
        raise ConfigError(f"{setup.cache.cache_dir}: no room for results of transformations")
    results = await trio.to_thread.run_sync(Results, setup.cache.cache_dir, room)
    try:
        transformer: Transformer
        if setup.command is not None:
            transformer = CommandTransformer(setup.command, most=room, scratch=results.scratch)
        else:
            transformer = await _etls(setup, store, results, restarted=restarted)
    except BaseException:
        results.close()
        raise
    shown = TransformedStore(
        pipeline,
        transformer,
        results,
        wanted=_wanted(setup, source, root),
        deadline=setup.cluster.io_timeout,
        metrics=metrics,
    )
    if setup.transform.etl and setup.tree.published_index:
        await _learn_sizes(setup, source, shown, own)
    if not setup.transform.epochs:
        return shown
    stores = [shown, *map(shown.of_epoch, range(1, setup.transform.epochs))]
    return EpochStore(stores, root.prefix if isinstance(root, DirectoryNode) else "")


async def _learn_sizes(
    setup: SourceSetup, source: Source, shown: TransformedStore, own: IndexBucket | None
) -> None:
    """Take over what is published of the results, which is never necessary."""
    if isinstance(source, BucketSource):
        places = [(source.bucket, source.prefix)]
    else:
        places = source.directories if isinstance(source, DatasetSource) else []
    rows = await SizeTables(shown.sources, own, setup.transform).read_above(places)
    if rows:
        try:
            await shown.learn(rows)
            log.info("%d published sizes of results", len(rows))
        except AisfsError as error:
            log.warning("published sizes are not used: %s", error)


async def _etls(
    setup: SourceSetup, store: WritableStore, results: Results, *, restarted: bool
) -> EtlTransformer:
    """Return the ETLs, which run at the moment, unless the mount was `restarted`: what they have made is shown then."""
    assert isinstance(store, AISClient), "the setup was checked"
    names, mount = setup.transform.etl.split(","), origin_of(setup)
    etls = EtlTransformer(
        store,
        names,
        setup.transform.etl_args,
        deadline=setup.cluster.io_timeout,
        note=partial(results.note_definition, mount),
    )
    if restarted:
        etls.go_on(await trio.to_thread.run_sync(results.definition, mount))
    try:
        await etls.ask()
    except JobNotFound as error:
        if not restarted:
            hint = "`aisfs etl list` shows which there are"
            raise JobNotFound(f"--etl: {error}; {hint}") from error
        log.warning("what is not transformed yet has to wait: %s", error)
    return etls


def _wanted(setup: SourceSetup, source: Source, root: Node) -> Callable[[str], bool]:
    """Return which keys are transformed: those that the mount shows, or whose members it shows."""
    if not isinstance(source, DatasetSource):
        prefix = root.prefix if isinstance(root, DirectoryNode) else ""
        return setup.keys.below(prefix) or (lambda _: True)
    if setup.view.view is View.SHARDS and not setup.view.reshaped:
        cut = len(source.words[0].patterns[0].directory)
        return lambda key: source.keys.wants(key[cut:])
    patterns = [pattern for word in source.words for pattern in word.patterns]
    named = {pattern.directory + pattern.rest for pattern in patterns if pattern.one}
    others = [pattern.directory for pattern in patterns if not pattern.one or pattern.listing]
    is_glob = any(pattern.rest and not pattern.one for pattern in patterns)

    def wanted(key: str) -> bool:
        is_taken = is_shard(key.encode(errors="surrogateescape")) or (source.magic and is_glob)
        return key in named or (is_taken and any(map(key.startswith, others)))

    return wanted
