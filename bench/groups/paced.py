"""A reader with a pace of its own, half of whose data is on disk, over a modelled link that carries just the other half."""

import random
import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from aisfs.order import announce, numbers_of
from bench.data import IMAGE, ClusterStore, Samples, write_loose
from bench.engine import Contender, Reading, Row, measure
from bench.groups.measures import has_cache, mount_epoch, reading
from bench.groups.plan import DELAY, PLAIN, PLANNED
from bench.mounts import Mount
from bench.processes import NotMeasured
from bench.readers import FilesOnce, Tally, checked, list_files, read_through
from bench.server import Endpoint
from bench.stage import Stage

APPETITE = 200
"""Pictures a second that the reader wants: well below the 470 that the daemon brings from as far away."""
CASE = f"{APPETITE} pictures a second as objects, in random order"
HALF = "half on disk"


def run(stage: Stage, progress: Callable[[str], None]) -> list[Row]:
    """Measure, on the embedded server whatever the endpoint."""
    if not has_cache():
        return []
    number = stage.settings.planned_images
    with stage.folder("paced-store") as root, stage.folder("half") as half:
        with stage.far_server(root, delay=0) as near:  # objects that were not put have no checksum
            data = write_loose(ClusterStore(near.url), "paced", samples=number, size=IMAGE)
        bandwidth = APPETITE * data.size / data.samples / 2
        with stage.far_server(root, delay=DELAY, bandwidth=bandwidth) as far:
            _fill(stage, far, data, half)
            contenders = [
                Contender(
                    CASE,
                    name,
                    "of the warm rate",
                    partial(_read, stage, far, data, half, announced),
                    (HALF,),
                    baseline=not announced,
                )
                for name, announced in ((PLAIN, False), (PLANNED, True))
            ]
            return measure("paced", contenders, stage.settings, progress)


def _fill(stage: Stage, far: Endpoint, data: Samples, cache: Path) -> None:
    """Have half of the pictures, chosen at random, in a disk cache."""

    def work(mount: Mount) -> None:
        order = _order(mount)
        some = random.Random(8).sample(order, len(order) // 2)
        announce(str(mount.path), numbers_of(some), "bench")  # then it takes half as long
        read_through(FilesOnce(some), 0)

    with stage.mounted(data.bucket, cache=cache, endpoint=far) as mount:
        stage.measure(partial(work, mount), mount)


def _order(mount: Mount) -> list[str]:
    paths = [path for path in list_files([mount.path]) if path.endswith(".jpg")]
    return random.Random(7).sample(paths, len(paths))


def _read(
    stage: Stage, far: Endpoint, data: Samples, half: Path, announced: bool
) -> dict[str, Reading]:
    """Read all pictures with half of them on disk, and again with all of them there."""

    def work(mount: Mount) -> list[dict[str, float]]:
        order = _order(mount)

        def epoch() -> None:
            if announced:
                announce(str(mount.path), numbers_of(order), "bench")
            checked(partial(_at_a_pace, order), data.samples, data.size)()

        return [mount_epoch(epoch, far, mount) for _ in range(2)]

    with stage.folder("cache") as cache:
        shutil.copytree(half, cache, dirs_exist_ok=True)
        with stage.mounted(data.bucket, cache=cache, endpoint=far) as mount:
            stage.cool(data)
            first, warm = stage.measure(partial(work, mount), mount)
    shares = [each["get_bytes"] / data.stored for each in (first, warm)]
    if not 0.4 <= shares[0] <= 0.6 or shares[1]:
        raise NotMeasured(f"not half of the data and then nothing was fetched, but {shares}")
    return {HALF: reading(warm["seconds"], first)}


def _at_a_pace(paths: Sequence[str]) -> Tally:
    """Read files, each in its share of a second at least; the time that one takes longer is lost."""
    files, size, due = FilesOnce(paths), 0, time.perf_counter()
    for at in range(len(paths)):
        size += len(files[at])
        now = time.perf_counter()
        due = max(due + 1 / APPETITE, now)
        time.sleep(due - now)
    return len(paths), size
