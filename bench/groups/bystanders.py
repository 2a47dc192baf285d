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
from bench.processes import NotMeasured
from bench.readers import list_files
from bench.stage import Stage

UNIT = "ms, 99 of 100 requests"
IDLE = "nothing else goes on"
BUSY = "cold shards are listed and read by another process"
ATTRIBUTE = "an attribute (answered by trio)"
PAGE = "4 KiB of the disk cache (answered by the lane)"
STATE = "waited"
PAUSE = 0.001
"""Seconds between two requests: a bystander is no load of its own."""
IDLE_SECONDS = 0.5
LEAST = 100
"""Requests without which 99 of 100 says nothing."""
SHARDS = 4
"""One that is known, the others cold."""
PAGE_BYTES = 4096

Probe = Callable[[], object]


def run(stage: Stage, progress: Callable[[str], None]) -> list[Row]:
    """Measure both kinds of requests beside an idle and a busy daemon."""
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
            Contender(
                case, name, UNIT, partial(_waited, stage, data, probing, busy), (STATE,), not busy
            )
            for case, probing in ((ATTRIBUTE, _attribute), (PAGE, _page))
            for name, busy in ((IDLE, False), (BUSY, True))
        ]
        return measure("bystanders", contenders, stage.settings, progress)


def _waited(
    stage: Stage, data: Samples, probing: Callable[[Path], Iterator[Probe]], busy: bool
) -> dict[str, Reading]:
    with (
        stage.folder("cache") as cache,
        stage.mounted(data.bucket, cache=cache, options=["--prefetch-shards", "0"]) as mount,
    ):
        known, *cold = (mount.path / key for key in data.keys)
        stage.cool(data)
        read_file(known, known.stat().st_size)

        def work() -> list[float]:
            with contextmanager(probing)(known) as probe:
                if not busy:
                    return _ask(probe, until=time.monotonic() + IDLE_SECONDS)
                reader = _read_beside([shard.with_name(f"{shard.name}.d") for shard in cold])
                return _ask(probe, until=None, reader=reader)

        waits = stage.measure(work, mount)
    return {STATE: _summary(waits)}


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


def _ask(probe: Probe, *, until: float | None, reader: int = 0) -> list[float]:
    """Time one request after the other: until then, or as long as the reader reads."""
    waits = []
    while True:
        begun = time.perf_counter()
        probe()
        waits.append(time.perf_counter() - begun)
        if until is not None:
            if time.monotonic() > until:
                return waits
        elif (ended := os.waitpid(reader, os.WNOHANG))[0]:
            if ended[1]:
                raise NotMeasured("the reader of the cold shards failed")
            return waits
        time.sleep(PAUSE)


def _summary(waits: list[float]) -> Reading:
    if len(waits) < LEAST:
        raise NotMeasured(f"too little data: only {number_text(len(waits))} requests meanwhile")
    cuts = statistics.quantiles(waits, n=100)
    counted = {"waited_ms_median": cuts[49] * 1e3, "waited_ms_max": max(waits) * 1e3}
    return Reading(cuts[98] * 1e3, counted)
