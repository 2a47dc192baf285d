"""Cold pictures for longer than a start takes: rates, and processor seconds of all who take part.

The same few shards are there under many keys, so that gigabytes are read from a server that has them
in memory. What is read first, each shard once, is a row of its own: connections, windows and buffers
grow there.
"""

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench import readers
from bench.data import IMAGE, Samples, Store, write_shards
from bench.engine import Contender, Reading, Row, epoch, measure
from bench.groups.epochs import SDK_SHARDS, WEB
from bench.groups.measures import few, mount_epoch, reading
from bench.mounts import Mount
from bench.processes import NotMeasured, busy_since, group_seconds, processors
from bench.readers import Tally, checked, object_url
from bench.stage import Stage

UNIT = "pictures/s"
ON_DISK = "files of the mount (X.tar.d), cache on disk"
ON_TMPFS = "files of the mount (X.tar.d), cache on tmpfs"
NO_CACHE = "files of the mount (X.tar.d), --cache-size 0"
FIRST = "cold, first shards"
STEADY = "cold, steady"
TMPFS = Path("/dev/shm")
GIGABYTE = 1e9
TOGETHER = "different shards at the same time"
AT_ONCE = "files of the mount, processes: {}"


def run(stage: Stage, progress: Callable[[str], None]) -> list[Row]:
    """Measure one epoch, from an empty cache."""
    settings = stage.settings
    total = settings.pictures * settings.picture_repeats
    progress(f"pictures: writing {total:,}, {settings.picture_repeats} times the same")
    with stage.bucket("pictures") as bucket, few(stage) as (_, others):
        once = write_shards(
            stage.store,
            bucket,
            samples=settings.pictures,
            shards=settings.shards,
            size=IMAGE,
            extract_to=None,
        )
        again = repeated(stage.store, once, settings.picture_repeats - 1)
        contenders = []
        for workers in settings.picture_workers:
            contenders += PictureEpoch(stage, once, again, others, workers).contenders()
        rows = measure("pictures", contenders, settings, progress)
        at_once = [_AtOnce(stage, again, number) for number in settings.cold_readers]
        together = [reader.contender() for reader in at_once]
        return rows + measure("pictures", together, settings, progress)


def repeated(store: Store, once: Samples, times: int) -> Samples:
    """Store all shards so many times more."""
    keys = []
    for number in range(times * len(once.keys)):
        keys.append(f"train-{len(once.keys) + number:04d}.tar")
        store.repeat(once.bucket, keys[-1], once.keys[number % len(once.keys)])
    samples, size, stored = (times * part for part in (once.samples, once.size, once.stored))
    return Samples(once.bucket, keys, samples, size, stored, parts=times * once.parts)


@dataclass(frozen=True)
class PictureEpoch:
    """One number of workers."""

    stage: Stage
    once: Samples
    again: Samples
    others: Samples
    workers: int

    def contenders(self) -> list[Contender]:
        """Give everyone who reads these shards."""
        folder = partial(self.stage.folder, "cache")
        caches = [(ON_DISK, folder, ())]
        if not self.workers:  # the disk of this machine is told from aisfs
            # By default, a cache takes a tenth of what is free there.
            room = str(2 * (self.once.stored + self.again.stored))
            caches += [(ON_TMPFS, _on_tmpfs, ("--cache-size", room))]
            caches += [(NO_CACHE, folder, ("--cache-size", "0"))]
        return [
            self._contender(WEB, partial(self._plain, self._web), baseline=True),
            self._contender(SDK_SHARDS, partial(self._plain, self._sdk)),
            *(
                self._contender(name, partial(self._of_mount, cache, options))
                for name, cache, options in caches
            ),
        ]

    def of_web(self) -> dict[str, Reading]:
        """Measure webdataset."""
        return self._plain(self._web)

    def of_files(self) -> dict[str, Reading]:
        """Measure files of the mount, whose cache is on disk."""
        return self._of_mount(partial(self.stage.folder, "cache"), ())

    def _contender(
        self, name: str, run: Callable[[], Mapping[str, Reading]], *, baseline: bool = False
    ) -> Contender:
        case = f"{self.workers} workers"
        return Contender(case, name, UNIT, run, (FIRST, STEADY), baseline)

    def _plain(self, read: Callable[[Samples, int], Tally]) -> dict[str, Reading]:
        self.stage.cool(self.once)

        def work() -> list[dict[str, float]]:
            read(self.others, 0)
            return [
                _counted(
                    self.stage,
                    data,
                    lambda job: epoch(job, self.stage.endpoint),
                    partial(read, data, self.workers),
                )
                for data in (self.once, self.again)
            ]

        return self._readings(self.stage.measure(work))

    def _of_mount(
        self, cache: Callable[[], AbstractContextManager[Path]], options: Sequence[str]
    ) -> dict[str, Reading]:
        with (
            cache() as place,
            self.stage.mounted(self.once.bucket, cache=place, options=options) as mount,
        ):
            self.stage.cool(self.once)
            return self._readings(self.stage.measure(partial(self._mount_work, mount), mount))

    def _mount_work(self, mount: Mount) -> list[dict[str, float]]:
        readers.read_files([Path(self.others.extracted or "/nonexistent")], 0)

        def read(data: Samples, workers: int) -> Tally:
            return readers.read_files([mount.path / f"{key}.d" for key in data.keys], workers)

        return [
            _counted(
                self.stage,
                data,
                lambda job: mount_epoch(job, self.stage.endpoint, mount),
                partial(read, data, self.workers),
            )
            for data in (self.once, self.again)
        ]

    def _readings(self, counted: Sequence[Mapping[str, float]]) -> dict[str, Reading]:
        first, steady = counted
        return {
            FIRST: reading(self.once.samples, first),
            STEADY: reading(self.again.samples, steady),
        }

    def _web(self, data: Samples, workers: int) -> Tally:
        url = self.stage.endpoint.url
        urls = [object_url(url, data.bucket, key) for key in data.keys]
        return readers.webdataset_shards(urls, workers)

    def _sdk(self, data: Samples, workers: int) -> Tally:
        return readers.sdk_shards(self.stage.endpoint.url, data.bucket, workers, data.keys)


