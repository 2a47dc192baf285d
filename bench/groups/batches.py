"""DynamicBatchSampler: how soon it knows the sizes and has its batches."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from bench.data import write_listing
from bench.engine import Contender, Row, measure
from bench.groups.measures import few, mount_epochs, two_epochs
from bench.processes import NotMeasured
from bench.stage import Stage

UNIT = "objects/s"
SDK = "AISMapDataset (aistore), by listing"
SCANDIR = "os.scandir of the mount"
BATCH_BYTES = 1_000_000


class Scanned:
    """What the sampler wants of a data set, from a directory."""

    def __init__(self, path: Path) -> None:
        with os.scandir(path) as entries:
            self._objects = [
                SimpleNamespace(
                    name=entry.name, props_cached=SimpleNamespace(size=entry.stat().st_size)
                )
                for entry in entries
            ]

    def get_obj_list(self) -> list[SimpleNamespace]:
        """Give the objects."""
        return self._objects


def run(stage: Stage, progress: Callable[[str], None]) -> list[Row]:
    """Measure both ways to the same batches."""
    number = stage.settings.batch_objects
    progress(f"batches: writing {number:,} objects")
    with stage.bucket("batches") as bucket, few(stage) as (objects, _):
        data = write_listing(stage.store, bucket, number)

        def from_listing(name: str, number: int) -> None:
            from aistore.pytorch import AISMapDataset
            from aistore.sdk import Client

            _sample(AISMapDataset(Client(stage.endpoint.url).bucket(name)), number)

        def warm_up() -> None:
            from_listing(objects.bucket, objects.samples)

        def from_scandir(path: Path) -> None:
            _sample(Scanned(path), number)

        case = f"{number:,} objects"
        contenders = [
            Contender(
                case,
                SDK,
                UNIT,
                partial(
                    two_epochs,
                    stage,
                    data,
                    partial(from_listing, bucket, number),
                    number,
                    warm_up=warm_up,
                ),
                baseline=True,
            ),
            Contender(
                case,
                SCANDIR,
                UNIT,
                partial(mount_epochs, stage, data, from_scandir, number, warm_up=warm_up),
            ),
        ]
        return measure("batches", contenders, stage.settings, progress)


def _sample(source: object, number: int) -> None:
    from aistore.pytorch import DynamicBatchSampler

    got = sum(map(len, DynamicBatchSampler(source, max_batch_size=BATCH_BYTES)))
    if got != number:
        raise NotMeasured(f"{got} of {number} objects are in batches")
