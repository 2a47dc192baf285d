"""A mount with default options in a small control group: slower, not dead."""

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.documents import ROOT
from tests.support.mounts import aisfs, environment, eventually
from tests.support.servers import running_server

pytestmark = [pytest.mark.mount, pytest.mark.timeout(400)]

MIB = 1 << 20
TOPS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
LIMITS = ("memory.limit_in_bytes", "memory.max")
OBJECTS, SIZE, READERS, READS = 40, 3 * MIB, 12, 1200


class Group:
    def __init__(self, place: Path) -> None:
        self.place = place

    def kills(self) -> int:
        for name in ("memory.oom_control", "memory.events"):
            if (self.place / name).exists():
                words = (self.place / name).read_text().split()
                return int(words[words.index("oom_kill") + 1])
        raise AssertionError("no count of kills")


@pytest.fixture(params=[128, 256])
def group(request: pytest.FixtureRequest) -> Iterator[Group]:
    """A control group of so many MiB, if this machine lets us make one."""
    place = None
    for top in TOPS:
        try:
            place = top / f"aisfs-test-{os.getpid()}-{request.param}"
            place.mkdir()
            limit = next(place / name for name in LIMITS if (place / name).exists())
            limit.write_text(str(request.param * MIB))
            break
        except (OSError, StopIteration):
            if place is not None and place.exists():
                place.rmdir()
            place = None
    if place is None:
        pytest.skip("no control groups that this user can make")
    yield Group(place)
    place.rmdir()


def run_in(group: Group, *words: str, env: dict[str, str]) -> str:
    """Run a command of aisfs in a group; return what it prints."""
    enter = f'echo $$ > {group.place}/cgroup.procs; exec "$@"'
    done = subprocess.run(
        ["sh", "-c", enter, "sh", sys.executable, "-m", "aisfs", *words],
        env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0 or words == ("doctor",), done.stderr
    return done.stdout


def test_default_limits_fit_the_group(group: Group, tmp_path: Path):
    base = tmp_path.resolve()
    (base / "store" / "b").mkdir(parents=True)
    contents = [random.Random(at).randbytes(SIZE) for at in range(OBJECTS)]
    for at, content in enumerate(contents):
        (base / "store" / "b" / f"{at}").write_bytes(content)
    place, log = base / "mnt", base / "log"
    place.mkdir()
    options = ["--cache-dir", str(base / "cache"), "--cache-size", "64MiB", "--log-file", str(log)]
    with running_server(base / "store") as server:
        env = environment({"AIS_ENDPOINT": server.endpoint, "PYTHONPATH": str(ROOT)}, home=base)
        assert f"the control group {group.place} has" in run_in(group, "doctor", env=env)
        run_in(group, "mount", *options, "ais://b", str(place), env=env)
        try:
            assert f"as the control group {group.place} has" in log.read_text()
            failures = read_at_once(place, contents)
            assert not failures
            assert not group.kills()
        finally:
            aisfs("umount", place)
            assert eventually(lambda: not (group.place / "cgroup.procs").read_text())


def read_at_once(place: Path, contents: list[bytes]) -> list[Exception]:
    """Read parts of files in several threads; return what failed."""
    failures: list[Exception] = []

    def read(number: int) -> None:
        choose = random.Random(number)
        try:
            for _ in range(READS // READERS):
                at, start = choose.randrange(OBJECTS), choose.randrange(SIZE)
                length = choose.choice([100, 4096, 200_000, SIZE])
                with (place / str(at)).open("rb") as file:
                    file.seek(start)
                    assert file.read(length) == contents[at][start : start + length]
        except (AssertionError, OSError) as error:
            failures.append(error)

    readers = [threading.Thread(target=read, args=(at,)) for at in range(READERS)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return failures
