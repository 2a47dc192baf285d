"""The keeper of a mount: the small process that starts the mount's daemon again when it dies.

It runs as a program of its own (`python -I -S keeper.py MOUNTPOINT FD`) and imports nothing of aisfs, so that it
stays small and does not change while it runs. It holds open what would be lost with a daemon: /dev/fuse, and
anonymous files that say which inode numbers the kernel knows. While it holds them, requests wait instead of failing.

FD is an anonymous file with JSON: what to keep (`Kept`). Each daemon has a socket to the keeper. Messages are JSON
objects, with descriptors beside them:

    to the keeper     {"mounted": INIT}   and /dev/fuse: what has been agreed with the kernel
                      {"ready": true}     requests are answered: from now on it is started again
                      {"holds": true}     and the lock of its staged files, which is to last as long as the mount
                      {"upgrade": true}   start the program that is installed now beside this daemon
                      {"loaded": true}    the new daemon can take over
                      {"failed": REASON}  it cannot go on with the mount now; CODE says whether to try again
                      {"ended": true}     the mount is over
    to a daemon       {"takeover": …}     first of all, to one that goes on with a mount: see `_start`
                      {"go": true}        the daemon before it is gone
                      {"refused": REASON} the upgrade has failed, and this daemon goes on
"""

import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

PAUSES = (*[0.0] * 5, *[1.0] * 5, *[2.0] * 10)
"""Seconds before each start in a row of daemons that died at once. After the last one the keeper gives up: readers wait
meanwhile, for less than a minute."""
AT_ONCE_SECONDS = 1.0
"""A daemon that served this long did not die at once."""
AGAIN_SECONDS = 10.0
"""Between two tries to go on with a mount whose cluster does not answer: it may be back at any time."""
UPGRADE_SECONDS = 300.0
"""How long a new daemon may load beside the old one; a dataset without indexes takes minutes."""
LOOK_SECONDS = 0.5
"""How often a daemon is looked at whose main thread may have ended while another one hangs in the kernel."""
REAP_SECONDS = 0.5
"""How long the threads of a process may take to end after its first one; usually a millisecond."""
TRACE_MAX = 16384
MESSAGE_MAX = 65536
NAME = b"aisfs-keeper"
NAME_RESTARTING = b"aisfs-restarts"
"""Names for `ps` and `aisfs status`: the second one while no daemon answers. The kernel takes 15 bytes."""
_PR_SET_NAME = 15


class Kept:
    """What is kept, as the first daemon has written it down before it started this process."""

    def __init__(self, fd: int) -> None:
        with open(fd, "rb") as file:
            said = json.load(file)
        self.command = said["command"]
        """Starts the installed aisfs, up to the word `mount`."""
        self.words = said["words"]
        """What follows that word."""
        self.directory = said["directory"]
        self.options = said["options"]
        """Anonymous file with the options of the mount."""
        self.numbers = said["numbers"]
        """Two anonymous files with the inode numbers."""
        self.trace = said["trace"]
        """Where a daemon that crashes writes its traceback."""
        sockets = [said["socket"]] if "socket" in said else []
        for fd in (*sockets, self.options, *self.numbers, self.trace):
            os.set_inheritable(fd, False)
        self.daemon: Daemon | None = None
        """The first one; None if the mount has one that another keeper started."""
        if "pid" in said:
            self.daemon = Daemon(said["pid"], socket.socket(fileno=said["socket"]))


