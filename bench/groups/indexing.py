"""Opening a tar: our scanner, tarfile, ratarmount's index; and loading an index that is kept."""

import json
import os
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from aisfs.core.archive.tar_scanner import TarScanner
from aisfs.core.index.codec import decode, encode
from aisfs.core.index.member_index import MemberIndex
from bench.data import write_tar
from bench.engine import Contender, Reading, Row, measure, timed
from bench.processes import NotMeasured
from bench.stage import Stage

UNIT = "members/s"
OURS = "aisfs (TarScanner)"
TARFILE = "tarfile.getmembers()"
RATARMOUNT = "ratarmount (creates its index)"
PLAIN, PAX = "ustar headers", "pax headers, as webdataset writes them"
KEPT = "a kept index is loaded"
DECODE, JSON = "aisfs (decode)", "the same as JSON"
PIECE = 1 << 20


def run(stage: Stage, progress: Callable[[str], None]) -> list[Row]:
    """Measure both forms of tar."""
    number = stage.settings.members
    progress(f"indexing: writing two tars of {number:,} members")
    with stage.folder("tars") as folder:
        contenders = []
        for case, pax in ((PLAIN, False), (PAX, True)):
            path = folder / f"{'pax' if pax else 'ustar'}.tar"
            write_tar(path, number, pax=pax)
            for name, open_tar in ((TARFILE, _tarfile), (OURS, _ours), (RATARMOUNT, _ratarmount)):
                work = partial(_measure, stage, partial(open_tar, path, number), number)
                baseline = name == TARFILE
                contenders.append(Contender(case, name, UNIT, work, ("warm",), baseline=baseline))
        for name, load in _loads(folder / "pax.tar"):
            work = partial(_measure, stage, load, number)
            contenders.append(Contender(KEPT, name, UNIT, work, ("warm",), baseline=name == JSON))
        return measure("indexing", contenders, stage.settings, progress)


def _measure(stage: Stage, work: Callable[[], int], number: int) -> dict[str, Reading]:
    def child() -> float:
        results: list[int] = []
        seconds = timed(lambda: results.append(work()))
        if results != [number]:
            raise NotMeasured(f"found {results[0]} of {number} members")
        return seconds

    return {"warm": Reading(number / stage.measure(child))}


def _tarfile(path: Path, _: int) -> int:
    with tarfile.open(path, "r:") as tar:
        return len(tar.getmembers())


def _ours(path: Path, _: int) -> int:
    return len(_scanned(path))


def _scanned(path: Path) -> MemberIndex:
    with path.open("rb", buffering=0) as file:
        scanner = TarScanner(os.fstat(file.fileno()).st_size)
        while piece := file.read(PIECE):
            scanner.feed(piece)
        return scanner.finish()


def _loads(path: Path) -> list[tuple[str, Callable[[], int]]]:
    index = _scanned(path)
    columns, data = index.columns, encode(index)
    names = [name.decode() for name in index.names()]
    text = json.dumps([names, list(columns.offsets), list(columns.sizes), list(columns.mtimes)])
    return [(JSON, lambda: len(json.loads(text)[0])), (DECODE, lambda: len(decode(data)))]


def _ratarmount(path: Path, number: int) -> int:
    from ratarmountcore.mountsource.formats.tar import SQLiteIndexedTar

    index = path.with_suffix(f".{os.getpid()}.sqlite")
    try:
        with SQLiteIndexedTar(
            str(path), writeIndex=True, clearIndexCache=True, indexFilePath=str(index)
        ) as tar:
            listed = tar.list("/") or ()
            if not index.exists():
                raise NotMeasured("ratarmount wrote no index")
            return len(list(listed))
    finally:
        index.unlink(missing_ok=True)
