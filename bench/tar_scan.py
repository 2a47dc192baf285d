"""Prints microseconds per member of our scan and of tarfile, side by side: `python bench/tar_scan.py`.

The shapes are those of training shards: 1 KB samples, as plain ustar and as webdataset writes them
(a pax header with a float mtime before each member). The median of several alternating runs counts,
so that a busy machine slows both alike.
"""

import argparse
import gc
import io
import statistics
import tarfile
import time
from collections.abc import Callable
from typing import Any

from aisfs.core.archive.tar_scanner import TarScanner
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.views.tree import MembersView

PIECE = 1 << 20


def make_tar(members: int, pax: bool, folders: int = 0) -> bytes:
    out = io.BytesIO()
    form = tarfile.PAX_FORMAT if pax else tarfile.USTAR_FORMAT
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for at in range(members):
            folder = f"{at * folders // members:04d}/" if folders else ""
            info = tarfile.TarInfo(f"{folder}sample_{at // 2:06d}.{('cls', 'image.jpg')[at % 2]}")
            info.size = 1024
            info.mode = 0o444
            info.uname = info.gname = "bigdata"
            info.mtime = 1_700_000_000.0 + at * 0.0123457 if pax else 1_700_000_000 + at
            tar.addfile(info, io.BytesIO(bytes(1024)))
    return out.getvalue()


def cut(data: bytes) -> list[bytes]:
    return [data[start : start + PIECE] for start in range(0, len(data), PIECE)]


def scan(pieces: list[bytes]) -> MemberIndex:
    scanner = TarScanner(sum(map(len, pieces)))
    for piece in pieces:
        scanner.feed(piece)
    return scanner.finish()


def with_tarfile(data: bytes) -> int:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        return len(tar.getmembers())


def seconds(work: Callable[[Any], object], argument: object) -> float:
    gc.collect()
    start = time.perf_counter()
    work(argument)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    for label, pax, folders in (
        ("ustar", False, 0),
        ("pax", True, 0),
        ("ustar, folders", False, 1000),
    ):
        data = make_tar(options.members, pax, folders)
        pieces = cut(data)
        index = scan(pieces)
        assert len(index) == with_tarfile(data)
        ours, theirs, views = [], [], []
        for _ in range(options.repeats):
            ours.append(seconds(scan, pieces))
            theirs.append(seconds(with_tarfile, data))
            views.append(seconds(MembersView, index))
        micro = 1e6 / options.members
        fast, slow = statistics.median(ours), statistics.median(theirs)
        print(
            f"{label:15} scan {fast * micro:6.2f} us/member (best {min(ours) * micro:.2f})"
            f"   tarfile {slow * micro:6.2f}   {slow / fast:5.1f} times faster"
            f"   view {statistics.median(views) * micro:5.2f} us/member"
        )


if __name__ == "__main__":
    main()
