"""Epochs in random order with a small cache: how much of the data is fetched each time."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.data import IMAGE, Samples, write_shards
from bench.engine import Contender, Reading, Row, measure
from bench.groups.measures import bounded_cache, check_fetched, mount_epoch
from bench.mounts import Mount
from bench.processes import NotMeasured
from bench.readers import FilesOnce, Tally, checked, list_files, read_through
from bench.stage import Stage

UNIT = "of the data fetched"
FILES = "files of the mount, in class folders"
SHUFFLED = "shuffled, disk cache and memory = half the data"
CYCLIC = "in order, disk cache and memory = half the data"
ENOUGH = "shuffled, disk cache = twice the data"
CLASSES = 10


def run(stage: Stage, progress: Callable[[str], None]) -> list[Row]:
    """Measure; the page cache forgets what was read, as it does when data exceed memory."""
    number = stage.settings.shuffled_images
    states = tuple(f"epoch {at + 1}" for at in range(stage.settings.epochs))
    progress(f"shuffle: writing {number:,} images")
    with stage.bucket("shuffle") as bucket:
        data = write_shards(
            stage.store,
            bucket,
            samples=number,
            shards=stage.settings.shards * 2,
            size=IMAGE,
            extract_to=None,
            classes=CLASSES,
        )
        contenders = [
            Contender(
                case, FILES, UNIT, partial(_epochs, stage, data, share, shuffled, states), states
            )
            for case, share, shuffled in (
                (SHUFFLED, 0.5, True),
                (CYCLIC, 0.5, False),
                (ENOUGH, 2.0, True),
            )
        ]
        return measure("shuffle", contenders, stage.settings, progress)


def _epochs(
    stage: Stage, data: Samples, share: float, shuffled: bool, states: tuple[str, ...]
) -> dict[str, Reading]:
    if not stage.embedded:
        raise NotMeasured("only the embedded server counts the bytes it sends")
    limit = int(data.stored * share)
    options = bounded_cache(limit)
    with (
        stage.folder("cache") as cache,
        stage.mounted(data.bucket, cache=cache, options=options) as mount,
    ):
        stage.cool(data)
        counts = stage.measure(lambda: _read(stage, mount, data, shuffled, len(states)), mount)
    shares = [counted["get_bytes"] / data.stored for counted in counts]
    for got in shares:
        check_fetched(got, data.stored, limit)
    return {
        state: Reading(got, {**counted, "samples_per_s": data.samples / counted["seconds"]})
        for state, got, counted in zip(states, shares, counts, strict=True)
    }


def _read(
    stage: Stage, mount: Mount, data: Samples, shuffled: bool, number: int
) -> list[dict[str, Any]]:
    paths: list[str] = []
    source = random.Random(7)

    def once(folders: list[Path]) -> Tally:
        if not paths:  # ImageFolder lists once; that belongs to the first epoch
            paths.extend(list_files(folders))
        order = source.sample(paths, len(paths)) if shuffled else paths
        return read_through(FilesOnce(order), 0)

    folders = [mount.path / f"{key}.d" for key in data.keys]
    work = checked(partial(once, folders), data.samples, data.size)
    return [mount_epoch(work, stage.endpoint, mount) for _ in range(number)]