@dataclass(frozen=True)
class _AtOnce:
    """Processes that read different shards of one fresh mount at the same time."""

    stage: Stage
    data: Samples
    readers: int

    def contender(self) -> Contender:
        """Give them as one reader; the first number of them is what others are compared with."""
        first = self.readers == self.stage.settings.cold_readers[0]
        name = AT_ONCE.format(self.readers)
        return Contender(TOGETHER, name, UNIT, self._run, (STEADY,), baseline=first)

    def _run(self) -> dict[str, Reading]:
        stage, number = self.stage, self.stage.settings.cold_reader_shards
        data = self.data.first(number)
        with (
            stage.folder("cache") as cache,
            stage.mounted(data.bucket, cache=cache) as mount,
        ):
            stage.cool(data)
            return {
                STEADY: reading(
                    data.samples, stage.measure(partial(self._work, data, mount), mount)
                )
            }

    def _work(self, data: Samples, mount: Mount) -> dict[str, float]:
        parts = [
            [mount.path / f"{key}.d" for key in data.keys[at :: self.readers]]
            for at in range(self.readers)
        ]

        def read() -> Tally:
            # As many processes for one reader as for eight: none reads in this one.
            with ProcessPoolExecutor(self.readers, multiprocessing.get_context("fork")) as pool:
                tallies = list(pool.map(_read_part, parts))
            samples, size = map(sum, zip(*tallies, strict=True))
            return samples, size

        return _counted(
            self.stage, data, lambda job: mount_epoch(job, self.stage.endpoint, mount), read
        )


def _read_part(folders: Sequence[Path]) -> Tally:
    return readers.read_files(folders, 0)


def _counted(
    stage: Stage,
    data: Samples,
    timed: Callable[[Callable[[], Any]], dict[str, float]],
    read: Callable[[], Tally],
) -> dict[str, float]:
    """Read some of the shards; count the processor seconds of reader, daemon and server."""
    job, leader = checked(read, data.samples, data.size), stage.endpoint.leader
    own, served, used = _own_seconds(), _server_seconds(leader), processors()
    counted = timed(job)
    busy = busy_since(used)
    spent = {"reader": _own_seconds() - own}
    if leader is not None:
        spent["server"] = _server_seconds(leader) - served
    if "daemon_cpu_s" in counted:
        spent["daemon"] = counted["daemon_cpu_s"]
    counted = counted | {f"{who}_s_gb": s / (data.size / GIGABYTE) for who, s in spent.items()}
    if busy is not None:
        counted["busy"] = busy
        had = counted["seconds"] * (os.cpu_count() or 1)
        counted["busy_ours"] = min(1.0, sum(spent.values()) / had)
    return counted | {"stored": float(data.stored)}


def _server_seconds(leader: int | None) -> float:
    return group_seconds(leader) if leader is not None else 0.0


def _own_seconds() -> float:
    """Return the processor seconds of this process and of its ended children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@contextmanager
def _on_tmpfs() -> Iterator[Path]:
    if not os.access(TMPFS, os.W_OK):
        raise NotMeasured(f"{TMPFS} cannot be written")
    with tempfile.TemporaryDirectory(prefix="aisfs-bench-", dir=TMPFS) as directory:
        yield Path(directory)
