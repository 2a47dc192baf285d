"""What programs expect of files on any disk: room, links, long paths, modes, times and owners."""

import ctypes
import errno
import os
import stat
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from tests.mount.writable import Writable, writable
from tests.support.mounts import aisfs, eventually

pytestmark = pytest.mark.mount

OWNERS = "root's chown has no effect"
KEEP_SIZE, PUNCH_HOLE = 1, 2
SECOND = 10**9


@pytest.fixture(scope="module", params=["ais", "directory"])
def place(request: pytest.FixtureRequest, fastpath: bool, tmp_path_factory: pytest.TempPathFactory):
    base = tmp_path_factory.mktemp(f"x-{request.param}")
    with writable(base, backend=request.param, deadline=300, expected_log=[OWNERS]) as place:
        yield place


@pytest.fixture
def folder(place: Writable, request: pytest.FixtureRequest) -> Path:
    path = place.path / request.node.name.split("[")[0]
    path.mkdir()
    return path


def test_an_open_file_without_a_name_has_no_links(folder: Path):
    for name in ("written", "read", "replaced"):
        (folder / name).write_bytes(b"content")
    (folder / "new").touch()
    with (
        open(folder / "written", "r+b") as written,
        open(folder / "read", "rb") as read,
        open(folder / "replaced", "rb") as replaced,
    ):
        assert [os.fstat(file.fileno()).st_nlink for file in (written, read, replaced)] == [1, 1, 1]
        (folder / "written").unlink()
        (folder / "read").unlink()
        (folder / "new").rename(folder / "replaced")
        assert [os.fstat(file.fileno()).st_nlink for file in (written, read, replaced)] == [0, 0, 0]
        assert read.read() == replaced.read() == b"content"
    assert (folder / "replaced").stat().st_nlink == 1


