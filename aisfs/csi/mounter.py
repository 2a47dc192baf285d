"""The process whose children serve volumes: it needs no rights, since each mount is made for it.

The driver sends what to mount and the descriptor of the mount in one message, and waits for the result. A child is
forked for each message; it starts the daemon of the volume and ends with the answer, which comes in time: a daemon
that is not ready by then is killed. Which volumes there are, the kernel knows, and a daemon ends when its volume
is unmounted. All that is kept is which daemons were killed, and why, since the kernel forgets that. Between the mounter and
the daemon of a volume that is only read is its keeper (`volume_keeper`).

A daemon, or its keeper, is found again by what only /proc has: its name, and the names of its secrets, have the device number of its mount.
"""

import ctypes
import logging
import os
import re
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar

import msgspec
import trio

from aisfs.csi.identity import CLOUD_TOKEN, POD_TOKEN, check_exchange, for_aistore
from aisfs.csi.volume_keeper import (
    Home,
    Restart,
    be_killed_first,
    keep_volume,
    listen,
    name_of,
    take_volume,
)
from aisfs.csi.volumes import (
    TOKEN,
    Code,
    Secrets,
    Volume,
    VolumeError,
    check_endpoint,
    check_setup,
    code_of,
    shortened,
)
from aisfs.errors import AccessDenied, AisfsError, ConfigError
from aisfs.mount import run as mounts
from aisfs.mount.setup import MountSetup, mount_setup
from aisfs.settings import ALL_SETTINGS, CacheSettings, ClusterSettings, MonitoringSettings, clouds
from aisfs.settings.values import existing_directory
from aisfs.stores.ais.client import AISClient
from aisfs.system import daemon
from aisfs.system.logs import RecentWarnings
from aisfs.system.memory import MachineMemory

if TYPE_CHECKING:
    from types import FrameType

    from aisfs.system.daemon import Reporter

log = logging.getLogger(__name__)

T = TypeVar("T", bound="Answer | Status")

MESSAGE_MAX = 128 << 10
"""Bytes of a message. Kubernetes' secrets and attributes that are larger do not fit a socket's buffer."""
END_SECONDS = 20
"""How long daemons have to end: Kubernetes kills a pod after 30 seconds."""
OPEN_SECONDS = 600.0
"""How long a volume may take to be ready: large datasets take minutes, and others must not wait for them."""
_CONNECT_SECONDS = 5.0
_LOOK_MS = 300
LOOK_SECONDS = 1.0
"""How often a new mounter looks whether an earlier one has a volume for it."""
READY = "aisfs-ready"
"""Name of the process once it has taken over what there was: what the probe of its pod looks for."""
_PR_SET_CHILD_SUBREAPER = 36


class Serve(msgspec.Struct, tag=True):
    """Asks for a daemon; the descriptor of the mount comes with it."""

    device: int
    """Number of the mount's device, which no other mount has at the same time."""
    volume: Volume


class Renew(msgspec.Struct, tag=True):
    """Gives the daemon of a mount other secrets."""

    device: int
    secrets: dict[str, str]


class Ask(msgspec.Struct, tag=True):
    """Asks how the mounter is."""


class Answer(msgspec.Struct):
    """How it went."""

    code: Code = Code.OK
    reason: str = ""


class Status(msgspec.Struct):
    """How the mounter is."""

    daemons: int
    """Volumes that are served."""
    killed: dict[int, str]
    """Why daemons died, by the device number of their mounts: the latest ones."""
    deaths: dict[str, int]
    """How many died of each signal; `OUT_OF_MEMORY` is one of its own."""
    memory_limit: int | None
    memory_available: int | None
    devices: list[int] = []
    """The device numbers of the mounts that are served."""
    restarted: dict[int, str] = {}
    """Why the daemons of these died before those that serve them now."""


OUT_OF_MEMORY = "out of memory"
OUT_OF_MEMORY_WORDS = "by the kernel for lack of memory"
_KILLED_MOST = 256
"""Daemons whose end is remembered: more than a node has volumes."""


