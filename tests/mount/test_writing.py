"""Files written through a mount: what close and fsync acknowledged is what the store holds."""

import errno
import json
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.contract.subjects import send
from tests.mount.writable import Writable, fetched, writable
from tests.support.mounts import aisfs, eventually, mounted, python
from tests.support.servers import running_server

pytestmark = pytest.mark.mount
BOTH_WAYS = True


@pytest.fixture(scope="module", params=["ais", "directory"])
def place(request: pytest.FixtureRequest, fastpath: bool, tmp_path_factory: pytest.TempPathFactory):
    base = tmp_path_factory.mktemp(f"w-{request.param}")
    with writable(
        base,
        backend=request.param,
        deadline=600,
        expected_log=["cannot be written: AIStore refuses", "cannot be exchanged"],
    ) as place:
        yield place


@pytest.fixture
def folder(place: Writable, request: pytest.FixtureRequest) -> Path:
    """A directory of the mount for one test."""
    path = place.path / request.node.name.split("[")[0]
    path.mkdir()
    return path


@pytest.fixture
def stored(place: Writable, folder: Path):
    return lambda name: place.stored(f"{folder.name}/{name}")


@contextmanager
def opened(path: Path, flags: int, mode: int = 0o644) -> Iterator[int]:
    descriptor = os.open(path, flags, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def test_create(folder: Path, stored):
    with open(folder / "f", "wb") as file:
        file.write(b"hello")
        file.flush()
        assert stored("f") is None, "nothing is there before the close"
        assert (folder / "f").stat().st_size == 5, "the mount sees what it writes"
        assert os.listdir(folder) == ["f"]
    assert stored("f") == b"hello"
    assert (folder / "f").read_bytes() == b"hello"


def test_an_empty_file(folder: Path, stored):
    (folder / "f").touch()
    assert stored("f") == b""
    assert (folder / "f").read_bytes() == b""


def test_overwrite(folder: Path, stored):
    (folder / "f").write_bytes(b"old content")
    with open(folder / "f", "wb") as file:
        assert stored("f") == b"old content", "the old object stays until the close"
        file.write(b"new")
    assert stored("f") == b"new"
    assert (folder / "f").read_bytes() == b"new"


def streams(place: Writable) -> int:
    """Count the objects that were fetched whole."""
    said = json.loads(aisfs("status", place.mount.path, "--json").stdout)
    return int(said["store_calls"].get("stream", 0))


def test_a_log_that_is_opened_for_each_line_is_fetched_once(place: Writable, folder: Path, stored):
    (folder / "log").write_bytes(b"begin")
    before, lines = streams(place), b""
    for number in range(12):
        line = b"\n%d" % number
        with open(folder / "log", "ab") as file:
            file.write(line)
        lines += line
        assert stored("log") == b"begin" + lines
    with open(folder / "log", "r+b") as file:
        file.write(b"BEGIN")
    assert stored("log") == b"BEGIN" + lines
    assert streams(place) - before == 1


def test_what_another_client_wrote_between_two_lines_stays(tmp_path: Path, mountpoint: Path):
    (tmp_path / "store" / "b").mkdir(parents=True)
    options = ["--writable", "--staging-dir", str(tmp_path / "staging"), "--list-ttl", "0"]
    with (
        running_server(tmp_path / "store") as server,
        mounted(
            "ais://b", mountpoint, endpoint=server.endpoint, options=[*options, "--attr-ttl", "0"],
            expected_log=["changed by somebody else", "another client has changed it meanwhile"],
        ) as mount,
    ):  # fmt: skip
        log = mount.path / "log"
        for line in (b"a", b"b", b"c"):
            with open(log, "ab") as file:
                file.write(line)
        send("PUT", server.endpoint, "b", "log", b"xyz").raise_for_status()
        with open(log, "ab") as file:
            file.write(b"d")
        assert log.read_bytes() == fetched(server.endpoint, "b", "log") == b"xyzd"
        send("PUT", server.endpoint, "b", "log", b"ABCD").raise_for_status()
        log.rename(mount.path / "old")
        for name in ("old", "log"):
            with open(mount.path / name, "ab") as file:
                file.write(b"e")
        assert fetched(server.endpoint, "b", "old") == b"ABCDe"
        assert fetched(server.endpoint, "b", "log") == b"e"


def test_append(folder: Path, stored):
    (folder / "f").write_bytes(b"one\n")
    with open(folder / "f", "ab") as file:
        file.write(b"two\n")
    assert stored("f") == (folder / "f").read_bytes() == b"one\ntwo\n"


def test_random_writes(folder: Path, stored):
    (folder / "f").write_bytes(bytes(range(200)))
    with opened(folder / "f", os.O_RDWR) as file:
        os.pwrite(file, b"abc", 10)
        os.pwrite(file, b"end", 300)
        assert os.pread(file, 5, 9) == b"\x09abc\x0d"
    expected = bytearray(bytes(range(200)) + bytes(103))
    expected[10:13] = b"abc"
    expected[300:] = b"end"
    assert stored("f") == expected
    assert (folder / "f").read_bytes() == expected


def test_truncate(folder: Path, stored):
    (folder / "f").write_bytes(b"0123456789")
    os.truncate(folder / "f", 4)
    assert stored("f") == (folder / "f").read_bytes() == b"0123"
    os.truncate(folder / "f", 6)
    assert stored("f") == (folder / "f").read_bytes() == b"0123\0\0"
    os.truncate(folder / "f", 0)
    assert stored("f") == (folder / "f").read_bytes() == b""


def test_what_was_just_closed_is_truncated_in_the_store(folder: Path, stored):
    for size in range(50, 0, -1):
        (folder / "f").write_bytes(b"x" * 100)
        os.truncate(folder / "f", size)
        assert stored("f") == b"x" * size


def test_ftruncate_is_committed_by_close(folder: Path, stored):
    (folder / "f").write_bytes(b"0123456789")
    with opened(folder / "f", os.O_RDWR) as file:
        os.ftruncate(file, 3)
        assert stored("f") == b"0123456789"
        assert os.fstat(file).st_size == 3
    assert stored("f") == b"012"


def test_fsync_commits(folder: Path, stored):
    with opened(folder / "f", os.O_WRONLY | os.O_CREAT) as file:
        os.write(file, b"first")
        os.fsync(file)
        assert stored("f") == b"first"
        os.write(file, b" second")
        assert stored("f") == b"first"
        os.fdatasync(file)
        assert stored("f") == b"first second"


def test_exclusive_creation(folder: Path):
    (folder / "f").write_bytes(b"x")
    with pytest.raises(FileExistsError):
        os.open(folder / "f", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with opened(folder / "g", os.O_WRONLY | os.O_CREAT | os.O_EXCL):
        pass


def test_o_sync_commits_each_write(folder: Path, stored):
    with opened(folder / "f", os.O_WRONLY | os.O_CREAT | os.O_SYNC) as file:
        os.write(file, b"a")
        assert stored("f") == b"a"
        os.write(file, b"b")
        assert stored("f") == b"ab"


def test_a_duplicate_descriptor_commits_too(folder: Path, stored):
    file = os.open(folder / "f", os.O_WRONLY | os.O_CREAT)
    os.close(os.dup(file))
    os.write(file, b"late")
    os.close(file)
    assert stored("f") == b"late"


def test_shared_mapping(folder: Path, stored):
    (folder / "f").write_bytes(bytes(10_000))
    with opened(folder / "f", os.O_RDWR) as file, mmap.mmap(file, 10_000) as mapping:
        mapping[5000:5003] = b"map"
        mapping.flush()
        os.fsync(file)
        assert stored("f")[5000:5003] == b"map"
        mapping[0:3] = b"top"
    assert stored("f")[:3] == b"top"


def test_a_mapping_outlives_the_descriptor(folder: Path, stored):
    (folder / "f").write_bytes(bytes(10_000))
    file = os.open(folder / "f", os.O_RDWR)
    mapping = mmap.mmap(file, 10_000)
    os.close(file)
    mapping[100:104] = b"late"
    mapping.close()
    assert eventually(lambda: stored("f")[100:104] == b"late")


def test_two_writers_share_the_file(folder: Path, stored):
    (folder / "f").write_bytes(b"........")
    one, two = (os.open(folder / "f", os.O_RDWR) for _ in range(2))
    os.pwrite(one, b"11", 0)
    os.pwrite(two, b"22", 4)
    assert os.pread(one, 8, 0) == os.pread(two, 8, 0) == b"11..22.."
    os.close(one)
    assert stored("f") == b"11..22..", "a close commits what is there, whoever wrote it"
    os.pwrite(two, b"33", 6)
    os.close(two)
    assert stored("f") == b"11..2233"


def test_a_reader_sees_what_is_written(folder: Path):
    (folder / "f").write_bytes(b"before")
    with opened(folder / "f", os.O_RDONLY) as reader, opened(folder / "f", os.O_WRONLY) as writer:
        assert os.pread(reader, 10, 0) == b"before"
        os.pwrite(writer, b"AFTER", 0)
        assert os.pread(reader, 10, 0) == b"AFTERe"
        os.fsync(writer)
        os.pwrite(writer, b"again!", 0)
        assert os.pread(reader, 10, 0) == b"again!"


def test_the_inode_stays_while_a_file_is_open(folder: Path):
    with opened(folder / "f", os.O_RDWR | os.O_CREAT) as file:
        for text in (b"one", b"two"):
            os.write(file, text)
            os.fsync(file)
            os.listdir(folder)
            assert os.stat(folder / "f").st_ino == os.fstat(file).st_ino


def test_read_and_write_without_deadlock(folder: Path, stored):
    """AIStore locks an object while it is read; a large one is read while it is replaced."""
    content = os.urandom(3 << 20)
    (folder / "f").write_bytes(content)
    python(
        "import os, sys\n"
        "path = sys.argv[1]\n"
        "with open(path, 'rb') as old:\n"
        "    assert len(old.read(70_000)) == 70_000\n"
        "    with open(path, 'r+b') as new:\n"
        "        new.seek(1 << 20)\n"
        "        new.write(b'changed')\n"
        "    old.read()\n",
        folder / "f",
        timeout=60,
    )
    expected = content[: 1 << 20] + b"changed" + content[(1 << 20) + 7 :]
    assert stored("f") == expected


def test_unlink(folder: Path, stored):
    (folder / "f").write_bytes(b"x")
    os.unlink(folder / "f")
    assert stored("f") is None
    assert os.listdir(folder) == []
    with pytest.raises(FileNotFoundError):
        (folder / "f").stat()


def test_unlink_while_open(folder: Path, stored):
    (folder / "f").write_bytes(b"still here")
    with (
        opened(folder / "f", os.O_RDONLY) as reader,
        opened(folder / "g", os.O_RDWR | os.O_CREAT) as writer,
    ):
        os.write(writer, b"never")
        os.unlink(folder / "f")
        os.unlink(folder / "g")
        assert stored("f") is None
        assert os.pread(reader, 20, 0) == b"still here"
        os.write(writer, b" stored")
        assert os.pread(writer, 20, 0) == b"never stored"
        os.fsync(writer)
    assert stored("g") is None
    assert os.listdir(folder) == []


def test_what_is_removed_while_a_listing_is_read_does_not_come_back(place: Writable, folder: Path):
    """A listing brings the kernel what each name stands for, and it believes that."""
    names = {f"{n:03}".ljust(240, "x") for n in range(300)}
    for name in names:
        place.put(f"{folder.name}/{name}", b"x")
    with os.scandir(folder) as listing:
        seen = {next(listing).name for _ in range(5)}
        gone, moved, *_ = sorted(names - seen, reverse=True)
        os.unlink(folder / gone)
        os.rename(folder / moved, folder / "moved")
        seen |= {entry.name for entry in listing}
    assert seen - {gone, moved, "moved"} == names - {gone, moved}
    for name in (gone, moved):
        assert not (folder / name).exists()
    assert (folder / "moved").read_bytes() == b"x"
    assert set(os.listdir(folder)) == names - {gone, moved} | {"moved"}


def test_a_name_is_free_again_after_unlink(folder: Path, stored):
    with opened(folder / "f", os.O_WRONLY | os.O_CREAT) as old:
        os.write(old, b"old")
        os.unlink(folder / "f")
        (folder / "f").write_bytes(b"new")
        os.write(old, b" and gone")
    assert stored("f") == (folder / "f").read_bytes() == b"new"


def test_rename(folder: Path, stored):
    (folder / "f").write_bytes(b"content")
    (folder / "victim").write_bytes(b"old")
    os.rename(folder / "f", folder / "g")
    assert (stored("f"), stored("g")) == (None, b"content")
    os.rename(folder / "g", folder / "victim")
    assert (stored("g"), stored("victim")) == (None, b"content")
    assert os.listdir(folder) == ["victim"]
    assert (folder / "victim").read_bytes() == b"content"


def test_rename_over_an_open_file(folder: Path):
    (folder / "f").write_bytes(b"new")
    (folder / "g").write_bytes(b"old")
    with opened(folder / "g", os.O_RDONLY) as reader:
        os.rename(folder / "f", folder / "g")
        assert os.pread(reader, 10, 0) == b"old"
    assert (folder / "g").read_bytes() == b"new"


def test_rename_while_writing(folder: Path, stored):
    with opened(folder / "part", os.O_RDWR | os.O_CREAT) as file:
        os.write(file, b"one")
        os.rename(folder / "part", folder / "whole")
        assert stored("whole") == b"one", "a rename that succeeded is in the store"
        os.write(file, b" two")
    assert (stored("part"), stored("whole")) == (None, b"one two")
    assert (folder / "whole").read_bytes() == b"one two"


def test_directories(folder: Path, place: Writable):
    (folder / "a").mkdir()
    (folder / "a" / "b").mkdir()
    with pytest.raises(FileExistsError):
        (folder / "a").mkdir()
    assert os.listdir(folder / "a") == ["b"]
    (folder / "a" / "b" / "f").write_bytes(b"x")
    with pytest.raises(OSError, match="not empty"):
        (folder / "a" / "b").rmdir()
    os.unlink(folder / "a" / "b" / "f")
    assert os.listdir(folder / "a") == ["b"], "it stays when its last object goes"
    (folder / "a" / "b").rmdir()
    (folder / "a").rmdir()
    assert os.listdir(folder) == []


def test_rename_a_directory(folder: Path, place: Writable):
    (folder / "a" / "deep").mkdir(parents=True)
    (folder / "a" / "empty").mkdir()
    for name in ("one", "two", "deep/three"):
        (folder / "a" / name).write_bytes(name.encode())
    with opened(folder / "a" / "one", os.O_RDONLY) as reader:
        os.rename(folder / "a", folder / "b")
        assert os.pread(reader, 10, 0) == b"one"
    assert sorted(os.listdir(folder)) == ["b"]
    assert sorted(os.listdir(folder / "b")) == ["deep", "empty", "one", "two"]
    assert (folder / "b" / "deep" / "three").read_bytes() == b"deep/three"
    (folder / "a").mkdir()
    assert os.listdir(folder / "a") == []
    assert {k for k in place.names() if k.startswith(folder.name)} == {
        f"{folder.name}/b/{name}" for name in ("one", "two", "deep/three")
    }


def test_modes_and_times_are_kept(folder: Path):
    with opened(folder / "f", os.O_WRONLY | os.O_CREAT, 0o640) as file:
        os.write(file, b"x")
        os.utime(file, ns=(0, 1_234_567_890_123_456_789))
    found = os.stat(folder / "f")
    assert (stat.S_IMODE(found.st_mode), found.st_mtime_ns) == (0o640, 1_234_567_890_123_456_789)
    os.chmod(folder / "f", 0o755)
    os.utime(folder / "f", ns=(0, 10**18))
    found = os.stat(folder / "f")
    assert (stat.S_IMODE(found.st_mode), found.st_mtime_ns) == (0o755, 10**18)


REFUSED = {
    "hard link": (lambda folder: os.link(folder / "f", folder / "l"), errno.EPERM),
    "fifo": (lambda folder: os.mkfifo(folder / "l"), errno.EPERM),
    "socket": (lambda folder: os.mknod(folder / "l", stat.S_IFSOCK | 0o600), errno.EPERM),
    "a long name": (lambda folder: (folder / ("n" * 256)).touch(), errno.ENAMETOOLONG),
    "exchange": (lambda folder: exchange(folder / "f", folder / "g"), errno.EINVAL),
    "a temporary file": (
        lambda folder: os.open(folder, os.O_TMPFILE | os.O_RDWR),
        errno.EOPNOTSUPP,
    ),
}


def exchange(one: Path, two: Path) -> None:
    two.write_bytes(b"")
    python(
        "import ctypes, os, sys\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "one, two = map(os.fsencode, sys.argv[1:])\n"
        "assert libc.renameat2(-100, one, -100, two, 2) == -1\n"
        "assert ctypes.get_errno() == 22, ctypes.get_errno()\n",
        one,
        two,
    )
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


@pytest.mark.parametrize("what", sorted(REFUSED))
def test_refused(what: str, place: Writable):
    folder = place.path / f"refused {what}"
    folder.mkdir()
    (folder / "f").write_bytes(b"x")
    change, code = REFUSED[what]
    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        change(folder)
    assert caught.value.errno == code
    assert (folder / "f").read_bytes() == b"x"


def test_names_that_aistore_would_not_take_are_refused_before_anything_is_sent(place: Writable):
    (place.path / "~").mkdir()
    with pytest.raises(OSError, match="Invalid argument"):
        (place.path / "~" / "f").touch()
    os.rmdir(place.path / "~")
