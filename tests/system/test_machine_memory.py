"""How much memory there is: the least limit of the machine and of all groups on the way up."""

from pathlib import Path

import pytest

from aisfs.mount.memory import memory_limits
from aisfs.settings import MIB, CacheSettings
from aisfs.system.memory import MachineMemory
from tests.fuse.test_memory_budget import NO_LIMIT, V1, V1_CPU, V2, Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def limit(machine: Machine) -> int:
    room = MachineMemory(machine.root).limit()
    assert room is not None
    return room.size // MIB


def test_the_machine(machine: Machine):
    assert MachineMemory(machine.root).limit() == (99999999 * 1024, None)


@pytest.mark.parametrize("limited", ["own", "above", "top"])
def test_version_2(machine: Machine, limited: str):
    machine.groups("0::/a/b", V2.format(top="/", at="/sys/fs/cgroup"))
    for name, path in {"top": "", "above": "/a", "own": "/a/b"}.items():
        machine.v2(f"sys/fs/cgroup{path}", 256 * MIB if name == limited else "max", 0)
    assert limit(machine) == 256
    room = MachineMemory(machine.root).limit()
    assert room.group == machine.root / {"top": "sys/fs/cgroup", "above": "sys/fs/cgroup/a",
                                         "own": "sys/fs/cgroup/a/b"}[limited]  # fmt: skip


def test_a_limit_that_slows_down_counts_too(machine: Machine):
    machine.groups("0::/", V2.format(top="/", at="/sys/fs/cgroup"))
    machine.v2("sys/fs/cgroup", 512 * MIB, 0)
    (machine.root / "sys/fs/cgroup/memory.high").write_text(f"{200 * MIB}\n")
    assert limit(machine) == 200


@pytest.mark.parametrize("limited", ["own", "above", "what the container does not see"])
def test_version_1(machine: Machine, limited: str):
    machine.groups("5:cpu,cpuacct:/else\n4:memory:/box/1\n0::/", V1_CPU,
                   V1.format(top="/", at="/sys/fs/cgroup/memory"))  # fmt: skip
    for name, path in {"above": "/box", "own": "/box/1"}.items():
        own = 300 * MIB if name == limited else NO_LIMIT
        machine.v1(f"sys/fs/cgroup/memory{path}", own, 0)
    if limited.startswith("what"):
        statistics = machine.root / "sys/fs/cgroup/memory/box/1/memory.stat"
        statistics.write_text(f"hierarchical_memory_limit {300 * MIB}\ntotal_inactive_file 0\n")
    assert limit(machine) == 300


@pytest.mark.parametrize(
    ("own", "top"),
    [("/docker/1", "/docker/1"), ("/", "/"), ("/kubepods/x", "/other/tree"), ("/../beside", "/"),
     ("/a\\x2db.scope", "/a\\134x2db.scope")],
)  # fmt: skip
def test_containers(machine: Machine, own: str, top: str):
    """The tree of groups may begin at the container, or somewhere else, and names may have escapes."""
    machine.groups(f"0::{own}", V2.format(top=top, at="/sys/fs/cgroup"))
    machine.v2("sys/fs/cgroup", 128 * MIB, 0)
    assert limit(machine) == 128


def test_nothing_is_known(tmp_path: Path):
    memory = MachineMemory(tmp_path)
    assert (memory.limit(), memory.available()) == (None, None)
    assert memory_limits(CacheSettings.load({}), memory)[:2] == (512 * MIB, 512 * MIB)


@pytest.mark.parametrize(
    ("group", "fetched", "indexes"),
    [
        (64, 16, 16),
        (128, 16, 16),
        (256, 64, 32),
        (512, 192, 96),
        (1024, 448, 224),
        (4096, 512, 512),
    ],
)
def test_defaults_leave_room_for_python_and_the_kernel(
    machine: Machine, group: int, fetched: int, indexes: int
):
    machine.groups("0::/", V2.format(top="/", at="/sys/fs/cgroup"))
    machine.v2("sys/fs/cgroup", group * MIB, 0)
    memory = MachineMemory(machine.root)
    found = memory_limits(CacheSettings.load({}), memory)
    assert (found.fetched // MIB, found.indexes // MIB) == (fetched, indexes)
    assert bool(found.why) is (fetched < 512)
    assert not found.why or f"{group} MiB" in found.why
    given = memory_limits(CacheSettings.load({"memory_limit": "300MiB"}), memory)
    assert (given.fetched // MIB, given.indexes // MIB, given.why) == (300, indexes, "")


@pytest.mark.parametrize(("sharers", "fetched"), [(1, 512), (2, 512), (10, 188), (100, 16)])
def test_mounts_that_share_a_limit_divide_it(machine: Machine, sharers: int, fetched: int):
    machine.groups("0::/", V2.format(top="/", at="/sys/fs/cgroup"))
    machine.v2("sys/fs/cgroup", 4096 * MIB, 0)
    found = memory_limits(CacheSettings.load({}), MachineMemory(machine.root), sharers)
    assert found.fetched // MIB == fetched
    assert (f"for {sharers} mounts" in found.why) is (fetched < 512)


def test_what_the_kernel_killed_is_counted(machine: Machine):
    machine.groups("0::/", V2.format(top="/", at="/sys/fs/cgroup"))
    machine.v2("sys/fs/cgroup", 4096 * MIB, 0)
    assert MachineMemory(machine.root).killed() == 0
    events = machine.root / "sys/fs/cgroup/memory.events"
    events.write_text("low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert MachineMemory(machine.root).killed() == 2
