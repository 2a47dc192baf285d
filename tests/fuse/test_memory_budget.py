"""How much may be pushed, by what the machine and the control groups have to spare."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aisfs.fuse.pusher import FLOOR, SHARE, PageCacheBudget

MIB = 1 << 20
GIB = 1 << 30
V2 = "30 23 0:26 {top} {at} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1 = "31 23 0:27 {top} {at} rw - cgroup cgroup rw,memory"
V1_CPU = "32 23 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct"
NO_LIMIT = 9223372036854771712


class Machine:
    """Files as of /proc and /sys below a directory."""

    def __init__(self, root: Path, *, available: int = 8 * GIB) -> None:
        self.root = root
        self.now = 100.0
        (root / "proc/self").mkdir(parents=True)
        self.memory(available)

    def memory(self, available: int) -> None:
        text = f"MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable: {available // 1024} kB\n"
        (self.root / "proc/meminfo").write_text(text)

    def groups(self, own: str, *mounts: str) -> None:
        (self.root / "proc/self/cgroup").write_text(own + "\n")
        (self.root / "proc/self/mountinfo").write_text("\n".join(mounts) + "\n")

    def v2(self, path: str, limit: object, usage: int, inactive: int = 0) -> None:
        place = self.root / path
        place.mkdir(parents=True, exist_ok=True)
        (place / "memory.max").write_text(f"{limit}\n")
        (place / "memory.current").write_text(f"{usage}\n")
        (place / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\n")

    def v1(self, path: str, limit: int, usage: int, inactive: int = 0) -> None:
        place = self.root / path
        place.mkdir(parents=True, exist_ok=True)
        (place / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (place / "memory.usage_in_bytes").write_text(f"{usage}\n")
        text = (
            f"inactive_file 1\nhierarchical_memory_limit {limit}\ntotal_inactive_file {inactive}\n"
        )
        (place / "memory.stat").write_text(text)

    def headroom(self) -> PageCacheBudget:
        return PageCacheBudget(self.root, clock=lambda: self.now)

    def room(self) -> int:
        return self.headroom().room()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_quarter_of_what_the_machine_has_above_the_floor(machine: Machine):
    assert machine.room() == (8 * GIB - FLOOR) // SHARE
    machine.memory(FLOOR - 1024)
    assert machine.room() == 0


@pytest.mark.parametrize("limited", ["own", "above"])
def test_least_of_all_groups_of_version_2(machine: Machine, limited: str):
    machine.groups("0::/a/b", V2.format(top="/", at="/sys/fs/cgroup"))
    low, high = (300 * MIB, 100 * MIB, 50 * MIB), ("max", 5 * GIB)
    machine.v2("sys/fs/cgroup/a", *(low if limited == "above" else high))
    machine.v2("sys/fs/cgroup/a/b", *(low if limited == "own" else high))
    assert machine.room() == (250 * MIB - FLOOR) // SHARE


def test_version_1_beside_other_controllers(machine: Machine):
    own = "5:cpu,cpuacct:/elsewhere\n4:memory:/box/1\n0::/"
    machine.groups(own, V1_CPU, V1.format(top="/", at="/sys/fs/cgroup/memory"))
    machine.v1("sys/fs/cgroup/memory", NO_LIMIT, 20 * GIB)
    machine.v1("sys/fs/cgroup/memory/box", NO_LIMIT, GIB)
    machine.v1("sys/fs/cgroup/memory/box/1", 200 * MIB, 190 * MIB, 110 * MIB)
    assert machine.room() == (120 * MIB - FLOOR) // SHARE


def test_nothing_is_left_when_the_group_is_full_of_memory_in_use(machine: Machine):
    machine.groups("0::/", V2.format(top="/", at="/sys/fs/cgroup"))
    machine.v2("sys/fs/cgroup", 200 * MIB, 210 * MIB)
    assert machine.room() == 0


def test_files_are_read_once_a_second(machine: Machine):
    headroom = machine.headroom()
    before = headroom.room()
    machine.memory(GIB)
    machine.now += 0.5
    assert headroom.room() == before
    machine.now += 0.5
    assert headroom.room() == (GIB - FLOOR) // SHARE


def test_group_that_went_away_is_left_out(machine: Machine):
    machine.groups("0::/a", V2.format(top="/", at="/sys/fs/cgroup"))
    machine.v2("sys/fs/cgroup/a", 100 * MIB, 90 * MIB)
    headroom = machine.headroom()
    assert headroom.room() == 0
    (machine.root / "sys/fs/cgroup/a/memory.current").unlink()
    machine.now += 2
    assert headroom.room() == (8 * GIB - FLOOR) // SHARE


def test_no_memory_information_stops_pushing(machine: Machine, caplog: pytest.LogCaptureFixture):
    headroom = machine.headroom()
    (machine.root / "proc/meminfo").unlink()
    assert headroom.room() == 0
    machine.now += 2
    assert headroom.room() == 0
    assert len(caplog.records) == 1


def test_this_machine():
    assert PageCacheBudget().room() > 0


SCRIPT = """
from pathlib import Path
import sys
Path(sys.argv[1], "cgroup.procs").write_text("0")
from aisfs.fuse.pusher import PageCacheBudget
print(PageCacheBudget().room())
"""


def test_real_control_group_of_version_1(tmp_path: Path):
    """Where this machine lets us make a group: the limit of a real one is found."""
    top = Path("/sys/fs/cgroup/memory")
    if not (top / "memory.limit_in_bytes").exists() or not os.access(top, os.W_OK):
        pytest.skip("no control groups of version 1 that this user can make")
    group = top / f"aisfs-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(264 * MIB))
        command = [sys.executable, "-c", SCRIPT, str(group)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        room = int(done.stdout)
        assert 100 * MIB // SHARE < room <= (264 * MIB - FLOOR) // SHARE
    finally:
        group.rmdir()
