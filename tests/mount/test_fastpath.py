"""What the fast path is for: requests that are never sent, and none that is left unanswered."""

import errno
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.cache_data import Dataset, make_shards
from tests.mount.content import delete, fill, put
from tests.support import mounts
from tests.support.archives import make, text
from tests.support.mounts import Mount, eventually, python, run
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

LONG = ("--attr-ttl", "600", "--list-ttl", "600", "--negative-ttl", "600")
COUNTED = re.compile(
    r'^aisfs_operations_total\{answered_by="(\w+)",operation="(\w+)"\} (\d+)', re.MULTILINE
)
EPOCH = """
import os, sys
for folder in sys.argv[1:]:
    for entry in sorted(os.listdir(folder)):
        path = os.path.join(folder, entry)
        os.stat(path)
        with open(path, "rb", buffering=0) as file:
            file.read()
"""
PLAIN_EPOCH = EPOCH.replace(", buffering=0", "")


@pytest.fixture(scope="module")
def shards(store: Path) -> Dataset:
    """Four shards of 500 samples."""
    return make_shards(store / "b", 4, 500, 1000)


def requests(mount: Mount) -> Counter[tuple[str, str]]:
    """How many requests there were, by who answered and operation; asking is two getxattrs."""
    text = os.getxattr(mount.path, "user.aisfs.stats").decode()
    return Counter({(who, what): int(count) for who, what, count in COUNTED.findall(text)})


@contextmanager
def with_fastpath(
    server: RunningServer, mountpoint: Path, *options: str, **more
) -> Iterator[Mount]:
    with mounts.mounted(
        "ais://b",
        mountpoint,
        endpoint=server.endpoint,
        options=(*LONG, *options),
        fastpath=True,
        **more,
    ) as mount:
        yield mount


def test_a_warm_epoch_asks_the_daemon_nothing(
    server: RunningServer, shards: Dataset, mountpoint: Path
):
    with with_fastpath(server, mountpoint) as mount:
        folder = str(mount.path / shards.folders[0])
        python(EPOCH, folder)
        # Several, since the kernel may drop pages meanwhile: others use this machine too.
        asked = [daemon_asked(mount, EPOCH, folder) for _ in range(10)]
        assert Counter() in asked, asked
        # Plain open() asks whether the file is a terminal, up to Python 3.13: see docs/adr/0016.
        asked = [daemon_asked(mount, PLAIN_EPOCH, folder) for _ in range(10)]
        files = len(os.listdir(folder))
        one_each = Counter({"ioctl": files}) if sys.version_info < (3, 14) else Counter()
        assert one_each in asked, asked


def daemon_asked(mount: Mount, program: str, folder: str) -> Counter[str]:
    """Read everything in a folder once more, and count what the daemon was asked meanwhile."""
    before = requests(mount)
    python(program, folder)
    asked: Counter[str] = Counter()
    for (_, what), count in (requests(mount) - before).items():
        if what != "getxattr":  # which is how we ask
            asked[what] += count
    return asked


def test_hot_requests_do_not_reach_pyfuse3(
    server: RunningServer, shards: Dataset, mountpoint: Path
):
    with with_fastpath(server, mountpoint) as mount:
        folders = [str(mount.path / folder) for folder in shards.folders]
        python(EPOCH, *folders)
        before = requests(mount)
        for _ in range(2):
            for folder in folders:
                for name in os.listdir(folder):
                    fd = os.open(f"{folder}/{name}", os.O_RDONLY)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.pread(fd, 100, 0)
                    os.close(fd)
        after = requests(mount)
    after.subtract(before)
    # Not all: the kernel keeps a page that something else holds while it is told to drop it.
    assert after["lane", "read"] > 1.98 * len(shards.members)
    others = {what for (who, what), count in after.items() if count and who != "lane"}
    assert others <= {"getxattr"}


def test_opening_and_closing_is_not_told(server: RunningServer, shards: Dataset, mountpoint: Path):
    with with_fastpath(server, mountpoint) as mount:
        for _ in range(3):
            python(EPOCH, mount.path / shards.folders[0])
        counts = requests(mount)
    told = {what: sum(n for (_, w), n in counts.items() if w == what) for _, what in counts}
    assert told["open"] == told["opendir"] == told["flush"] == 1
    assert "release" not in told
    assert "releasedir" not in told


def test_requests_are_counted_by_who_answers(
    server: RunningServer, shards: Dataset, mountpoint: Path
):
    with mounts.mounted(
        "ais://b", mountpoint, endpoint=server.endpoint, options=LONG, fastpath=False
    ) as mount:
        python(EPOCH, mount.path / shards.folders[0])
        counts = requests(mount)
    assert {who for who, _ in counts} == {"pyfuse3"}
    assert counts["pyfuse3", "open"] == len(shards.members) // 4


