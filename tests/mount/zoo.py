"""Tar files of every kind that GNU tar and the real webdataset writer make."""

import io
import os
import subprocess
import tarfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.mount.content import fill, payload
from tests.mount.datasets import webdataset

SIZES = (0, 1, 511, 512, 513, 4096, (1 << 20) + 7)
SPLIT = "a-directory-with-a-long-name/" * 4 + "file-with-a-longer-name-" * 3 + ".bin"
LONG = "a-directory-with-a-long-name-" * 3 + "/" + "and-a-file-with-a-longer-name-" * 5 + ".bin"
VERY_LONG = "/".join(["deep" * 20] * 12) + "/end.txt"


def build(directory: Path) -> list[str]:
    """Write every kind of tar into a directory; returns their names."""
    directory.mkdir(parents=True, exist_ok=True)
    work = directory.parent / f"{directory.name}-sources"
    for name, maker in MAKERS.items():
        maker(directory / name, work / name.removesuffix(".tar"))
    return sorted(MAKERS)


def extract(shard: Path, into: Path) -> Path:
    """What GNU tar makes of it, which is what the mount must show."""
    into.mkdir(parents=True)
    gnu_tar("-xf", str(shard), "-C", str(into), "--no-same-owner", "--delay-directory-restore")
    return into


def gnu_tar(*arguments: str, cwd: Path | None = None) -> None:
    subprocess.run(["tar", *arguments], check=True, cwd=cwd, timeout=60)


def _plain(work: Path) -> None:
    fill(work, {f"size-{size:07}.bin": payload(size, "zoo") for size in SIZES})
    fill(work, {"dir/inner/a.txt": b"a", "dir/b.txt": b"b", "spa ce/%41+#?.txt": b"odd"})
    fill(work, {"ünïcode/文字.txt": b"text", "new\nline.txt": b"line"})
    (work / "dir" / "empty").mkdir()
    for number, path in enumerate(sorted(work.rglob("*"))):
        os.utime(path, (1_500_000_000, 1_600_000_000 + number))


def _with(format_: str, names: Sequence[str] = ()) -> Callable[[Path, Path], None]:
    def make(shard: Path, work: Path) -> None:
        _plain(work)
        fill(work, {name: payload(700, name) for name in names})
        members = sorted(entry.name for entry in work.iterdir())
        gnu_tar(f"--format={format_}", "-cf", str(shard), *members, cwd=work)

    return make


def _dotted(shard: Path, work: Path) -> None:
    _plain(work)
    gnu_tar("-cf", str(shard), ".", cwd=work)


def _links(shard: Path, work: Path) -> None:
    fill(work, {"data/first.bin": payload(5000, "links"), "other.txt": b"other"})
    os.link(work / "data" / "first.bin", work / "data" / "second.bin")
    os.link(work / "data" / "first.bin", work / "third.bin")
    os.symlink("other.txt", work / "soft.txt")
    os.symlink("../other.txt", work / "data" / "up.txt")
    os.symlink("data", work / "folder")
    gnu_tar("-cf", str(shard), "data", "other.txt", "third.bin", "soft.txt", "folder", cwd=work)


def _sparse(*options: str) -> Callable[[Path, Path], None]:
    def make(shard: Path, work: Path) -> None:
        fill(work, {"before.txt": b"before", "zz-after.txt": b"after"})
        with open(work / "holes.bin", "wb") as file:
            for step in range(12):  # more than the four pieces of a first GNU sparse header
                file.seek(step * 300_000)
                file.write(payload(1000 + step, "sparse"))
            file.truncate(4_000_001)
        with open(work / "hole.bin", "wb") as file:
            file.truncate(1_000_000)
        flags = ("--sparse", "--hole-detection=raw", *options)
        names = ("before.txt", "hole.bin", "holes.bin", "zz-after.txt")
        gnu_tar(*flags, "-cf", str(shard), *names, cwd=work)

    return make


def _duplicates(shard: Path, work: Path) -> None:
    for generation in range(3):
        fill(work, {"twice.txt": payload(100 + generation, "twice"), f"{generation}.txt": b"x"})
        gnu_tar("-rf", str(shard), "twice.txt", f"{generation}.txt", cwd=work)


def _empty(shard: Path, work: Path) -> None:
    gnu_tar("-cf", str(shard), "-T", "/dev/null")


def _webdataset(shard: Path, work: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not ours to fix
        with webdataset().TarWriter(str(shard)) as writer:
            for number in range(50):
                sample = {"__key__": f"train/{number:05}", "jpg": payload(3000 + number, "jpg")}
                writer.write({**sample, "cls": number % 10, "json": {"id": number}})


def _nested(shard: Path, work: Path) -> None:
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("inner.txt"))
    fill(work, {"inner.tar": inner.getvalue(), "plain.txt": b"plain"})
    gnu_tar("-cf", str(shard), "inner.tar", "plain.txt", cwd=work)


def _files_only(shard: Path, work: Path) -> None:
    """Without entries for the directories, as most shard writers do."""
    fill(work, {"a/b/c/one.txt": b"1", "a/b/two.txt": b"2", "a/three.txt": b"3"})
    gnu_tar("-cf", str(shard), "a/b/c/one.txt", "a/three.txt", "a/b/two.txt", cwd=work)


MAKERS: dict[str, Callable[[Path, Path], None]] = {
    "ustar.tar": _with("ustar", [SPLIT]),
    "v7.tar": _with("v7"),
    "gnu.tar": _with("gnu", [LONG, VERY_LONG]),
    "pax.tar": _with("posix", [LONG, VERY_LONG]),
    "oldgnu.tar": _with("oldgnu", [LONG]),
    "dotted.tar": _dotted,
    "links.tar": _links,
    "sparse-gnu.tar": _sparse("--format=gnu"),
    "sparse-0.0.tar": _sparse("--format=posix", "--sparse-version=0.0"),
    "sparse-0.1.tar": _sparse("--format=posix", "--sparse-version=0.1"),
    "sparse-1.0.tar": _sparse("--format=posix", "--sparse-version=1.0"),
    "duplicates.tar": _duplicates,
    "empty.tar": _empty,
    "webdataset.tar": _webdataset,
    "nested.tar": _nested,
    "files-only.tar": _files_only,
}
