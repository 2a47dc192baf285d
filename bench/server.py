"""The embedded server as a process: `python -m bench.server DIR [--delay S] [--bandwidth B]`.

Prints `ready <port>` and runs until its standard input ends, so it cannot outlive the run.
"""

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from bench.interruptions import Interrupts
from bench.link import Link
from bench.processes import NotMeasured, stop

REPOSITORY = Path(__file__).resolve().parents[1]
THREADS, FAR_THREADS = 16, 128
"""A delayed request holds a thread: with few of them the server would queue, not the link."""


@dataclass(frozen=True)
class Endpoint:
    """Where an AIStore answers."""

    url: str
    counted: bool
    """Whether it has the counters of the embedded server."""
    leader: int | None = None
    """The process group of the embedded server."""

    def counters(self) -> dict[str, int]:
        """Give the server's counts of requests; empty when it keeps none."""
        if not self.counted:
            return {}
        with urlopen(f"{self.url}/-/requests", timeout=30) as reply:
            return dict(json.load(reply))


@contextmanager
def running_server(
    root: Path,
    *,
    interruptions: Interrupts,
    log: Path,
    delay: float = 0.0,
    bandwidth: float | None = None,
    traps: bool = False,
    link: Link | None = None,
) -> Iterator[Endpoint]:
    """Run the embedded server over a directory until the block ends, at the other end of a link if any.

    Raises:
        NotMeasured: it did not start.
    """
    host = link.host if link else "127.0.0.1"
    command = [*(link.prefix if link else ()), sys.executable, "-m", "bench.server", str(root)]
    command += ["--host", host, "--delay", str(delay)]
    command += ["--bandwidth", str(bandwidth)] if bandwidth else []
    command += ["--traps"] if traps else []
    process: subprocess.Popen[bytes] | None = None
    try:
        with interruptions.held(), log.open("ab") as stderr:
            process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C is for the run, which stops the server last
            )
        assert process.stdout is not None
        words = process.stdout.readline().split()
        if len(words) != 2 or words[0] != b"ready":
            tail = log.read_text(errors="replace").strip().splitlines()
            raise NotMeasured(f"the server did not start: {tail[-1] if tail else 'no reason'}")
        yield Endpoint(f"http://{host}:{int(words[1])}", counted=True, leader=process.pid)
    finally:
        if process is not None:
            with suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
            stop(process)
            process.stdout.close()  # type: ignore[union-attr]


def main() -> int:
    """Serve until standard input ends."""
    from aisfs.errors import AisfsError
    from aisfs.server.app import make_app
    from aisfs.server.messages import WsgiApp
    from aisfs.server.run import serve_app
    from bench.pace import paced

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--bandwidth", type=float)
    parser.add_argument("--traps", action="store_true")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")

    def factory() -> WsgiApp:
        app = make_app(options.directory, traps=options.traps)
        return paced(app, delay=options.delay, bandwidth=options.bandwidth)

    def ready(port: int) -> None:
        threading.Thread(target=_follow_stdin, daemon=True).start()
        print(f"ready {port}", flush=True)

    threads = FAR_THREADS if options.delay else THREADS
    try:
        serve_app(
            factory, options.directory, host=options.host, port=0, ready=ready, threads=threads
        )
    except AisfsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _follow_stdin() -> None:
    while sys.stdin.buffer.read(65536):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