class Daemon:
    """A process that serves the mount, or is going to."""

    def __init__(self, pid: int, end: socket.socket, *, takes_over: bool = False) -> None:
        self.pid = pid
        self.takes_over = takes_over
        """Whether there was a daemon before it."""
        self.end: socket.socket | None = end
        """Our end of its socket."""
        self.since = time.monotonic()
        self.ready = False
        self.ended = False
        self.failed: tuple[str, bool] | None = None
        """Why it cannot go on with the mount now, and whether it could a little later."""
        self.status: int | None = None
        """How it ended, as of wait(2)."""
        self.group = ""
        self.killed_before = 0

    def note_group(self) -> None:
        """Remember how many processes of its control group were killed for lack of memory."""
        self.group, self.killed_before = self.killed()

    def killed(self) -> tuple[str, int]:
        """Return its control group, and how many processes in it were killed for lack of memory."""
        with suppress(OSError), open(f"/proc/{self.pid}/cgroup") as file:
            for line in file:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                counts = f"/sys/fs/cgroup{path}/memory.events"
                if controllers:  # the first version of control groups
                    counts = f"/sys/fs/cgroup/{controllers}{path}/memory.oom_control"
                with suppress(OSError), open(counts) as found:
                    for count in found:
                        if count.startswith("oom_kill "):
                            return path, int(count.split()[1])
        return "", 0

    def has_died(self) -> bool:
        """Return whether it has ended, or waits for one of its threads that hangs in the kernel.

        Such a thread waits for a request that only the next daemon can answer.
        """
        try:
            done = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if done is None:
                with open(f"/proc/{self.pid}/stat", "rb") as file:
                    return file.read().rpartition(b") ")[2][:1] == b"Z"
        except (OSError, ChildProcessError):
            return True
        return True

    def cause(self) -> str:
        """Return how it ended, in words, and reap it if that is possible."""
        group, killed = self.killed()
        self.status = reap(self.pid)
        if self.status is None:
            return "was killed, and one of its threads hangs in the kernel"
        code = os.waitstatus_to_exitcode(self.status)
        if code >= 0:
            return f"ended with exit code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        if -code == signal.SIGKILL and group == self.group and killed > self.killed_before:
            return "was killed because its control group ran out of memory"
        return f"was killed by {name}"


