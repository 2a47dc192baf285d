"""Measurements that several groups make: epochs with and without a mount, and curl."""

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.data import KILOBYTE, Samples, Store, write_loose, write_shards
from bench.engine import Reading, epoch
from bench.mounts import Mount, mount_options
from bench.processes import NotMeasured
from bench.readers import object_url
from bench.server import Endpoint
from bench.stage import Stage

PIECE = 1 << 20
"""Bytes per read of a file that is read as a whole."""
LEAST_MEMORY = 16 << 20
"""The least `--memory-limit` that aisfs takes. What it keeps in memory is a cache as well."""
LEAST_CACHE = 8 << 20
"""The least `--cache-size`."""
REMOUNTED = "remount"
"""Read from the disk cache: a fresh mount on a warm cache directory, page cache dropped."""


def nothing() -> None:
    """Do nothing: the warm-up of what needs none."""


@contextmanager
def few(stage: Stage, store: Store | None = None) -> Iterator[tuple[Samples, Samples]]:
    """Give two samples as objects and two in a shard, for warming up."""
    store = store or stage.store
    with (
        stage.bucket("few-objects") as objects,
        stage.bucket("few-shards") as shards,
        stage.folder("few") as extracted,
    ):
        yield (
            write_loose(store, objects, samples=2, size=KILOBYTE),
            write_shards(store, shards, samples=2, shards=1, size=KILOBYTE, extract_to=extracted),
        )


def reading(amount: float, counted: Mapping[str, float]) -> Reading:
    """Turn the seconds of an epoch into a rate."""
    kept = {key: value for key, value in counted.items() if key != "seconds"}
    return Reading(amount / counted["seconds"], kept)


def two_epochs(
    stage: Stage,
    data: Samples,
    work: Callable[[], object],
    amount: float,
    *,
    warm_up: Callable[[], object] = nothing,
) -> dict[str, Reading]:
    """Measure a reader that needs no mount: the first time and the second.

    Args:
        stage: where.
        data: what is in the bucket.
        work: reads all of it.
        amount: what is divided by the seconds.
        warm_up: the same with other data, so that what Python imports late is not in the time.
    """
    stage.cool(data)

    def run() -> list[dict[str, float]]:
        warm_up()
        return [epoch(work, stage.endpoint) for _ in range(2)]

    first, second = stage.measure(run)
    return {"cold": reading(amount, first), "warm": reading(amount, second)}


def mount_epoch(work: Callable[[], object], endpoint: Endpoint, mount: Mount) -> dict[str, float]:
    """Time a function as `epoch` does, and see what the daemon spends; runs in the child."""
    before, asked = mount.costs(), mount.requests()
    counted = epoch(work, endpoint)
    after = mount.costs()
    for what, number in mount.requests().items():
        counted[what] = number - asked.get(what, 0.0)
    if before and after:
        counted["daemon_cpu_s"] = after["daemon_cpu_s"] - before["daemon_cpu_s"]
        counted["daemon_mb"] = after["daemon_mb"]
    counted["mount_s"] = mount.seconds
    return counted


def mount_states(remount: bool) -> tuple[str, ...]:
    """Name the states that `mount_epochs` measures."""
    return ("cold", "warm", REMOUNTED) if remount and has_cache() else ("cold", "warm")


def has_cache() -> bool:
    """Say whether this aisfs has a disk cache."""
    return "--cache-dir" in mount_options()


def bounded_cache(limit: int) -> list[str]:
    """Give the options that keep disk cache and memory of a mount to so many bytes together.

    The disk cache alone is not enough: with the default memory limit a daemon holds half a
    gigabyte more, and small data would never be fetched twice whatever the disk cache does.

    Raises:
        NotMeasured: aisfs cannot, or there is too little data for what it takes at least.
    """
    if not {"--cache-dir", "--cache-size", "--memory-limit"} <= mount_options():
        raise NotMeasured("this aisfs has no --cache-dir, --cache-size and --memory-limit")
    if limit - LEAST_MEMORY < LEAST_CACHE:
        raise NotMeasured(f"too little data: caches of {limit} bytes are smaller than the least")
    return ["--cache-size", str(limit - LEAST_MEMORY), "--memory-limit", str(LEAST_MEMORY)]


