"""`aisfs unpack`: the members of shards as files of a directory, the inverse of `aisfs pack`.

A path belongs to one shard: two shards with members of one path are refused, since either could win.
Within a shard the last member of a path counts, as everywhere.
"""

import errno
import logging
import os
import sqlite3
import stat
import tarfile
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

import trio
from rich.console import Console

from aisfs.core.archive.tar import BLOCK, sparse_segments
from aisfs.core.archive.tar_scanner import PAX_WARNING, MemberStream, StreamedMember
from aisfs.core.index.member_index import MemberKind
from aisfs.core.names.listing import is_plain_tar, is_shard_of_dataset
from aisfs.core.names.sources import DatasetSource
from aisfs.engine.dataset.shard_set import Shard
from aisfs.errors import AisfsError, AlreadyExists, OutOfSpace, ShardDamaged
from aisfs.mount.setup import load_cluster, read_shards
from aisfs.mount.source import open_source
from aisfs.stores.pipeline import all_of
from aisfs.stores.port import ObjectStore
from aisfs.system.locks import Rank, ranked_lock
from aisfs.system.threads import any_thread
from aisfs.work.pack import make_directory, parse_extension, progress_bar
from aisfs.work.shards import list_shards

log = logging.getLogger(__name__)

_WINDOW = 8 << 20
"""Bytes requested at once: hides the latency, and is all the memory a shard takes."""
_UNFIT = frozenset(
    {errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}
)
"""Errors of one name that cannot be a file here; any other error would hit all members."""


_SHOWN = 300
"""Characters of a name in a message."""
_NOTED = 100
_SPARSE_HEAD = 64 << 10
"""Bytes read first for the map of a sparse member."""
_PIECE = 1 << 20

_TICK_TRIES = 3_000
"""Milliseconds to wait for the file system's clock; its ticks are 4 ms as a rule, 2 s at worst."""


@dataclass(slots=True)
class Noted:
    """Lines about single members, perhaps millions: the first ones, and how many."""

    first: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, line: str) -> None:
        """Note another one."""
        self.count += 1
        if len(self.first) < _NOTED:
            self.first.append(line)


@dataclass(slots=True)
class Unpacked:
    """What was done."""

    shards: int = 0
    files: int = 0
    skipped: Noted = field(default_factory=Noted)
    """Members that became no file, and why."""
    damaged: Noted = field(default_factory=Noted)
    """Shards that were not read to their end, and why."""


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
            name = os.fsencode(shard.info.key)
            if is_plain_tar(name.lower()) or not is_shard_of_dataset(name):
                plain.append(shard)
            else:
                done.skipped.add(f"{_name(shard)}: not a plain tar; copy its folder from a mount")
        claims = await trio.to_thread.run_sync(_Claims, self.target)
        with progress_bar(console) as progress:
            task = progress.add_task("shards", total=sum(shard.info.size for shard in plain))

            async def one(shard: Shard) -> None:
                await trio.to_thread.run_sync(self._extract, shard, claims, done)
                done.shards += 1
                progress.advance(task, shard.info.size)

            await all_of((partial(one, shard) for shard in plain), jobs)
        return done

    def _extract(self, shard: Shard, claims: "_Claims", done: Unpacked) -> None:
        """Write the members of one shard. In a thread."""
        subject = _name(shard)
        try:
            with _errors(subject), _Extraction(self, shard, claims, done) as extraction:
                extraction.run()
        except ShardDamaged as error:
            done.damaged.add(str(error))


