"""A user without rights mounts through fusermount3, reads, writes and unmounts."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.mount.content import fill
from tests.support.mounts import mounted, succeed
from tests.support.tars import END, entry

pytestmark = pytest.mark.mount

__all__ = ["mounted"]
"""Not called here, but it makes `conftest` run the tests with and without the fast path."""

MEMBERS = 200
USER = "nobody"
"""On every system; fusermount3 wants a user with a name."""
AS_USER = """
set -e
mount -t tmpfs none "$1"  # seen by nobody else, and gone with us
mknod -m 666 "$1/fuse" c 10 229
mount --bind "$1/fuse" /dev/fuse  # which root may have kept to itself
shift
# The interpreter may lie below /root: to read what is closed is all this user may do besides.
caps=-all,+dac_read_search
user=$1
shift
exec setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups \\
    --inh-caps "$caps" --ambient-caps "$caps" "$@"
"""
WORK = """
import json, os, subprocess, sys
source, mountpoint, home, *options = sys.argv[1:]
os.environ["HOME"] = home

def aisfs(*words):
    done = subprocess.run([sys.executable, "-m", "aisfs", *words], capture_output=True, text=True)
    assert done.returncode == 0, done

aisfs("mount", source, mountpoint, "--cache-dir", home + "/cache", *options)
try:
    folder = mountpoint + "/x.tar.d"
    names = sorted(os.listdir(folder))
    content = b"".join(open(folder + "/" + name, "rb").read() for name in names)
    facts = os.stat(mountpoint + "/a.txt")
    if "--writable" in options:
        with open(mountpoint + "/new.txt", "w") as file:
            file.write("new")
finally:
    aisfs("umount", mountpoint)
print(json.dumps([os.getuid(), facts.st_uid, len(names), content.decode(), os.listdir(mountpoint)]))
"""


@pytest.fixture
def place(open_mountpoint: Path) -> Path:
    """A directory with a source and room for the rest that belongs to the user."""
    place = open_mountpoint.parent
    shard = b"".join(entry(b"%05d" % row, b"%09d" % row) for row in range(MEMBERS)) + END
    fill(place / "source", {"a.txt": b"a", "x.tar": shard})
    (place / "home").mkdir()
    (place / "device").mkdir()
    if not os.geteuid():
        for path in (*place.rglob("*"), place):
            succeed("chown", "-h", USER, path)
    return place


@pytest.mark.parametrize("options", [[], ["--writable"]], ids=["read-only", "writable"])
def test_mounting_as_an_ordinary_user(place: Path, fastpath: bool, options: list[str]):
    options = options if fastpath else [*options, "--no-fastpath"]
    arguments = [place / "source", place / "mnt", place / "home", *options]
    work = [sys.executable, "-c", WORK, *arguments]
    if not os.geteuid():  # as in CI; else all tests here run as an ordinary user
        work = ["unshare", "--mount", "sh", "-c", AS_USER, "sh", place / "device", USER, *work]
    told = json.loads(succeed(*work))
    user = place.stat().st_uid
    content = "".join(f"{row:09}" for row in range(MEMBERS))
    assert told == [user, user, MEMBERS, content, []]
    if "--writable" in options:
        assert (place / "source/new.txt").read_text() == "new"
