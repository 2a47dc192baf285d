"""`aisfs unpack`: the members of shards as files of a directory, the inverse of `aisfs pack`."""

import errno
import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from aisfs.core.packing import ShardNames
from aisfs.errors import AisfsError, OutOfSpace, ShardDamaged, SourceMissing
from aisfs.model import Bucket, ObjectInfo
from aisfs.pack import each, shards_there
from aisfs.store.port import ObjectStore

_WINDOW = 8 << 20
"""Bytes asked for at once: hides the latency, and is all the memory a shard takes."""


@dataclass(slots=True)
class Unpacked:
    """What was done."""

    shards: int = 0
    files: int = 0
    skipped: list[str] = field(default_factory=list)
    """Members that became no file, and why."""


@dataclass(frozen=True, slots=True)
class Unpacker:
    """Reads shards and writes their members."""

    store: ObjectStore
    bucket: Bucket
    names: ShardNames
    target: Path
    without: bytes = b""
    """Extension of members that are left out, without its dot."""

    async def find(self) -> list[ObjectInfo]:
        """List the shards of these names, in the order of their numbers.

        Raises:
            SourceMissing: there are none.
        """
        found = await shards_there(self.store, self.bucket, self.names)
        if not found:
            raise SourceMissing(f"{self.bucket}/{self.names}: no such shards")
        return [info for _, info in found]

    async def unpack(self, shards: list[ObjectInfo], jobs: int, console: Console) -> Unpacked:
        """Write the members of all shards, `jobs` shards at a time.

        Raises:
            AisfsError: one failed; files that are written stay.
        """
        done = Unpacked()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
        )
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("shards", total=sum(info.size for info in shards))

            async def one(info: ObjectInfo) -> None:
                file = io.BufferedReader(_Shard(self.store, self.bucket, info), _WINDOW)
                await trio.to_thread.run_sync(self._extract, info, file, done)
                done.shards += 1
                progress.advance(task, info.size)

            await each(jobs, [partial(one, info) for info in shards])
        return done

    def _extract(self, info: ObjectInfo, file: "io.BufferedReader[_Shard]", done: Unpacked) -> None:
        subject = f"{self.bucket}/{info.key}"
        with _errors(subject), tarfile.open(fileobj=file, mode="r|", encoding="utf-8") as tar:
            for member in tar:
                base = os.fsencode(member.name).rpartition(b"/")[2]
                if self.without and base.endswith(b"." + self.without):
                    continue
                if not member.isreg():
                    if not member.isdir():
                        done.skipped.append(f"{subject}: {member.name!r} is no file")
                    continue
                try:
                    # A time of 0 says that whoever packed kept none.
                    times = bool(member.mtime)
                    checked = tarfile.data_filter(member, os.fspath(self.target))
                    # Before tarfile does, which does not expect another shard to be faster.
                    folder = os.path.dirname(os.path.join(self.target, checked.name))
                    os.makedirs(folder, exist_ok=True)
                    with _whole_or_not_at_all(os.path.join(self.target, checked.name)):
                        tar.extract(checked, self.target, set_attrs=times, filter="fully_trusted")
                except tarfile.FilterError as error:
                    done.skipped.append(f"{subject}: {error}")
                    continue
                done.files += 1


class _Shard(io.RawIOBase):
    """A shard as a file, read in a thread that trio started."""

    def __init__(self, store: ObjectStore, bucket: Bucket, info: ObjectInfo) -> None:
        self._store = store
        self._bucket = bucket
        self._info = info
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        view = memoryview(buffer)[: self._info.size - self._at]
        if view:
            read = self._store.read_range
            trio.from_thread.run(read, self._bucket, self._info, self._at, view)
        self._at += len(view)
        return len(view)


@contextmanager
def _whole_or_not_at_all(path: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise


@contextmanager
def _errors(subject: str) -> Iterator[None]:
    try:
        yield
    except AisfsError:
        raise
    except tarfile.TarError as error:
        raise ShardDamaged(f"{subject}: {error}") from error
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        kind = OutOfSpace if full else AisfsError
        raise kind(f"{subject}: {error.filename or 'writing'}: {error.strerror}") from error
