"""The directories of the cache and of staged files."""

import errno
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from aisfs.app.display.units import size_text
from aisfs.app.doctor.check import Check, note, ok, wrong
from aisfs.engine.writing.unsent import (
    DATA,
    PARKED,
    RECORD,
    StagingErrors,
    lost_parts,
    unsent_files,
)
from aisfs.errors import AisfsError, ConfigError
from aisfs.fuse.mountpoint import mounted_filesystems
from aisfs.settings import CACHE_LEAST, MIB, CacheSettings, WriteSettings
from aisfs.settings.values import existing_directory

LOCKS = Path("/proc/locks")

_NETWORK = re.compile(r"(nfs\d?|cifs|smb3?|smbfs|ceph|glusterfs|lustre|gpfs|9p|afs|beegfs)$|fuse\.")
"""Types on which SQLite's locks or mapped files are not to be relied on."""
_TRIAL = 32 * MIB
"""Bytes written to measure the disk, to a file without a name."""
_SLOW = 50 * MIB
"""Bytes per second; a link of 1 Gbit/s brings more."""
_LITTLE_ROOM = 1 << 30


def disk_checks(cache: CacheSettings, writing: WriteSettings) -> Iterator[Check]:
    """Check the directories that daemons write to."""
    yield from _cache(cache)
    yield _staged(writing.staging_dir)


def _cache(settings: CacheSettings) -> Iterator[Check]:
    name, directory = "cache directory", settings.cache_dir
    try:
        place = existing_directory(directory, "cache-dir")
        free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
    except (ConfigError, OSError) as error:
        yield wrong(name, str(error), "name a directory that you may write with --cache-dir")
        return
    if not place.is_dir():
        yield wrong(name, f"{place} is no directory", "name a directory with --cache-dir")
        return
    kind = _file_system(place)
    if _NETWORK.match(kind):
        found = f"{directory} is on a network file system ({kind}), where its database may break"
        yield wrong(name, found, "name a directory on a local disk with --cache-dir")
    where = str(directory) if place == directory else f"{directory}, not made yet,"
    found = f"{where} on {kind}, {size_text(free)} free"
    if free < CACHE_LEAST:
        yield wrong(
            name, f"{found}: full", "make room, aisfs cache clear, or name another --cache-dir"
        )
        return
    try:
        speed = _speed(place, min(_TRIAL, free // 2))
    except OSError as error:
        yield wrong(
            name,
            f"{place}: {error.strerror}",
            "name a directory that you may write with --cache-dir",
        )
        return
    if free < _LITTLE_ROOM:
        yield note(name, found, "make room, or name a larger disk with --cache-dir")
    else:
        yield ok(name, found)
    if speed is not None:
        told = f"writes {size_text(speed)}/s"
        cure = "name a directory on a faster disk with --cache-dir, or mount with --cache-size 0"
        yield note("cache disk", told, cure) if speed < _SLOW else ok("cache disk", told)


def _speed(directory: Path, size: int) -> int | None:
    """Return bytes per second, or None where files without a name cannot be.

    Raises:
        OSError: the directory cannot be written.
    """
    try:
        descriptor = os.open(directory, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except IsADirectoryError:  # what a file system says that knows nothing of O_TMPFILE
        return None
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return None
        raise
    try:
        piece = os.urandom(MIB)
        started = time.monotonic()
        for _ in range(max(1, size // MIB)):
            os.write(descriptor, piece)
        os.fsync(descriptor)
        return int(max(MIB, size) / max(time.monotonic() - started, 1e-6))
    finally:
        os.close(descriptor)


def _file_system(path: Path) -> str:
    """Return the type of the file system that a path is on."""
    resolved = Path(os.path.realpath(path))
    above = [
        (place, kind) for place, kind in mounted_filesystems() if resolved.is_relative_to(place)
    ]
    deepest = max((len(place.parts) for place, _ in above), default=0)
    return next((kind for place, kind in reversed(above) if len(place.parts) == deepest), "unknown")


def _staged(directory: Path) -> Check:
    """Check for files that no daemon will upload any more."""
    name = "staged files"
    try:
        with StagingErrors(directory):
            files, lost = unsent_files(directory), lost_parts(directory)
            left = [path for session in _dead_sessions(directory) for path in _dirty(session)]
    except AisfsError as error:
        return wrong(name, str(error), "run this as the user who mounts")
    if lost:
        return wrong(name, f"closed files are damaged: {lost[0]}", "aisfs recover lists them")
    if not files and not left:
        return ok(name, f"nothing is left to upload in {directory}")
    size = sum(file.size for file in files) + sum(path.stat().st_size for path in left)
    found = f"{len(files) + len(left)} files ({size:,} bytes) in {directory} were never uploaded"
    return wrong(name, found, "aisfs recover lists them; --upload or --drop ends that")


def _dead_sessions(directory: Path) -> Iterator[Path]:
    """Find what daemons left that were killed: sessions whose lock nobody holds."""
    held = {line.split()[-3].rpartition(":")[2] for line in LOCKS.read_text().splitlines()}
    for session in sorted(directory.iterdir()) if directory.is_dir() else ():
        with suppress(FileNotFoundError):  # it is only just beginning, or ending
            if session.name != PARKED and str((session / "lock").stat().st_ino) not in held:
                yield session


def _dirty(session: Path) -> Iterator[Path]:
    for record in sorted(session.glob(f"*{RECORD}")):
        with suppress(FileNotFoundError):
            if record.stat().st_size and record.with_suffix(DATA).exists():
                yield record.with_suffix(DATA)
