"""Run commands and show them as a shell session does: the command, then what it really printed."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from bench.interruptions import Interrupts
from demo.failures import DemoError

LIMIT = 60.0
"""Seconds until a command counts as hung; not a statement about speed."""
_FINE = (0, 128 + signal.SIGPIPE)
"""The second is what `ls … | head` ends with when head has seen enough."""


def say(text: str = "") -> None:
    """Print at once, also into a pipe."""
    print(text, flush=True)


class Shell:
    """A directory and an environment to run commands in."""

    def __init__(
        self, directory: Path, environment: Mapping[str, str], interruptions: Interrupts
    ) -> None:
        self.directory = directory
        self.environment = dict(environment)
        self._interruptions = interruptions

    def run(self, command: str) -> str:
        """Show and run a command line of bash.

        Returns:
            What the command printed.

        Raises:
            DemoError: it failed, or did not end.
        """
        bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
        say(f"{bold}$ {command}{plain}")
        with tempfile.TemporaryFile("w+", dir=self.directory, errors="replace") as complaints:
            code, output = self._run_to_end(command, complaints)
            complaints.seek(0)
            said = complaints.read().strip()
        if code not in _FINE:
            reason = said.splitlines()[-1] if said else f"exit code {code}"
            raise DemoError(f"`{command}` failed: {reason}")
        if said:
            print(said, file=sys.stderr, flush=True)
        return output

    def start(self, command: str, *, output: Path) -> subprocess.Popen[str]:
        """Start a command in the background; the caller ends it with `kill_group`.

        A session of its own keeps a Ctrl-C on the terminal away from it: who started it stops it,
        when its turn has come.
        """
        with output.open("w") as stdout, output.with_suffix(".err").open("w") as stderr:
            return subprocess.Popen(
                ["bash", "-o", "pipefail", "-c", f"exec {command}"],
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )

    def _run_to_end(self, command: str, complaints: IO[str]) -> tuple[int, str]:
        with self._interruptions.held():
            process = subprocess.Popen(
                ["bash", "-o", "pipefail", "-c", command],
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            guard = threading.Timer(LIMIT, kill_group, (process,))
            guard.daemon = True
            guard.start()
        assert process.stdout is not None
        output = []
        try:
            for line in process.stdout:
                say(line.rstrip("\n"))
                output.append(line)
            code = process.wait()
        except BaseException:
            kill_group(process)
            process.wait()
            raise
        finally:
            expired = not guard.is_alive()
            guard.cancel()
            process.stdout.close()
        if expired:
            raise DemoError(f"`{command}` did not end within {LIMIT:.0f} seconds")
        return code, "".join(output)


def kill_group(process: subprocess.Popen[str]) -> None:
    """Kill a command with all that it started; also what waits inside a file operation."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
