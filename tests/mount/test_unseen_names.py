"""Names that another client has made since this mount looked: nothing is made over them."""

import ctypes
import errno
import io
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.mount.content import fill
from tests.mount.writable import Writable, writable
from tests.support.mounts import aisfs, eventually

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

LONG = ("--attr-ttl", "600", "--list-ttl", "600", "--negative-ttl", "600")
THEIRS = b"theirs\n"
OURS = b"our own"
NUMBERS = iter(range(1000))


@pytest.fixture(scope="module", params=["ais", "local"])
def place(
    request: pytest.FixtureRequest, fastpath: bool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Writable]:
    base = tmp_path_factory.mktemp("unseen").resolve()
    fill(base / "store" / "b", {"there.txt": b"there"})
    with writable(
        base,
        backend=request.param,
        options=LONG,
        traps=request.param == "ais",
        expected_log=["was not uploaded", "another client", "by somebody else"],
    ) as place:
        yield place


@pytest.fixture
def name(place: Writable) -> str:
    """A name that this mount has listed, and looked up, as missing."""
    name = f"n{next(NUMBERS)}"
    assert name not in os.listdir(place.path)
    assert not (place.path / name).exists()
    assert not (place.path / f"{name}.tar").exists()
    return name


def kept_since(place: Writable, before: int) -> list[bytes]:
    """What is kept for `aisfs recover`; a program does not wait for that, only the next one who looks."""
    assert eventually(lambda: len(place.unsent()) > before)
    return [path.with_suffix(".data").read_bytes() for path in place.unsent()[before:]]


def test_appending_keeps_what_is_there(place: Writable, name: str):
    place.put(name, THEIRS)
    subprocess.run(["sh", "-c", 'echo ours >> "$0"', place.path / name], check=True)
    assert place.stored(name) == THEIRS + b"ours\n"


def test_opening_without_truncation_opens_what_is_there(place: Writable, name: str):
    place.put(name, THEIRS)
    fd = os.open(place.path / name, os.O_RDWR | os.O_CREAT)
    try:
        assert os.pread(fd, 100, 0) == THEIRS
        os.pwrite(fd, b"T", 0)
    finally:
        os.close(fd)
    assert place.stored(name) == b"T" + THEIRS[1:]


@pytest.mark.parametrize("flags", [0, os.O_TRUNC])
def test_what_must_be_new_exists(place: Writable, name: str, flags: int):
    place.put(name, THEIRS)
    with pytest.raises(FileExistsError):
        os.open(place.path / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags)
    assert place.stored(name) == THEIRS
    assert (place.path / name).read_bytes() == THEIRS


def test_touch_changes_no_byte(place: Writable, name: str):
    place.put(name, THEIRS)
    (place.path / name).touch()
    assert place.stored(name) == THEIRS


def test_what_truncates_overwrites(place: Writable, name: str):
    place.put(name, THEIRS)
    (place.path / name).write_bytes(b"ours")
    assert place.stored(name) == b"ours"


def test_what_is_believed_to_be_empty_is_emptied(place: Writable, name: str):
    (place.path / name).write_bytes(b"")
    place.put(name, THEIRS)
    subprocess.run(["sh", "-c", ': > "$0"', place.path / name], check=True)
    assert place.stored(name) == b""


def test_what_was_believed_to_be_empty_is_overwritten(place: Writable, name: str):
    (place.path / name).write_bytes(b"")
    place.delete(name)
    (place.path / name).write_bytes(b"ours")
    assert place.stored(name) == b"ours"


def test_appending_to_what_was_removed_begins_anew(place: Writable, name: str):
    (place.path / name).write_bytes(THEIRS)
    place.delete(name)
    subprocess.run(["sh", "-c", 'echo ours >> "$0"', place.path / name], check=True)
    assert place.stored(name) == b"ours\n"


def test_cutting_what_is_believed_to_have_that_size_cuts_it(place: Writable, name: str):
    (place.path / name).write_bytes(b"ours\nX\n")
    place.put(name, THEIRS * 2)
    os.truncate(place.path / name, len(THEIRS))
    assert place.stored(name) == THEIRS


def test_cutting_what_was_removed_does_not_make_it_again(place: Writable, name: str):
    (place.path / name).write_bytes(THEIRS)
    place.delete(name)
    with pytest.raises(FileNotFoundError):
        os.truncate(place.path / name, 0)
    assert place.stored(name) is None


def test_tar_appends_to_the_archive_that_is_there(place: Writable, name: str, tmp_path: Path):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for number in range(200):
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x"))
    place.put(f"{name}.tar", content.getvalue())
    (tmp_path / "new.txt").write_bytes(b"new")
    subprocess.run(["tar", "rf", place.path / f"{name}.tar", "-C", tmp_path, "new.txt"], check=True)
    with tarfile.open(fileobj=io.BytesIO(place.stored(f"{name}.tar") or b"")) as archive:
        assert len(archive.getnames()) == 201


