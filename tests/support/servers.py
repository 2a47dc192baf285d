"""Start the embedded server as a real process and always take it down again.

Also for test suites elsewhere in the tree: everything talks HTTP to `endpoint`, nothing here
knows the code under test except by its command line.
"""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.support.preloaded import Preloader, Started

REPOSITORY = Path(__file__).resolve().parents[2]
START_SECONDS = 30.0
"""A loaded two-core machine needs seconds for the imports alone."""
STOP_SECONDS = 10.0
_preloader = Preloader(
    "tests.support.faulty_server",
    ("aisfs.server.app", "aisfs.server.run"),
    flags=("-W", "error"),
)


@dataclass
class RunningServer:
    """One server process: where it answers and how to disturb it."""

    endpoint: str
    """`http://127.0.0.1:<port>`, without a slash at the end."""
    pid: int
    """The process to signal; it is also the id of its process group."""
    root: Path
    log_path: Path
    _process: Started

    def requests(self) -> dict[str, int]:
        """Give the server's own counters: requests by kind since it started."""
        return dict(self._control("GET", "/-/requests"))

    def faults(self, rules: Sequence[dict[str, Any]]) -> None:
        """Replace the fault rules (only with `faulty=True`); an empty list clears them."""
        self._control("DELETE", "/-/faults")
        if rules:
            self._control("POST", "/-/faults", list(rules))

    def struck(self) -> list[int]:
        """Give the number of times that each of the present rules has struck."""
        return [rule["struck"] for rule in self._control("GET", "/-/faults")]

    def held(self) -> bool:
        """Return whether a rule that stalls holds a reply back, of a request that was served."""
        return any(rule["held"] for rule in self._control("GET", "/-/faults"))

    def hold_jobs(self, steps: int | None = 0) -> None:
        """Let the jobs do only so many more steps; None lets them go."""
        self._control("POST", "/-/jobs", {"steps": steps})

    def waiting_jobs(self) -> int:
        """Give the number of jobs that are held."""
        return int(self._control("GET", "/-/jobs")["waiting"])

    def join(self, joined: int, ready: bool | None = None) -> None:
        """Make it a proxy that knows this many of its `targets`, as one does that has just started."""
        state = {"joined": joined} if ready is None else {"joined": joined, "ready": ready}
        self._control("POST", "/-/targets", state)

    def move(self, **plan: Any) -> dict[str, Any]:
        """Let data move between targets (only with `traps`): see `aisfs.server.storage.traps.Plan`."""
        return dict(self._control("POST", "/-/move", plan))

    def take_away(self, share: float = 1.0) -> None:
        """Let a target leave for maintenance with this part of the names, until `move(cause="return")`."""
        self.move(cause="maintenance", share=share, moving=None, incomplete=0)
        self.moved()

    def moved(self) -> dict[str, Any]:
        """Let all data have moved."""
        return dict(self._control("DELETE", "/-/move"))

    def move_state(self) -> dict[str, Any]:
        """Say whether data moves."""
        return dict(self._control("GET", "/-/move"))

    def attach(self, alias: str, other: "RunningServer") -> None:
        """Attach another cluster (only with `traps`), as `@alias#`."""
        names = {"Ais-Remote-Ais-Alias": alias, "Ais-Remote-Ais-Url": other.endpoint}
        path = "/v1/cluster/attach?what=remote"
        urlopen(Request(self.endpoint + path, headers=names, method="PUT"), timeout=10).close()

    def kill(self) -> None:
        """Kill the whole process group the hard way, as a power cut would."""
        _signal_group(self._process, signal.SIGKILL)
        self._process.wait(STOP_SECONDS)
        # The workers, which nobody can wait for, may hold the port for a moment longer.
        deadline = time.monotonic() + STOP_SECONDS
        while not self._port_is_free() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _port_is_free(self) -> bool:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", int(self.endpoint.rpartition(":")[2])))
            except OSError:
                return False
        return True

    def log(self) -> str:
        """Give everything the server wrote to its standard error so far."""
        return self.log_path.read_text(errors="replace")

    def _control(self, method: str, path: str, value: Any = None) -> Any:
        body = None if value is None else json.dumps(value).encode()
        headers = {"Content-Type": "application/json"} if body else {}
        request = Request(self.endpoint + path, body, headers, method=method)
        with urlopen(request, timeout=10) as reply:
            return json.loads(reply.read() or b"null")


@contextmanager
def running_server(
    root: Path,
    *,
    faulty: bool = False,
    token: str | None = None,
    port: int = 0,
    traps: bool = True,
    targets: int = 1,
    joined: int | None = None,
    without_jobs: Sequence[str] = (),
    signs: bool = False,
    forward: str = "",
    jwks: Path | None = None,
    audience: str = "",
    etls: Mapping[str, str] | None = None,
) -> Iterator[RunningServer]:
    """Run the server over `root` on a loopback port until the block ends.

    `faulty` adds the fault injection of `tests.support.faulty_server`; `token` makes the proxy side
    ask for `Authorization: Bearer <token>`; `port` 0 takes a free one; `traps` makes it
    destroy and hide what a real AIStore would, so that only clients which are safe there pass. `targets` up to 3 make it look like a cluster of these, of
    which the first `joined` are known at the start; see `tests.support.targets`. `without_jobs` are
    the kinds of jobs that this build lacks. If it `signs`, targets take only what the proxy has redirected so. `forward` is the URL of a server that answers instead, and
    this one only spoils its replies. `jwks` is a file with the keys of an issuer, whose tokens for the `audience` are taken.
    `etls` are the commands that transform objects, by their names.
    """
    words = [str(root), "--port", str(port), "--stop-with-stdin"]
    words += [] if faulty else ["--no-faults"]
    words += ["--forward", forward] if forward else []
    words += [f"--etl={name}={command}" for name, command in (etls or {}).items()]
    words += ["--token", token] if token else []
    words += ["--jwks", str(jwks), "--audience", audience] if jwks else []
    words += ["--traps"] if traps else []
    words += ["--signs"] if signs else []
    words += ["--targets", str(targets)] if targets > 1 else []
    words += ["--joined", str(joined)] if joined is not None else []
    words += [f"--without-job={kind}" for kind in without_jobs]
    read_end, write_end = os.pipe()
    log_path = root.parent / f".{root.name}.server-{os.getpid()}-{read_end}.log"
    with open(read_end, "rb") as stdout, log_path.open("wb") as log:
        process = _preloader.start(
            *words,
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=write_end,
            stderr=log,
            start_new_session=True,
        )
        os.close(write_end)
        try:
            real_port = _wait_ready(stdout, log_path)
            endpoint = f"http://127.0.0.1:{real_port}"
            yield RunningServer(endpoint, process.pid, root, log_path, process)
        finally:
            _stop(process)
            log_path.unlink(missing_ok=True)


def _wait_ready(stdout: Any, log_path: Path) -> int:
    os.set_blocking(stdout.fileno(), True)
    line = stdout.readline().split()
    if len(line) != 2 or line[0] != b"ready":
        raise RuntimeError(f"the server did not start: {line} {log_path.read_text()[-4000:]}")
    return int(line[1])


def _stop(process: Started) -> None:
    assert process.stdin
    process.stdin.close()
    _signal_group(process, signal.SIGTERM, only_leader=True)
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    finally:
        # The worker is in the same group: nothing may outlive the test, not even after kill().
        _signal_group(process, signal.SIGKILL)
        process.wait(STOP_SECONDS)


def _signal_group(process: Started, number: int, only_leader: bool = False) -> None:
    if only_leader:
        process.send_signal(number)
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until a condition holds; return what it gives."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found
