"""The examples of SEMANTICS, and the table of refused operations, on a real mount."""

import errno
import fcntl
import mmap
import os
import re
import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from aisfs.commands.options import Exit
from tests.docs.documents import SEMANTICS, rows, section
from tests.docs.pets import BUCKET, MOUNTED_ON, OVERWRITTEN, fill_bucket
from tests.support.mounts import Mount, aisfs, eventually, mounted, run
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

_BLOCK = re.compile(r"^```console *(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Example(NamedTuple):
    """One command and what the document says it prints."""

    options: str
    command: str
    output: str


def examples() -> Iterator[Example]:
    for options, block in _BLOCK.findall(SEMANTICS.read_text()):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = step.partition("\n")
            yield Example(options, command, output)


EXAMPLES = list(examples())
OPTIONS = sorted({example.options for example in EXAMPLES})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    store = tmp_path_factory.mktemp("docs").resolve() / "store"
    (store / BUCKET).mkdir(parents=True)
    with running_server(store) as server:
        fill_bucket(server.endpoint)
        yield server


@pytest.fixture(scope="module", params=OPTIONS)
def options(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def mount(
    options: str, server: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mount]:
    mountpoint = tmp_path_factory.mktemp("mnt").resolve()
    with mounted(
        f"ais://{BUCKET}",
        mountpoint,
        endpoint=server.endpoint,
        options=shlex.split(options),
        expected_log=[r"cut\.tar|odd\.tar|b\.bin"],
        deadline=300,
    ) as mount:
        yield mount


def test_there_are_examples_of_every_way_to_show_shards():
    assert OPTIONS == [
        "",
        "--shards both",
        "--shards dir",
        "--view class --image image.jpg --include samples.tar",
        "--view samples --include samples.tar",
        "--view shards --samples-per-shard 1 --include /train --exclude deep",
        "--view shards --shuffle 4 --samples-per-shard 1 --include samples.tar",
        "--writable",
        "--writable --write-back=3600",
    ]


def test_examples(options: str, mount: Mount):
    """All of one mount in one test, so that one run shows every line that is wrong."""
    real = str(mount.path)
    wrong = []
    for example in EXAMPLES:
        if example.options != options:
            continue
        command = example.command.replace(MOUNTED_ON, shlex.quote(real))
        done = run("bash", "-c", f"{{ {command}\n}} 2>&1", timeout=60)
        output = done.stdout.decode(errors="replace").replace(real, MOUNTED_ON)
        if output.rstrip("\n") != example.output.rstrip("\n"):
            wrong.append(f"$ {example.command}\n{output}instead of\n{example.output}")
    assert not wrong, "\n".join(wrong)


def refused_operations() -> dict[str, Callable[[Path], object]]:
    """What SEMANTICS says is refused, tried on an existing file."""
    return {
        "open for writing": lambda path: os.open(path, os.O_WRONLY),
        "create": lambda path: os.open(path.parent / "new", os.O_CREAT | os.O_WRONLY, 0o644),
        "truncate": lambda path: os.truncate(path, 0),
        "unlink": os.unlink,
        "mkdir": lambda path: os.mkdir(path.parent / "new"),
        "rmdir": lambda path: os.rmdir(path.parent),
        "rename": lambda path: os.rename(path, path.parent / "new"),
        "link": lambda path: os.link(path, path.parent / "new"),
        "symlink": lambda path: os.symlink("target", path.parent / "new"),
        "mknod": lambda path: os.mknod(path.parent / "new", 0o644),
        "chmod": lambda path: os.chmod(path, 0o600),
        "chown": lambda path: os.chown(path, 1, 1),
        "utime": lambda path: os.utime(path, (0, 0)),
        "setxattr": lambda path: os.setxattr(path, "user.x", b"1"),
        "removexattr": lambda path: os.removexattr(path, "user.x"),
    }


@pytest.mark.parametrize("options", [""], indirect=True, scope="module")
@pytest.mark.parametrize("name", ["train/0001.jpg", "odd.tar.d/dir/a.txt"])
def test_refused_operations(name: str, mount: Mount):
    said = dict(rows(section(SEMANTICS, "What is refused")))
    operations = refused_operations()
    assert set(said) == set(operations)
    for operation, attempt in operations.items():
        with pytest.raises(OSError, match=r"^\[Errno") as caught:
            attempt(mount.path / name)
        assert errno.errorcode[caught.value.errno] == said[operation], operation
    with open(mount.path / name, "rb") as file, pytest.raises(PermissionError):
        mmap.mmap(file.fileno(), 1, mmap.MAP_SHARED, mmap.PROT_WRITE)
    with open(mount.path / name, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


@pytest.mark.parametrize("options", [""], indirect=True, scope="module")
def test_inode_numbers_are_the_same_after_a_remount(
    server: RunningServer, tmp_path: Path, mount: Mount
):
    names = ("readme.txt", "train", "samples.tar", "samples.tar.d", "odd.tar.d/dir/a.txt")
    (tmp_path / "mnt").mkdir()
    with mounted(f"ais://{BUCKET}", tmp_path.resolve() / "mnt", endpoint=server.endpoint) as second:
        for name in names:
            assert os.stat(second.path / name).st_ino == os.stat(mount.path / name).st_ino, name
    hard, content = (os.stat(mount.path / "odd.tar.d" / name) for name in ("hard", "dir/a.txt"))
    assert hard.st_ino == content.st_ino


@pytest.mark.parametrize("options", [""], indirect=True, scope="module")
def test_the_time_of_an_object_is_a_second_for_each_version(mount: Mount):
    first, second = (os.stat(mount.path / name) for name in ("readme.txt", OVERWRITTEN))
    assert os.getxattr(mount.path / OVERWRITTEN, "user.ais.version") == b"2"
    assert second.st_mtime_ns == first.st_mtime_ns + 1_000_000_000


@pytest.mark.parametrize("options", ["--list-xattrs"], indirect=True, scope="module")
def test_extended_attributes_are_those_of_the_table(mount: Mount):
    table = {row[0].strip("`") for row in rows(section(SEMANTICS, "Extended attributes"))}
    names = ("", "readme.txt", "odd.tar.d", "odd.tar.d/dir", "odd.tar.d/twice", "cut.tar.d")
    found = {name: set(os.listxattr(mount.path / name)) for name in names}
    assert found == {
        "": {"user.aisfs.stats"},
        "readme.txt": {"user.ais.version", "user.ais.checksum"},
        "odd.tar.d": {"user.aisfs.shard", "user.aisfs.skipped"},
        "odd.tar.d/dir": {"user.aisfs.shard"},
        "odd.tar.d/twice": {"user.aisfs.shard", "user.aisfs.offset"},
        "cut.tar.d": {"user.aisfs.shard", "user.aisfs.warnings"},
    }
    unlisted, of_failures = "user.aisfs.kept", "user.aisfs.error"
    assert set().union(*found.values()) == table - {unlisted, of_failures}
    assert int(os.getxattr(mount.path / "readme.txt", unlisted)) >= 0
    assert os.getxattr(mount.path / "odd.tar.d", unlisted) == b"1"
    stats = os.getxattr(mount.path, "user.aisfs.stats")
    assert b"aisfs_operations_total" in stats


def error_of_listing(place: Path) -> int | None:
    try:
        os.listdir(place)
    except OSError as error:
        return error.errno
    return None


def test_a_mountpoint_is_cleared_after_kill_9_even_when_its_attributes_are_cached(
    server: RunningServer, tmp_path: Path
):
    place = tmp_path.resolve() / "mnt"
    place.mkdir()
    with mounted(f"ais://{BUCKET}", place, endpoint=server.endpoint) as dead:
        os.stat(place)  # the kernel now knows them without asking
        os.kill(dead.pid, signal.SIGKILL)
        assert eventually(lambda: error_of_listing(place) == errno.ENOTCONN)
        with mounted(f"ais://{BUCKET}", place, endpoint=server.endpoint) as alive:
            assert "readme.txt" in os.listdir(alive.path)


@pytest.mark.parametrize("options", [""], indirect=True, scope="module")
def test_a_busy_mount_is_left_alone(mount: Mount):
    with open(mount.path / "readme.txt", "rb"):
        done = aisfs("umount", mount.path)
    assert done.returncode == Exit.MOUNTPOINT
    assert b"--lazy" in done.stderr
    assert mount.is_mounted()
