"""The mounts of this machine, seen from outside: which there are, the state of each, and requests to their daemons.

For `aisfs status`, `aisfs flush`, `aisfs refresh` and `aisfs umount`. Daemons are asked through extended
attributes of their mountpoints. A process that waits for an answer of a daemon that hangs cannot always be
killed. So each question is asked by a process of its own, which is left behind if it does not come back in
time.
"""

import errno
import json
import os
import select
import selectors
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Self

from aisfs.errors import AisfsError, ConfigError, DaemonSilent, MountError, NotFound
from aisfs.fuse.mountpoint import (
    FILE_SYSTEM,
    MountedSource,
    mount_owner,
    mounted_sources,
    our_mount,
    unmount,
)
from aisfs.system.keeper import NAME, NAME_RESTARTING, UPGRADE_SECONDS

ALIVE = "user.aisfs.recent"
"""An attribute that a daemon answers from memory."""
PATIENCE = 10.0
"""Seconds that a daemon may take for an answer from memory; under load one takes a second or two."""
_CHUNK = 1 << 16
_LEAVE_SECONDS = 0.5
"""How long a process that asks in vain may take to end when it is killed; usually a millisecond."""

Answer = bytes | OSError | None
"""The attribute, the error of the kernel or the daemon, or None if there was no answer in time."""


@dataclass(slots=True)
class _Question:
    """A process that asks, and what it has said so far."""

    pid: int
    pipe: int
    said: bytearray = field(default_factory=bytearray)

    def has_ended(self) -> bool:
        """Take what has arrived; return whether that is all."""
        data = os.read(self.pipe, _CHUNK)
        self.said.extend(data)
        return not data


