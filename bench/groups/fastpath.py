"""What the kernel answers alone, and what the fast path is worth: scans, warm reads, random order."""

import os
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from bench.data import KILOBYTE, Samples, write_shards
from bench.engine import Contender, Reading, Row, epoch, measure
from bench.groups.measures import mount_epoch, read_file, reading
from bench.mounts import Mount, mount_options
from bench.processes import NotMeasured
from bench.readers import Files, Tally, checked, list_files, tally
from bench.stage import Stage

SCAN = "scan of all files (scandir, stat)"
SCANS = ("first", "second", "third")
TREE = "folders of the mount (X.tar.d)"
RANDOM = "random order, disk cache full, page cache dropped, {} readers"
FAST = "files of the mount, with the fast path"
PLAIN = "files of the mount, --no-fastpath"
READERS = (1, 4)
WARM = "in order, page cache warm, {} processes"
PROCESSES = (1, 2)
EXTRACTED = "the same files extracted, local disk"
PASSES = 5
"""Over the warm files in one measurement, so that starting processes does not count."""
DROPPED = "dropped"
CLASSES = 10
TINY = 64
"""Bytes of a file that is only looked at."""


def run(stage: Stage, progress: Callable[[str], None]) -> list[Row]:
    """Measure both."""
    settings = stage.settings
    progress(f"fastpath: writing {settings.scanned:,} files to scan, {settings.samples:,} to read")
    with (
        stage.bucket("scan") as many,
        stage.bucket("random") as bucket,
        stage.folder("extracted") as extracted,
    ):
        tree = write_shards(
            stage.store, many, samples=settings.scanned, shards=settings.shards, size=TINY,
            extract_to=None, classes=CLASSES,
        )  # fmt: skip
        data = write_shards(
            stage.store, bucket, samples=settings.samples, shards=settings.shards, size=KILOBYTE,
            extract_to=extracted,
        )  # fmt: skip
        contenders = [Contender(SCAN, TREE, "files/s", partial(_scans, stage, tree), SCANS)]
        for readers in READERS:
            case = RANDOM.format(readers)
            for name, options in ((PLAIN, ["--no-fastpath"]), (FAST, [])):
                work = partial(_random, stage, data, readers, options)
                plain = name == PLAIN
                contenders.append(
                    Contender(case, name, "samples/s", work, (DROPPED,), baseline=plain)
                )
        for processes in PROCESSES:
            case = WARM.format(processes)
            on_disk, on_mount = (
                partial(work, stage, data, processes) for work in (_warm_extracted, _warm_mount)
            )
            contenders += [
                Contender(case, EXTRACTED, "samples/s", on_disk, ("warm",), baseline=True),
                Contender(case, FAST, "samples/s", on_mount, ("warm",)),
            ]
        return measure("fastpath", contenders, settings, progress)


def _scans(stage: Stage, data: Samples) -> dict[str, Reading]:
    """Look at every file three times; the first includes fetching and indexing the shards."""
    with stage.folder("cache") as cache, stage.mounted(data.bucket, cache=cache) as mount:
        folders = [mount.path / f"{key}.d" for key in data.keys]
        stage.cool(data)

        def epochs() -> list[dict[str, float]]:
            work = checked(partial(_scan, folders), data.samples, data.size)
            return [mount_epoch(work, stage.endpoint, mount) for _ in SCANS]

        counts = stage.measure(epochs, mount)
    return {
        state: reading(data.samples, counted) for state, counted in zip(SCANS, counts, strict=True)
    }


def _scan(folders: Sequence[Path]) -> Tally:
    files = size = 0
    pending = [str(folder) for folder in folders]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    pending.append(entry.path)
                else:
                    files += 1
                    size += entry.stat().st_size
    return files, size


def _random(
    stage: Stage, data: Samples, readers: int, options: Sequence[str]
) -> dict[str, Reading]:
    if not set(options) <= mount_options():
        raise NotMeasured(f"this aisfs has no {' '.join(options)}")
    with (
        stage.folder("cache") as cache,
        stage.mounted(data.bucket, cache=cache, options=options) as mount,
    ):
        counted = stage.measure(lambda: _shuffled(stage, mount, data, readers), mount)
    return {DROPPED: reading(data.samples, counted)}


def _warm_mount(stage: Stage, data: Samples, processes: int) -> dict[str, Reading]:
    with stage.folder("cache") as cache, stage.mounted(data.bucket, cache=cache) as mount:

        def work() -> dict[str, float]:
            paths = list_files([mount.path / f"{key}.d" for key in data.keys])
            _read_all(paths)
            return mount_epoch(_passes(paths, data, processes), stage.endpoint, mount)

        counted = stage.measure(work, mount)
    return {"warm": reading(PASSES * data.samples, counted)}


def _warm_extracted(stage: Stage, data: Samples, processes: int) -> dict[str, Reading]:
    if data.extracted is None:
        raise NotMeasured("nothing was extracted")
    folder = data.extracted

    def work() -> dict[str, float]:
        paths = list_files([folder])
        _read_all(paths)
        return epoch(_passes(paths, data, processes), stage.endpoint)

    return {"warm": reading(PASSES * data.samples, stage.measure(work))}


def _passes(paths: Sequence[str], data: Samples, processes: int) -> Callable[[], object]:
    """Let each process read its part of the files again and again."""
    share = -(-len(paths) // processes)
    parts = [paths[at : at + share] * PASSES for at in range(0, len(paths), share)]
    samples, size = PASSES * data.samples, PASSES * data.size
    return checked(partial(_read_at_once, parts), samples, size)


def _shuffled(stage: Stage, mount: Mount, data: Samples, readers: int) -> dict[str, float]:
    for key in data.keys:  # into the disk cache
        read_file(mount.path / key, (mount.path / key).stat().st_size)
    paths = list_files([mount.path / f"{key}.d" for key in data.keys])
    stage.cool(data)
    _forget(paths, stage.can_drop)
    list_files([mount.path / f"{key}.d" for key in data.keys])  # the kernel forgot the names too
    random.Random(7).shuffle(paths)
    parts = [paths[at::readers] for at in range(readers)]
    work = checked(partial(_read_at_once, parts), data.samples, data.size)
    return mount_epoch(work, stage.endpoint, mount)


def _forget(paths: Sequence[str], dropped: bool) -> None:
    """Drop the pages of files where the page cache as a whole cannot be dropped."""
    for path in paths if not dropped else ():
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def _read_at_once(parts: Sequence[Sequence[str]]) -> Tally:
    """Read each part in a process of its own: bare loops, without a data loader between."""
    pipes = []
    for part in parts[1:]:
        reader, writer = os.pipe()
        if not os.fork():
            try:
                os.write(writer, b"%d %d" % _read_all(part))
            finally:
                os._exit(0)
        os.close(writer)
        pipes.append(reader)
    samples, size = _read_all(parts[0])
    for reader in pipes:
        with open(reader, "rb") as file:
            count, length = file.read().split() or (b"0", b"0")
        samples, size = samples + int(count), size + int(length)
        os.wait()
    return samples, size


def _read_all(paths: Sequence[str]) -> Tally:
    files = Files(paths)
    samples = size = 0
    for at in range(len(paths)):
        count, length = tally((files[at],))
        samples, size = samples + count, size + length
    return samples, size
