"""What the fast path answers on a mount that is written, and what it leaves to the trio thread."""

import errno
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.content import fill
from tests.mount.test_fastpath import EPOCH, requests
from tests.mount.writable import Writable, writable
from tests.support.archives import make
from tests.support.mounts import Mount, eventually, python

pytestmark = pytest.mark.mount

LONG = ("--attr-ttl", "600", "--list-ttl", "600", "--negative-ttl", "600")
MEMBERS = {f"{n:04}.bin": b"%d" % n * 300 for n in range(300)}
PLAIN = {f"plain/{n:04}.bin": b"%d" % n * 300 for n in range(100)}
FOLDERS = iter([f"folder{n}" for n in range(20)])
FILES = {f"folder{n}/{name}": f"{name} as it was" for n in range(20) for name in ("one", "two")}
"""Files that are there before the mount is, and a directory of them for each test."""


@pytest.fixture(scope="module")
def place(fastpath: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writable]:
    base = tmp_path_factory.mktemp("wl").resolve()
    plain = {name: content.encode() for name, content in FILES.items()}
    fill(base / "store" / "b", {"x.tar": make("tar", MEMBERS), **PLAIN, **plain})
    with writable(base, options=LONG) as place:
        yield place


@pytest.fixture
def folder(place: Writable) -> Path:
    """A directory with two files that were written by somebody else."""
    return place.path / next(FOLDERS)


