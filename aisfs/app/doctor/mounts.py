"""The mounts of this machine: which have lost their daemon, and what one of them says of itself."""

import errno
from collections.abc import Iterator
from pathlib import Path

from aisfs.app.doctor.check import Check, ok, wrong
from aisfs.app.watching.asking import ALIVE, PATIENCE, Asker
from aisfs.app.watching.daemons import Daemon, daemons
from aisfs.fuse.mountpoint import FILE_SYSTEM, mounted_filesystems


def mount_checks() -> Iterator[Check]:
    """Check that all mounts of aisfs have a daemon."""
    places = [place for place, kind in mounted_filesystems() if kind == FILE_SYSTEM]
    running = daemons()
    found = [stopped for place in places if (stopped := _stopped(place, running)) is not None]
    found += _silent([place for place in places if str(place) not in running])
    yield from found
    if not found:
        count = f"{len(places)} mount{'s' if len(places) != 1 else ''} of aisfs"
        yield ok("mounts", f"{count}, none without a daemon" if places else "no mount of aisfs")


def _stopped(place: Path, running: dict[str, Daemon]) -> Check | None:
    daemon = running.get(str(place))
    if daemon is None or not daemon.stopped:
        return None
    return wrong(
        "mounts", f"{place}: its daemon {daemon.pid} is stopped", f"kill -CONT {daemon.pid}"
    )


def _silent(places: list[Path]) -> Iterator[Check]:
    """Ask mounts whose daemon is not to be found, all at once."""
    with Asker() as asker:
        answers = asker.ask(places, ALIVE)
    for place, answer in zip(places, answers, strict=True):
        if answer is None:
            cure = f"look for its daemon, or detach it: aisfs umount --lazy {place}"
            yield wrong("mounts", f"{place}: no answer within {PATIENCE:.0f} seconds", cure)
        elif isinstance(answer, OSError) and answer.errno in (errno.ENOTCONN, errno.ECONNABORTED):
            cure = f"aisfs umount {place}, or mount again at the same place"
            yield wrong("mounts", f"{place}: its daemon has died", cure)
