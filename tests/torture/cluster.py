"""What is tortured: a mount, and a server that fails in between, or a cluster that is just used."""

import os
import random
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import requests

from tests.support.mounts import aisfs, daemons, eventually, is_mountpoint
from tests.support.servers import RunningServer, running_server

READ_TIMEOUT = 3
"""Seconds; a server that stands still for longer is one whose replies are lost."""
OPTIONS = ["--writable", "--part-size", "8MiB", "--io-timeout", "20", "--log-level", "info"]


class Daemon:
    """A mount that is killed and comes back."""

    def __init__(self, source: str, endpoint: str, base: Path, write_back: float) -> None:
        self.path = base / "mnt"
        self.log = base / "daemon.log"
        self._base = base
        self._words = [source, str(self.path), "--endpoint", endpoint, *OPTIONS]
        self._words += ["--write-back", str(write_back)]
        self.path.mkdir()

    def start(self) -> None:
        words = ["--staging-dir", str(self._base / "staging"), "--log-file", str(self.log)]
        env = {"AIS_READ_TIMEOUT": str(READ_TIMEOUT), "HOME": str(self._base)}
        deadline = time.monotonic() + 60
        while (done := aisfs("mount", *self._words, *words, env=env)).returncode:
            assert time.monotonic() < deadline, done.stderr
            time.sleep(0.5)

    def flush(self, seconds: float) -> None:
        """Have everything uploaded that waits."""
        if not eventually(lambda: aisfs("flush", self.path).returncode == 0, seconds):
            raise AssertionError(aisfs("flush", self.path).stderr)

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

    def __init__(self, daemon: Daemon, cluster: Cluster | None, seed: int) -> None:
        self._daemon = daemon
        self._rng = random.Random(seed)
        self.told: list[str] = []
        self.problem: BaseException | None = None
        self._actions: list[Callable[[], str]] = [self._kill_daemon]
        self._pause = 1 if cluster is not None else 5
        """A daemon that is always killed writes nothing."""
        if cluster is not None:
            self._actions += [lambda: cluster.fault(self._rng)] * 12
            self._actions += [lambda: cluster.stand_still(self._rng)] * 2
            self._actions += [lambda: cluster.restart(self._rng)]

    def _kill_daemon(self) -> str:
        self._daemon.kill()
        self._daemon.start()
        return "the daemon was killed and started again"

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
                self.told.append(self._rng.choice(self._actions)())
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
