"""What is tortured: two mounts, and a server that fails in between, or a cluster that is just used."""

import os
import random
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import requests

from aisfs.engine.writing.unsent import unsent_files
from tests.support.mounts import aisfs, daemons, eventually, is_mountpoint
from tests.support.servers import RunningServer, running_server
from tests.torture.foreign import calm
from tests.torture.ledger import digest

READ_TIMEOUT = 3
"""Seconds; a server that stands still for longer is one whose replies are lost."""
IO_TIMEOUT = 40
"""Seconds; what must not overwrite waits until data has moved, and for ten seconds after that."""
DISK_SIZE = "256m"
"""Of the local disk of each mount."""
OPTIONS = [
    "--writable",
    "--part-size",
    "8MiB",
    "--io-timeout",
    str(IO_TIMEOUT),
    "--log-level",
    "info",
]


class Daemon:
    """A mount that is killed and comes back."""

    def __init__(
        self,
        name: str,
        source: str,
        endpoint: str,
        base: Path,
        options: Sequence[str],
        stack: ExitStack,
        *,
        keeper: bool = False,
    ) -> None:
        self.name = name
        self._environment = {"AISFS_KEEPER": "yes" if keeper else "no"}
        self.is_kept = keeper
        self._home = base / name
        self.path = self._home / "mnt"
        self.log = base / f"{name}.log"
        self.staging = self._home / "disk" / "staging"
        self._words = [source, str(self.path), "--endpoint", endpoint, *OPTIONS, *options]
        self.path.mkdir(parents=True)
        self.disk = Disk(self._home / "disk", stack)
        stack.callback(self.stop)

    def start(self) -> None:
        words = ["--staging-dir", str(self.staging), "--log-file", str(self.log)]
        deadline = time.monotonic() + 120
        while (done := self._aisfs("mount", *self._words, *words)).returncode:
            assert time.monotonic() < deadline, done.stderr
            time.sleep(0.5)

    def _aisfs(self, *words: str) -> "subprocess.CompletedProcess[bytes]":
        return aisfs(
            *words,
            env={
                **self._environment,
                "AIS_READ_TIMEOUT": str(READ_TIMEOUT),
                "HOME": str(self._home),
            },
        )

    def flush(self, seconds: float) -> set[tuple[str, str]]:
        """Have everything uploaded that waits; return keys and digests of what was kept instead, and drop it."""
        kept = set[tuple[str, str]]()
        deadline = time.monotonic() + seconds
        while True:
            done = self._aisfs("flush", str(self.path))
            unsent = unsent_files(self.staging)
            for file in unsent:
                data = bytearray(file.size)
                with file.content() as content:
                    content.read_into(0, memoryview(data))
                kept.add((file.record.key, digest(data)))
            if unsent:
                ids = [file.id for file in unsent]
                dropped = self._aisfs("recover", "--staging-dir", str(self.staging), "--drop", *ids)
                assert dropped.returncode == 0, dropped.stderr
            elif done.returncode == 0:
                return kept
            assert time.monotonic() < deadline, done.stderr

    def kill_once(self) -> str:
        """Kill the daemon; return what happens then."""
        if self.is_kept:
            comm = {pid: Path(f"/proc/{pid}/comm") for pid in daemons(self.path)}
            for pid in [p for p, name in comm.items() if not _text(name).startswith("aisfs-")][:1]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return "a daemon was killed under its mount"
        self.kill()
        self.start()
        return "a daemon was killed and started again"

    def kill(self) -> None:
        for pid in daemons(self.path):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: not daemons(self.path)), "the daemon cannot be killed"

    def stop(self) -> None:
        subprocess.run(["fusermount3", "-u", self.path], check=False, timeout=120)
        if is_mountpoint(self.path):
            subprocess.run(["fusermount3", "-uz", self.path], check=False, timeout=60)
        eventually(lambda: not daemons(self.path))
        self.kill()


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return "aisfs-ended"


