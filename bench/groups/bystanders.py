"""What a request waits while a shard that somebody else reads is fetched and scanned."""

import mmap
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.data import KILOBYTE, Samples, write_shards
from bench.engine import Contender, Reading, Row, measure, number_text
from bench.groups.measures import read_file
from bench.mounts import Mount
from bench.processes import NotMeasured
from bench.readers import list_files
from bench.stage import Stage

UNIT = "ms, 99 of 100 requests"
IDLE = "nothing else goes on"
BUSY = "cold shards are listed and read by another process"
ATTRIBUTE = "an attribute (answered by trio)"
PAGE = "4 KiB of the disk cache (answered by the fast path)"
STATE = "waited"
ELSEWHERE = "waited, for a second daemon"
"""On the same busy machine, but not the daemon that scans: what the processors alone are to blame for."""
PAUSE = 0.001
"""Seconds between two requests: a bystander is no load of its own."""
IDLE_SECONDS = 0.5
LEAST = 100
"""Requests without which 99 of 100 says nothing."""
SHARDS = 4
"""One that is known, the others cold."""
PAGE_BYTES = 4096

Probe = Callable[[], object]
Probing = Callable[[Path], Iterator[Probe]]
"""Opens what it asks of a shard, given the path."""


def run(stage: Stage, progress: Callable[[str], None]) -> list[Row]:
    """Measure both kinds of requests beside an idle and a busy daemon, and at a daemon beside that."""
    members = stage.settings.members
    progress(f"bystanders: writing {SHARDS} shards of {members:,} members")
    with stage.bucket("bystanders") as bucket:
        data = write_shards(
            stage.store,
            bucket,
            samples=SHARDS * members,
            shards=SHARDS,
            size=KILOBYTE,
            extract_to=None,
        )
        contenders = [
            Contender(case, name, UNIT, partial(work, stage, data, probing), states, work is _idle)
            for case, probing in ((ATTRIBUTE, _attribute), (PAGE, _page))
            for name, work, states in (
                (IDLE, _idle, (STATE,)),
                (BUSY, _busy, (STATE, ELSEWHERE)),
            )
        ]
        return measure("bystanders", contenders, stage.settings, progress)


def _idle(stage: Stage, data: Samples, probing: Probing) -> dict[str, Reading]:
    with _mounted(stage, data) as mount:
        ((known, *_),) = _warmed(stage, data, mount)

        def work() -> list[list[float]]:
            with contextmanager(probing)(known) as probe:
                return _ask([probe], until=time.monotonic() + IDLE_SECONDS)

        (waits,) = stage.measure(work, mount)
    return {STATE: _summary(waits)}


def _busy(stage: Stage, data: Samples, probing: Probing) -> dict[str, Reading]:
    with _mounted(stage, data) as scanning, _mounted(stage, data) as other:
        (known, *cold), (known_elsewhere, *_) = _warmed(stage, data, scanning, other)

        def work() -> list[list[float]]:
            ask = contextmanager(probing)
            with ask(known) as probe, ask(known_elsewhere) as probe_elsewhere:
                reader = _read_beside([shard.with_name(f"{shard.name}.d") for shard in cold])
                return _ask([probe, probe_elsewhere], reader=reader)

        waits, waits_elsewhere = stage.measure(work, scanning)
    return {STATE: _summary(waits), ELSEWHERE: _summary(waits_elsewhere)}


@contextmanager
def _mounted(stage: Stage, data: Samples) -> Iterator[Mount]:
    options = ["--prefetch-shards", "0"]
    with (
        stage.folder("cache") as cache,
        stage.mounted(data.bucket, cache=cache, options=options) as mount,
    ):
        yield mount


def _warmed(stage: Stage, data: Samples, *mounts: Mount) -> list[list[Path]]:
    """Give the shards below each mount; the first one of each is read, the others are cold."""
    shards = [[mount.path / key for key in data.keys] for mount in mounts]
    stage.cool(data)
    for known, *_ in shards:
        read_file(known, known.stat().st_size)
    return shards


def _attribute(known: Path) -> Iterator[Probe]:
    member = list_files([known.with_name(f"{known.name}.d")])[0]
    yield partial(os.getxattr, member, "user.aisfs.shard")


def _page(known: Path) -> Iterator[Probe]:
    file = os.open(known, os.O_RDONLY | os.O_DIRECT)  # past the page cache, to the daemon
    with mmap.mmap(-1, PAGE_BYTES) as buffer:  # aligned, as O_DIRECT wants it
        try:
            yield partial(os.preadv, file, [buffer], 0)
        finally:
            os.close(file)


def _read_beside(folders: Sequence[Path]) -> int:
    """List folder after folder and read all files, in a process of its own; gives the process."""
    process = os.fork()
    if not process:
        code = 1
        try:
            for folder in folders:
                _read_all(list_files([folder]))
            code = 0
        finally:
            os._exit(code)
    return process


def _read_all(paths: Sequence[str]) -> None:
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            file.read()


def _ask(
    probes: Sequence[Probe], *, until: float | None = None, reader: int = 0
) -> list[list[float]]:
    """Time one request after the other, of each probe in turn: until then, or as long as the reader reads."""
    waits: list[list[float]] = [[] for _ in probes]
    while True:
        for probe, waited in zip(probes, waits, strict=True):
            begun = time.perf_counter()
            probe()
            waited.append(time.perf_counter() - begun)
            time.sleep(PAUSE)
        if until is not None:
            if time.monotonic() > until:
                return waits
        elif (ended := os.waitpid(reader, os.WNOHANG))[0]:
            if ended[1]:
                raise NotMeasured("the reader of the cold shards failed")
            return waits


def _summary(waits: list[float]) -> Reading:
    if len(waits) < LEAST:
        raise NotMeasured(f"too little data: only {number_text(len(waits))} requests meanwhile")
    cuts = statistics.quantiles(waits, n=100)
    counted = {"waited_ms_median": cuts[49] * 1e3, "waited_ms_max": max(waits) * 1e3}
    return Reading(cuts[98] * 1e3, counted)