class Asker:
    """Asks mounts, several at once; a question without an answer stays open until the end of the block."""

    def __init__(self) -> None:
        """Ask nothing yet."""
        self._open: dict[Path, _Question] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for question in self._open.values():
            os.close(question.pipe)
            os.kill(question.pid, signal.SIGKILL)
        # They keep the mount busy until they have ended, which one that hangs in the kernel does not.
        deadline = time.monotonic() + _LEAVE_SECONDS
        while self._open and time.monotonic() < deadline:
            for place, question in list(self._open.items()):
                if os.waitpid(question.pid, os.WNOHANG)[0]:
                    del self._open[place]
            time.sleep(0.001)  # noqa: TID251 - a command; there is no event loop
        self._open.clear()

    def ask(
        self, places: Sequence[Path], attribute: str, seconds: float | None = PATIENCE
    ) -> list[Answer]:
        """Return an attribute of each place: always the same one, as earlier questions may be answered.

        What was asked earlier and has no answer yet is not waited for. `seconds` may be None to wait for
        as long as it takes.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        awaited = {place for place in places if place not in self._open}
        self._open |= {place: self._start(place, attribute) for place in awaited}
        answers: dict[Path, Answer] = {}
        with selectors.DefaultSelector() as selector:
            for place in set(places):
                selector.register(self._open[place].pipe, selectors.EVENT_READ, place)
            while selector.get_map():
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                ready = selector.select(left if awaited else 0)
                for key, _ in ready:
                    if self._open[key.data].has_ended():
                        selector.unregister(key.fd)
                        answers[key.data] = self._close(key.data)
                        awaited.discard(key.data)
                if not ready and (not awaited or left == 0):
                    break
        return [answers.get(place) for place in places]

    def _close(self, place: Path) -> Answer:
        question = self._open.pop(place)
        os.close(question.pipe)
        os.waitpid(question.pid, 0)
        return _decode(question.said)

    def _start(self, place: Path, attribute: str) -> _Question:
        """Start a process that asks."""
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                _become(mount_owner(place))
                with os.fdopen(writer, "wb") as file:
                    file.write(_answer(place, attribute))
            finally:
                os._exit(0)
        os.close(writer)
        return _Question(pid, reader)


def ask(place: Path, attribute: str, seconds: float | None = PATIENCE) -> bytes:
    """Return an attribute of one mount, or of something in it.

    Raises:
        MountError: its daemon has died or does not answer, or this user may not ask it.
        OSError: another error of the file system.
    """
    with Asker() as asker:
        [answer] = asker.ask([place], attribute, seconds)
    if answer is None:
        raise DaemonSilent(
            f"{place}: no answer within {seconds:.0f} seconds: {_why_silent(place)}; to detach "
            f"the mount: aisfs umount --lazy {place}"
        )
    if isinstance(answer, bytes):
        return answer
    if answer.errno in (errno.ENOTCONN, errno.ECONNABORTED):
        raise MountError(
            f"the daemon of {place} has died; clear the mount with: aisfs umount {place}"
        ) from answer
    if answer.errno == errno.EACCES:
        raise MountError(
            f"{place}: permission denied: ask as the user who mounted it, or as root"
        ) from answer
    raise answer


def _become(owner: tuple[int, int] | None) -> None:
    """Ask as the owner of a mount: the kernel lets not even root in without `allow_other`."""
    if owner is not None and os.geteuid() == 0:
        user, group = owner
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)


def _answer(place: Path, attribute: str) -> bytes:
    try:
        return b"+" + os.getxattr(place, attribute)
    except OSError as error:
        return b"%d" % (error.errno or errno.EIO)


def _decode(answer: bytearray) -> Answer:
    if not answer:
        return None
    if answer.startswith(b"+"):
        return bytes(answer[1:])
    number = int(answer)
    return OSError(number, os.strerror(number))


PROCESSES = Path("/proc")


class Daemon(NamedTuple):
    """A process that serves a mount."""

    pid: int
    stopped: bool
    """Whether it was stopped by a signal."""


class Keeper(NamedTuple):
    """A process that starts the daemon of a mount again; see `aisfs.system.keeper`."""

    pid: int
    restarting: bool
    """Whether no daemon answers at the moment."""


class _Process(NamedTuple):
    pid: int
    words: list[str]
    """Its command line."""
    name: bytes
    state: str


def _processes() -> Iterator[_Process]:
    """Return the processes that may serve mounts."""
    for entry in PROCESSES.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended
                line = (entry / "cmdline").read_bytes().removesuffix(b"\0")
                stat = (entry / "stat").read_bytes()
                name, _, rest = stat.partition(b" (")[2].rpartition(b") ")
                words = line.decode(errors="surrogateescape").split("\0")
                if rest[:1] not in b"ZX":
                    yield _Process(int(entry.name), words, name, chr(rest[0]))


def daemons() -> dict[str, Daemon]:
    """Return the daemon behind each mountpoint that a command line names."""
    found: dict[str, Daemon] = {}
    for process in _processes():
        if "mount" in process.words:
            daemon = Daemon(process.pid, process.state in "Tt")
            found |= dict.fromkeys(process.words, daemon)
    return found


def keepers() -> dict[str, Keeper]:
    """Return the keeper of each mountpoint that has one."""
    return {
        process.words[-2]: Keeper(process.pid, process.name == NAME_RESTARTING)
        for process in _processes()
        if process.name in (NAME, NAME_RESTARTING) and len(process.words) > 1
    }


def restarting(places: Iterable[Path]) -> set[Path]:
    """Return which places are in a mount whose daemon has died, and whose keeper has yet to start another one."""
    found = {Path(place) for place, keeper in keepers().items() if keeper.restarting}
    return {place for place in places if not found.isdisjoint((place, *place.parents))}


def _why_silent(place: Path) -> str:
    if restarting([place]):
        return "its daemon has died, and another one cannot go on yet, as its log says"
    return "its daemon hangs, or is stopped"


ABOUT = "user.aisfs.about"
LISTING_PATIENCE = 2.0
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
    RESTARTING = "restarting"
    """Its daemon has died, and its keeper has yet to start another one."""
    PRIVATE = "private"
    """A mount that only its user, another one, may enter."""


BROKEN = (State.DEAD, State.STOPPED, State.HANGING, State.RESTARTING)


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


def find_mounts(asker: Asker, seconds: float = LISTING_PATIENCE) -> list[MountState]:
    """Return all mounts of aisfs on this machine; waits `seconds` for those that do not answer."""
    found = [mount for mount in mounted_sources() if mount.kind == FILE_SYSTEM]
    latest = {mount.place: mount for mount in found}  # the last one at a place is on top
    mounts = list(latest.values())
    processes = daemons()
    # A stopped daemon is known not to answer.
    running = [m.place for m in mounts if not _is_stopped(processes.get(str(m.place)))]
    answers = dict(zip(running, asker.ask(running, ABOUT, seconds), strict=True))
    silent = restarting(m.place for m in mounts if answers.get(m.place) is None)
    return [
        _described(
            mount,
            processes.get(str(mount.place)),
            answers.get(mount.place),
            restarting=mount.place in silent,
        )
        for mount in mounts
    ]


def _is_stopped(daemon: Daemon | None) -> bool:
    return daemon is not None and daemon.stopped


def _described(
    mount: MountedSource, daemon: Daemon | None, answer: Answer, *, restarting: bool
) -> MountState:
    told = json.loads(answer) if isinstance(answer, bytes) else {}
    state = State.STOPPED if _is_stopped(daemon) else _state(answer)
    return MountState(
        str(mount.place),
        mount.source,
        State.RESTARTING if restarting and state is State.HANGING else state,
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


FLUSH = "user.aisfs.flush"


def flush(mountpoint: Path) -> int:
    """Have a mount upload the closed files that wait for it; return how many there were.

    Raises:
        MountError: there is no mount of aisfs, its daemon does not answer, or this user may not.
        AisfsError: some are not uploaded; the message says what becomes of them.
    """
    mount = our_mount(mountpoint)
    try:
        ask(mount, ALIVE)  # what follows may take long, since it waits for the cluster
        told = json.loads(ask(mount, FLUSH, None))
    except OSError as error:
        if error.errno == errno.ENODATA:
            raise MountError(
                f"{mountpoint}: its daemon is of an older aisfs, where no closed file waits"
            ) from error
        if error.errno == errno.EPERM:
            raise MountError(
                f"{mountpoint}: only the user who mounted it, and root, may flush it"
            ) from error
        raise MountError(f"{mountpoint}: {error.strerror}") from error
    if "failed" in told:
        raise AisfsError(f"{mountpoint}: {told['failed']}")
    return int(told["files"])


UPGRADE = "user.aisfs.upgrade"
LOOK_SECONDS = 0.1
"""Between two looks at an upgrade; most take a second."""
QUIET_SECONDS = 5.0
"""What takes longer is worth a line; most daemons come and go in a fraction of a second."""
MORE_SECONDS = 30.0
"""How much longer than its keeper `upgrade` waits."""


def own_mounts() -> list[Path]:
    """Return the mounts of this user."""
    places = {mount.place for mount in mounted_sources() if mount.kind == FILE_SYSTEM}
    return sorted(p for p in places if (mount_owner(p) or (None,))[0] == os.geteuid())


def upgrade(mountpoint: Path, tell: Callable[[str], None]) -> str:
    """Have a mount go on with what is installed and configured now; return in a line how.

    Args:
        mountpoint: Where it is.
        tell: Given a line for the user when it takes long.

    Raises:
        MountError: the mount goes on as it was, and the message says why; or there is none.
    """
    mount = our_mount(mountpoint)
    before = json.loads(_ask(mountpoint, ABOUT))
    if "keeper" not in before:
        raise MountError(
            f"{mountpoint}: this mount has no keeper and ends with its daemon; unmount it, and mount it again"
        )
    try:
        ask(mount, UPGRADE)
    except OSError as error:
        raise MountError(
            f"{mountpoint}: only the user who mounted it, and root, may upgrade it"
            if error.errno == errno.EPERM
            else f"{mountpoint}: {error.strerror}"
        ) from error
    started, told = time.monotonic(), False
    while time.monotonic() < started + UPGRADE_SECONDS + MORE_SECONDS:
        time.sleep(LOOK_SECONDS)  # noqa: TID251 - a command; there is no event loop
        with suppress(DaemonSilent):  # the old one is gone, and the new one takes its time
            now = json.loads(_ask(mountpoint, ABOUT))
            if now["pid"] != before["pid"]:
                return "process {pid} ({version}) goes on as ".format(
                    **before
                ) + "{pid} ({version})".format(**now)
            if now.get("upgrade_refused"):
                raise MountError(f"{mountpoint} goes on as it was: {now['upgrade_refused']}")
        if not told and time.monotonic() > started + QUIET_SECONDS:
            told = True
            tell(f"{mountpoint}: waiting for the new daemon to load")
    raise MountError(f"{mountpoint} goes on as it was: nothing came of the upgrade; see its log")


def mountpoints_of(source: str) -> list[str]:
    """Return where a source, or something in it, is mounted."""
    found = {m.place: m for m in mounted_sources() if m.kind == FILE_SYSTEM}
    return [
        str(place)
        for place, mount in found.items()
        if f"{mount.source.rstrip('/')}/".startswith(f"{source.rstrip('/')}/")
    ]


END_SECONDS = 180.0
"""After so long a daemon hangs: at its end it tries to upload for `--io-timeout`, by default a minute."""
_REAP_SECONDS = 3.0
"""So long it is waited until a process that has ended is in no list either: some first processes of containers
look for such every two seconds, and some never."""


def umount(
    mountpoint: Path, *, lazy: bool, tell: Callable[[str], None] = lambda text: None
) -> bool:
    """Unmount a mount of aisfs, and wait until its daemon and keeper have ended; return whether that was asked to upload.

    Args:
        mountpoint: Where it is.
        lazy: Detach it even when it is busy, ask its daemon nothing, and wait for nothing.
        tell: Given a line for the user when the daemon takes long to end.

    Raises:
        MountError: it is no mount of aisfs, or busy, or its daemon does not end.
        AisfsError: it is unmounted, and some closed files were not uploaded; the message says what
            becomes of them.
    """
    mount = our_mount(mountpoint)
    if lazy:
        unmount(mount, lazy=True)
        return False
    problem: AisfsError | None = None
    answers = True
    try:
        flush(mountpoint)
    except MountError:
        answers = False  # a user who cannot ask the daemon may unmount all the same
    except AisfsError as error:
        problem = error
    with _watched(_serving(mount, answers=answers)) as processes:
        unmount(mount)
        _wait(mount, processes, tell)
    if problem is not None:
        raise problem
    return answers


def _serving(mount: Path, *, answers: bool) -> dict[str, int]:
    """Return the processes behind a mount that end with it, as far as they can be seen from here."""
    found = {}
    keeper = keepers().get(str(mount))
    if answers:
        with suppress(AisfsError, OSError, KeyError):
            pid = int(json.loads(ask(mount, ABOUT))["pid"])
            if b"mount" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found["daemon"] = pid
    if keeper is not None and (answers or keeper.restarting):
        found["keeper"] = keeper.pid
    return found


class _Watched(NamedTuple):
    """A process, and a descriptor of it, by which its number cannot come to mean another one."""

    what: str
    pid: int
    descriptor: int


@contextmanager
def _watched(pids: Mapping[str, int]) -> Iterator[list[_Watched]]:
    with ExitStack() as stack:
        found = []
        for what, pid in pids.items():
            with suppress(OSError):  # it has ended
                found.append(_Watched(what, pid, os.pidfd_open(pid)))
                stack.callback(os.close, found[-1].descriptor)
        yield found


def _wait(mount: Path, processes: Sequence[_Watched], tell: Callable[[str], None]) -> None:
    begun = time.monotonic()
    for process in processes:
        if _has_ended(process, begun + QUIET_SECONDS):
            continue
        what = f"its {process.what} (process {process.pid})"
        tell(f"{mount} is unmounted; waiting for {what} to end")
        if not _has_ended(process, begun + END_SECONDS):
            raise MountError(
                f"{mount} is unmounted, but {what} has not ended within {END_SECONDS:.0f} s; its log may say why, "
                "and kill -9 ends it"
            )
    deadline = time.monotonic() + _REAP_SECONDS
    while time.monotonic() < deadline and any(os.path.exists(f"/proc/{p.pid}") for p in processes):
        time.sleep(0.01)  # noqa: TID251 - a command; there is no event loop


def _has_ended(process: _Watched, deadline: float) -> bool:
    poll = select.poll()
    poll.register(process.descriptor, select.POLLIN)
    return bool(poll.poll(max(deadline - time.monotonic(), 0.0) * 1000))


def clear_dead(mountpoint: Path) -> None:
    """Unmount what a daemon left behind that was killed; leave any other mount alone.

    Raises:
        MountError: it cannot be unmounted.
    """
    try:
        os.statvfs(mountpoint)
    except OSError as error:
        if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
            umount(mountpoint, lazy=True)


REFRESH = "user.aisfs.refresh"


def refresh(mountpoint: Path, paths: Sequence[Path]) -> int:
    """Make a mount forget what it knows of names, in all of it or below some paths.

    Args:
        mountpoint: The mount.
        paths: Absolute, or relative to it. What a file stands for is asked with all of its directory.

    Returns:
        How many names the kernel is made to look up again.

    Raises:
        MountError: there is no mount of aisfs, its daemon does not answer, or this user may not.
        ConfigError: a path lies outside.
        NotFound: there is nothing at a path, in the cluster either.
        AisfsError: the daemon could not do it; what it shows is as before.
    """
    mount = our_mount(mountpoint)
    places = [_place(mount, mountpoint, path) for path in paths] or [mount]
    try:
        ask(mount, ALIVE)  # what follows may take long, since it waits for the cluster
        return sum(_refresh_at(mount, place) for place in places)
    except OSError as error:
        raise _explained(mountpoint, error) from error


def _place(mount: Path, typed: Path, path: Path) -> Path:
    """Return where a path is in the mount, without touching it."""
    outside = ConfigError(f"{path} is not in the mount {typed}; a relative PATH begins there")
    for root in (mount, Path(os.path.abspath(typed))):
        place = Path(os.path.normpath(root / path))
        if place.is_relative_to(root):
            return mount / place.relative_to(root)
    raise outside


def _refresh_at(mount: Path, place: Path) -> int:
    """Refresh a path; if there is nothing, refresh the nearest directory above and look again."""
    above = place
    while True:
        try:
            names = _tell(above)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR) or above == mount:
                raise
            above = above.parent
            continue
        if above != place:
            try:
                ask(place, ALIVE, None)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR):
                    raise NotFound(
                        f"{place}: no such file or directory, in the source either"
                    ) from None
                if error.errno != errno.ENODATA:
                    raise
        return names


def _tell(place: Path) -> int:
    told = json.loads(ask(place, REFRESH, None))
    if "failed" in told:
        raise AisfsError(f"{place} is not refreshed: {told['failed']}")
    return int(told["names"])


def _explained(mountpoint: Path, error: OSError) -> MountError:
    if error.errno == errno.ENODATA:
        return MountError(
            f"{mountpoint}: its daemon is of an older aisfs; mount again to refresh it"
        )
    if error.errno == errno.EPERM:
        return MountError(f"{mountpoint}: only the user who mounted it, and root, may refresh it")
    return MountError(f"{mountpoint}: {error.strerror}")


ATTRIBUTE = "user.aisfs.stats"
WARNINGS = "user.aisfs.recent"
HEALTH = "user.aisfs.health"

Labels = frozenset[tuple[str, str]]


class Counters:
    """The samples of one reading."""

    def __init__(self, text: str) -> None:
        """Parse Prometheus' text form."""
        # It imports a web server, for which a third of `aisfs umount` would go.
        from prometheus_client.parser import text_string_to_metric_families

        self._samples: dict[str, dict[Labels, float]] = defaultdict(dict)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._samples[sample.name][frozenset(sample.labels.items())] = sample.value

    def value(self, name: str) -> int:
        """Return a counter without labels; 0 when the daemon has none of that name."""
        return int(self._samples[name].get(frozenset(), 0))

    def labels(self, name: str) -> dict[str, str]:
        """Return the labels of a metric that has one sample, which exists for its labels."""
        return dict(sorted(next(iter(self._samples[name]), frozenset())))

    def by(self, name: str, *labels: str) -> dict[str, int]:
        """Return the sums of a counter by the values of these labels; zeros are left out."""
        found: Counter[str] = Counter()
        for given, value in self._samples[name].items():
            values = dict(given)
            found[" ".join(values.get(label, "") for label in labels)] += int(value)
        return {words: count for words, count in sorted(found.items()) if count}


