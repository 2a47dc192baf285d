"""Cold samples in the two orders in which people read, from a mount that is new, and one that is not.

ImageFolder lists all folders, and then reads. `cp -r`, rsync, tar and `os.walk` list one, read it, and list the next.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from bench.data import IMAGE, KILOBYTE, Samples, write_shards
from bench.engine import Contender, Reading, Row, measure
from bench.groups.measures import mount_epoch, reading, two_epochs
from bench.mounts import Mount
from bench.readers import Files, Tally, checked, list_files, read_through, sdk_shards
from bench.stage import Stage

UNIT = "samples/s"
STATE = "cold"
AGES = (0, 5)
"""Seconds since the mount came up."""


def run(stage: Stage, progress: Callable[[str], None]) -> list[Row]:
    """Measure 1 KB samples and pictures, in small shards and in large ones."""
    settings = stage.settings
    contenders: list[Contender] = []
    with ExitStack() as stack:
        for what, size, samples, megabytes in (
            ("samples of 1 KB", KILOBYTE, settings.samples, 2.5),
            ("samples of 1 KB", KILOBYTE, settings.samples, 20),
            ("samples of 1 KB", KILOBYTE, 4 * settings.samples, 10),
            ("pictures", IMAGE, settings.images, 2.5),
            ("pictures", IMAGE, settings.images, 20),
        ):
            case = f"{samples:,} {what} in shards of {megabytes} MB"
            progress(f"orders: writing {case}")
            shards = max(1, round(samples * (size + 1024) / (megabytes * 1e6)))
            bucket = stack.enter_context(stage.bucket(f"orders-{len(contenders)}"))
            data = write_shards(
                stage.store, bucket, samples=samples, shards=shards, size=size, extract_to=None
            )
            contenders += _contenders(stage, case, data)
        return measure("orders", contenders, settings, progress)


def _contenders(stage: Stage, case: str, data: Samples) -> list[Contender]:
    def by_sdk() -> dict[str, Reading]:
        read = partial(sdk_shards, stage.endpoint.url, data.bucket, 0)
        work = checked(read, data.samples, data.size)
        return {STATE: two_epochs(stage, data, work, data.samples)[STATE]}

    found = [Contender(case, "AISShardReader (aistore)", UNIT, by_sdk, (STATE,), baseline=True)]
    for age in AGES:
        for name, together in (("all folders listed first", True), ("folder by folder", False)):
            name = f"mount, {name}, {age} s after it came up"
            work = partial(_by_mount, stage, data, age, together=together)
            found.append(Contender(case, name, UNIT, work, (STATE,)))
    return found


def _by_mount(stage: Stage, data: Samples, age: float, *, together: bool) -> dict[str, Reading]:
    def work(mount: Mount) -> dict[str, float]:
        folders = [mount.path / f"{key}.d" for key in data.keys]
        turns = [folders] if together else [[folder] for folder in folders]

        def epoch() -> Tally:
            read = [read_through(Files(list_files(turn)), 0) for turn in turns]
            return sum(count for count, _ in read), sum(size for _, size in read)

        return mount_epoch(checked(epoch, data.samples, data.size), stage.endpoint, mount)

    with stage.folder("cache") as cache:
        stage.cool(data)
        with stage.mounted(data.bucket, cache=cache) as mount:
            time.sleep(age)
            counted = stage.measure(partial(work, mount), mount)
    return {STATE: reading(data.samples, counted)}