def fallocate(file: int, mode: int, offset: int, length: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    size = ctypes.c_long
    if libc.fallocate(file, mode, size(offset), size(length)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def test_room_is_allocated(folder: Path, place: Writable, fastpath: bool):
    if not fastpath:
        with open(folder / "f", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 10_000)
        assert (folder / "f").read_bytes() == bytes(10_000)
        return
    with open(folder / "f", "wb", buffering=0) as file:
        fallocate(file.fileno(), 0, 0, 10_000)
        assert os.fstat(file.fileno()).st_size == 10_000
        file.write(b"written")
        fallocate(file.fileno(), 0, 5, 100)
        fallocate(file.fileno(), KEEP_SIZE, 0, 1_000_000)
        assert os.fstat(file.fileno()).st_size == 10_000
        os.posix_fallocate(file.fileno(), 0, 20_000)
        with pytest.raises(OSError, match="not supported"):
            fallocate(file.fileno(), KEEP_SIZE | PUNCH_HOLE, 0, 100)
        with pytest.raises(OSError, match="too large"):
            fallocate(file.fileno(), 0, 0, 2**60)
    expected = b"written" + bytes(20_000 - 7)
    assert (folder / "f").read_bytes() == expected
    assert place.stored(f"{folder.name}/f") == expected


def test_a_size_that_can_never_be_stored(folder: Path):
    (folder / "f").write_bytes(b"content")
    with pytest.raises(OSError, match="too large") as failure:
        os.truncate(folder / "f", 2**60)
    assert failure.value.errno == errno.EFBIG
    assert (folder / "f").read_bytes() == b"content"


NAME = "d" * 200


def code_of(call: Callable[[], None]) -> int:
    try:
        call()
    except OSError as error:
        return error.errno or 0
    return 0


def test_a_path_that_is_too_long_is_refused_at_once(folder: Path):
    """As on any disk: by relative paths, since none of the kernel's own limits is met then."""
    opened = [os.open(folder, os.O_RDONLY)]
    while code_of(lambda: os.mkdir(NAME, dir_fd=opened[-1])) == 0 and len(opened) < 30:
        opened.append(os.open(NAME, os.O_RDONLY, dir_fd=opened[-1]))
    assert code_of(lambda: os.mkdir(NAME, dir_fd=opened[-1])) == errno.ENAMETOOLONG
    assert len(opened) * len(NAME) > 3500
    files: dict[int, int] = {}

    def create(length: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT
        files[length] = os.open("f" * length, flags, 0o644, dir_fd=opened[-1])

    codes = [code_of(lambda length=length: create(length)) for length in range(1, 250)]
    assert codes == [0] * len(files) + [errno.ENAMETOOLONG] * (len(codes) - len(files))
    assert 0 < len(files) < len(codes)
    for length, file in files.items():
        os.write(file, b"content")
        os.close(file)
        os.unlink("f" * length, dir_fd=opened[-1])
    while len(opened) > 1:
        os.close(opened.pop())
        os.rmdir(NAME, dir_fd=opened[-1])
    os.close(opened.pop())
    assert os.listdir(folder) == []


def test_tarfile_as_root_keeps_modes_and_times(folder: Path):
    if os.geteuid():
        pytest.skip("only root changes owners when it extracts")
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, mode, kind in (
            ("sub", 0o750, tarfile.DIRTYPE),
            ("sub/f", 0o740, tarfile.REGTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.mtime = kind, mode, 1_500_000_000
            member.uid = member.gid = 12345
            tar.addfile(member)
    packed.seek(0)
    with tarfile.open(fileobj=packed) as tar:
        tar.extractall(folder, filter="fully_trusted")
    for name, mode in (("sub", 0o750), ("sub/f", 0o740)):
        found = (folder / name).stat()
        assert (stat.S_IMODE(found.st_mode), found.st_mtime) == (mode, 1_500_000_000), name
        assert found.st_uid == os.geteuid(), "owners are not kept"


def test_an_owner_is_not_changed(folder: Path):
    (folder / "f").touch()
    if os.geteuid():
        with pytest.raises(PermissionError):
            os.chown(folder / "f", 12345, -1)
    else:
        os.chown(folder / "f", 12345, -1)
    assert (folder / "f").stat().st_uid == os.geteuid()


def test_modes_and_times_are_those_of_the_file_below(tmp_path: Path):
    with writable(tmp_path, backend="directory") as place:
        (place.files / "theirs").write_bytes(b"theirs")
        (place.path / "ours").write_bytes(b"ours")
        for number, name in enumerate(("ours", "theirs")):
            shown, below = place.path / name, place.files / name
            for round_ in range(2):
                mode, mtime_ns = 0o640 + round_, SECOND * 10**9 + number + 10 * round_
                shown.chmod(mode)
                os.utime(shown, ns=(0, mtime_ns))
                for path in (shown, below):
                    found = path.stat()
                    assert stat.S_IMODE(found.st_mode) == mode
                    assert found.st_mtime_ns == mtime_ns
                assert shown.read_bytes() == name.encode()
        with open(place.path / "new", "wb") as file:
            file.write(b"new")
            file.flush()
            os.fchmod(file.fileno(), 0o600)
            os.utime(file.fileno(), ns=(0, 10**18))
        found = (place.files / "new").stat()
        assert (stat.S_IMODE(found.st_mode), found.st_mtime_ns) == (0o600, 10**18)
    with writable(tmp_path, backend="directory") as place:
        assert stat.S_IMODE((place.path / "ours").stat().st_mode) == 0o641
        assert (place.path / "ours").stat().st_mtime_ns == SECOND * 10**9 + 10


def test_the_members_of_a_shard_stay_readable_when_its_time_changes(tmp_path: Path):
    with writable(tmp_path, backend="directory") as place:
        with tarfile.open(place.path / "x.tar", "w") as tar:
            member = tarfile.TarInfo("a.txt")
            member.size = 200_000
            tar.addfile(member, BytesIO(b"a" * member.size))
        with open(place.path / "x.tar.d" / "a.txt", "rb", buffering=0) as file:
            assert file.read(10) == b"a" * 10
            os.utime(place.path / "x.tar", ns=(0, 10**18))
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert file.readall() == b"a" * 199_990
        assert os.listdir(place.path / "x.tar.d") == ["a.txt"]
        os.utime(place.path / "x.tar.d", ns=(0, 2 * 10**18))
        assert (place.path / "x.tar.d").stat().st_mtime_ns == 2 * 10**18
        assert (place.files / "x.tar").stat().st_mtime_ns == 2 * 10**18
        assert (place.path / "x.tar.d" / "a.txt").read_bytes() == b"a" * 200_000


def test_recover_names_local_files_by_their_path(tmp_path: Path):
    log = ["was not uploaded: .* is a directory"]
    with writable(tmp_path, backend="directory", expected_log=log) as place:
        file = open(place.path / "sub", "wb")  # noqa: SIM115 - its close fails
        file.write(b"content")
        file.flush()
        (place.files / "sub").mkdir()
        with pytest.raises(IsADirectoryError):
            file.close()
        staging = ("--staging-dir", str(place.staging))
        assert eventually(lambda: place.unsent() != [])
        path = str(place.files / "sub")
        listed = aisfs("recover", *staging)
        assert listed.stdout.splitlines()[0].split()[-1] == path.encode()
        assert b"ais://" not in listed.stdout
        for name in (path, os.path.relpath(path)):
            listed = aisfs("recover", *staging, name)
            assert listed.returncode == 0, listed.stderr
        (place.files / "sub").rmdir()
        done = aisfs("recover", *staging, "--upload", path)
        assert (done.returncode, done.stdout) == (0, f"{path}: uploaded\n".encode()), done.stderr
        assert (place.files / "sub").read_bytes() == b"content"