def read_counters(mountpoint: Path) -> Counters:
    """Ask the daemon of a mount for its counters.

    Raises:
        MountError: there is no mount of aisfs, or its daemon has died.
    """
    return Counters(_ask(mountpoint, ATTRIBUTE))


@dataclass(frozen=True, slots=True)
class MountReport:
    """How one mount is."""

    found: dict[str, object]
    """Sections of plain values."""
    warnings: list[dict[str, object]]
    """The last ones: the `time` of the last time, the `level`, the `text`, and how often as `count`."""


def read_report(mountpoint: Path, *, fastpath: bool = False) -> MountReport:
    """Ask the daemon of a mount how it is; with `fastpath` also about its threads.

    Raises:
        MountError: there is no mount of aisfs, or its daemon has died or does not answer.
    """
    counters = read_counters(mountpoint)
    about = json.loads(_ask(mountpoint, ABOUT, otherwise="{}"))
    # It asks the cluster, for two seconds at most.
    problem = _ask(mountpoint, HEALTH, otherwise="not known: the daemon is of an older aisfs")
    found = summary(counters)
    rates = about.pop("rates", None)
    mount = found.pop("mount")
    # A store without AIStore is not asked: it may charge for it.
    asked = "reachable" if mount.get("endpoint") else "none"
    report = {
        "mount": {**mount, **about, "cluster": problem or asked},
        **({"rates": rates} if rates is not None else {}),
        **found,
        **(fastpath_summary(counters) if fastpath else {}),
    }
    warnings = [
        {**warned, "time": datetime.fromtimestamp(warned["time"], UTC).isoformat("T", "seconds")}
        for warned in json.loads(_ask(mountpoint, WARNINGS, otherwise="[]"))
    ]
    return MountReport(report, warnings)


