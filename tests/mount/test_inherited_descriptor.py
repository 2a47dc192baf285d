"""A mount that root made, served by a process without rights that inherits its descriptor."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.content import fill
from tests.support.mounts import (
    COMMAND,
    aisfs,
    environment,
    eventually,
    is_mountpoint,
    python,
    run,
    succeed,
)
from tests.support.tars import END, entry

pytestmark = pytest.mark.mount

NOBODY = 65534
OPTIONS = "fd=7,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
MOUNT_AND_SERVE = f"""
set -e
place=$1
shift
exec 7<>/dev/fuse
mount -i -t fuse.aisfs -o {OPTIONS} pets "$place/mnt"
# No capability but to read the interpreter, which may lie below /root.
exec $AISFS_WITHIN env HOME="$place/home" PATH=/usr/bin setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups \\
    --inh-caps -all,+dac_read_search --ambient-caps -all,+dac_read_search "$@"
"""
"""What a driver for containers does: root mounts, and drops all rights before it serves."""


@pytest.fixture
def place(open_mountpoint: Path) -> Path:
    """A directory of the user nobody, with a source, a home and a mountpoint."""
    place = open_mountpoint.parent
    fill(place / "source", {"a.txt": b"a", "x.tar": entry(b"0.jpg", b"picture") + END})
    (place / "home").mkdir()
    for path in (*place.rglob("*"), place):
        os.chown(path, NOBODY, NOBODY)
    return place


@contextmanager
def served(place: Path, *options: str) -> Iterator[tuple[Path, int]]:
    """Mount and serve in the background; yield the mountpoint and the process that serves it."""
    mountpoint, log = place / "mnt", place / "home" / "log"
    serve = [*COMMAND, "mount", place / "source", "/dev/fd/7", "--log-file", log, *options]
    try:
        succeed("sh", "-c", MOUNT_AND_SERVE, "sh", place, *serve)
        yield mountpoint, daemon_of(log)
    finally:
        if is_mountpoint(mountpoint):
            run("umount", "--lazy", mountpoint)
    assert eventually(lambda: not daemons_of(log)), "a process was left behind"


def daemon_of(log: Path) -> int:
    (daemon,) = daemons_of(log)
    return daemon


def daemons_of(log: Path) -> list[int]:
    """The processes of Python that have this word in their command line; a keeper has not."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if os.fsencode(log) in words and words[1:2] == [b"-m"]:
            found.append(int(process.parent.name))
    return found


CHANGE = """
import os, sys
os.chdir(sys.argv[1])
for change in (lambda: open("b", "w"), lambda: os.unlink("a.txt"), lambda: os.symlink("a.txt", "b")):
    try:
        change()
    except OSError as error:
        print(error.errno)
"""


def test_a_process_without_rights_serves_what_root_mounted(place: Path):
    with served(place, "--writable") as (mountpoint, daemon):
        assert (mountpoint / "a.txt").read_bytes() == b"a"
        assert (mountpoint / "x.tar.d" / "0.jpg").read_bytes() == b"picture"
        (mountpoint / "new.txt").write_text("new")
        assert (place / "source" / "new.txt").read_text() == "new"
        status = Path(f"/proc/{daemon}/status").read_text().splitlines()
        (uids,) = (line.split()[1:] for line in status if line.startswith("Uid:"))
        assert set(uids) == {str(NOBODY)}
        assert b"lookup" in aisfs("status", mountpoint).stdout
        succeed("umount", mountpoint)
        assert eventually(lambda: not daemons_of(place / "home" / "log"))


def test_the_end_of_the_process_leaves_the_mount_to_the_one_who_made_it(place: Path):
    with served(place, "--no-fastpath") as (mountpoint, daemon):
        assert (mountpoint / "x.tar.d" / "0.jpg").read_bytes() == b"picture"
        # The kernel was told that it can be written, and asks.
        assert python(CHANGE, mountpoint).split() == [b"30", b"30", b"30"]
        os.kill(daemon, signal.SIGTERM)
        assert eventually(lambda: not daemons_of(place / "home" / "log"))
        assert is_mountpoint(mountpoint)
        assert b"not connected" in run("stat", mountpoint).stderr
        assert aisfs("umount", mountpoint).returncode == 0
        assert not is_mountpoint(mountpoint)


def test_a_descriptor_that_cannot_be_served_is_a_mountpoint_that_is_wrong(tmp_path: Path):
    done = aisfs("mount", tmp_path, "/dev/fd/99")
    assert (done.returncode, done.stderr.count(b"\n")) == (7, 1)
    assert b"/dev/fd/99: Bad file descriptor; the program that mounts must" in done.stderr
    done = aisfs("mount", tmp_path, "/dev/fd/99", "--allow-other")
    assert done.returncode == 2
    assert b"-o allow_other: /dev/fd/99 is mounted already" in done.stderr


KEPT = {"AISFS_KEEPER": "yes"}


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def kill_daemon(log: Path, count: int) -> None:
    """Kill the daemon, and wait for the next one, which is the start number `count`."""
    os.kill(daemon_of(log), signal.SIGKILL)
    assert eventually(lambda: f"(restart {count})" in log.read_text())


def test_a_mount_of_a_descriptor_goes_on_when_its_daemon_is_killed(place: Path):
    log = place / "home" / "log"
    serve = [*COMMAND, "mount", place / "source", "/dev/fd/7", "--log-file", log]
    try:
        succeed("env", *variables(KEPT), "sh", "-c", MOUNT_AND_SERVE, "sh", place, *serve)
        keeper = parent_of(daemon_of(log))
        with open(place / "mnt" / "x.tar.d" / "0.jpg", "rb", buffering=0) as file:
            for count in (1, 2):
                kill_daemon(log, count)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                assert os.pread(file.fileno(), 100, 0) == b"picture"
                assert (place / "mnt" / "a.txt").read_bytes() == b"a"
        assert parent_of(daemon_of(log)) == keeper
        os.kill(keeper, signal.SIGTERM)
        assert eventually(lambda: not Path(f"/proc/{keeper}").exists())
        assert is_mountpoint(place / "mnt")
        assert b"not connected" in run("stat", place / "mnt").stderr
    finally:
        if is_mountpoint(place / "mnt"):
            run("umount", "--lazy", place / "mnt")
    assert eventually(lambda: not daemons_of(log))


def test_a_container_whose_first_process_is_the_keeper_goes_on_and_leaves_no_zombies(place: Path):
    log = place / "home" / "log"
    serve = [*COMMAND, "mount", "--foreground", place / "source", "/dev/fd/7", "--log-file", log]
    within = {"AISFS_WITHIN": "unshare --pid --fork --mount-proc --kill-child", **KEPT}
    command = ["sh", "-c", MOUNT_AND_SERVE, "sh", place, *serve]
    with subprocess.Popen(command, env=environment(within)) as container:
        try:
            assert eventually(lambda: log.exists() and " mounted " in log.read_text())
            first = parent_of(daemon_of(log))
            assert children_of(container.pid) == [first]
            for count in (1, 2, 3):
                kill_daemon(log, count)
                assert (place / "mnt" / "x.tar.d" / "0.jpg").read_bytes() == b"picture"
            assert eventually(lambda: children_of(first) == [daemon_of(log)])
            os.kill(first, signal.SIGTERM)
            assert container.wait(60) == 0
        finally:
            container.kill()
            run("umount", "--lazy", place / "mnt")
    assert eventually(lambda: not daemons_of(log))


def variables(given: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in given.items()]