def test_a_shard_is_not_begun_anew(place: Writable, name: str):
    content = io.BytesIO()
    tarfile.open(fileobj=content, mode="w").close()
    place.put(f"{name}.tar", content.getvalue())
    with pytest.raises(FileExistsError):
        os.mkdir(place.path / f"{name}.tar.d")
    assert place.stored(f"{name}.tar") == content.getvalue()


def test_a_directory_is_not_made_twice(place: Writable, name: str):
    place.put(f"{name}/in/it", THEIRS)
    with pytest.raises(FileExistsError):
        os.mkdir(place.path / name)
    assert (place.path / name / "in" / "it").read_bytes() == THEIRS


def test_no_directory_is_made_over_a_file(place: Writable, name: str):
    place.put(name, THEIRS)
    with pytest.raises(FileExistsError):
        os.mkdir(place.path / name)
    assert (place.path / name).read_bytes() == THEIRS


def test_a_directory_with_something_new_in_it_is_not_removed(place: Writable, name: str):
    os.mkdir(place.path / name)
    assert os.listdir(place.path / name) == []
    place.put(f"{name}/new", THEIRS)
    with pytest.raises(OSError, match=os.strerror(errno.ENOTEMPTY)):
        os.rmdir(place.path / name)
    assert place.stored(f"{name}/new") == THEIRS


def test_a_rename_that_must_not_replace_does_not(place: Writable, name: str):
    source = place.path / f"{name}-source"
    source.write_bytes(b"ours")
    place.put(name, THEIRS)
    subprocess.run(["mv", "-n", source, place.path / name], check=False)
    assert place.stored(name) == THEIRS
    assert source.read_bytes() == b"ours"