def _ask(mountpoint: Path, attribute: str, otherwise: str | None = None) -> str:
    """Read an attribute of a mount; return `otherwise` if its daemon is too old to have it."""
    try:
        return ask(our_mount(mountpoint), attribute).decode()
    except OSError as error:
        if error.errno == errno.ENODATA and otherwise is not None:
            return otherwise
        raise MountError(f"{mountpoint}: {error.strerror}") from error


def summary(counters: Counters) -> dict[str, Any]:
    """Return what `aisfs status` shows, as plain values."""
    shards = counters.value("aisfs_dataset_shards_to_open")
    opened = {
        "opened_shards": counters.value("aisfs_dataset_shards_opened"),
        "shards": shards,
        "files": counters.value("aisfs_dataset_opened_files"),
    }
    dataset = {
        **({"dataset": opened} if shards else {}),
        "dataset_shards": counters.by("aisfs_dataset_shards", "state"),
        "left_out": counters.by("aisfs_dataset_left_out", "reason"),
    }
    charged = counters.by("aisfs_store_requests_total", "class")
    transformed = {
        "done": counters.value("aisfs_transformations_total"),
        "failed": counters.value("aisfs_failed_transformations_total"),
        **counters.by("aisfs_running_transformations", "state"),
    }
    return {
        "mount": counters.labels("aisfs_mount")
        | {"inodes": counters.value("aisfs_inodes")}
        | ({"metrics": url} if (url := _listening(counters)) else {}),
        **(dataset if any(dataset.values()) else {}),
        **({"transformations": transformed} if any(transformed.values()) else {}),
        "cache": {
            "hit_percent": _percent(counters),
            "limit_bytes": counters.value("aisfs_cache_limit_bytes"),
            "used_bytes": counters.value("aisfs_cache_used_bytes"),
            "hits": counters.value("aisfs_cache_hits"),
            "misses": counters.value("aisfs_cache_misses"),
            "fetched_bytes": counters.value("aisfs_fetched_bytes_total"),
        },
        **_writing(counters),
        "requests": counters.by("aisfs_operations_total", "operation"),
        "failures": counters.by("aisfs_failed_operations_total", "operation", "errno"),
        "store_calls": counters.by("aisfs_store_request_seconds_count", "call"),
        **({"requests_by_class": charged} if charged else {}),
    }