def test_a_listing_is_kept_until_its_time_is_over(
    server: RunningServer, mountpoint: Path, tmp_path: Path
):
    """The kernel gives it away without asking, and asks again by itself."""
    short = ("--list-ttl", "3", "--attr-ttl", "3", "--negative-ttl", "0")
    with with_fastpath(server, mountpoint, *short) as mount:
        os.listdir(mount.path)
        os.listdir(mount.path)
        before = requests(mount)
        began = time.monotonic()
        for _ in range(10):
            os.listdir(mount.path)
        after = requests(mount)
        if time.monotonic() - began < 1:
            after.subtract(before)
            assert after["lane", "readdirplus"] == after["pyfuse3", "readdir"] == 0
        put(server.endpoint, "b", "appears.txt", b"x")
        try:
            assert eventually(lambda: "appears.txt" in os.listdir(mount.path))
        finally:
            delete(server.endpoint, "b", "appears.txt")
        assert eventually(lambda: "appears.txt" not in os.listdir(mount.path))


def test_what_a_read_finds_out_is_told_to_the_kernel(server: RunningServer, mountpoint: Path):
    """An object that turns out to be gone: names and listings are right at once, not after the TTL."""
    put(server.endpoint, "b", "goes.bin", b"A" * (4 << 20))
    stale = [r"changed since it was opened|changed"]
    with with_fastpath(server, mountpoint, "--cache-size", "0", expected_log=stale) as mount:
        names = os.listdir(mount.path)
        assert "goes.bin" in names
        with open(mount.path / "goes.bin", "rb", buffering=0) as file:
            put(server.endpoint, "b", "goes.bin", b"B" * 1000)
            put(server.endpoint, "b", "unseen.bin", b"C")
            with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
                file.read(1 << 20)
        try:
            assert eventually(lambda: (mount.path / "goes.bin").stat().st_size == 1000)
            assert eventually(lambda: "unseen.bin" in os.listdir(mount.path))
            assert (mount.path / "goes.bin").read_bytes() == b"B" * 1000
        finally:
            for name in ("goes.bin", "unseen.bin"):
                delete(server.endpoint, "b", name)


def test_root_needs_no_fusermount(server: RunningServer, mountpoint: Path, tmp_path: Path):
    if os.geteuid():
        pytest.skip("only root may mount by itself")
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("env", "sh"):
        (tools / tool).symlink_to(f"/usr/bin/{tool}")
    with with_fastpath(server, mountpoint, env={"PATH": str(tools)}) as mount:
        assert len(os.listdir(mount.path)) == 4
        done = run(*mounts.COMMAND, "umount", mount.path, env={**mount.environment})
        assert (done.returncode, done.stderr) == (0, b"")
        assert mount.wait_until_gone()


def test_members_of_every_form_again(tmp_path: Path, mountpoint: Path):
    """What lies in the disk cache as it is read is given from there; of a zip that is not all."""
    members = {f"{n}.bin": text(50_000, n) for n in range(20)}
    forms = ("tar", "tgz", "tar.zst", "zip")
    fill(tmp_path / "store" / "b", {f"x.{form}": make(form, members) for form in forms})
    options = ("--cache-dir", str(tmp_path / "cache"), "--cache-size", "200MiB")
    with (
        running_server(tmp_path / "store") as server,
        with_fastpath(server, mountpoint, *options) as mount,
    ):
        for form in forms:
            folder = mount.path / f"x.{form}.d"
            assert {name: (folder / name).read_bytes() for name in members} == members

            def reads(folder: Path = folder) -> tuple[int, int]:
                before = requests(mount)
                for name, data in members.items():
                    assert read_at(folder / name, 1000, 5000) == data[1000:6000]
                after = requests(mount)
                after.subtract(before)
                return after["lane", "read"], after["trio", "read"]

            # Until the last bytes are in the disk cache and the last push is in the page cache.
            wanted = (0, len(members)) if form == "zip" else (len(members), 0)
            assert eventually(lambda reads=reads, wanted=wanted: reads() == wanted)


def read_at(path: Path, offset: int, size: int) -> bytes:
    """Read past the page cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.pread(fd, size, offset)
    finally:
        os.close(fd)


def test_a_mountpoint_behind_a_symlink_is_left_on_sigterm(
    server: RunningServer, mountpoint: Path, tmp_path: Path
):
    link = tmp_path / "link"
    link.symlink_to(mountpoint)
    log = tmp_path / "log"
    done = mounts.aisfs("mount", "ais://b", link, "--endpoint", server.endpoint, "--log-file", log)
    assert (done.returncode, done.stderr) == (0, b"")
    (pid,) = mounts.daemons(link)
    try:
        assert len(os.listdir(link)) == 4
        os.kill(pid, signal.SIGTERM)
        assert eventually(lambda: not mounts.is_mountpoint(mountpoint))
        assert eventually(lambda: not mounts.daemons(link))
    finally:
        run("fusermount3", "-uzq", mountpoint)
    assert "WARNING" not in log.read_text()