class _Extraction:
    """Writes the members of one shard while its bytes go by. For one thread."""

    def __init__(
        self, unpacker: _Unpacker, shard: Shard, claims: "_Claims", done: Unpacked
    ) -> None:
        self._store, self._shard = unpacker.store, shard
        self._target, self._without = unpacker.target, unpacker.without
        self._subject = _name(shard)
        self._claims = claims
        self._done = done
        self._mine = _OwnPaths()
        self._file: _NewFile | None = None
        """Of the member that goes by."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.abandon()
        self._done.files += self._mine.count
        self._mine.close()

    def run(self) -> None:
        """Write them all."""
        size = self._shard.info.size
        stream, window = MemberStream(size), bytearray(min(_WINDOW, size))
        rest_is_zeros = True
        for start in range(0, size, _WINDOW):
            piece = memoryview(window)[: size - start]
            self._read(start, piece)
            found = stream.feed(piece)
            self._write(start, piece)
            for member in found:
                self._begin(member)
                self._write(start, piece)
            behind = piece[max(stream.end - start, 0) :] if stream.ended else b""
            rest_is_zeros &= not bytes(behind).strip(b"\0")
            if stream.damaged and self._file is None:
                break
        stream.finish()
        for what, count in stream.left_out.items():
            self._done.skipped.add(f"{self._subject}: {what}: {count} members")
        self._judge(stream, rest_is_zeros=rest_is_zeros)

    def _judge(self, stream: MemberStream, *, rest_is_zeros: bool) -> None:
        """Say what is wrong with the shard."""
        reasons = []
        for warning in stream.warnings:
            if warning.startswith(
                PAX_WARNING
            ):  # the member is whole, and has what other headers say
                log.warning("%s: %s", self._subject, warning)
            else:
                reasons.append(warning)
        if not reasons and not rest_is_zeros:
            reasons.append("it is damaged there, or another tar follows")
        if reasons:
            end = stream.end
            ended = not rest_is_zeros or (stream.damaged and end < self._shard.info.size)
            where = f"nothing behind byte {end} is read: " if ended else ""
            self._done.damaged.add(f"{self._subject}: {where}{reasons[0]}")

    def _read(self, start: int, view: memoryview) -> None:
        trio.from_thread.run(
            self._store.read_range, self._shard.bucket, self._shard.info, start, view
        )

    def _begin(self, member: StreamedMember) -> None:
        """Begin to write a member, or note why it becomes no file."""
        name = os.fsdecode(member.name)
        base = member.name.rpartition(b"/")[2]
        if member.kind is MemberKind.DIRECTORY or (
            self._without and base.endswith(b"." + self._without)
        ):
            return
        try:
            if member.kind is not MemberKind.FILE:
                raise _LeftOutError(f"{name[:_SHOWN]!r} is no file")
            self._file = self._create(name, member)
            if member.sparse:
                self._write_sparse(self._file, member)
            return
        except _LeftOutError as error:
            self._done.skipped.add(f"{self._subject}: {error}")
        except ShardDamaged as error:
            self._done.damaged.add(f"{self._subject}: {error}")
        if self._file is not None:
            self._file.abandon()
            self._file = None

    def _create(self, name: str, member: StreamedMember) -> "_NewFile":
        info = tarfile.TarInfo(name)
        info.mode, info.size = member.mode, member.size
        try:
            checked = tarfile.data_filter(info, os.fspath(self._target))
            path = os.path.normpath(os.path.join(self._target, checked.name))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            fd = self._claims.claim(path, self._mine)
        except tarfile.FilterError as error:
            raise _LeftOutError(str(error)[: 2 * _SHOWN]) from None
        except OSError as error:
            if error.errno not in _UNFIT:
                raise
            raise _LeftOutError(f"{name[:_SHOWN]!r}: {error.strerror}") from None
        except ValueError:  # a NUL
            raise _LeftOutError(f"{name[:_SHOWN]!r}: no name of a file") from None
        return _NewFile(fd, path, member, checked.mode)

    def _write(self, start: int, piece: memoryview) -> None:
        """Write the part of the current member that a piece of the shard holds."""
        file = self._file
        if file is None:
            return
        stop = min(file.stop, start + len(piece))
        file.write(piece[file.at - start : stop - start])
        if file.at == file.stop:
            self._file = None
            file.finish()
            self._mine.add(file.path)

    def _write_sparse(self, file: "_NewFile", member: StreamedMember) -> None:
        """Write a sparse member, which is read once more, from its map on."""
        begin, length, segments = member.offset - member.lead * BLOCK, _SPARSE_HEAD, None
        while segments is None:
            head = bytearray(min(length, member.stop - begin, self._shard.info.size - begin))
            self._read(begin, memoryview(head))
            segments = sparse_segments(bytes(head), member.size)
            if segments is None and len(head) < length:
                raise ShardDamaged(f"{member.name[:_SHOWN]!r} has no usable sparse map")
            length *= 4
        room = memoryview(bytearray(_PIECE))
        for segment in segments:
            for at in range(0, segment.length, _PIECE):
                part = room[: segment.length - at]
                self._read(begin + segment.stored + at, part)
                os.pwrite(file.fd, part, segment.offset + at)
        try:
            os.ftruncate(file.fd, member.size)
        except OSError as error:
            if error.errno not in (errno.EFBIG, errno.EINVAL):
                raise
            raise _LeftOutError(f"{member.name[:_SHOWN]!r}: {error.strerror}") from None
        file.at = file.stop


class _LeftOutError(Exception):
    """A member becomes no file; the text says why."""


class _NewFile:
    """A file that is being written, whole or not at all."""

    def __init__(self, fd: int, path: str, member: StreamedMember, mode: int | None) -> None:
        self.fd, self.path = fd, path
        self.at, self.stop = member.offset, member.stop
        """What of the shard comes next, and where it ends."""
        self._mtime_ns, self._mode = member.mtime_ns, mode

    def write(self, data: memoryview) -> None:
        """Write the next bytes."""
        self.at += len(data)
        while data:
            data = data[os.write(self.fd, data) :]

    def finish(self) -> None:
        """Set what the tar says of the file; a time of 0 means that the packer kept none."""
        try:
            if self._mtime_ns:
                if self._mode is not None:
                    os.fchmod(self.fd, self._mode)
                os.utime(self.fd, ns=(self._mtime_ns, self._mtime_ns))
        finally:
            os.close(self.fd)

    def abandon(self) -> None:
        """Remove it."""
        os.close(self.fd)
        with suppress(OSError):
            os.unlink(self.path)


class _OwnPaths:
    """What one shard has written: on disk, since it may be a million names. For one thread."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.execute("CREATE TABLE paths (path BLOB PRIMARY KEY) WITHOUT ROWID")
        self._db.execute("BEGIN")
        self.count = 0

    def add(self, path: str) -> None:
        """Add a path, perhaps once more."""
        done = self._db.execute("INSERT OR IGNORE INTO paths VALUES (?)", (os.fsencode(path),))
        self.count += done.rowcount

    def __contains__(self, path: str) -> bool:
        found = self._db.execute("SELECT 1 FROM paths WHERE path = ?", (os.fsencode(path),))
        return found.fetchone() is not None

    def close(self) -> None:
        """Forget all."""
        self._db.close()


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

    def claim(self, path: str, mine: _OwnPaths) -> int:
        """Open an empty file for a member of a shard that has written the files `mine`.

        Raises:
            AlreadyExists: another shard has written it.
            OSError: it cannot be a file here.
        """
        with self._lock:
            with suppress(FileNotFoundError):
                if os.lstat(path).st_ctime_ns >= self._since and path not in mine:
                    _refuse(path)
                os.unlink(path)
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _refuse(path: str) -> None:
    if stat.S_ISDIR(os.lstat(path).st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise AlreadyExists(
        f"{path} is in another of these shards too: unpack them one by one, into directories of their own"
    )


@contextmanager
def _errors(subject: str) -> Iterator[None]:
    try:
        yield
    except AisfsError:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        kind = OutOfSpace if full else AisfsError
        raise kind(f"{subject}: {error.filename or 'writing'}: {error.strerror}") from error
