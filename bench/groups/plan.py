"""Files in an order that the mount knows beforehand, over a modelled link and with a small cache."""

import random
import subprocess
from collections.abc import Callable, Sequence
from functools import partial

from aisfs.order import announce, numbers_of
from bench.data import (
    IMAGE,
    KILOBYTE,
    ClusterStore,
    EmbeddedStore,
    Samples,
    write_loose,
    write_shards,
)
from bench.engine import Contender, Reading, Row, measure
from bench.groups.measures import mount_epoch, reading
from bench.mounts import COMMAND, Mount
from bench.processes import NotMeasured
from bench.readers import FilesOnce, checked, list_files, read_through
from bench.server import REPOSITORY, Endpoint
from bench.stage import Stage

DELAY = 0.02
"""Seconds there and back."""
PLAIN = "files of the mount"
PLANNED = "the same, after `aisfs.order.announce`"
REPLAYED = "the same, with --replay"
PICTURES = "pictures as objects, in random order"
MEMBERS = "pictures in shards with published indexes, in random order"
SMALL = "1 KB samples in shards with published indexes, in random order"
STATE = "cold"


def run(stage: Stage, progress: Callable[[str], None]) -> list[Row]:
    """Measure, on the embedded server whatever the endpoint."""
    number = stage.settings.planned_images
    with stage.folder("planned-store") as root:
        store = EmbeddedStore(root)
        with stage.far_server(root, delay=0) as near:  # objects that were not put have no checksum
            loose = write_loose(ClusterStore(near.url), "planned", samples=number, size=IMAGE)
        packed = write_shards(
            store, "planned-shards", samples=number, shards=8, size=IMAGE, extract_to=None
        )
        small = write_shards(
            store, "planned-small", samples=4 * number, shards=8, size=KILOBYTE, extract_to=None
        )
        bandwidth = stage.settings.bandwidth
        with stage.far_server(root, delay=DELAY, bandwidth=bandwidth) as far:
            for data in (packed, small):
                _publish(far, data)
            contenders = [
                Contender(
                    case,
                    name,
                    "of the link",
                    partial(_read, stage, far, data, folders, how),
                    (STATE,),
                    baseline=name == PLAIN,
                )
                for case, data, folders in (
                    (PICTURES, loose, False),
                    (MEMBERS, packed, True),
                    (SMALL, small, True),
                )
                for name, how in ((PLAIN, "plain"), (PLANNED, "plan"), (REPLAYED, "replay"))
            ]
            return measure("plan", contenders, stage.settings, progress)


def _publish(far: Endpoint, data: Samples) -> None:
    words = [*COMMAND, "index", "--publish", f"ais://{data.bucket}", "--endpoint", far.url]
    done = subprocess.run(words, check=False, capture_output=True, text=True, cwd=REPOSITORY)
    if done.returncode:
        raise NotMeasured(f"aisfs index: {done.stderr.strip()}")


def _read(
    stage: Stage, far: Endpoint, data: Samples, in_shards: bool, how: str
) -> dict[str, Reading]:
    """Read all files in random order; they are listed before, which is not timed."""
    with stage.folder("order") as folder:
        recorded = folder / "order"
        if how == "replay":  # an earlier run of the same program has recorded it
            _epoch(stage, far, data, in_shards, ["--record", str(recorded)], False)
        options = ["--replay", str(recorded)] if how == "replay" else []
        counted = _epoch(stage, far, data, in_shards, options, how == "plan")
    rate = reading(data.stored / stage.settings.bandwidth, counted)
    return {STATE: rate}


def _epoch(
    stage: Stage,
    far: Endpoint,
    data: Samples,
    in_shards: bool,
    options: Sequence[str],
    announced: bool,
) -> dict[str, float]:
    def work(mount: Mount) -> dict[str, float]:
        folders = [mount.path / f"{key}.d" for key in data.keys] if in_shards else [mount.path]
        paths = list_files(folders)
        if not in_shards:
            paths = [path for path in paths if path.endswith(".jpg")]
        order = random.Random(7).sample(paths, len(paths))

        def epoch() -> None:
            if announced:  # which is a part of what it costs
                announce(str(mount.path), numbers_of(order), "bench")
            checked(partial(read_through, FilesOnce(order), 0), data.samples, data.size)()

        return mount_epoch(epoch, far, mount)

    with (
        stage.folder("cache") as cache,
        stage.mounted(data.bucket, cache=cache, endpoint=far, options=options) as mount,
    ):
        stage.cool(data)
        return stage.measure(partial(work, mount), mount)
