"""One shard as a file: the mount against curl, alone and eight at once."""

import mmap
import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.data import Samples, write_shards
from bench.engine import Contender, Reading, Row, epoch, measure
from bench.groups.measures import (
    curl_epoch,
    few,
    mount_epochs,
    mount_states,
    read_file,
    reading,
    two_epochs,
)
from bench.processes import NotMeasured
from bench.readers import object_url
from bench.stage import Stage, forget

UNIT = "MB/s"
ALONE, TOGETHER = "one reader", "eight readers of the same shard"
READERS = 8
CURL = "curl"
SDK = "object reader (aistore)"
READ = "file of the mount, 1 MiB reads"
CAT = "file of the mount, cat"
LOCAL = "a copy on the local disk, 1 MiB reads"
MEMORY = "no file: as much memory, touched once"
"""Whatever is read through a page cache for the first time comes no faster than fresh pages do."""
MEMBER = 1_000_000


def run(stage: Stage, progress: Callable[[str], None]) -> list[Row]:
    """Measure."""
    wanted = stage.settings.shard_bytes
    progress(f"shard: writing {wanted / 1e6:,.0f} MB")
    with (
        stage.bucket("shard") as bucket,
        few(stage) as (objects, _),
        stage.folder("local") as folder,
    ):
        data = write_shards(
            stage.store,
            bucket,
            samples=max(1, wanted // MEMBER),
            shards=1,
            size=MEMBER,
            extract_to=None,
        )
        url, key, size = stage.endpoint.url, data.keys[0], data.stored
        megabytes = size / 1e6
        copy = folder / "copy.tar"
        _write_random(copy, size)

        def with_curl() -> dict[str, Reading]:
            stage.cool(data)
            first, second = stage.measure(
                lambda: [curl_epoch(stage.endpoint, bucket, [key], size) for _ in range(2)]
            )
            return {"cold": reading(megabytes, first), "warm": reading(megabytes, second)}

        def with_sdk() -> None:
            got = _length_by_sdk(url, bucket, key)
            if got != size:
                raise NotMeasured(f"read {got} of {size} bytes")

        def warm_up() -> None:
            _length_by_sdk(url, objects.bucket, objects.keys[0])

        def eight_curls() -> dict[str, Reading]:
            stage.cool(data)
            words = ["curl", "-sfL", object_url(url, bucket, key)]
            first = stage.measure(lambda: epoch(lambda: _at_once(words), stage.endpoint))
            return {"cold": reading(megabytes * READERS, first)}

        def eight_cats(path: Path) -> None:
            _at_once(["cat", str(path / key)])

        def alone(path: Path) -> None:
            read_file(path / key, size)

        def cat(path: Path) -> None:
            _at_once(["cat", str(path / key)], 1)

        on_mount = partial(mount_epochs, stage, data)
        contenders = [
            Contender(ALONE, CURL, UNIT, with_curl, baseline=True),
            Contender(
                ALONE,
                READ,
                UNIT,
                partial(on_mount, alone, megabytes, remount=True),
                mount_states(True),
            ),
            Contender(ALONE, CAT, UNIT, partial(on_mount, cat, megabytes)),
            Contender(
                ALONE,
                SDK,
                UNIT,
                partial(two_epochs, stage, data, with_sdk, megabytes, warm_up=warm_up),
            ),
            Contender(ALONE, LOCAL, UNIT, partial(_local, stage, data, copy)),
            Contender(ALONE, MEMORY, UNIT, partial(_memory, stage, data), ("cold",)),
            Contender(TOGETHER, CURL, UNIT, eight_curls, ("cold",), baseline=True),
            Contender(TOGETHER, CAT, UNIT, partial(on_mount, eight_cats, megabytes * READERS)),
        ]
        return measure("shard", contenders, stage.settings, progress)


def _write_random(path: Path, size: int) -> None:
    piece = os.urandom(MEMBER)
    with open(path, "wb") as file:
        for at in range(0, size, MEMBER):
            file.write(piece[: size - at])
        file.flush()
        os.fsync(file.fileno())  # only clean pages can be dropped


def _local(stage: Stage, data: Samples, copy: Path) -> dict[str, Reading]:
    stage.cool(data)
    forget([copy])
    size = copy.stat().st_size
    first, second = stage.measure(
        lambda: [epoch(lambda: read_file(copy, size), stage.endpoint) for _ in range(2)]
    )
    return {"cold": reading(size / 1e6, first), "warm": reading(size / 1e6, second)}


def _memory(stage: Stage, data: Samples) -> dict[str, Reading]:
    stage.cool(data)
    counted = stage.measure(lambda: epoch(lambda: _touch(data.stored), stage.endpoint))
    return {"cold": reading(data.stored / 1e6, counted)}


def _touch(size: int) -> None:
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:: mmap.PAGESIZE] = bytes(-(-size // mmap.PAGESIZE))


def _length_by_sdk(url: str, bucket: str, key: str) -> int:
    from aistore.sdk import Client

    return len(Client(url).bucket(bucket).object(key).get_reader().read_all())


def _at_once(words: list[str], readers: int = READERS) -> None:
    """Run the same command several times at once, its output thrown away."""
    with open(os.devnull, "wb") as nowhere:
        processes = [
            subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=nowhere)
            for _ in range(readers)
        ]
        codes = [process.wait() for process in processes]
    if any(codes):
        raise NotMeasured(f"{words[0]} ended with {max(codes)}")
