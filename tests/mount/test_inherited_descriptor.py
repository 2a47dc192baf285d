"""A mount that root made, served by a process without rights that inherits its descriptor."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.content import fill
from tests.support.mounts import (
    COMMAND,
    aisfs,
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
exec env HOME="$place/home" PATH=/usr/bin setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups \\
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
    """The processes that have this word in their command line, apart from shells that wait beside them."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if os.fsencode(log) in words and b"-m" in words:
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
