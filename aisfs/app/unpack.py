"""`aisfs unpack`: the members of shards as files of a directory, the inverse of `aisfs pack`.

A path belongs to one shard: two shards with members of one path are refused, since either could win.
Within a shard the last member of a path counts, as everywhere.
"""

import errno
import io
import os
import stat
import tarfile
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio
from rich.console import Console

from aisfs.app.listing import list_shards
from aisfs.app.pack import make_directory, parse_extension, progress_bar
from aisfs.app.packing.at_once import each
from aisfs.app.plan import load_cluster, read_shards
from aisfs.app.source import open_source
from aisfs.core.namespace.sources import DatasetSource
from aisfs.engine.dataset.shard_set import Shard
from aisfs.errors import AisfsError, AlreadyExists, OutOfSpace, ShardDamaged
from aisfs.process.locks import Rank, ranked_lock
from aisfs.process.threads import any_thread
from aisfs.store.port import ObjectStore

_WINDOW = 8 << 20
"""Bytes requested at once: hides the latency, and is all the memory a shard takes."""
_UNFIT = frozenset(
    {errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}
)
"""Errors of one name that cannot be a file here; any other error would hit all members."""


_TICK_TRIES = 3_000
"""Milliseconds to wait for the file system's clock; its ticks are 4 ms as a rule, 2 s at worst."""


@dataclass(slots=True)
class Unpacked:
    """What was done."""

    shards: int = 0
    files: int = 0
    skipped: list[str] = field(default_factory=list)
    """Members that became no file, and why."""
    damaged: list[str] = field(default_factory=list)
    """Shards of which not all was read, and why."""


async def find_shards(
    sources: Sequence[str], settings: Mapping[str, object]
) -> list[tuple[str, int]]:
    """Return name and size of each of the shards.

    Raises:
        SourceMissing: there are none.
    """
    async with _opened(sources, settings) as (_, found):
        return [(_name(shard), shard.info.size) for shard in found]


async def unpack(
    sources: Sequence[str],
    target: Path,
    class_to: str | None,
    settings: Mapping[str, object],
    jobs: int,
    console: Console,
) -> Unpacked:
    """Write the members of all shards below `target`, `jobs` shards at a time.

    Args:
        sources: Each SOURCE as it was typed.
        target: Is made if it does not exist.
        class_to: Extension of members that are left out.
        settings: The options that were given, by name of the setting.
        jobs: Shards at a time.
        console: Where the progress is shown.

    Raises:
        SourceMissing: there are no such shards.
        AlreadyExists: two of them have members of one path.
        AisfsError: one failed; files that are written stay.
    """
    without = parse_extension(class_to) if class_to else b""
    async with _opened(sources, settings) as (store, found):
        make_directory(target)
        return await _Unpacker(store, target, without).unpack(found, jobs, console)


@asynccontextmanager
async def _opened(
    sources: Sequence[str], settings: Mapping[str, object]
) -> AsyncIterator[tuple[ObjectStore, list[Shard]]]:
    source = read_shards(sources, settings)
    async with open_source(source, load_cluster(source, settings)) as opened:
        assert isinstance(opened.source, DatasetSource), "shards are a dataset"
        shards = await list_shards(opened.source, opened.store)
        yield opened.store, [shard for _, shard in shards.current]


def _name(shard: Shard) -> str:
    return f"{shard.bucket}/{shard.info.key}"


