"""New members of shards: appended, never changed."""

import errno
import os
import re
import tarfile
from pathlib import Path

import pytest

from tests.mount.writable import Writable, writable
from tests.support.mounts import eventually, succeed

pytestmark = pytest.mark.mount


@pytest.fixture(scope="module", params=["ais", "directory"])
def place(request: pytest.FixtureRequest, lane: bool, tmp_path_factory: pytest.TempPathFactory):
    base = tmp_path_factory.mktemp(f"s-{request.param}")
    with writable(base, backend=request.param, deadline=600) as place:
        yield place


def members(place: Writable, key: str) -> dict[str, bytes]:
    with tarfile.open(place.objects() / key) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}


def test_a_new_shard(place: Writable):
    os.mkdir(place.path / "new.tar.d")
    assert os.listdir(place.path / "new.tar.d") == []
    assert members(place, "new.tar") == {}
    for name in ("a.txt", "b.txt"):
        (place.path / "new.tar.d" / name).write_text(name)
        assert name in os.listdir(place.path / "new.tar.d")
    assert members(place, "new.tar") == {"a.txt": b"a.txt", "b.txt": b"b.txt"}
    assert (place.path / "new.tar.d" / "a.txt").read_text() == "a.txt"
    assert succeed("tar", "-tf", place.path / "new.tar") == b"a.txt\nb.txt\n"
    with pytest.raises(FileExistsError):
        os.mkdir(place.path / "new.tar.d")


def test_a_member_shows_when_it_is_closed(place: Writable):
    os.mkdir(place.path / "open.tar.d")
    with open(place.path / "open.tar.d" / "m", "wb") as file:
        file.write(b"one")
        file.flush()
        assert members(place, "open.tar") == {}
        assert (place.path / "open.tar.d" / "m").stat().st_size == 3
    assert members(place, "open.tar") == {"m": b"one"}
    assert (place.path / "open.tar.d" / "m").read_bytes() == b"one"


def test_appending_to_a_shard_that_programs_wrote(place: Writable, tmp_path: Path):
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "x").write_bytes(b"x" * 1000)
    succeed("tar", "-cf", place.path / "made.tar", "-C", tmp_path, "dir")
    succeed("cp", tmp_path / "dir" / "x", place.path / "made.tar.d" / "y")
    succeed("sh", "-c", f"echo said > '{place.path}/made.tar.d/dir/z'")
    assert members(place, "made.tar") == {
        "dir/x": b"x" * 1000,
        "y": b"x" * 1000,
        "dir/z": b"said\n",
    }
    assert sorted(os.listdir(place.path / "made.tar.d" / "dir")) == ["x", "z"]


def test_a_copy_from_inside_the_folder(place: Writable, tmp_path: Path):
    os.mkdir(place.path / "cwd.tar.d")
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    succeed("cp", tmp_path / "one", tmp_path / "two", ".", cwd=place.path / "cwd.tar.d")
    assert sorted(os.listdir(place.path / "cwd.tar.d")) == ["one", "two"]


def test_many_members_without_a_scan_for_each(place: Writable, tmp_path: Path):
    os.mkdir(place.path / "many.tar.d")
    large = os.urandom(4 << 20)
    (place.path / "many.tar.d" / "large").write_bytes(large)
    os.listdir(place.path / "many.tar.d")
    files = [tmp_path / f"{n:02}" for n in range(20)]
    for file in files:
        file.write_text(file.name)

    def fetched() -> float:
        text = os.getxattr(place.path, "user.aisfs.stats").decode()
        return float(re.search(r"^aisfs_fetched_bytes_total (\S+)$", text, re.MULTILINE)[1])

    before = fetched()
    succeed("cp", *files, place.path / "many.tar.d")
    assert fetched() - before < 2 * len(large)
    names = ["large", *(file.name for file in files)]
    assert os.listdir(place.path / "many.tar.d") == names
    assert members(place, "many.tar") == {
        "large": large, **{file.name: file.name.encode() for file in files}
    }  # fmt: skip
    with pytest.raises(FileExistsError):
        os.open(place.path / "many.tar.d" / "07", os.O_CREAT | os.O_EXCL | os.O_WRONLY)


def test_members_cannot_be_changed(place: Writable):
    os.mkdir(place.path / "fix.tar.d")
    folder = place.path / "fix.tar.d"
    (folder / "m").write_bytes(b"fixed")
    for change in (
        lambda: os.unlink(folder / "m"),
        lambda: os.open(folder / "m", os.O_WRONLY | os.O_APPEND),
        lambda: os.open(folder / "m", os.O_WRONLY | os.O_TRUNC),
        lambda: os.truncate(folder / "m", 1),
        lambda: os.rename(folder / "m", folder / "n"),
        lambda: os.rename(folder / "m", place.path / "n"),
        lambda: os.mkdir(folder / "d"),
        lambda: os.rmdir(folder),
        lambda: os.rename(folder, place.path / "other.tar.d"),
        lambda: os.chmod(folder / "m", 0o600),
        lambda: os.utime(folder / "m", (1, 1)),
    ):
        with pytest.raises(OSError, match="Read-only") as caught:
            change()
        assert caught.value.errno == errno.EROFS
    assert members(place, "fix.tar") == {"m": b"fixed"}


def test_mv_into_a_shard_copies(place: Writable):
    os.mkdir(place.path / "mv.tar.d")
    (place.path / "loose").write_bytes(b"loose")
    with pytest.raises(OSError, match="cross-device"):
        os.rename(place.path / "loose", place.path / "mv.tar.d" / "m")
    (place.path / "mv.tar.d" / "m").write_bytes((place.path / "loose").read_bytes())
    assert members(place, "mv.tar") == {"m": b"loose"}


def test_an_empty_member_is_refused(place: Writable):
    os.mkdir(place.path / "empty.tar.d")
    with pytest.raises(OSError, match="Invalid argument"):
        (place.path / "empty.tar.d" / "m").write_bytes(b"")
    assert members(place, "empty.tar") == {}


def test_overwriting_a_shard_changes_its_folder(place: Writable, tmp_path: Path):
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
        succeed("tar", "-cf", place.path / "whole.tar", "-C", tmp_path, name)
        assert os.listdir(place.path / "whole.tar.d") == [name]
        assert (place.path / "whole.tar.d" / name).read_text() == name
    os.unlink(place.path / "whole.tar")
    assert eventually(lambda: not (place.path / "whole.tar.d").exists())