def check_fetched(got: float, stored: int, limit: int, *, slack: float = 0.02) -> None:
    """Refuse a share of the data fetched that is less than what cannot have been in a cache.

    Raises:
        NotMeasured: something else than the bounded caches has held data.
    """
    least = 1 - limit / stored
    if got < least - slack:
        raise NotMeasured(
            f"invalid: {got:.2f} of the data fetched, {least:.2f} is the least with these caches"
        )


def mount_epochs(
    stage: Stage,
    data: Samples,
    work: Callable[[Path], object],
    amount: float,
    *,
    remount: bool = False,
    options: Sequence[str] = (),
    warm_up: Callable[[], object] = nothing,
) -> dict[str, Reading]:
    """Measure a reader of the mount: fresh mount and cache, again, and on the disk cache only.

    Args:
        stage: where.
        data: what is in the bucket.
        work: reads everything below the mountpoint it is given.
        amount: what is divided by the seconds.
        remount: whether to mount again on the cache that was filled.
        options: more options of `aisfs mount`.
        warm_up: as for `two_epochs`.
    """
    with stage.folder("cache") as cache:
        with stage.mounted(data.bucket, cache=cache, options=options) as mount:
            stage.cool(data)
            first, second = _epochs(stage, mount, work, 2, warm_up)
        found = {"cold": reading(amount, first), "warm": reading(amount, second)}
        if remount and has_cache():
            with stage.mounted(data.bucket, cache=cache, options=options) as mount:
                stage.cool(data)
                (third,) = _epochs(stage, mount, work, 1, warm_up)
            found[REMOUNTED] = reading(amount, third)
        return found


def _epochs(
    stage: Stage,
    mount: Mount,
    work: Callable[[Path], object],
    number: int,
    warm_up: Callable[[], object],
) -> list[Any]:
    def run() -> list[dict[str, float]]:
        warm_up()
        return [mount_epoch(lambda: work(mount.path), stage.endpoint, mount) for _ in range(number)]

    epochs: list[Any] = stage.measure(run, mount)
    return epochs


def curl(endpoint: str, bucket: str, keys: Sequence[str], size: int) -> float:
    """Fetch objects with one curl, one after the other, to /dev/null.

    Returns:
        Seconds of the transfers by curl's own clock: not those of starting it.

    Raises:
        NotMeasured: curl is missing or failed.
    """
    command = ["curl", "--silent", "--show-error", "--fail", "--location"]
    command += ["--write-out", "%{time_total} %{size_download}\\n"]
    for key in keys:
        command += ["--output", os.devnull, object_url(endpoint, bucket, key)]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError as error:
        raise NotMeasured("curl is not installed") from error
    if done.returncode:
        raise NotMeasured(f"curl: {done.stderr.strip()}")
    lines = [line.split() for line in done.stdout.splitlines()]
    if sum(int(length) for _, length in lines) != size:
        raise NotMeasured(f"curl got {done.stdout!r} instead of {size} bytes")
    return sum(float(seconds) for seconds, _ in lines)


def curl_epoch(endpoint: Endpoint, bucket: str, keys: Sequence[str], size: int) -> dict[str, float]:
    """Measure `curl` as `epoch` does, with its own seconds; runs in the child."""
    seconds: list[float] = []
    counted = epoch(lambda: seconds.append(curl(endpoint.url, bucket, keys, size)), endpoint)
    return {**counted, "seconds": seconds[0]}


def read_file(path: Path, size: int) -> None:
    """Read a file from start to end in large pieces."""
    buffer = bytearray(PIECE)
    got = 0
    with path.open("rb", buffering=0) as file:
        while length := file.readinto(buffer):
            got += length
    if got != size:
        raise NotMeasured(f"read {got} of {size} bytes")
