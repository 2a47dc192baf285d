"""Processes that write, each in a directory of its own, in phases: between two the parent looks."""

import multiprocessing
import os
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from tests.torture.ledger import Ledger
from tests.torture.ways import Writer

ANSWER_SECONDS = 600.0
"""A writer that has not answered by then hangs in a call; nothing in the mount waits that long."""
BACK_SECONDS = 120.0


class Writers:
    """All writing processes."""

    def __init__(self, mountpoint: Path, count: int, seed: int, largest: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        self.names = [f"w{number}/" for number in range(count)]
        for number, name in enumerate(self.names):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(theirs, mountpoint, name, seed + number, largest),
                daemon=True,
            )
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def begin(self, steps: int, seconds: float) -> None:
        """Let each do `steps` changes, or what it can in this time."""
        for pipe in self._pipes:
            pipe.send((steps, seconds))

    def ledgers(self) -> list[Ledger]:
        """Wait until all have ended their phase."""
        found = []
        for pipe, name in zip(self._pipes, self.names, strict=True):
            assert pipe.poll(ANSWER_SECONDS), f"the writer of {name} hangs"
            answer = pipe.recv()
            if isinstance(answer, str):
                raise AssertionError(f"{name}: {answer}")
            found.append(answer)
        return found

    def learn(self, ledgers: list[Ledger]) -> None:
        """Tell each what has become of the changes that failed."""
        for pipe, ledger in zip(self._pipes, ledgers, strict=True):
            pipe.send(ledger)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def _serve(pipe: Connection, mountpoint: Path, name: str, seed: int, largest: int) -> None:
    _enter(mountpoint)
    writer = Writer(Path(name), seed, largest)
    while True:
        message = pipe.recv()
        if isinstance(message, Ledger):
            writer.ledger = message
            continue
        try:
            _work(writer, mountpoint, *message)
        except Exception as error:  # noqa: BLE001 - the parent tells it, whatever it is
            pipe.send(f"{type(error).__name__}: {error}")
            return
        pipe.send(writer.ledger)


def _work(writer: Writer, mountpoint: Path, steps: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for _ in range(steps):
        if time.monotonic() > deadline:
            return
        failed = writer.ledger.failed
        writer.step()
        if writer.ledger.failed != failed:
            _enter(mountpoint)


def _enter(mountpoint: Path) -> None:
    """Make the mount the current directory, and wait for it.

    All paths are relative to that: nothing must be written to what is below a mount that is gone.
    """
    deadline = time.monotonic() + BACK_SECONDS
    below = mountpoint.parent.stat().st_dev
    while True:
        with suppress(OSError):
            os.chdir(mountpoint)
            os.statvfs(".")  # which asks the daemon
            if os.stat(".").st_dev != below:
                return
        assert time.monotonic() < deadline, "the mount does not come back"
        time.sleep(0.1)
