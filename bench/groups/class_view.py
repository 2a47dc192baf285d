"""The first `ls` of a class view on a fresh machine: what it takes, and how much of the data."""

import os
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from aisfs.core.archive.tar_scanner import TarScanner
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.published import LabelColumn, ScanRules, encode_published
from aisfs.core.names.listing import place_in
from aisfs.core.views.sample_views import LabelScan
from aisfs.core.views.spec import LabelRule, LabelSource
from aisfs.engine.shards import saved_as
from aisfs.model import Bucket, ObjectInfo
from bench.data import IMAGE, Samples, write_labelled_shards
from bench.engine import Contender, Reading, Row, epoch, measure
from bench.groups.measures import reading
from bench.mounts import COMMAND
from bench.processes import NotMeasured
from bench.readers import object_url
from bench.server import REPOSITORY
from bench.stage import Stage

UNIT = "samples/s"
PUBLISHED = "aisfs mount + ls, published indexes"
SERVER = "aisfs mount + ls, AIStore's shard indexes"
STREAMED = "webdataset, labels of a stream"
AGAIN = "remount"
LABELS = LabelRule(LabelSource.CONTENT, "cls")
HEADERS = 2048
"""Bytes read at each header: those of a label, its header, and the header of the picture."""
STREAMED_SHARDS = 5
"""Read by the peer, which has to read all of each: 0.5 GB."""
INDEXED = "train-0000??.tar"
INDEXED_SHARDS = 100
"""How many these are. Listed with AIStore's indexes, which say no labels: each is a part of a GetBatch."""


def case_of(shards: int, samples: int) -> str:
    """Name the case."""
    return f"{shards:,} shards of {samples:,} images of 110 KB and labels"


def run(stage: Stage, progress: Callable[[str], None]) -> list[Row]:
    """Measure from the start of the command to the end of the first listing of the classes."""
    shards, samples = stage.settings.class_shards, stage.settings.class_samples
    case = case_of(shards, samples)
    progress(f"class view: writing {shards:,} sparse shards")
    with stage.bucket("classes") as bucket, stage.bucket("indexes") as indexes:
        data = write_labelled_shards(
            stage.store, bucket, shards=shards, samples=samples, size=IMAGE, at=stage.directory
        )
        contenders = [
            Contender(case, STREAMED, UNIT, partial(_streamed, stage, data), ("cold",), True)
        ]
        of_server = ("--shard-index", "auto", "--no-published-index", "--include", INDEXED)
        for name, build, options, listed in (
            (
                PUBLISHED,
                partial(_publish, indexes),
                ("--shard-index", "never", "--index-bucket", indexes),
                data,
            ),
            (SERVER, _build_on_server, of_server, _first(data, INDEXED_SHARDS)),
        ):
            progress(f"class view: {name}: building them")
            work = partial(_listed, stage, listed, options, build(stage, data))
            its_case = case_of(len(listed.keys), samples)
            contenders.append(Contender(its_case, name, UNIT, work, ("cold", AGAIN)))
        return measure("class view", contenders, stage.settings, progress)


def _first(data: Samples, shards: int) -> Samples:
    """Return the first shards of many, which are all of nearly the same size."""
    keys = data.keys[:shards]
    parts = (data.samples, data.size, data.stored)
    return Samples(data.bucket, keys, *(part * len(keys) // len(data.keys) for part in parts))


def _publish(indexes: str, stage: Stage, data: Samples) -> str:
    """Publish the index of each shard in the bucket `indexes`, as `aisfs index --publish` does but from the files themselves.

    Streaming 110 GB of zeros through the server would take most of the benchmark's time.
    """
    import requests

    if not stage.embedded:
        return _build(stage, data, "--publish", "--index-bucket", indexes)
    place = place_in(Bucket(indexes), Bucket(data.bucket))
    with requests.Session() as session:
        for path in sorted(stage.store.files(data.bucket)):
            url = object_url(stage.endpoint.url, data.bucket, path.name)
            said = session.head(url, allow_redirects=True, timeout=30).headers
            value = said.get("Ais-Checksum-Value", "")
            checksum = f"{said['Ais-Checksum-Type']}:{value}" if value else ""
            size = path.stat().st_size
            shard = ObjectInfo(path.name, size, said.get("Ais-Version", ""), checksum)
            found = encode_published(
                shard, *_scanned(path, size), ScanRules(), renewable=place.renewable
            )
            stage.store.put(place.bucket.name, place.key(path.name), found)
            stage.store.know_checksum(place.bucket.name, place.key(path.name))
    return ""


def _scanned(path: Path, size: int) -> tuple[MemberIndex, dict[str, LabelColumn]]:
    """Scan a tar from header to header."""
    scanner = TarScanner(size)
    labels = LabelScan(LABELS, scanner.rows)
    with path.open("rb", buffering=0) as file:
        while (
            start := min(scanner.needed, size if labels.needed is None else labels.needed)
        ) < size:
            piece = os.pread(file.fileno(), HEADERS, start)
            scanner.seek(start)
            scanner.feed(piece)
            labels.feed(start, memoryview(piece))
    index = scanner.finish()
    return index, {saved_as(LABELS): labels.finish(index)}


def _build_on_server(stage: Stage, data: Samples) -> str:
    return _build(stage, data, "--server")


def _build(stage: Stage, data: Samples, *how: str) -> str:
    """Have the indexes built by a command; return why they are not."""
    command = [*COMMAND, "index", f"ais://{data.bucket}", *how, "--endpoint", stage.endpoint.url]
    with stage.folder("cache") as cache:
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            env={**os.environ, "XDG_CACHE_HOME": str(cache)},
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
    return f"aisfs index {how[0]}: {done.stderr.strip()[-200:]}" if done.returncode else ""


def _listed(
    stage: Stage, data: Samples, options: tuple[str, ...], reason: str
) -> Mapping[str, Reading]:
    if reason:
        raise NotMeasured(reason)
    found = {}
    with stage.folder("cache") as cache:
        for state in ("cold", AGAIN):
            stage.cool()
            before = stage.endpoint.counters()
            words = ["--view", "class", *options]
            with stage.mounted(data.bucket, cache=cache, options=words) as mount:
                after = stage.endpoint.counters()
                counted = {what: after[what] - before.get(what, 0) for what in after}
                if len(os.listdir(mount.path)) != min(data.samples, 1000):
                    raise NotMeasured("not all classes are there")
                found[state] = reading(
                    data.samples,
                    {
                        "seconds": mount.seconds,
                        "share": counted.get("get_bytes", 0) / data.stored,
                        "requests_at_server": sum(
                            number for what, number in counted.items() if "bytes" not in what
                        ),
                        "daemon_cpu_s": mount.costs().get("daemon_cpu_s", 0.0),
                        "daemon_mb": mount.costs().get("daemon_mb", 0.0),
                    },
                )
    return found


def _streamed(stage: Stage, data: Samples) -> Mapping[str, Reading]:
    """Read the labels as who has no index does: by streaming shards."""
    import webdataset

    keys = data.keys[:STREAMED_SHARDS]
    urls = [f"pipe:curl -sfL '{object_url(stage.endpoint.url, data.bucket, k)}'" for k in keys]
    samples = data.samples * len(keys) // len(data.keys)
    stage.cool()

    def read() -> None:
        found = webdataset.WebDataset(urls, shardshuffle=False, empty_check=False)
        if sum(1 for sample in found if sample["cls"]) != samples:
            raise NotMeasured("samples are missing")

    counted = stage.measure(lambda: epoch(read, stage.endpoint))
    return {"cold": reading(samples, counted)}