def _percent(counters: Counters) -> float | None:
    """Return how many of the ranges that were looked for in the disk cache were there."""
    hits, misses = counters.value("aisfs_cache_hits"), counters.value("aisfs_cache_misses")
    return round(100 * hits / (hits + misses), 1) if hits + misses else None


def _listening(counters: Counters) -> str:
    return counters.labels("aisfs_metrics_listening").get("url", "")


def _writing(counters: Counters) -> dict[str, object]:
    """Return what is being written and uploaded; nothing on a read-only mount."""
    limit = counters.value("aisfs_staging_limit_bytes")
    if not limit:
        return {}
    sizes = counters.by("aisfs_upload_size_bytes", "object")
    sent = counters.by("aisfs_upload_sent_bytes", "object")
    uploads = {
        name: {"sent_bytes": sent.get(name, 0), "size_bytes": sizes.get(name)}
        for name in sorted(sizes | sent)
    }
    staging = {
        "staged_bytes": counters.value("aisfs_staging_used_bytes"),
        "limit_bytes": limit,
        "sent_bytes": counters.value("aisfs_sent_bytes_total"),
    }
    waiting = {
        "waiting_files": counters.value("aisfs_waiting_files"),
        "waiting_bytes": counters.value("aisfs_waiting_bytes"),
        "failed_uploads": counters.value("aisfs_failed_uploads"),
    }
    staging |= waiting if any(waiting.values()) else {}
    return {"writing": staging, "uploads": uploads} if uploads else {"writing": staging}


def fastpath_summary(counters: Counters) -> dict[str, object]:
    """Return which threads answered the kernel, and what became of pushed members."""
    return {
        "answers": counters.by("aisfs_operations_total", "operation", "answered_by"),
        "push": {
            "members": counters.value("aisfs_pushed_members_total"),
            "bytes": counters.value("aisfs_pushed_bytes_total"),
            "used": counters.value("aisfs_pushed_members_used_total"),
            "wasted": counters.value("aisfs_pushed_members_wasted_total"),
            "dropped_events": counters.value("aisfs_push_dropped_events_total"),
        },
    }
