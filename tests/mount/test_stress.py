"""Readers, pushes, changes on the server, evictions and listings at once: nothing hangs or is wrong.

`pytest tests/mount/test_stress.py --stress-minutes 10` does it for longer.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.mount import stress
from tests.mount.content import put
from tests.mount.test_status import status
from tests.support.mounts import Mount, environment, eventually, mounted
from tests.support.servers import RunningServer, running_server
from tests.support.tars import END, entry

pytestmark = pytest.mark.mount

ROWS = 1200
STILL = ["a.tar", "b.tar", "c.tar"]
CHANGING = ["changing.tar", "changing.txt"]
KINDS = ("order", "order", "random", "everywhere", "walk")
ANSWER_SECONDS = 10.0
"""A request that takes longer counts as unanswered."""
OPTIONS = ("--attr-ttl", "1", "--list-ttl", "1", "--cache-size", "8MiB", "--memory-limit", "16MiB")
CHANGED = r"ESTALE|[Ss]tale|changed|version|404|not found|no such"
MIB = 1 << 20


def shard(name: str, version: int) -> bytes:
    members = (
        entry(f"{row:05}.txt".encode(), stress.content(name, version, row)) for row in range(ROWS)
    )
    return b"".join(members) + END


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("stress") / "store"
    (root / "b").mkdir(parents=True)
    for name in [*STILL, CHANGING[0]]:
        (root / "b" / name).write_bytes(shard(name, 0))
    (root / "b" / CHANGING[1]).write_bytes(b"0" * 300_000)
    with running_server(root) as server:
        yield server


class Watch:
    """Looks at what the readers say they are doing."""

    def __init__(self, beats: Path, mount: Mount) -> None:
        self._beats = beats
        self._mount = mount
        self._over = threading.Event()
        self.longest = 0.0
        self.hung: str | None = None
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.2) and self.hung is None:
            now = time.monotonic()
            begun = stress.BEAT.iter_unpack(self._beats.read_bytes())
            for kind, (since,) in zip(KINDS, begun, strict=True):
                if since:
                    self.longest = max(self.longest, now - since)
                    if now - since > ANSWER_SECONDS:
                        self.hung = f"a reader ({kind}) waits for {now - since:.0f} s"
                        abort(self._mount)
                        return


def abort(mount: Mount) -> None:
    """End every wait of the kernel for this daemon, even in a deadlock of its own making."""
    minor = next(
        line.split()[2].partition(":")[2]
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if line.split()[4] == str(mount.path)
    )
    control = Path("/sys/fs/fuse/connections") / minor / "abort"
    if os.access(control, os.W_OK):
        control.write_text("1")
    else:
        os.kill(mount.pid, 9)


@contextmanager
def readers(mount: Mount, beats: Path, seconds: float) -> Iterator[list[subprocess.Popen[str]]]:
    beats.write_bytes(bytes(stress.BEAT.size * len(KINDS)))
    common = {
        "root": str(mount.path), "shards": [*STILL, CHANGING[0]], "rows": ROWS,
        "changing": CHANGING, "seconds": seconds, "beats": str(beats),
    }  # fmt: skip
    with ExitStack() as stack:
        started = []
        for number, kind in enumerate(KINDS):
            job = common | {"number": number, "kind": kind}
            process = subprocess.Popen(
                [sys.executable, stress.__file__, json.dumps(job)],
                stdout=subprocess.PIPE, text=True, env=environment(),
            )  # fmt: skip
            stack.callback(process.communicate, timeout=30)
            stack.callback(process.kill)
            started.append(process)
        yield started


@pytest.mark.stress
def test_everything_at_once(
    server: RunningServer, mountpoint: Path, tmp_path: Path, pytestconfig: pytest.Config
):
    seconds = 60 * pytestconfig.getoption("--stress-minutes")
    options = [*OPTIONS, "--cache-dir", str(tmp_path / "cache")]
    beats = tmp_path / "beats"
    with (
        mounted(
            "ais://b", mountpoint, endpoint=server.endpoint, options=options,
            expected_log=[CHANGED], deadline=seconds + 90,
        ) as mount,
        readers(mount, beats, seconds) as processes,
        Watch(beats, mount) as watch,
    ):  # fmt: skip
        version = 0
        until = time.monotonic() + seconds
        while time.monotonic() < until and watch.hung is None:
            version += 1
            put(server.endpoint, "b", CHANGING[0], shard(CHANGING[0], version))
            put(server.endpoint, "b", CHANGING[1], b"%d" % version * 200_000)
            time.sleep(1)
        for kind, process in zip(KINDS, processes, strict=True):
            said, _ = process.communicate(timeout=60)
            assert watch.hung is None, watch.hung
            assert process.returncode == 0, kind
            result = json.loads(said)
            assert not result["wrong"], (kind, result["wrong"])
            assert result["reads"], kind  # how many is a matter of the machine
        counted = status(mount.path, "--fastpath-stats")
        assert counted["cache"]["used_bytes"] <= 8 * MIB


EPOCHS = """
import os, sys
root, epochs, *shards = sys.argv[1:]
for epoch in range(int(epochs)):
    for name in shards:
        folder = f"{root}/{name}.d"
        for member in os.listdir(folder):
            fd = os.open(f"{folder}/{member}", os.O_RDONLY)
            while os.read(fd, 1 << 20):
                pass
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
"""


def resident(mount: Mount) -> int:
    text = Path(f"/proc/{mount.pid}/status").read_text()
    private = re.search(r"RssAnon:\s+(\d+) kB", text)
    assert private
    return int(private[1]) * 1024


def epochs(mount: Mount, count: int, shards: Sequence[str] = STILL) -> None:
    command = [sys.executable, "-c", EPOCHS, str(mount.path), str(count), *shards]
    subprocess.run(command, check=True, timeout=80, env=environment())


def test_memory_is_flat_over_epochs(server: RunningServer, mountpoint: Path, tmp_path: Path):
    options = ["--cache-dir", str(tmp_path / "cache"), "--cache-size", "64MiB"]
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        epochs(mount, 10, STILL[:1])
        before = resident(mount)
        epochs(mount, 50, STILL[:1])
        assert resident(mount) - before < 3 * MIB  # 50 bytes a read would be as much


def test_inodes_the_kernel_forgets_are_let_go(
    server: RunningServer, mountpoint: Path, tmp_path: Path
):
    """`drop_caches` is the whole machine's: names and inodes only, which are soon there again."""
    control = Path("/proc/sys/vm/drop_caches")
    if not os.access(control, os.W_OK):
        pytest.skip("only root can make the kernel forget inodes")
    options = ["--cache-dir", str(tmp_path / "cache")]
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        names = os.listdir(mount.path)
        epochs(mount, 1)
        known = len(names) + len(STILL)  # the root, objects, and folders of shards with members
        assert status(mount.path)["mount"]["inodes"] >= known

        def forgotten() -> bool:
            control.write_text("2")
            return status(mount.path)["mount"]["inodes"] == 1

        assert eventually(forgotten)
