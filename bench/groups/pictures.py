"""Cold pictures for longer than a start takes: rates, and processor seconds of all who take part.

The same few shards are there under many keys, so that gigabytes are read from a server that has them
in memory. What is read first, each shard once, is a row of its own: connections, windows and buffers
grow there.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench import readers
from bench.data import IMAGE, Samples, write_shards
from bench.engine import Contender, Reading, Row, epoch, measure
from bench.groups.epochs import SDK_SHARDS, WEB
from bench.groups.measures import few, mount_epoch, reading
from bench.mounts import Mount
from bench.processes import NotMeasured, group_seconds
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
        again = _repeated(stage, once, settings.picture_repeats - 1)
        contenders = []
        for workers in settings.picture_workers:
            contenders += _Epoch(stage, once, again, others, workers).contenders()
        return measure("pictures", contenders, settings, progress)


def _repeated(stage: Stage, once: Samples, times: int) -> Samples:
    """Store all shards so many times more."""
    keys = []
    for number in range(times * len(once.keys)):
        keys.append(f"train-{len(once.keys) + number:04d}.tar")
        stage.store.repeat(once.bucket, keys[-1], once.keys[number % len(once.keys)])
    samples, size, stored = (times * part for part in (once.samples, once.size, once.stored))
    return Samples(once.bucket, keys, samples, size, stored)


@dataclass(frozen=True)
class _Epoch:
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
            caches += [(ON_TMPFS, _on_tmpfs, ()), (NO_CACHE, folder, ("--cache-size", "0"))]
        return [
            self._contender(WEB, partial(self._plain, self._web), baseline=True),
            self._contender(SDK_SHARDS, partial(self._plain, self._sdk)),
            *(
                self._contender(name, partial(self._of_mount, cache, options))
                for name, cache, options in caches
            ),
        ]

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
                self._counted(
                    data, lambda job: epoch(job, self.stage.endpoint), partial(read, data)
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
            self._counted(
                data,
                lambda job: mount_epoch(job, self.stage.endpoint, mount),
                partial(read, data),
            )
            for data in (self.once, self.again)
        ]

    def _counted(
        self,
        data: Samples,
        timed: Callable[[Callable[[], Any]], dict[str, float]],
        read: Callable[[int], Tally],
    ) -> dict[str, float]:
        """Read some of the shards; count the processor seconds of reader, daemon and server."""
        job = checked(partial(read, self.workers), data.samples, data.size)
        own, served = _own_seconds(), self._server_seconds()
        counted = timed(job)
        spent = {"reader": _own_seconds() - own, "server": self._server_seconds() - served}
        if "daemon_cpu_s" in counted:
            spent["daemon"] = counted["daemon_cpu_s"]
        if self.stage.endpoint.leader is None:
            del spent["server"]
        return counted | {f"{who}_s_gb": s / (data.size / GIGABYTE) for who, s in spent.items()}

    def _server_seconds(self) -> float:
        leader = self.stage.endpoint.leader
        return group_seconds(leader) if leader is not None else 0.0

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