class Mounter:
    """A connection to the mounter, for one question."""

    def __init__(self, path: Path) -> None:
        """Connect to the socket `path`.

        Raises:
            VolumeError: nothing listens there, or what listens hangs.
        """
        self._path = path
        try:
            self._connection = connect(path)
        except OSError as error:
            raise VolumeError(
                Code.UNAVAILABLE,
                f"mounter {path}: {error.strerror or error}: the mounter of this node does not run,"
                " see its pod, app=aisfs-csi-mounter; volumes are mounted once it does",
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self._connection.close()

    def serve(
        self, device: int, volume: Volume, fd: int, given_up: Callable[[], bool] = lambda: False
    ) -> None:
        """Have a volume served; return when it is ready.

        Args:
            device: The device number of the mount.
            volume: What to show.
            fd: The descriptor of the mount, which stays open here.
            given_up: Returns whether nobody wants the volume any more; asked now and then.

        Raises:
            VolumeError: why it cannot be served, or `given_up`.
        """
        said = self._ask(Serve(device, volume), Answer, fd, given_up)
        if said.code is not Code.OK:
            raise VolumeError(said.code, said.reason)

    def renew(self, device: int, secrets: Mapping[str, str]) -> str:
        """Give the daemon of a mount other secrets; return which of them it cannot take, and why."""
        said = self._ask(Renew(device, dict(secrets)), Answer)
        if said.code is not Code.OK:
            raise VolumeError(said.code, said.reason)
        return said.reason

    def status(self) -> Status:
        """Return how the mounter is."""
        return self._ask(Ask(), Status)

    def _ask(
        self,
        question: Serve | Renew | Ask,
        kind: type[T],
        fd: int | None = None,
        given_up: Callable[[], bool] = lambda: False,
    ) -> T:
        message = msgspec.json.encode(question)
        if len(message) > MESSAGE_MAX:
            raise VolumeError(Code.INVALID_ARGUMENT, "the attributes and secrets are too large")
        try:
            socket.send_fds(self._connection, [message], [] if fd is None else [fd])
            _wait(self._connection, given_up)
            answer = self._connection.recv(MESSAGE_MAX)
        except OSError as error:
            raise VolumeError(
                Code.UNAVAILABLE, f"mounter {self._path}: {error.strerror or error}"
            ) from error
        if not answer:
            raise VolumeError(Code.UNAVAILABLE, f"mounter {self._path}: ended before it answered")
        try:
            return msgspec.json.decode(answer, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise _refusal(answer) from None


def _refusal(answer: bytes) -> VolumeError:
    try:
        said = msgspec.json.decode(answer, type=Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        said = Answer(Code.INTERNAL, "the answer of the mounter makes no sense: update both")
    return VolumeError(said.code, said.reason)


def _wait(connection: socket.socket, given_up: Callable[[], bool]) -> None:
    """Wait for the answer of the mounter, which ends a start that takes too long itself."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    deadline = time.monotonic() + OPEN_SECONDS + 2 * END_SECONDS
    while not poll.poll(_LOOK_MS):
        if given_up():
            raise VolumeError(Code.ABORTED, "the volume was unpublished before it was ready")
        if time.monotonic() > deadline:
            raise TimeoutError("no answer in time")


def connect(mounter: Path) -> socket.socket:
    """Connect to the mounter's socket.

    Raises:
        OSError: nothing listens there, or what listens hangs.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(_CONNECT_SECONDS)
    try:
        connection.connect(str(mounter))
    except OSError:
        connection.close()
        raise
    return connection


def check_environment() -> None:
    """Check what all volumes take from the environment and the configuration files.

    Raises:
        ConfigError, AccessDenied: no volume could be served with that.
    """
    for settings in ALL_SETTINGS:
        settings.load({})
    cluster = ClusterSettings.load({})
    if cluster.endpoint:
        AISClient(cluster)  # reads the token and the certificates, and sends nothing
    check_exchange()
    mount_setup(["ais://bucket"], Path("/dev/fd/3"), (), {"endpoint": "http://localhost"})
    address = MonitoringSettings.load({}).listen_on
    if address is not None and address[1]:
        raise ConfigError(
            "AISFS_METRICS_ADDR: only one volume could listen there; give the driver --metrics-addr"
        )
    cache = CacheSettings.load({})
    if cache.cache_size != 0:
        there = existing_directory(cache.cache_dir, "cache-dir")
        if not os.access(there, os.W_OK | os.X_OK):
            raise AccessDenied(
                f"cache-dir {cache.cache_dir}: user {os.geteuid()} may not write to {there}"
            )


class _Ends:
    """How daemons ended. For the first process of the mounter alone, in the handler of SIGCHLD."""

    def __init__(self) -> None:
        self.killed: dict[int, str] = {}
        self.deaths: dict[str, int] = {}
        self.restarted: dict[int, str] = {}
        self.restarts, self.keepers = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        """A pipe with a line for each `Restart`."""
        self._memory = MachineMemory()
        self._out_of_memory = self._memory.killed()

    def read(self) -> None:
        """Note each daemon that has ended and was started again."""
        with _alone(), suppress(BlockingIOError):
            for line in os.read(self.restarts, _PIPE).splitlines():
                restart = msgspec.json.decode(line, type=Restart)
                why = self._count(restart.signal) if restart.signal else restart.cause
                self.restarted[restart.device] = _died(why)
                log.error(
                    "process %d of device 0:%d %s; another one goes on",
                    restart.pid,
                    restart.device,
                    why,
                )

    def reap(self) -> None:
        """Note the end of each child that has ended."""
        with _alone(), suppress(ChildProcessError):
            while (
                ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            ) is not None:
                found = _NAME.fullmatch(Path(f"/proc/{ended.si_pid}/comm").read_text())
                if found is not None:
                    self._note(int(found[1]), ended)
                os.waitpid(ended.si_pid, 0)

    def _note(self, device: int, ended: os.waitid_result) -> None:
        self.read()
        self.killed.pop(device, None)
        last = self.restarted.pop(device, "")
        if ended.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
            why = self._count(ended.si_status)
            last = _died(why)
            log.error("process %d of device 0:%d %s", ended.si_pid, device, why)
        elif not ended.si_status:
            return
        if last:  # a keeper that has given up says so itself
            self.killed[device] = last
        while len(self.killed) > _KILLED_MOST:
            del self.killed[next(iter(self.killed))]

    def _count(self, number: int) -> str:
        """Count a daemon that was killed by a signal; return how in words."""
        name = signal.Signals(number).name
        before, self._out_of_memory = self._out_of_memory, self._memory.killed()
        why = f"was killed by {name}"
        if name == "SIGKILL" and self._out_of_memory > before:
            name = OUT_OF_MEMORY
            room = self._memory.limit()
            of = f", {room.size >> 20} MiB for all volumes of the node," if room is not None else ""
            why = f"was killed {OUT_OF_MEMORY_WORDS}: the mounter's limit{of} is used up"
        self.deaths[name] = self.deaths.get(name, 0) + 1
        return why


def _died(why: str) -> str:
    return f"the process that serves the volume has died: it {why}"


@contextmanager
def _alone() -> Iterator[None]:
    """Take no SIGCHLD: an end would be noted in the midst of another, and its process gone when that looks at it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_PIPE = 1 << 16
"""Bytes that are in a pipe at most."""
_NAME = re.compile(r"aisfs vol (\d+)\n")
"""Names of daemons, at most 15 characters, with the device numbers of their mounts."""


def run(path: Path) -> None:
    """Serve volumes until SIGTERM; then unmount nothing, but let each daemon finish what it writes.

    Raises:
        ConfigError, AccessDenied: the environment is unfit for volumes.
        OSError: `path` cannot be listened on.
    """
    check_environment()
    # As the first process of a container, and then elsewhere too: daemons become our children.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ends = _Ends()
    signal.signal(signal.SIGCHLD, lambda *_: ends.reap())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # or it would unmount: daemons inherit this
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)
    home = Home(path.absolute().parent, time.time_ns(), ends.keepers)
    with listen(path) as listener:
        log.info("waiting for volumes on %s", path)
        earlier = _Earlier(home, listener, ends)
        while True:
            asked, _, _ = select.select([listener.fileno(), ends.restarts], [], [], earlier.look())
            ends.read()
            if listener.fileno() not in asked:
                continue
            connection, _ = listener.accept()
            with connection:
                try:
                    child = os.fork()
                except OSError as error:  # the volumes that there are go on
                    _refuse(connection, _no_process(error))
                    continue
                if child == 0:
                    _answer(connection, listener, ends, home)


class _Earlier:
    """Volumes of a mounter before this one, whose pod ends once this one is ready."""

    def __init__(self, home: Home, listener: socket.socket, ends: _Ends) -> None:
        self._home = home
        self._inherited = listener, ends
        self._begun: dict[Path, int] = {}
        self._until = time.monotonic() + OPEN_SECONDS
        self._is_ready = False

    def look(self) -> float | None:
        """Take what is there; return after how many seconds to look again, since what is being published comes later."""
        places = self._home.earlier()
        for place in places:
            if place not in self._begun:
                with suppress(OSError):  # no process; the next look tries again
                    self._begun[place] = os.fork() or self._take(place)
        late = time.monotonic() > self._until
        own = _children() if places else set()
        if not self._is_ready and (late or not any(self._begun.get(p) in own for p in places)):
            self._is_ready = True
            Path("/proc/self/comm").write_text(READY)
            log.info("ready: no volume of an earlier mounter is left to be taken over")
        return None if late else LOOK_SECONDS

    def _take(self, place: Path) -> NoReturn:
        listener, ends = self._inherited
        code = 1
        try:
            _become_child(listener, ends)
            os.setsid()
            os.chdir("/")
            code = take_volume(place, partial(_setup, sharers=_sharers()), self._home)
        except (AisfsError, OSError, ValueError, msgspec.MsgspecError) as error:
            log.error("%s stays with the mounter before: %s", place.name, error)
        except Exception:
            log.exception("%s stays with the mounter before: please report it", place.name)
        finally:
            os._exit(code)


def _become_child(listener: socket.socket, ends: _Ends) -> None:
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    listener.close()
    os.close(ends.restarts)


def _refuse(connection: socket.socket, answer: Answer) -> None:
    """Answer a question without a look at it; it is read, since the driver would see a reset otherwise."""
    with suppress(OSError):
        connection.settimeout(_CONNECT_SECONDS)
        _, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_MAX, 1)
        for fd in descriptors:
            os.close(fd)
        connection.send(msgspec.json.encode(answer))


def _no_process(error: OSError) -> Answer:
    log.error("no process for a volume: %s", error.strerror)
    return Answer(Code.RESOURCE_EXHAUSTED, f"the mounter can start no process: {error.strerror}")


def _end(number: int, frame: "FrameType | None") -> None:
    told: set[int] = set()
    deadline = time.monotonic() + END_SECONDS
    # Again and again: a daemon that has just begun becomes our child when its parent has answered.
    while (children := _children()) and time.monotonic() < deadline:
        for child in children - told:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
        told |= children
        signal.sigtimedwait([], 0.05)
    raise SystemExit(0)


def _children(of: str = "thread-self") -> set[int]:
    return {int(pid) for pid in Path(f"/proc/{of}/children").read_text().split()}


def _answer(connection: socket.socket, listener: socket.socket, ends: _Ends, home: Home) -> None:
    """Answer one question of the driver; never returns."""
    code = 1
    try:
        _become_child(listener, ends)
        data, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_MAX, 1)
        if data:  # else the driver has only looked whether we are here
            connection.send(msgspec.json.encode(_answer_to(data, descriptors, ends, home)))
        code = 0
    except OSError as error:
        log.warning("the driver did not take the answer: %s", error.strerror)
    finally:
        os._exit(code)


def _answer_to(data: bytes, descriptors: list[int], ends: _Ends, home: Home) -> Answer | Status:
    try:
        question: Serve | Renew | Ask = msgspec.json.decode(data, type=Serve | Renew | Ask)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return Answer(
            Code.INTERNAL, f"driver and mounter are of different versions, update both: {error}"
        )
    match question:
        case Serve(device, volume):
            return _start(device, volume, descriptors[0], home)
        case Renew(device, secrets):
            try:
                own = [pid for pid, served in _daemons().items() if served == device]
                return Answer(reason=Secrets(device).renew(own, _final(secrets)))
            except AisfsError as error:
                return Answer(code_of(error), str(error))
        case Ask():
            memory = MachineMemory()
            room, served = memory.limit(), _daemons()
            return Status(
                daemons=len(served),
                devices=list(served.values()),
                killed=ends.killed,
                restarted=ends.restarted,
                deaths=ends.deaths,
                memory_limit=None if room is None else room.size,
                memory_available=memory.available(),
            )


def _daemons() -> dict[int, int]:
    """Return the processes that serve volumes, with the device numbers of their mounts; for a child of the mounter."""
    found = {}
    for pid in _children(f"{os.getppid()}/task/{os.getppid()}"):
        with suppress(OSError):  # it has ended
            name = _NAME.fullmatch(Path(f"/proc/{pid}/comm").read_text())
            if name is not None:
                found[pid] = int(name[1])
    return found


def _start(device: int, volume: Volume, fd: int, home: Home) -> Answer:
    """Start the daemon of a volume, and kill it if it is not ready in time."""
    named = shortened(" ".join(volume.sources))
    log.info("serving %s", named)
    sharers = _sharers()
    # Ends the daemon by SIGTERM as Ctrl-C would, and after another while by SIGKILL.
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, OPEN_SECONDS, END_SECONDS)
    try:
        code, reason = daemon.detach(
            lambda reporter: _serve(device, volume, fd, sharers, home, reporter),
            keep_stderr=True,
        )
    except OSError as error:
        return _no_process(error)
    except KeyboardInterrupt:
        return Answer(
            Code.UNAVAILABLE,
            f"{named}: not ready within {OPEN_SECONDS:g} s; with the attribute"
            " lazy a view is mounted before all of its shards are open",
        )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return Answer(Code(code) if code in frozenset(Code) else Code.INTERNAL, reason)


def _serve(
    device: int,
    volume: Volume,
    fd: int,
    sharers: Callable[[], int],
    home: Home,
    reporter: "Reporter",
) -> None:
    Path("/proc/self/comm").write_bytes(name_of(device))
    warnings = RecentWarnings()
    warnings.attach()
    try:
        setup = _setup(device, fd, volume, sharers)
        # What is written would need the session of its daemon, which no other pod can go on with.
        outlives = mounts.can_outlive(setup) and not setup.writing.writable
        keeping = keep_volume(device, fd, volume, setup, home) if outlives else None
        be_killed_first()
        trio.run(mounts.run, setup, reporter, warnings, None, keeping)
    except AisfsError as error:
        text = _IN_MEMORY.sub("of the volume's secret", str(error))
        text = f"{text}{_about_token(volume)}" if isinstance(error, AccessDenied) else text
        failure = VolumeError(code_of(error), text)  # only this process knows the token
        log.error("%s", failure)
        reporter.failed(str(failure), failure.code)
    except Exception as error:
        log.exception("the mount ended on a bug in aisfs, please report it")
        failure = VolumeError(Code.INTERNAL, f"unexpected {type(error).__name__}: {error}")
        reporter.failed(str(failure), failure.code)
    else:
        reporter.failed("the volume was unmounted before it was ready", Code.ABORTED)


def _setup(device: int, fd: int, volume: Volume, sharers: Callable[[], int]) -> MountSetup:
    """Return what to serve, with the secrets in this process."""
    check_endpoint(volume)
    kept = Secrets(device).keep(_final(volume.secrets))
    token_file = kept.pop(CLOUD_TOKEN, "")
    clouds.use_identity(volume.cloud.variables_for(token_file), token_file)
    settings = {**volume.settings, **kept}
    setup = mount_setup(volume.sources, Path(f"/dev/fd/{fd}"), (), settings)
    check_setup(volume, setup)
    setup = replace(setup, reach=volume.permitted.reach, sharers=sharers)
    mounts.check(setup)
    return setup


def _sharers() -> Callable[[], int]:
    """Return what counts the volumes; for a child of the mounter."""
    siblings = f"{os.getppid()}/task/{os.getppid()}"

    def sharers() -> int:
        try:
            return max(len(_children(siblings)), 1)
        except OSError:  # the mounter has ended, and its daemons are about to
            return 1

    return sharers


_IN_MEMORY = re.compile(r"\(?/proc/self/fd/\d+\)?")
"""What errors call a secret, which is a file to the rest of aisfs."""


def _final(secrets: Mapping[str, str]) -> dict[str, str]:
    """Return secrets as a daemon keeps them: with a token for AIStore instead of the pod's."""
    found = dict(secrets)
    if token := found.pop(POD_TOKEN, ""):
        found[TOKEN] = for_aistore(token)
    return found


def _about_token(volume: Volume) -> str:
    if CLOUD_TOKEN in volume.secrets:
        return " (in Kubernetes: the cloud gives the service account of the pod no access)"
    if POD_TOKEN in volume.secrets:
        return " (in Kubernetes: it is the token of the pod's service account that is refused)"
    if TOKEN in volume.secrets:
        return " (in Kubernetes the token is in the secret that the volume's nodePublishSecretRef names)"
    return " (in Kubernetes: the volume names no secret with a token in nodePublishSecretRef)"