class Keeper:
    """Waits, and starts daemons."""

    names = NAME, NAME_RESTARTING

    def __init__(self, mountpoint: str, kept: Kept) -> None:
        self.mountpoint = mountpoint
        self.kept = kept
        self.daemon = kept.daemon
        self.next: Daemon | None = None
        """The daemon of an upgrade that is under way."""
        self.device: int | None = None
        self.held: list[int] = []
        """The lock of the staged files, of a mount that can be written."""
        self.agreed = ""
        self.restarts = 0
        self.in_a_row = 0
        self.awaited = 0.0
        """When the next daemon is to be started, by `time.monotonic`; 0 while there is one."""
        self.cause = ""
        self.signals: list[int] = []
        """Those that came while no daemon could take them."""
        self.ending = False
        """Whether one of them, or one that a daemon got as it died, asks the mount to end."""

    # signals ---------------------------------------------------------------------------------

    def take_signals(self) -> int:
        """Pass on what asks a mount to end, or to read its configuration again."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        os.set_blocking(reader, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        passed = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
        if os.isatty(0):  # the terminal sends it to the daemon, too
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            passed.remove(signal.SIGINT)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as nohup sets it
            passed.remove(signal.SIGHUP)
        for number in (*passed, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        # They were blocked by what became this process.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        return reader

    def pass_on(self, number: int) -> None:
        """Send a signal to the daemon, once there is one that can take it."""
        self.ending = self.ending or number in (signal.SIGTERM, signal.SIGINT)
        if self.daemon is None or (self.daemon.takes_over and not self.daemon.ready):
            self.signals.append(number)
            return
        self.kill(self.daemon, number)

    @staticmethod
    def kill(daemon: Daemon, number: int) -> None:
        """Send a signal."""
        with suppress(ProcessLookupError):
            os.kill(daemon.pid, number)

    @staticmethod
    def forget(daemon: Daemon) -> None:
        """Let go of a daemon that has ended, or was killed."""
        if daemon.end is not None:
            daemon.end.close()
            daemon.end = None
        reap(daemon.pid)

    # the loop --------------------------------------------------------------------------------

    def run(self) -> int:
        """Return the exit code once the mount is over."""
        asked = self.take_signals()
        while True:
            self.wait(asked)
            if self.next is not None:
                self.look_at_upgrade(self.next)
            if self.daemon is not None and self.daemon.has_died():
                code = self.died(self.daemon)
                if code is not None:
                    return code
            self.reap_others()
            if self.daemon is None and self.next is None:
                if self.device is not None and not self.mounted(self.device):
                    return 0
                if self.ending:
                    self.unmount()
                if time.monotonic() >= self.awaited:
                    self.daemon = self.start()

    def wait(self, asked: int) -> None:
        """Wait for signals and messages, and take them; not for longer than there is nothing to look at."""
        talking = {d.end.fileno(): d for d in (self.daemon, self.next) if d is not None and d.end}
        poll = select.poll()
        also = self.also()
        for fd in (asked, *talking, *also):
            poll.register(fd, select.POLLIN)
        is_idle = self.daemon is None and self.next is None
        if is_idle and self.device is not None:
            poll.register(self.device, 0)  # this wakes up when it is unmounted
        seconds = self.awaited - time.monotonic() if is_idle else LOOK_SECONDS
        for fd, _ in poll.poll(max(seconds, 0.0) * 1000):
            if fd in talking:
                self.receive(talking[fd])
            elif fd in also:
                also[fd]()
            elif fd == asked:
                for number in os.read(asked, 4096):
                    if number != signal.SIGCHLD:
                        self.pass_on(number)

    def also(self) -> dict[int, Callable[[], None]]:
        """Return what else is waited for, and what is done then; for keepers of other kinds."""
        return {}

    def receive(self, daemon: Daemon) -> None:
        """Take a message of a daemon, if it still talks."""
        if daemon.end is None:
            return
        try:
            data, descriptors = received(daemon.end, 1, socket.MSG_DONTWAIT)
        except OSError:
            data, descriptors = b"", []
        if not data:
            daemon.end.close()
            daemon.end = None
            return
        self.take(daemon, json.loads(data), descriptors)

    def take(self, daemon: Daemon, message: dict[str, Any], descriptors: list[int]) -> None:
        """Do what a daemon asks for, or note what it says."""
        if "mounted" in message:
            self.agreed, self.device = message["mounted"], descriptors[0]
        elif "holds" in message:
            self.held = descriptors
        elif "ready" in message:
            self.answers(daemon)
        elif (
            "ended" in message
        ):  # what still uses the mount gets an error now, not at the daemon's end
            daemon.ended = True
            if self.device is not None:
                os.close(self.device)
        elif "failed" in message:
            daemon.failed = message["failed"], message["again"]
        elif "loaded" in message:
            self.take_over(daemon)
        elif self.next is None:
            self.next = self.start(upgrade=True)

    def answers(self, daemon: Daemon) -> None:
        """Note that requests are answered."""
        daemon.ready, daemon.since = True, time.monotonic()
        daemon.note_group()
        name(self.names[0])
        for number in self.signals:
            self.kill(daemon, number)
        self.signals.clear()

    def reap_others(self) -> None:
        """Let go of daemons that ended late, and of what they left to this process if it is the first of a container."""
        ours = {daemon.pid for daemon in (self.daemon, self.next) if daemon is not None}
        with suppress(ChildProcessError):
            how = os.WEXITED | os.WNOHANG | os.WNOWAIT
            while (ended := os.waitid(os.P_ALL, 0, how)) and ended.si_pid not in ours:
                reap(ended.si_pid)

    # upgrades --------------------------------------------------------------------------------

    def look_at_upgrade(self, new: Daemon) -> None:
        """Give up an upgrade that does not come to its end."""
        late = time.monotonic() - new.since > UPGRADE_SECONDS
        if not late and not new.has_died():
            return
        self.kill(new, signal.SIGKILL)
        reason = (
            new.failed[0]
            if new.failed
            else f"the new daemon {'is not ready' if late else new.cause()}"
        )
        self.next = None
        self.forget(new)
        if self.daemon is not None:
            send(self.daemon, {"refused": reason})

    def take_over(self, new: Daemon) -> None:
        """Replace the daemon by the one that has loaded beside it: the kernel sends it again what is not answered."""
        if new is not self.next:
            return
        self.next = None
        old, self.daemon = self.daemon, new
        if old is not None:
            self.kill(old, signal.SIGKILL)
            while not old.has_died():
                time.sleep(0.001)  # noqa: TID251 - this is no daemon
            self.forget(old)
        name(self.names[1])
        new.since = time.monotonic()
        send(new, {"go": True})

    # restarts --------------------------------------------------------------------------------

    def died(self, daemon: Daemon) -> int | None:
        """Begin again, or return the exit code if the mount is over."""
        self.drain(daemon)
        served = daemon.ready and time.monotonic() - daemon.since >= AT_ONCE_SECONDS
        cause = daemon.cause()
        code = 0 if daemon.status is None else os.waitstatus_to_exitcode(daemon.status)
        self.daemon = None
        started = daemon.ready or daemon.takes_over
        if daemon.ended or self.device is None or not self.mounted(self.device) or not started:
            if self.next is not None:
                self.kill(self.next, signal.SIGKILL)
                self.forget(self.next)
            if code < 0:  # as if there were no keeper
                _ = -code == signal.SIGKILL or signal.signal(-code, signal.SIG_DFL)
                os.kill(os.getpid(), -code)
            return code if code >= 0 else 128 - code  # the first process of a container survives
        name(self.names[1])
        self.cause = f"process {daemon.pid} {cause}"
        if daemon.failed is not None:
            self.cause = f"process {daemon.pid} could not go on with the mount: {daemon.failed[0]}"
        if daemon.failed is not None and daemon.failed[1]:
            self.awaited = time.monotonic() + AGAIN_SECONDS
            return None
        self.in_a_row = 1 if served else self.in_a_row + 1
        if self.in_a_row > len(PAUSES):
            self.give_up()
            return 1
        self.awaited = time.monotonic() + PAUSES[self.in_a_row - 1]
        return None

    def drain(self, daemon: Daemon) -> None:
        """Take what a daemon has said before its end; do not wait for a thread of it that hangs."""
        while daemon.end is not None:
            self.receive(daemon)

    def mounted(self, device: int) -> bool:
        """Return whether the kernel still has the mount."""
        poll = select.poll()
        poll.register(device, 0)
        return not poll.poll(0)

    def unmount(self) -> NoReturn:
        """Unmount where no daemon can: when this program is replaced, requests fail, and nothing waits any more."""
        os.execvp("fusermount3", ["fusermount3", "-u", "-z", "--", self.mountpoint])

    def give_up(self) -> None:
        """Say why; requests fail as soon as this process has ended."""
        text = (
            f"aisfs: {self.mountpoint}: its daemons die again and again, so this mount is given up;"
            f" the last one: {self.cause}\n"
        )
        with suppress(OSError):
            os.write(2, text.encode(errors="replace"))
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
            log.connect("/dev/log")
            log.send(b"<10>" + text.encode(errors="replace").rstrip())

    def start(self, *, upgrade: bool = False) -> Daemon:
        """Start a daemon that goes on with the mount.

        It finds its socket as a descriptor, and in it what it needs: in this order /dev/fuse, the options, the two
        files of inode numbers, where it writes a traceback, and the lock of the staged files if there are any.
        """
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept = self.kept
        if not upgrade:
            self.restarts += 1
        assert self.device is not None, "a daemon is started again once it has mounted"
        trace = os.pread(kept.trace, TRACE_MAX, 0)
        if not upgrade:
            os.ftruncate(kept.trace, 0)
        said = {
            "init": self.agreed,
            "upgrade": upgrade,
            "keeper": os.getpid(),
            "restarts": self.restarts,
            "cause": "" if upgrade else self.cause,
            "trace": trace.decode(errors="replace"),
        }
        descriptors = [self.device, kept.options, *kept.numbers, kept.trace, *self.held]
        socket.send_fds(ours, [json.dumps({"takeover": said}).encode()], descriptors)
        pid = os.fork()
        if not pid:
            ours.close()
            self.become_daemon(its)
        its.close()
        return Daemon(pid, ours, takes_over=True)

    def become_daemon(self, its: socket.socket) -> None:
        """Run the installed program in this child."""
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, signal.SIG_DFL)
            try:
                os.chdir(self.kept.directory)
            except OSError:
                os.chdir("/")
            os.set_inheritable(its.fileno(), True)
            words = [*self.kept.command, "mount", "--takeover", str(its.fileno()), *self.kept.words]
            os.execv(words[0], words)
        finally:
            os._exit(127)


def send(daemon: Daemon, message: dict[str, object]) -> None:
    """Tell a daemon something, unless it has ended."""
    if daemon.end is not None:
        with suppress(OSError):
            daemon.end.send(json.dumps(message).encode())


def received(end: socket.socket, most: int, flags: int = 0) -> tuple[bytes, list[int]]:
    """Return a message and at most so many descriptors beside it, which no child inherits.

    `socket.recv_fds` takes no notice of its flags.
    """
    room = socket.CMSG_SPACE(4 * most)
    data, ancillary, _, _ = end.recvmsg(MESSAGE_MAX, room, flags | socket.MSG_CMSG_CLOEXEC)
    descriptors = array("i")
    for _, kind, content in ancillary:
        if kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content)
    return data, list(descriptors)


def reap(pid: int) -> int | None:
    """Return how a process ended, as of wait(2); None if a thread of it still hangs."""
    deadline = time.monotonic() + REAP_SECONDS
    while time.monotonic() < deadline:
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        if done:
            return status
        time.sleep(0.001)  # noqa: TID251 - as above
    return None


def name(text: bytes) -> None:
    """Name this process for `ps`."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, text, 0, 0, 0)


def main() -> None:
    """Keep the mount that the arguments describe; end with it."""
    name(NAME)
    mountpoint, fd = sys.argv[-2:]
    sys.exit(Keeper(mountpoint, Kept(int(fd))).run())


if __name__ == "__main__":
    main()
