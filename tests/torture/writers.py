"""Processes that write by all clients, in phases: between two the parent looks."""

import multiprocessing
import os
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from tests.torture.foreign import Foreign
from tests.torture.ledger import Shelf
from tests.torture.ways import Writer

ANSWER_SECONDS = 600.0
"""A writer that has not answered by then hangs in a call; nothing in the mount waits that long."""
BACK_SECONDS = 240.0


@dataclass(frozen=True)
class Clients:
    """What the writers write by."""

    mountpoints: Mapping[str, Path]
    ttls: Mapping[str, float]
    """How long each mount may show what is no longer so."""
    endpoint: str
    bucket: str
    write_back: bool


class Writers:
    """All writing processes."""

    def __init__(self, clients: Clients, shelf: Shelf, count: int, seed: int, largest: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, clients, shelf, seed + number, largest), daemon=True
            )
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def work(self, steps: int, seconds: float) -> None:
        """Let each do `steps` changes, or what it can in this time."""
        for pipe in self._pipes:
            pipe.send((steps, seconds))
        for number, pipe in enumerate(self._pipes):
            assert pipe.poll(ANSWER_SECONDS + min(seconds, 1e6)), f"writer {number} hangs"
            problem = pipe.recv()
            if problem:
                raise AssertionError(f"writer {number}: {problem}")

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def _serve(pipe: Connection, clients: Clients, shelf: Shelf, seed: int, largest: int) -> None:
    writer = Writer(
        shelf,
        Foreign(clients.endpoint, clients.bucket),
        clients.ttls,
        lambda client: _enter(clients.mountpoints[client]),
        write_back=clients.write_back,
        seed=seed,
        largest=largest,
    )
    rng = random.Random(seed)
    while True:
        steps, seconds = pipe.recv()
        try:
            _work(writer, shelf, rng, steps, seconds)
        except Exception as error:  # noqa: BLE001 - the parent reports it, whatever it is
            pipe.send(f"{type(error).__name__}: {error}")
            return
        pipe.send("")


def _work(writer: Writer, shelf: Shelf, rng: random.Random, steps: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while steps and time.monotonic() < deadline:
        group = rng.choice(shelf.groups)
        with shelf.taken(group, wait=False) as ledger:
            if ledger is not None:
                writer.step(group, ledger)
                steps -= 1


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