def rename_only_new(old: Path, new: Path) -> None:
    """Call renameat2(2) with RENAME_NOREPLACE."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), 1):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@pytest.fixture
def waiting(fastpath: bool, tmp_path: Path) -> Iterator[Writable]:
    """A mount where a closed file waits under the name `source`, and which has seen that there is no `name`."""
    with writable(
        tmp_path.resolve(),
        options=[*LONG, "--write-back", "3600"],
        expected_log=["was not uploaded", "another client", "could not be uploaded"],
    ) as place:
        assert os.listdir(place.path) == []
        assert not (place.path / "name").exists()
        (place.path / "source").write_bytes(b"ours")
        yield place


def test_a_waiting_file_is_not_renamed_onto_a_directory_that_was_not_seen(waiting: Writable):
    waiting.put("name/inside", THEIRS)
    with pytest.raises(IsADirectoryError):
        os.rename(waiting.path / "source", waiting.path / "name")
    assert (waiting.path / "source").read_bytes() == b"ours"
    assert waiting.stored("name/inside") == THEIRS
    assert waiting.stored("name") is None


def test_a_waiting_file_that_must_not_replace_does_not(waiting: Writable):
    waiting.put("name", THEIRS)
    with pytest.raises(FileExistsError):
        rename_only_new(waiting.path / "source", waiting.path / "name")
    assert (waiting.path / "source").read_bytes() == b"ours"
    assert waiting.stored("name") == THEIRS
    assert eventually(lambda: (waiting.path / "name").exists())
    assert (waiting.path / "name").read_bytes() == THEIRS


def test_nor_does_its_upload_replace_what_was_made_after_the_rename(waiting: Writable):
    rename_only_new(waiting.path / "source", waiting.path / "name")
    assert (waiting.path / "name").read_bytes() == b"ours"
    waiting.put("name", THEIRS)
    done = aisfs("flush", waiting.path)
    assert done.returncode == 1
    assert waiting.stored("name") == THEIRS
    assert kept_since(waiting, 0) == [b"ours"]


def test_a_waiting_file_that_replaces_replaces_what_was_not_seen(waiting: Writable):
    waiting.put("name", THEIRS)
    os.rename(waiting.path / "source", waiting.path / "name")
    assert (waiting.path / "name").read_bytes() == b"ours"
    assert aisfs("flush", waiting.path).returncode == 0
    assert waiting.stored("name") == b"ours"


def make_known(place: Writable, key: str, written: bool) -> None:
    """Have the mount know an object, which it has written or only read; it is as large as `THEIRS`."""
    path = place.path / key
    if written:
        path.write_bytes(OURS)
    else:
        place.put(key, OURS)
        with pytest.raises(FileExistsError):  # now it looks
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    assert path.read_bytes() == OURS


@pytest.mark.parametrize("written", [False, True], ids=["read", "written"])
def test_what_is_renamed_shows_what_it_is(place: Writable, name: str, written: bool):
    make_known(place, name, written)
    place.put(name, THEIRS)
    os.rename(place.path / name, place.path / f"{name}-new")
    assert place.stored(f"{name}-new") == THEIRS
    assert place.stored(name) is None
    assert (place.path / f"{name}-new").read_bytes() == THEIRS


@pytest.mark.parametrize("written", [False, True], ids=["read", "written"])
def test_what_is_in_a_renamed_directory_shows_what_it_is(place: Writable, name: str, written: bool):
    folder, new = place.path / name, place.path / f"{name}-new"
    place.put(f"{name}/first", THEIRS)  # in a directory of this mount's own O_EXCL would not look
    with pytest.raises(FileExistsError):
        folder.mkdir()
    make_known(place, f"{name}/own", True)
    make_known(place, f"{name}/f", written)
    place.put(f"{name}/f", THEIRS)
    os.rename(folder, new)
    assert place.stored(f"{name}-new/f") == THEIRS

    def shows_what_it_is() -> bool:
        try:
            return (new / "f").read_bytes() == THEIRS
        except OSError:  # what was believed until now is stale
            return False

    assert eventually(shows_what_it_is)
    assert (new / "own").read_bytes() == OURS


@pytest.mark.parametrize("written", [False, True], ids=["read", "written"])
def test_what_was_removed_does_not_go_along_with_its_directory(
    place: Writable, name: str, written: bool
):
    folder, new = place.path / name, place.path / f"{name}-new"
    place.put(f"{name}/first", THEIRS)
    with pytest.raises(FileExistsError):
        folder.mkdir()
    make_known(place, f"{name}/f", written)
    place.delete(f"{name}/f")
    os.rename(folder, new)
    assert eventually(lambda: os.listdir(new) == ["first"], 5)
    assert eventually(lambda: not (new / "f").exists(), 5)
    (new / "f").write_bytes(OURS)
    assert place.stored(f"{name}-new/f") == OURS


def test_what_was_removed_is_not_renamed(place: Writable, name: str):
    (place.path / name).write_bytes(b"ours")
    place.delete(name)
    place.put(f"{name}-new", THEIRS)
    with pytest.raises(FileNotFoundError):
        os.rename(place.path / name, place.path / f"{name}-new")
    assert place.stored(f"{name}-new") == THEIRS


def test_a_directory_is_not_renamed_onto_one_with_something_in_it(place: Writable, name: str):
    source = place.path / f"{name}-source"
    source.mkdir()
    (source / "f").write_bytes(b"ours")
    place.put(f"{name}/f", THEIRS)
    with pytest.raises(OSError, match=os.strerror(errno.ENOTEMPTY)):
        os.rename(source, place.path / name)
    assert place.stored(f"{name}/f") == THEIRS


@pytest.mark.parametrize("flags", [os.O_APPEND, os.O_EXCL, 0])
def test_what_another_client_makes_meanwhile_is_kept_beside_ours(
    place: Writable, name: str, flags: int
):
    before = len(place.unsent())
    fd = os.open(place.path / name, os.O_WRONLY | os.O_CREAT | flags)
    os.write(fd, b"ours")
    place.put(name, THEIRS)
    with pytest.raises(FileExistsError):
        os.close(fd)
    assert place.stored(name) == THEIRS
    assert kept_since(place, before) == [b"ours"]
    assert (place.path / name).read_bytes() == THEIRS


@pytest.mark.parametrize("again", [False, True], ids=["at once", "after fsync"])
def test_what_another_client_writes_meanwhile_is_kept_beside_ours(
    place: Writable, name: str, again: bool
):
    before = len(place.unsent())
    (place.path / name).write_bytes(b"base ")
    fd = os.open(place.path / name, os.O_WRONLY | os.O_APPEND)
    if again:
        os.write(fd, b"and ")
        os.fsync(fd)
    os.write(fd, b"ours")
    place.put(name, THEIRS)
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        os.close(fd)
    assert place.stored(name) == THEIRS
    assert kept_since(place, before) == [b"base and ours" if again else b"base ours"]
    assert (place.path / name).read_bytes() == THEIRS


@pytest.mark.parametrize(
    "change", [lambda fd: os.fchmod(fd, 0o600), lambda fd: os.utime(fd, (1, 1))]
)
def test_a_mode_or_time_is_not_that_of_what_another_client_has_written(
    place: Writable, name: str, change: Callable[[int], None]
):
    (place.path / name).write_bytes(b"base ")
    fd = os.open(place.path / name, os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"and ")
    os.fsync(fd)
    place.put(name, THEIRS)
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        change(fd)
    with suppress(OSError):  # it is made of what is gone
        os.write(fd, b"ours")
    with suppress(OSError):
        os.close(fd)
    assert place.stored(name) == THEIRS
