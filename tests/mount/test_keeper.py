"""A mount with a keeper goes on when its daemon dies, and programs see no error."""

import io
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounts import Mount, aisfs, eventually, mounted, python
from tests.support.servers import RunningServer, running_server

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

RESTARTED = r"this daemon goes on with the mount \(restart \d+\): process \d+ was killed"
SHARDS, SAMPLES = 4, 50


def content(name: str) -> bytes:
    return (name.encode() + b" ") * 997


def write_shard(file: Path, shard: int) -> None:
    with tarfile.open(file, "w") as tar:
        for at in range(SAMPLES):
            for extension, data in (
                ("jpg", content(f"{shard}{at:04}.jpg")),
                ("cls", b"%d" % (at % 3)),
            ):
                member = tarfile.TarInfo(f"{shard}{at:04}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("buckets")
    loose = root / "loose" / "deep" / "er"
    loose.mkdir(parents=True)
    for at in range(40):
        (loose / f"{at}.bin").write_bytes(content(f"{at}.bin"))
    (root / "pets").mkdir()
    for shard in range(SHARDS):
        write_shard(root / "pets" / f"p-{shard}.tar", shard)
    with running_server(root, faulty=True) as server:
        yield server


def kill(mount: Mount) -> int:
    """Kill the daemon; return its number."""
    pid = mount.daemon_now()
    os.kill(pid, signal.SIGKILL)
    return pid


READ_ON = """if 1:
    import hashlib, os, random, sys
    mnt, count = sys.argv[1], int(sys.argv[2])
    paths = sorted(os.path.join(d, f) for d, _, files in os.walk(mnt) for f in files)
    rng = random.Random(7)
    some = rng.sample(paths, min(len(paths), 60))
    def read(path):
        with open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return file.read()
    known = {path: hashlib.md5(read(path)).digest() for path in some}
    opened = {path: open(path, "rb", buffering=0) for path in some[:10]}
    os.chdir(os.path.dirname(paths[-1]))
    here = sorted(os.listdir("."))
    for turn in range(count):
        print("kill", flush=True)
        for path, file in opened.items():
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert hashlib.md5(os.pread(file.fileno(), 1 << 24, 0)).digest() == known[path], path
        for path in some:
            assert hashlib.md5(read(path)).digest() == known[path], path
        assert sorted(os.listdir(".")) == here
        assert os.path.samefile(".", os.path.dirname(paths[-1]))
        found = sorted(os.path.join(d, f) for d, _, files in os.walk(mnt) for f in files)
        assert found == paths, (len(found), len(paths))
    """


@pytest.mark.parametrize(
    "options",
    [
        ("ais://loose",),
        ("ais://pets", "--shards", "dir"),
        ("ais://pets/p-{0..3}.tar", "--view", "class"),
        ("ais://pets/p-{0..3}.tar", "--view", "samples"),
        ("ais://pets/p-{0..3}.tar", "--view", "shards", "--shuffle", "3"),
        (),
    ],
    ids=lambda options: " ".join(options) or "every bucket",
)
def test_readers_see_no_error(server: RunningServer, mountpoint: Path, options: tuple[str, ...]):
    source, *rest = options or (None,)
    with mounted(
        source,
        mountpoint,
        endpoint=server.endpoint,
        options=rest,
        keeper=True,
        expected_log=[RESTARTED],
    ) as mount:
        before = mount.pid
        command = [sys.executable, "-c", READ_ON, str(mountpoint), "3"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            for _ in program.stdout:
                kill(mount)
        assert program.returncode == 0
        assert mount.daemon_now() != before


def test_a_program_may_hold_what_was_never_read(server: RunningServer, mountpoint: Path) -> None:
    """Numbers that were only listed, of files and directories, are still understood."""
    with mounted(
        "ais://loose", mountpoint, endpoint=server.endpoint, keeper=True, expected_log=[RESTARTED]
    ) as mount:
        python(
            """if 1:
            import os, signal, sys
            os.chdir(sys.argv[1] + "/deep/er")
            fds = {name: os.open(name, os.O_RDONLY) for name in os.listdir(".")}
            times = [os.stat(place).st_mtime_ns for place in (".", "..", "../..")]
            for _ in range(3):
                for pid in sys.argv[2:]:
                    os.kill(int(pid), signal.SIGKILL)
                for name, fd in fds.items():
                    assert os.pread(fd, 1 << 20, 0) == (name.encode() + b" ") * 997
                    assert os.fstat(fd).st_size == len(name + " ") * 997
                sys.argv[2:] = []
            assert len(os.listdir(".")) == 40
            assert [os.stat(place).st_mtime_ns for place in (".", "..", "../..")] == times
            """,
            mountpoint,
            mount.daemon_now(),
        )


def test_an_object_that_has_changed_is_not_shown_as_the_one_before(
    server: RunningServer, mountpoint: Path
) -> None:
    file = server.root / "loose" / "deep" / "changing"
    file.write_bytes(b"before")
    with mounted(
        "ais://loose",
        mountpoint,
        endpoint=server.endpoint,
        keeper=True,
        expected_log=[RESTARTED, "read failed: .*changed"],
    ) as mount:
        said = python(
            """if 1:
            import os, signal, sys
            mnt, file, pid = sys.argv[1:]
            fd = os.open(mnt + "/deep/changing", os.O_RDONLY)
            os.kill(int(pid), signal.SIGKILL)
            open(file, "wb").write(b"something else")
            try:
                print(os.pread(fd, 100, 0))
            except OSError as error:
                print(error.errno)
            """,
            mountpoint,
            file,
            mount.daemon_now(),
        )
        assert int(said) == 116, "ESTALE"
    file.unlink()


def test_without_its_keeper_the_mount_ends_cleanly(server: RunningServer, mountpoint: Path) -> None:
    with mounted(
        "ais://loose",
        mountpoint,
        endpoint=server.endpoint,
        keeper=True,
        expected_log=["the keeper of this mount has ended"],
    ) as mount:
        os.kill(mount.keeper, signal.SIGKILL)
        assert mount.wait_until_gone()


def test_signals_to_the_keeper_reach_the_daemon(server: RunningServer, mountpoint: Path) -> None:
    with mounted("ais://loose", mountpoint, endpoint=server.endpoint, keeper=True) as mount:
        os.kill(mount.keeper, signal.SIGTERM)
        assert mount.wait_until_gone()


def test_in_the_foreground_the_exit_code_passes_through(
    server: RunningServer, mountpoint: Path
) -> None:
    with mounted(
        "ais://loose",
        mountpoint,
        endpoint=server.endpoint,
        keeper=True,
        foreground=True,
        expected_log=[RESTARTED],
    ) as mount:
        assert mount.process is not None
        keeper = mount.process.pid
        mount.pids = [mount.daemon_now(), keeper]
        kill(mount)
        assert len(python("import os, sys; print(os.listdir(sys.argv[1]))", mountpoint)) > 0
        os.kill(keeper, signal.SIGINT)
        assert eventually(lambda: mount.process is not None and mount.process.poll() is not None)
        assert mount.process.returncode == 0
        assert mount.wait_until_gone()


def test_a_cluster_that_is_down_is_waited_for(server: RunningServer, mountpoint: Path) -> None:
    """As a daemon that lives does: its requests fail, and later ones do not."""
    refused = [{"path": "", "status": 503}]
    with mounted(
        "ais://loose",
        mountpoint,
        endpoint=server.endpoint,
        options=["--io-timeout", "2"],
        keeper=True,
        expected_log=[RESTARTED, "could not go on with the mount", "503|not answer|no answer"],
    ) as mount:
        server.faults(refused)
        try:
            before = kill(mount)
            assert eventually(lambda: mount.daemon_now() not in (before, mount.pid))
        finally:
            server.faults([])
        assert b"0.bin" in python(
            "import os, sys; print(os.listdir(sys.argv[1]))", mountpoint / "deep/er"
        )


def test_a_mount_that_is_unmounted_while_it_restarts_ends(
    server: RunningServer, mountpoint: Path
) -> None:
    with mounted(
        "ais://loose", mountpoint, endpoint=server.endpoint, keeper=True, expected_log=[RESTARTED]
    ) as mount:
        kill(mount)
        subprocess.run(["fusermount3", "-uz", mountpoint], check=True)
        assert mount.wait_until_gone()


@pytest.mark.parametrize("option", ["--no-keeper", "--no-fastpath"])
def test_other_mounts_have_no_keeper(server: RunningServer, mountpoint: Path, option: str) -> None:
    with mounted(
        "ais://loose", mountpoint, endpoint=server.endpoint, keeper=True, options=[option]
    ) as mount:
        assert len(mount.pids) == 1
        os.kill(mount.pid, signal.SIGKILL)
        assert eventually(lambda: aisfs("umount", mountpoint).returncode == 0)
