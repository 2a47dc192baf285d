"""Other file systems over the same cluster, when they are installed and it speaks S3."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from bench.data import KILOBYTE, Samples, write_loose, write_shards
from bench.engine import Contender, Reading, Row, measure
from bench.groups.measures import mount_epoch, mount_epochs, nothing, read_file, reading
from bench.processes import NotMeasured
from bench.readers import checked, read_files
from bench.stage import Stage

AISFS, RCLONE, S3FS = "aisfs", "rclone mount", "s3fs"
SHARD, OBJECTS = "one shard, 1 MiB reads", "objects of 1 KB"
MEMBER = 1_000_000
PROGRAMS = {RCLONE: "rclone", S3FS: "s3fs"}
Command = Callable[[Stage, str, Path, Path], list[str]]
"""Gives the words that mount a bucket at a path, with a directory of its own for its cache."""


def run(stage: Stage, progress: Callable[[str], None]) -> list[Row]:
    """Measure each of them on a shard and on small objects."""
    settings = stage.settings
    if not any(map(shutil.which, PROGRAMS.values())):  # nobody to be compared with
        return [
            Row("peers", "all", name, "all", "", False, reason=f"{program} is not installed")
            for name, program in PROGRAMS.items()
        ]
    with stage.bucket("peers-shard") as first, stage.bucket("peers-objects") as second:
        shard = write_shards(
            stage.store,
            first,
            samples=max(1, settings.shard_bytes // 4 // MEMBER),
            shards=1,
            size=MEMBER,
            extract_to=None,
        )
        objects = write_loose(stage.store, second, samples=settings.loose, size=KILOBYTE)

        def one_file(path: Path) -> None:
            read_file(path / shard.keys[0], shard.stored)

        def all_files(path: Path) -> None:
            checked(lambda: read_files([path], 0), objects.samples, objects.size)()

        cases = (
            (SHARD, "MB/s", shard, one_file, shard.stored / 1e6),
            (OBJECTS, "samples/s", objects, all_files, float(objects.samples)),
        )
        contenders = []
        for case, unit, data, work, amount in cases:
            ours = partial(mount_epochs, stage, data, work, amount)
            contenders.append(Contender(case, AISFS, unit, ours, baseline=True))
            for name, command in COMMANDS.items():
                theirs = partial(through_s3, stage, command, data, work, amount)
                contenders.append(Contender(case, name, unit, theirs))
        return measure("peers", contenders, settings, progress)


def through_s3(
    stage: Stage,
    command: Command,
    data: Samples,
    work: Callable[[Path], object],
    amount: float,
    *,
    warm_up: Callable[[], object] = nothing,
) -> dict[str, Reading]:
    """Measure a reader of any mount of `/s3`: fresh mount and cache, and again.

    Args:
        stage: where.
        command: mounts the bucket.
        data: what is in the bucket.
        work: reads everything below the mountpoint it is given.
        amount: what is divided by the seconds.
        warm_up: as for `two_epochs`.

    Raises:
        NotMeasured: the program is missing, or the server does not speak S3.
    """
    with stage.folder("cache") as cache, stage.folder("mnt") as path:
        words = command(stage, data.bucket, path, cache)
        if shutil.which(words[0]) is None:
            raise NotMeasured(f"{words[0]} is not installed")
        if not _speaks_s3(stage.endpoint.url):
            raise NotMeasured("the server has no /s3")
        with stage.mounted_by(words, path, home=cache) as mount:
            stage.cool(data)

            def run() -> list[dict[str, float]]:
                warm_up()
                return [mount_epoch(lambda: work(path), stage.endpoint, mount) for _ in range(2)]

            first, second = stage.measure(run, mount)
    return {"cold": reading(amount, first), "warm": reading(amount, second)}


def _speaks_s3(endpoint: str) -> bool:
    try:
        with urlopen(f"{endpoint}/s3", timeout=10) as reply:
            return b"<" in reply.read(1000)
    except (URLError, OSError):
        return False


def _rclone(stage: Stage, bucket: str, path: Path, cache: Path) -> list[str]:
    remote = (
        f":s3,provider=Other,access_key_id=bench,secret_access_key=bench,force_path_style=true,"
        f'endpoint="{stage.endpoint.url}/s3":{bucket}'
    )
    # The last two are what its manual advises for S3.
    return [
        "rclone", "mount", remote, str(path), "--read-only", "--vfs-cache-mode", "full",
        "--cache-dir", str(cache), "--no-modtime", "--vfs-fast-fingerprint",
    ]  # fmt: skip


def _s3fs(stage: Stage, bucket: str, path: Path, cache: Path) -> list[str]:
    secret = cache / "passwd"
    secret.write_text("bench:bench\n")
    secret.chmod(0o600)
    options = f"url={stage.endpoint.url}/s3,use_path_request_style,passwd_file={secret},ro"
    return ["s3fs", bucket, str(path), "-f", "-o", f"{options},use_cache={cache}"]


COMMANDS: dict[str, Command] = {RCLONE: _rclone, S3FS: _s3fs}
