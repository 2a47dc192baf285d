"""Putting data into the bucket: one large file, and many small ones."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

from bench.data import KILOBYTE
from bench.engine import Contender, Reading, Row, epoch, measure
from bench.groups.measures import mount_epoch, reading
from bench.mounts import COMMAND, Mount, mount_options
from bench.processes import NotMeasured
from bench.readers import object_url
from bench.stage import Stage

LARGE, MANY = "one file of {:,.0f} MB", "{:,} files of 1 KB"
CURL = "curl -T"
CP = "cp into the mount (--writable)"
SAVE = "torch.save into the mount (--writable), then a rename"
CP_TREE = "cp -r into the mount (--writable)"
CP_WAITING = "cp -r into the mount (--write-back 60)"
CP_FLUSHED = "cp -r into the mount (--write-back 60), then aisfs flush"
SDK = "put of the SDK (aistore), one by one"
PIECE = 1 << 20
_numbers = count()


def large_case(stage_bytes: int) -> str:
    """Name the case of one file."""
    return LARGE.format(stage_bytes / 1e6)


def many_case(files: int) -> str:
    """Name the case of many files."""
    return MANY.format(files)


def run(stage: Stage, progress: Callable[[str], None]) -> list[Row]:
    """Measure, against a server that destroys what is written carelessly."""
    with stage.trapped() as trapped:
        return _measured(trapped, progress)


def _measured(stage: Stage, progress: Callable[[str], None]) -> list[Row]:
    settings = stage.settings
    size, files = settings.written_bytes, settings.written_files
    progress(f"writing: {size / 1e6:,.0f} MB in one file, {files:,} small files")
    with stage.bucket("writing") as bucket, stage.folder("written") as folder:
        stage.store.put(bucket, "first", b"a bucket exists with its first object")
        source, tree = folder / "large.bin", folder / "tree"
        _write_large(source, size)
        _write_many(tree, files)
        large, many = large_case(size), many_case(files)
        on_mount = partial(_on_mount, stage, bucket)
        contenders = [
            Contender(large, CURL, "MB/s", partial(_curl, stage, bucket, source), ("written",),
                      baseline=True),
            Contender(large, CP, "MB/s", partial(on_mount, ["cp", str(source)], size / 1e6),
                      ("written",)),
            Contender(large, SAVE, "MB/s", partial(_save, stage, bucket, size), ("written",)),
            Contender(many, SDK, "files/s", partial(_sdk, stage, bucket, tree, files),
                      ("written",), baseline=True),
            Contender(many, CP_TREE, "files/s", partial(on_mount, ["cp", "-r", str(tree)], files),
                      ("written",)),
            Contender(many, CP_WAITING, "files/s",
                      partial(on_mount, ["cp", "-r", str(tree)], files, write_back=True),
                      ("written",)),
            Contender(many, CP_FLUSHED, "files/s",
                      partial(on_mount, ["cp", "-r", str(tree)], files, write_back=True, flush=True),
                      ("written",)),
        ]  # fmt: skip
        return measure("writing", contenders, settings, progress)


def _write_large(path: Path, size: int) -> None:
    piece = os.urandom(PIECE)
    with open(path, "wb") as file:
        for at in range(0, size, PIECE):
            file.write(piece[: min(PIECE, size - at)])


def _write_many(folder: Path, files: int) -> None:
    folder.mkdir()
    for number in range(files):
        (folder / f"{number:06d}.bin").write_bytes(os.urandom(KILOBYTE))


def _fresh_key() -> str:
    return f"{os.getpid()}-{next(_numbers)}"


def _run(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotMeasured(f"{words[0]} ended with {done.returncode}: {done.stderr.strip()[-200:]}")


def _curl(stage: Stage, bucket: str, source: Path) -> dict[str, Reading]:
    url = object_url(stage.endpoint.url, bucket, _fresh_key())
    words = ["curl", "-sfL", "-T", str(source), url]
    counted = stage.measure(lambda: epoch(lambda: _run(words), stage.endpoint))
    return {"written": reading(source.stat().st_size / 1e6, counted)}


def _sdk(stage: Stage, bucket: str, tree: Path, files: int) -> dict[str, Reading]:
    prefix = _fresh_key()

    def put() -> None:
        from aistore.sdk import Client

        target = Client(stage.endpoint.url).bucket(bucket)
        for path in sorted(tree.iterdir()):
            target.object(f"{prefix}/{path.name}").get_writer().put_file(path)

    return {"written": reading(files, stage.measure(lambda: epoch(put, stage.endpoint)))}


def _save(stage: Stage, bucket: str, size: int) -> dict[str, Reading]:
    """Write a checkpoint as trainers do: under another name, so that the right one is always whole."""
    with _writable(stage, bucket, write_back=False) as mount:

        def run() -> dict[str, float]:
            import torch

            state = {"weight": torch.zeros(size // 4)}
            path = mount.path / f"{_fresh_key()}.pt"

            def save() -> None:
                part = path.with_suffix(".part")
                torch.save(state, part)
                part.rename(path)

            return mount_epoch(save, stage.endpoint, mount)

        counted = stage.measure(run, mount)
    return {"written": reading(size / 1e6, counted)}


@contextmanager
def _writable(stage: Stage, bucket: str, *, write_back: bool) -> Iterator[Mount]:
    options = ["--writable", *(["--write-back", "60"] if write_back else [])]
    for option in options:
        if option.startswith("--") and option not in mount_options():
            raise NotMeasured(f"this aisfs has no {option}")
    with stage.folder("cache") as cache, stage.folder("staging") as staging:
        options += ["--staging-dir", str(staging)]
        with stage.mounted(bucket, cache=cache, options=options) as mount:
            yield mount


def _on_mount(
    stage: Stage,
    bucket: str,
    command: list[str],
    amount: float,
    *,
    write_back: bool = False,
    flush: bool = False,
) -> dict[str, Reading]:
    """Run a command that ends with where it writes.

    It returns when all is in the bucket, and with `write_back` when all is safe on the local disk, unless a
    `flush` follows.
    """
    with _writable(stage, bucket, write_back=write_back) as mount:
        words = [*command, str(mount.path / _fresh_key())]

        def work() -> None:
            _run(words)
            if flush:
                _run([*COMMAND, "flush", str(mount.path)])

        counted = stage.measure(lambda: mount_epoch(work, stage.endpoint, mount), mount)
    return {"written": reading(amount, counted)}