class Disk:
    """A small disk that can be full."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        path.mkdir()
        self._filler = path / "filler"
        size = f"size={DISK_SIZE}"
        command = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", path]
        self.is_small = (
            subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0
        )
        """Only root can mount one; else it is never full."""
        if self.is_small:
            stack.callback(subprocess.run, ["umount", "-l", path], check=True)

    def fill(self) -> None:
        if self.is_small:
            for piece in (1 << 20, 1 << 12):
                with suppress(OSError), self._filler.open("ab", buffering=0) as file:
                    while file.write(bytes(piece)):
                        pass

    def make_room(self) -> None:
        self._filler.unlink(missing_ok=True)


class Cluster:
    """The embedded server with its traps, and what goes wrong with it."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self._root = root
        self._stack = stack
        self._server = self._start(0)
        self.endpoint = self._server.endpoint

    def _start(self, port: int) -> RunningServer:
        server = running_server(self._root, faulty=True, traps=True, port=port)
        return self._stack.enter_context(server)

    def create(self, bucket: str) -> None:
        (self._root / bucket).mkdir()

    def heal(self) -> None:
        self._server.faults([])
        self._server.moved()

    def move(self, rng: random.Random) -> str:
        """Let data move between targets, for some seconds."""
        cause = rng.choice(["join", "maintenance", "leave"])
        seconds = rng.uniform(2, 5)
        plan = {"unmapped": 0.5, "joining": 1.5, "moving": seconds, "incomplete": 1.0}
        with calm():
            self._server.move(cause=cause, share=rng.choice([0.3, 0.7]), **plan)
        return f"data moved ({cause})"

    def fault(self, rng: random.Random) -> str:
        """Let one thing go wrong; return what."""
        rule: dict[str, Any] = rng.choice(RULES)
        match = {"path_contains": "/v1/", **rule.get("match", {})}
        self._server.faults([{**rule, "match": match, "times": rng.randrange(1, 4)}])
        return str(rule)

    def stand_still(self, rng: random.Random) -> str:
        seconds = rng.choice([0.5, READ_TIMEOUT + 1.5])
        os.killpg(self._server.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.killpg(self._server.pid, signal.SIGCONT)
        return f"the server stood still for {seconds} s"

    def restart(self, rng: random.Random) -> str:
        self._server.kill()
        time.sleep(rng.choice([0.0, 2.0]))
        self._server = self._start(int(self.endpoint.rpartition(":")[2]))
        return "the server was killed and started again"


RULES: list[dict[str, Any]] = [
    *(
        {"action": action, "stage": stage, "match": {"marked": True, "method": method}}
        for action in ("reset", "status")
        for stage in ("headers", "mid", "body", "done")
        for method in ("PUT", "POST", "DELETE")
    ),
    *({"action": "reset", "match": {"method": m}} for m in ("GET", "PUT", "HEAD", "POST")),
    {"action": "status", "status": 429},
    {"action": "truncate", "match": {"method": "GET", "marked": True}},
    {"action": "truncate", "fraction": 0.0, "match": {"marked": True}},
    {"action": "stall", "seconds": READ_TIMEOUT + 1.0, "match": {"marked": True}},
]


class Chaos:
    """Lets things go wrong from time to time, in a thread, while writers write."""

    def __init__(self, mounts: Sequence[Daemon], cluster: Cluster | None, seed: int) -> None:
        self._rng = random.Random(seed)
        self.told: list[str] = []
        self.problem: BaseException | None = None
        self._actions: list[Callable[[], str]] = []
        for daemon in mounts:
            self._actions += [daemon.kill_once] * (4 if daemon.is_kept else 1)
            self._actions += [partial(self._fill, daemon.disk)]
        self._pause = 1 if cluster is not None else 5
        """A daemon that is always killed writes nothing."""
        if cluster is not None:
            self._actions += [lambda: cluster.fault(self._rng)] * 12
            self._actions += [lambda: cluster.stand_still(self._rng)] * 2
            self._actions += [lambda: cluster.restart(self._rng), lambda: cluster.move(self._rng)]
        self._due: list[Callable[[], str]] = []
        """The actions in the order in which they come, until each has had its turn."""

    def _fill(self, disk: Disk) -> str:
        disk.fill()
        time.sleep(self._rng.uniform(0.5, 2.0))
        disk.make_room()
        return "the local disk of a mount was full"

    def _next(self) -> Callable[[], str]:
        if not self._due:
            self._due = self._rng.sample(self._actions, len(self._actions))
        return self._due.pop()

    @contextmanager
    def running(self) -> Iterator[None]:
        ended = threading.Event()
        thread = threading.Thread(target=self._run, args=(ended,))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            if self.problem is not None:
                raise self.problem

    def _run(self, ended: threading.Event) -> None:
        try:
            while not ended.wait(self._rng.uniform(0.3, 2.0) * self._pause):
                self.told.append(self._next()())
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            self.problem = error


@contextmanager
def real_bucket(endpoint: str) -> Iterator[str]:
    """Make a bucket on a real cluster, and destroy it with all that is in it."""
    name = f"aisfs-torture-{uuid.uuid4().hex[:10]}"
    url = f"{endpoint}/v1/buckets/{name}"
    requests.post(url, json={"action": "create-bck"}, timeout=30).raise_for_status()
    try:
        yield name
    finally:
        requests.delete(url, json={"action": "destroy-bck"}, timeout=60).raise_for_status()