@dataclass(frozen=True, slots=True)
class _Unpacker:
    """Reads shards and writes their members."""

    store: ObjectStore
    target: Path
    without: bytes
    """Extension of members that are left out, without its dot."""

    async def unpack(self, shards: list[Shard], jobs: int, console: Console) -> Unpacked:
        """See `unpack`."""
        done = Unpacked()
        plain = []
        for shard in shards:
            if shard.info.key.endswith(".tar"):
                plain.append(shard)
            else:
                done.skipped.append(
                    f"{_name(shard)}: not a plain tar; copy its folder from a mount"
                )
        claims = await trio.to_thread.run_sync(_Claims, self.target)
        with progress_bar(console) as progress:
            task = progress.add_task("shards", total=sum(shard.info.size for shard in plain))

            async def one(shard: Shard) -> None:
                await trio.to_thread.run_sync(self._extract, shard, claims, done)
                done.shards += 1
                progress.advance(task, shard.info.size)

            await each(jobs, [partial(one, shard) for shard in plain])
        return done

    def _extract(self, shard: Shard, claims: "_Claims", done: Unpacked) -> None:
        """Write the members of one shard. In a thread."""
        subject = _name(shard)
        file = io.BufferedReader(_ShardFile(self.store, shard), _WINDOW)
        mine: set[str] = set()
        try:
            with _errors(subject), tarfile.open(fileobj=file, mode="r|", encoding="utf-8") as tar:
                for member in tar:
                    base = os.fsencode(member.name).rpartition(b"/")[2]
                    if self.without and base.endswith(b"." + self.without):
                        continue
                    reason = self._extract_member(tar, member, claims, mine)
                    if reason:
                        done.skipped.append(f"{subject}: {reason}")
                rest = _ShardFile(self.store, shard, tar.offset)
                while piece := rest.read(_WINDOW):
                    # tarfile takes any header that is none for the end.
                    if piece.strip(b"\0"):
                        raise ShardDamaged(f"{subject}: nothing behind byte {tar.offset} is read: "
                                           "it is damaged there, or another tar follows")  # fmt: skip
        except ShardDamaged as error:
            done.damaged.append(str(error))
        done.files += len(mine)

    def _extract_member(
        self, tar: tarfile.TarFile, member: tarfile.TarInfo, claims: "_Claims", mine: set[str]
    ) -> str:
        """Write one member; return why it became no file, or nothing."""
        if not member.isreg():
            return "" if member.isdir() else f"{member.name!r} is no file"
        try:
            # A time of 0 means that the packer kept none.
            times = bool(member.mtime)
            checked = tarfile.data_filter(member, os.fspath(self.target))
            path = os.path.normpath(os.path.join(self.target, checked.name))
            # Before tarfile does so, which does not expect other threads to.
            os.makedirs(os.path.dirname(path), exist_ok=True)
            claims.claim(path, mine)
            with _whole_or_not_at_all(path):
                tar.extract(checked, self.target, set_attrs=times, filter="fully_trusted")
        except tarfile.FilterError as error:
            return str(error)
        except OSError as error:
            if error.errno not in _UNFIT:
                raise
            return f"{member.name!r}: {error.strerror}"
        mine.add(path)
        return ""


@any_thread
class _Claims:
    """Which paths were written since the command began, by the change times of their files."""

    def __init__(self, target: Path) -> None:
        """Begin now: files that exist below `target` may be replaced."""
        self._lock = ranked_lock(Rank.UNPACKED_PATHS)
        with tempfile.NamedTemporaryFile(dir=target, prefix=".aisfs-unpack-") as file:
            before = self._since = os.fstat(file.fileno()).st_ctime_ns
            tick, tries = threading.Event(), 0
            while self._since == before and tries < _TICK_TRIES:
                tick.wait(0.001)
                tries += 1
                os.utime(file.fileno())
                self._since = os.fstat(file.fileno()).st_ctime_ns

    def claim(self, path: str, mine: set[str]) -> None:
        """Make an empty file for a member of a shard that has written the files `mine`.

        Raises:
            AlreadyExists: another shard has written it.
            OSError: it cannot be a file here.
        """
        with self._lock:
            with suppress(FileNotFoundError):
                if path not in mine and os.lstat(path).st_ctime_ns >= self._since:
                    _refuse(path)
                os.unlink(path)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))


def _refuse(path: str) -> None:
    if stat.S_ISDIR(os.lstat(path).st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise AlreadyExists(
        f"{path} is in another of these shards too: unpack them one by one, into directories of their own"
    )


class _ShardFile(io.RawIOBase):
    """A shard as a file, read in a thread that trio started."""

    def __init__(self, store: ObjectStore, shard: Shard, start: int = 0) -> None:
        self._store = store
        self._bucket, self._info = shard.bucket, shard.info
        self._at = start

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
