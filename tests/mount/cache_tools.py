"""What the tests of the disk cache share: readers, the server's counters, what the disk holds."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from tests.mount.cache_data import Dataset, Digests
from tests.support.mounts import Mount, environment, eventually
from tests.support.servers import RunningServer

MIB = 1 << 20
SHORT = ("--attr-ttl", "1", "--list-ttl", "1", "--negative-ttl", "1")
SETTLED = 2.5
"""Seconds after which nothing older than SHORT may be seen."""
DAMAGED = r"dropped from the cache: .* is damaged"
READER_LIMIT = 90.0
# Gives back the kernel's pages of each file, so that the next epoch is the daemon's to answer.
READER = """
import hashlib, json, os, random, sys
print("ready", flush=True)
job = json.loads(sys.stdin.readline())
wrong = []
for path, wanted in job["files"]:
    try:
        with open(path, "rb", buffering=0) as file:
            digest = hashlib.sha256()
            while piece := file.read(job["piece"]):
                digest.update(piece)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if digest.hexdigest() != wanted:
            wrong.append(f"{path}: other bytes")
    except OSError as error:
        wrong.append(f"{path}: {error.strerror}")
print(json.dumps(wrong))
"""
# Reads pieces at random places and compares them with the source.
RANDOM_READER = """
import json, os, random, sys
print("ready", flush=True)
job = json.loads(sys.stdin.readline())
wrong = []
chance = random.Random(job["seed"])
for _ in range(job["count"]):
    path, source = chance.choice(job["files"])
    fd = os.open(path, os.O_RDONLY)
    try:
        with open(source, "rb", buffering=0) as there:
            offset = chance.randrange(os.fstat(there.fileno()).st_size)
            length = chance.choice((100, 4096, 65536, 262144, 1048576))
            if os.pread(fd, length, offset) != os.pread(there.fileno(), length, offset):
                wrong.append(f"{path}: other bytes at {offset}+{length}")
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        wrong.append(f"{path}: {error.strerror}")
    finally:
        os.close(fd)
print(json.dumps(wrong))
"""

# Readers ---------------------------------------------------------------------------------------


@contextmanager
def readers(script: str, jobs: Sequence[Mapping[str, object]]) -> Iterator[Callable[[], list[str]]]:
    """Start a process for each job, all at the same moment; gives what waits for what was wrong."""
    with ExitStack() as stack:
        started = []
        for _ in jobs:
            process = subprocess.Popen(
                [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True, env=environment(),
            )  # fmt: skip
            stack.callback(_end, process)
            started.append(process)
        for process in started:
            assert process.stdout.readline() == "ready\n"
        for process, job in zip(started, jobs, strict=True):
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()

        def wait() -> list[str]:
            wrong = []
            for process in started:
                out, _ = process.communicate(timeout=READER_LIMIT)
                wrong += json.loads(out) if process.returncode == 0 else ["a reader died"]
            return wrong

        yield wait


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=20)


def job(root: Path, digests: Digests, piece: int = MIB) -> dict[str, object]:
    """A job of READER."""
    return {"files": [(str(root / name), sha) for name, sha in digests.items()], "piece": piece}


def read(root: Path, *parts: Digests, piece: int = MIB) -> None:
    """Read files, each part in a process of its own, and check every byte."""
    with readers(READER, [job(root, digests, piece) for digests in parts]) as wait:
        wrong = wait()
    assert not wrong, (len(wrong), wrong[:5])


def list_folders(root: Path, data: Dataset) -> None:
    """List the members of all shards."""
    for folder in data.folders:
        wanted = {name.partition("/")[2] for name in data.members if name.startswith(f"{folder}/")}
        assert set(os.listdir(root / folder)) == wanted


# The server and the disk -----------------------------------------------------------------------


@contextmanager
def big_directory() -> Iterator[Path]:
    """A directory that is removed at once; pytest keeps its own for three more runs."""
    with tempfile.TemporaryDirectory(prefix="aisfs-test-") as directory:
        yield Path(directory).resolve()


class Meter:
    """Counts what the server was asked for since the last look."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._last = server.requests()

    def take(self, quiet: float = 0.5) -> dict[str, int]:
        """Wait until nothing is fetched any more, and give what was asked for."""
        now = self._server.requests()
        since = time.monotonic()
        while time.monotonic() - since < quiet:
            time.sleep(0.05)
            later = self._server.requests()
            if later.get("get_bytes") != now.get("get_bytes"):
                since = time.monotonic()
            now = later
        last, self._last = self._last, now
        kinds = ("get", "get_bytes", "get_member", "list_page", "head")
        return {kind: now.get(kind, 0) - last.get(kind, 0) for kind in kinds}

    def nothing(self) -> None:
        """Check that no data was asked for."""
        taken = self.take()
        assert (taken["get"], taken["get_member"], taken["get_bytes"]) == (0, 0, 0), taken


def watch(
    server: RunningServer, names: Sequence[str], seconds: float = 0
) -> Callable[[], dict[str, int]]:
    """Have a faulty server count the GETs of each name, and delay them; gives what looks at the counts."""
    server.faults(
        [
            {
                "match": {"method": "GET", "path_contains": name, "marked": True},
                "action": "stall", "seconds": seconds, "times": -1,
            }
            for name in names
        ]
    )  # fmt: skip

    def counts() -> dict[str, int]:
        with urlopen(server.endpoint + "/-/faults", timeout=10) as reply:
            rules = json.loads(reply.read())
        return {rule["match"]["path_contains"]: rule["struck"] for rule in rules}

    return counts


def disk_usage(directory: Path) -> int:
    """What `du -s --block-size=1` says, without failing when files go away meanwhile."""
    total, pending = 0, [os.fspath(directory)]
    while pending:
        path = pending.pop()
        try:
            total += os.lstat(path).st_blocks * 512
            with os.scandir(path) as entries:
                for found in entries:
                    if found.is_dir(follow_symlinks=False):
                        pending.append(found.path)
                    else:
                        total += _blocks(found.path)
        except FileNotFoundError:
            continue
    return total


def _blocks(path: str) -> int:
    try:
        return os.lstat(path).st_blocks * 512
    except FileNotFoundError:
        return 0


@dataclass
class DiskUse:
    peak: int = 0
    samples: int = 0


@contextmanager
def watched_disk(directory: Path, seconds: float = 0.05) -> Iterator[DiskUse]:
    """Sample what a directory takes on the disk, all the time."""
    seen, ended = DiskUse(), threading.Event()

    def sample() -> None:
        while not ended.wait(seconds):
            seen.peak = max(seen.peak, disk_usage(directory))
            seen.samples += 1

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join(20)


def lines(log: str, words: str) -> list[str]:
    """The lines of a log with these words."""
    return [line for line in log.splitlines() if words in line]


def kill_daemon(mount: Mount) -> None:
    """End a daemon as a power cut would."""
    os.kill(mount.pid, signal.SIGKILL)
    assert eventually(lambda: not mount.living())


def data_files(cache: Path) -> list[Path]:
    """The files in the cache that hold bytes of objects."""
    return sorted(path for path in cache.rglob("data/*") if path.is_file())
