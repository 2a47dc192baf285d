"""The mounts of this machine, and how each of them is."""

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from aisfs.app.watching.asking import Answer, Asker
from aisfs.app.watching.daemons import Daemon, daemons
from aisfs.fuse.mountpoint import FILE_SYSTEM, MountedSource, mounted_sources

ABOUT = "user.aisfs.about"
PATIENCE = 2.0
"""Seconds for the answers of all mounts together: on a machine under load, some take one."""
_BUSY_OPERATIONS = 10
"""A second; to be looked at by `aisfs status` and `aisfs top` takes less."""


class State(StrEnum):
    """How a mount is."""

    SERVING = "serving"
    DEAD = "dead"
    """Its daemon has ended."""
    STOPPED = "stopped"
    """A signal has stopped its daemon."""
    HANGING = "hanging"
    """Its daemon does not answer."""
    PRIVATE = "private"
    """Another user's, who lets nobody else in."""


BROKEN = (State.DEAD, State.STOPPED, State.HANGING)


@dataclass(frozen=True, slots=True)
class MountState:
    """A mount as `aisfs status` lists it; what is not known is None."""

    mountpoint: str
    source: str
    state: State
    pid: int | None
    uptime_seconds: int | None
    version: str | None
    writable: bool
    rates: Mapping[str, Mapping[str, float]] | None
    """Bytes and operations in a second, over the windows that `aisfs status MNT` shows."""

    @property
    def lately(self) -> Mapping[str, float]:
        """The rates of the last seconds."""
        return (self.rates or {}).get("last_10_seconds", {})

    @property
    def busy(self) -> bool:
        """Whether it has moved data, or answered more than questions about it, in the last seconds."""
        moved = any(rate for name, rate in self.lately.items() if name.endswith("_bytes"))
        return moved or self.lately.get("operations", 0) >= _BUSY_OPERATIONS


def find_mounts(asker: Asker, seconds: float = PATIENCE) -> list[MountState]:
    """Return all mounts of aisfs on this machine; waits `seconds` for those that do not answer."""
    found = [mount for mount in mounted_sources() if mount.kind == FILE_SYSTEM]
    latest = {mount.place: mount for mount in found}  # the last one at a place is on top
    mounts = list(latest.values())
    processes = daemons()
    # A stopped daemon is known not to answer.
    running = [m.place for m in mounts if not _is_stopped(processes.get(str(m.place)))]
    answers = dict(zip(running, asker.ask(running, ABOUT, seconds), strict=True))
    return [
        _described(mount, processes.get(str(mount.place)), answers.get(mount.place))
        for mount in mounts
    ]


def _is_stopped(daemon: Daemon | None) -> bool:
    return daemon is not None and daemon.stopped


def _described(mount: MountedSource, daemon: Daemon | None, answer: Answer) -> MountState:
    told = json.loads(answer) if isinstance(answer, bytes) else {}
    return MountState(
        str(mount.place),
        mount.source,
        State.STOPPED if _is_stopped(daemon) else _state(answer),
        told.get("pid", daemon.pid if daemon is not None else None),
        told.get("uptime_seconds"),
        told.get("version"),
        mount.writable,
        told.get("rates"),
    )


def _state(answer: Answer) -> State:
    if answer is None:
        return State.HANGING
    if isinstance(answer, bytes):
        return State.SERVING
    if answer.errno in (errno.ENOTCONN, errno.ECONNABORTED):
        return State.DEAD
    # A daemon of an older version has no such attribute, but says so.
    return State.PRIVATE if answer.errno in (errno.EACCES, errno.EPERM) else State.SERVING
