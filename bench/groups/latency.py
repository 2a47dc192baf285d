"""A modelled link: a delay for each request and a bandwidth for all replies together."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from bench import readers
from bench.data import IMAGE, EmbeddedStore, Samples, write_loose, write_shards
from bench.engine import Contender, Reading, Row, epoch, measure
from bench.groups.measures import (
    bounded_cache,
    curl_epoch,
    few,
    mount_epoch,
    read_file,
    reading,
)
from bench.mounts import Mount
from bench.processes import NotMeasured
from bench.readers import Files, Gets, list_files, object_url, read_through
from bench.server import Endpoint
from bench.stage import Stage

T = TypeVar("T")
MEMBER = 1_000_000
SEQUENTIAL = "sequential shard"
CURL = "curl"
SDK = "object reader (aistore)"
READ = "file of the mount, 1 MiB reads"
GET = "one GET per object (requests)"
SDK_RANDOM = "AISMapDataset (aistore)"
FILES = "files of the mount (X.tar.d)"
FILES_SMALL = "the same, disk cache and memory = half the data"
LISTED = "listed"
"""The shards have been listed, so their indexes are known, before the time starts."""
UNIT = "samples/s"
FEWEST, MOST = 4, 100


def case_of(delay: float, what: str) -> str:
    """Name a case: `20 ms, sequential shard`."""
    return f"{delay * 1000:.0f} ms, {what}"


def run(stage: Stage, progress: Callable[[str], None]) -> list[Row]:
    """Measure each delay in turn, on the embedded server whatever the endpoint."""
    settings = stage.settings
    rows: list[Row] = []
    with stage.folder("far-store") as root:
        store = EmbeddedStore(root)
        shard = write_shards(
            store,
            "far-shard",
            samples=max(1, settings.far_shard_bytes // MEMBER),
            shards=1,
            size=MEMBER,
            extract_to=None,
        )
        objects = write_loose(store, "far-objects", samples=settings.far_images, size=IMAGE)
        packed = write_shards(
            store,
            "far-images",
            samples=settings.far_images,
            shards=2,
            size=IMAGE,
            extract_to=None,
        )
        share = replace(settings, budget=settings.budget / len(settings.latencies))
        with few(stage, store) as (others, _):
            for delay in settings.latencies:
                with stage.far_server(root, delay=delay, bandwidth=settings.bandwidth) as far:
                    link = _Link(stage, far, delay, others)
                    contenders = _sequential(link, shard) + _shuffled(link, objects, packed)
                    # Who hung before would hang again, for as long.
                    contenders = [_excused(who, rows) for who in contenders]
                    rows += measure("latency", contenders, share, progress)
    return rows


def _excused(who: Contender, rows: Sequence[Row]) -> Contender:
    hung = next((r for r in rows if r.name == who.name and "hung" in r.reason), None)
    if hung is None:
        return who

    def run() -> dict[str, Reading]:
        raise NotMeasured(f"{hung.case}: {hung.reason}; not tried again")

    return replace(who, run=run)


@dataclass(frozen=True)
class _Link:
    """A server far away, and how to measure over it."""

    stage: Stage
    far: Endpoint
    delay: float
    others: Samples

    def plain(
        self, work: Callable[[Samples], object], data: Samples, amount: float
    ) -> dict[str, Reading]:
        """Measure a reader that needs no mount."""

        def run() -> dict[str, float]:
            work(self.others)
            return epoch(lambda: work(data), self.far)

        return {"cold": reading(amount, self.stage.measure(run))}

    def on_mount(self, bucket: str, work: Callable[[Mount], T], options: Sequence[str] = ()) -> T:
        """Run a function in the child, on a fresh mount with an empty cache."""
        stage = self.stage
        with (
            stage.folder("cache") as cache,
            stage.mounted(bucket, cache=cache, endpoint=self.far, options=options) as mount,
        ):
            return stage.measure(lambda: work(mount), mount)


def _sequential(link: _Link, shard: Samples) -> list[Contender]:
    case = case_of(link.delay, SEQUENTIAL)
    size, key, megabytes = shard.stored, shard.keys[0], shard.stored / 1e6

    def with_curl() -> dict[str, Reading]:
        counted = link.stage.measure(lambda: curl_epoch(link.far, shard.bucket, [key], size))
        return {"cold": reading(megabytes, counted)}

    def with_sdk(data: Samples) -> None:
        from aistore.sdk import Client

        Client(link.far.url).bucket(data.bucket).object(data.keys[0]).get_reader().read_all()

    def with_mount() -> dict[str, Reading]:
        def work(mount: Mount) -> dict[str, float]:
            return mount_epoch(lambda: read_file(mount.path / key, size), link.far, mount)

        return {"cold": reading(megabytes, link.on_mount(shard.bucket, work))}

    return [
        Contender(case, CURL, "MB/s", with_curl, ("cold",), baseline=True),
        Contender(case, SDK, "MB/s", partial(link.plain, with_sdk, shard, megabytes), ("cold",)),
        Contender(case, READ, "MB/s", with_mount, ("cold",)),
    ]


def _shuffled(link: _Link, objects: Samples, packed: Samples) -> list[Contender]:
    # A GET through the proxy is two requests: so many fit into the time.
    fit = int(link.stage.settings.far_seconds / (2 * link.delay + 0.005))
    number = min(MOST, max(FEWEST, fit))
    case = case_of(link.delay, f"{number} shuffled images of {packed.samples}")

    def order(data: Samples) -> list[int]:
        return random.Random(7).sample(range(data.samples), min(number, data.samples))

    def with_gets(data: Samples) -> None:
        urls = [object_url(link.far.url, data.bucket, data.keys[at]) for at in order(data)]
        read_through(Gets(urls), 0)

    def with_sdk(data: Samples) -> None:
        readers.sdk_random(link.far.url, data.bucket, order(data))

    def with_mount(bounded: bool) -> dict[str, Reading]:
        options = bounded_cache(packed.stored // 2) if bounded else ()

        def work(mount: Mount) -> list[dict[str, float]]:
            return _read_files(mount, link.far, packed.keys, order(packed))

        listing, files = link.on_mount(packed.bucket, work, options)
        both = {key: listing[key] + files[key] for key in files}
        return {"cold": reading(number, both), LISTED: reading(number, files)}

    states = ("cold", LISTED)
    return [
        Contender(
            case,
            GET,
            UNIT,
            partial(link.plain, with_gets, objects, number),
            ("cold",),
            baseline=True,
        ),
        Contender(
            case, SDK_RANDOM, UNIT, partial(link.plain, with_sdk, objects, number), ("cold",)
        ),
        Contender(case, FILES, UNIT, partial(with_mount, False), states),
        Contender(case, FILES_SMALL, UNIT, partial(with_mount, True), states),
    ]


def _read_files(
    mount: Mount, far: Endpoint, keys: Sequence[str], order: Sequence[int]
) -> list[dict[str, float]]:
    """Read files in random order; the listing of the shards is timed apart: an epoch pays it once."""
    folders: list[Path] = [mount.path / f"{key}.d" for key in keys]
    paths: list[str] = []
    listing = mount_epoch(lambda: paths.extend(list_files(folders)), far, mount)
    chosen = Files([paths[at] for at in order])
    return [listing, mount_epoch(lambda: read_through(chosen, 0), far, mount)]