@contextmanager
def reading(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def pread(descriptor: int) -> bytes:
    """Read past the page cache."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return os.pread(descriptor, 100, 0)


@contextmanager
def counting(mount: Mount) -> Iterator[Counter[tuple[str, str]]]:
    """Count the requests within, apart from asking for them."""
    asked: Counter[tuple[str, str]] = Counter()
    before = requests(mount)
    yield asked
    asked += requests(mount) - before
    for who in ("lane", "pyfuse3"):
        del asked[who, "getxattr"]


@pytest.mark.parametrize(("folder_name", "files"), [("x.tar.d", MEMBERS), ("plain", PLAIN)])
def test_what_is_only_read_does_not_reach_pyfuse3(
    place: Writable, folder_name: str, files: dict[str, bytes]
):
    python(EPOCH, place.path / folder_name)
    with counting(place.mount) as asked:
        python(EPOCH, place.path / folder_name)
    assert {who for who, _ in asked} == {"lane"}, asked
    assert asked["lane", "open"] == len(files)
    assert asked["lane", "flush"] == 0
    with counting(place.mount) as asked:
        for name in os.listdir(place.path / folder_name):
            with reading(place.path / folder_name / name) as file:
                pread(file)
    assert {who for who, _ in asked} == {"lane"}, asked


def test_a_listing_is_kept_by_the_kernel_until_a_name_changes(place: Writable, folder: Path):
    assert sorted(os.listdir(folder)) == ["one", "two"]
    os.listdir(folder)
    with counting(place.mount) as asked:
        os.listdir(folder)
    assert asked["lane", "readdirplus"] == asked["pyfuse3", "readdir"] == 0
    (folder / "three").touch()
    assert sorted(os.listdir(folder)) == ["one", "three", "two"]
    os.unlink(folder / "one")
    assert sorted(os.listdir(folder)) == ["three", "two"]
    assert not (folder / "one").exists()


def test_a_reader_sees_what_somebody_else_writes(place: Writable, folder: Path):
    with reading(folder / "one") as reader:
        assert pread(reader) == b"one as it was"
        with open(folder / "one", "r+b", buffering=0) as writer:
            writer.write(b"ONE")
            assert pread(reader) == b"ONE as it was"
            assert os.fstat(reader).st_size == 13
            os.ftruncate(writer.fileno(), 3)
            assert pread(reader) == b"ONE"
        assert pread(reader) == b"ONE"
    assert place.stored(f"{folder.name}/one") == b"ONE"


def test_what_is_staged_is_written_by_the_fast_path(place: Writable, folder: Path):
    pieces = [bytes([n]) * 65_536 for n in range(8)]
    with counting(place.mount) as asked, open(folder / "new", "wb", buffering=0) as new:
        for piece in pieces:
            new.write(piece)
        assert os.fstat(new.fileno()).st_size == 8 * 65_536
        assert place.stored(f"{folder.name}/new") is None
    assert place.stored(f"{folder.name}/new") == b"".join(pieces)
    assert (asked["lane", "write"], asked["pyfuse3", "write"]) == (len(pieces), 0)
    with counting(place.mount) as asked, open(folder / "one", "r+b", buffering=0) as old:
        old.write(b"ONE")  # what is there is fetched before
        old.write(b" AS")
        os.fsync(old)
        assert place.stored(f"{folder.name}/one") == b"ONE AS it was"
        os.pwrite(old.fileno(), b"WAS", 10)
    assert place.stored(f"{folder.name}/one") == b"ONE AS it WAS"
    assert (asked["lane", "write"], asked["pyfuse3", "write"]) == (2, 1)


def test_a_new_file_does_not_reach_pyfuse3(place: Writable, folder: Path):
    os.listdir(folder)
    with counting(place.mount) as asked:
        for n in range(5):
            (folder / f"new{n}").write_bytes(b"new")
            assert place.stored(f"{folder.name}/new{n}") == b"new"
    assert [key for key in asked if key[0] == "pyfuse3"] == []
    assert asked["lane", "create"] + asked["trio", "create"] == asked["trio", "flush"] == 5


@pytest.mark.parametrize("change", ["unlink", "replace", "truncate"])
def test_a_reader_keeps_a_file_that_loses_its_name(place: Writable, folder: Path, change: str):
    # Read nothing before, so that what comes after is nowhere but where the change has put it.
    with reading(folder / "one") as reader, reading(folder / "one") as other:
        if change == "unlink":
            os.unlink(folder / "one")
        elif change == "replace":
            os.rename(folder / "two", folder / "one")
            assert (folder / "one").read_bytes() == b"two as it was"
        else:
            os.truncate(folder / "one", 3)
        expected = b"one" if change == "truncate" else b"one as it was"
        assert pread(reader) == pread(other) == expected


def test_closing_the_last_reader_frees_what_was_staged_for_it(place: Writable, folder: Path):
    before = set(place.staged())  # what was appended to stays for its next change
    with reading(folder / "one") as reader:
        os.unlink(folder / "one")
        assert set(place.staged()) - before
        assert pread(reader) == b"one as it was"
    assert eventually(lambda: set(place.staged()) <= before)


def test_what_is_kept_for_the_next_append_goes_with_its_file(place: Writable, folder: Path):
    before = set(place.staged())
    with open(folder / "one", "a") as file:
        file.write("!")
    assert eventually(lambda: bool(set(place.staged()) - before))
    os.unlink(folder / "one")
    assert eventually(lambda: set(place.staged()) <= before)


def test_fsync_of_what_is_only_read(place: Writable, folder: Path):
    for path in (folder / "one", place.path / "x.tar.d" / "0001.bin", folder):
        with reading(path) as file:
            os.fsync(file)


def test_members_cannot_be_opened_for_writing(place: Writable):
    with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
        os.open(place.path / "x.tar.d" / "0001.bin", os.O_RDWR)


def test_a_missing_name_is_there_when_it_was_made(place: Writable, folder: Path):
    ways = (Path.touch, Path.mkdir, lambda path: os.rename(folder / "one", path))
    for number, make_it in enumerate(ways):
        path = folder / f"new{number}"
        assert not path.exists()
        make_it(path)
        assert path.exists()
        assert path.name in os.listdir(folder)


def test_names_below_a_renamed_directory(place: Writable, folder: Path):
    os.mkdir(folder / "empty")
    assert not (folder / "empty" / "one").exists()
    assert os.listdir(folder / "empty") == []
    os.mkdir(folder / "full")
    os.rename(folder / "one", folder / "full" / "one")
    os.rename(folder / "full", folder / "empty")
    assert (folder / "empty" / "one").read_bytes() == b"one as it was"
    assert os.listdir(folder / "empty") == ["one"]
    assert not (folder / "full").exists()


SHORT = ("--attr-ttl", "2", "--list-ttl", "2", "--negative-ttl", "0")


def test_what_another_client_changes_is_seen_when_the_time_is_over(tmp_path: Path):
    with writable(tmp_path, options=SHORT) as place:
        place.put("d/f", b"before")
        file, folder = place.path / "d" / "f", place.path / "d"
        assert file.read_bytes() == b"before"
        os.utime(folder, ns=(0, 10**18))  # so the time says nothing of what is listed
        assert os.listdir(folder) == ["f"]
        place.put("d/f", b"after it")
        place.put("d/g", b"")
        assert eventually(lambda: file.read_bytes() == b"after it")
        assert eventually(lambda: sorted(os.listdir(folder)) == ["f", "g"])
        assert folder.stat().st_mtime_ns == 10**18
        file.write_bytes(b"ours")
        assert file.read_bytes() == b"ours"
        place.put("d/f", b"theirs")
        assert eventually(lambda: file.read_bytes() == b"theirs")
        place.delete("d/g")
        assert eventually(lambda: os.listdir(folder) == ["f"])
