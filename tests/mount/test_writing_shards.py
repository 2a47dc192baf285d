"""New members of shards: each time the whole shard is written; what it had is not changed."""

import errno
import os
import re
import stat
import subprocess
import sys
import tarfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.mount.writable import Writable, writable
from tests.support.mounts import eventually, succeed
from tests.support.servers import RunningServer

pytestmark = pytest.mark.mount


@pytest.fixture(scope="module", params=["ais", "directory"])
def place(request: pytest.FixtureRequest, fastpath: bool, tmp_path_factory: pytest.TempPathFactory):
    base = tmp_path_factory.mktemp(f"s-{request.param}")
    damaged = [r"(truncated|joined|no)\.tar: "]
    with writable(base, backend=request.param, deadline=600, expected_log=damaged) as place:
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


def test_an_empty_member(place: Writable):
    os.mkdir(place.path / "empty.tar.d")
    (place.path / "empty.tar.d" / "m").write_bytes(b"")
    assert members(place, "empty.tar") == {"m": b""}
    succeed("touch", "n", cwd=place.path / "empty.tar.d")
    assert members(place, "empty.tar") == {"m": b"", "n": b""}
    assert sorted(os.listdir(place.path / "empty.tar.d")) == ["m", "n"]


def test_what_a_shell_writes_is_there_once(place: Writable):
    """It closes a copy of the descriptor before it writes, so the member is stored empty first."""
    folder = place.path / "shell.tar.d"
    os.mkdir(folder)
    script = "for n in 1 2 3; do echo $n > $n; cat $n; done; cat 1 2 3; ls"
    assert succeed("sh", "-c", script, cwd=folder) == b"1\n2\n3\n1\n2\n3\n1\n2\n3\n"
    with tarfile.open(place.objects() / "shell.tar") as tar:
        assert tar.getnames() == ["1", "2", "3"]
    assert members(place, "shell.tar") == {n: f"{n}\n".encode() for n in "123"}


def test_a_member_can_be_changed_as_long_as_it_is_open(place: Writable):
    folder = place.path / "going.tar.d"
    os.mkdir(folder)
    (folder / "before").write_bytes(b"before")
    with open(folder / "m", "wb", buffering=0) as file:
        file.write(b"first " * 200)
        os.fsync(file)
        assert members(place, "going.tar") == {"before": b"before", "m": b"first " * 200}
        (folder / "after").write_bytes(b"after")
        file.write(b"second")
    expected = {"before": b"before", "after": b"after", "m": b"first " * 200 + b"second"}
    assert members(place, "going.tar") == expected
    with tarfile.open(place.objects() / "going.tar") as tar:
        assert tar.getnames() == ["before", "after", "m"]
    assert {name: (folder / name).read_bytes() for name in os.listdir(folder)} == expected


def test_readers_see_each_state_of_a_member(place: Writable):
    folder = place.path / "states.tar.d"
    os.mkdir(folder)
    with ExitStack() as readers, open(folder / "m", "wb", buffering=0) as file:
        for state in (b"1" * 9000, b"2" * 9000, b"3" * 10_000):
            os.pwrite(file.fileno(), state, 0)
            os.fsync(file)
            os.listdir(folder)
            reader = readers.enter_context(open(folder / "m", "rb"))
            assert reader.read() == state
            assert (folder / "m").read_bytes() == state


def test_directories(place: Writable, tmp_path: Path):
    folder = place.path / "dirs.tar.d"
    os.mkdir(folder)
    os.mkdir(folder / "sub", 0o750)
    os.mkdir(folder / "sub" / "deep")
    with pytest.raises(FileExistsError):
        os.mkdir(folder / "sub")
    (folder / "sub" / "deep" / "m").write_bytes(b"deep")
    with tarfile.open(place.objects() / "dirs.tar") as tar:
        found = {member.name: (member.isdir(), member.mode) for member in tar}
    assert found == {"sub": (True, 0o750), "sub/deep": (True, 0o755), "sub/deep/m": (False, 0o644)}
    assert os.listdir(folder) == ["sub"]
    assert os.listdir(folder / "sub" / "deep") == ["m"]
    for change in (
        lambda: os.rmdir(folder / "sub"),
        lambda: os.rename(folder / "sub", folder / "n"),
    ):
        with pytest.raises(OSError, match="Read-only"):
            change()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with an empty directory and file, names of all lengths, and times long ago."""
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "none").mkdir()
    for number, name in enumerate(["empty", "x" * 101, "a/one", "a/b/two", "ä ö", "a/b/three.bin"]):
        (tree / name).write_bytes(name.encode() * number * 200)
        (tree / name).chmod(0o600 if number % 2 else 0o755)
    for directory, _, files in os.walk(tree, topdown=False):
        for name in [*files, "."]:
            os.utime(Path(directory, name), (1_500_000_000, 1_500_000_000))
    return tree


def shapes(tree: Path) -> dict[str, tuple[bool, bytes, int]]:
    return {
        str(path.relative_to(tree)): (
            path.is_dir(),
            b"" if path.is_dir() else path.read_bytes(),
            path.stat().st_mtime_ns,
        )
        for path in tree.rglob("*")
    }


@pytest.mark.parametrize("way", ["cp -r", "cp -a", "tar x", "tar x within"])
def test_trees(way: str, place: Writable, tree: Path, tmp_path: Path):
    key = way.replace(" ", "_") + ".tar"
    folder = place.path / f"{key}.d"
    os.mkdir(folder)
    (folder / "before").write_bytes(b"before")
    if way.startswith("cp"):
        succeed(*way.split(), tree, folder)
    else:
        succeed("tar", "-cf", tmp_path / "a.tar", "-C", tmp_path, "tree")
        where = [] if "within" in way else ["-C", folder]
        cwd = folder if "within" in way else tmp_path
        succeed("tar", "-xf", tmp_path / "a.tar", *where, cwd=cwd)
    times = way != "cp -r"
    expected = shapes(tree)
    shown = shapes(folder / "tree")
    assert shown.keys() == expected.keys()
    for name, (is_directory, content, mtime_ns) in expected.items():
        assert shown[name][:2] == (is_directory, content), name
        assert not times or shown[name][2] == mtime_ns, name
    (tmp_path / "out").mkdir()
    succeed("tar", "-xpf", place.objects() / key, "-C", tmp_path / "out")
    got = tmp_path / "out" / "tree"
    assert {name: shape[:2] for name, shape in shapes(got).items()} == {
        name: shape[:2] for name, shape in expected.items()
    }
    if times:
        assert shapes(got) == expected
        for path in tree.rglob("*"):
            mode = path.stat().st_mode
            assert (got / path.relative_to(tree)).stat().st_mode == mode, path
    assert (tmp_path / "out" / "before").read_bytes() == b"before"


def test_who_is_in_a_folder_sees_what_is_new(place: Writable, tmp_path: Path):
    """Each new member makes another version of the shard, but what it had is still the same."""
    folder = place.path / "stay.tar.d"
    os.mkdir(folder)
    os.mkdir(folder / "sub")
    (folder / "sub" / "old").write_bytes(b"old" * 5000)
    inodes = [path.stat().st_ino for path in (folder, folder / "sub", folder / "sub" / "old")]
    script = """if True:
        import os
        for n in range(5):
            with open(f"new{n}", "w") as file: file.write(str(n))
            assert open(f"new{n}").read() == str(n)
            assert open("old").read() == "old" * 5000
        assert sorted(os.listdir()) == [*(f"new{n}" for n in range(5)), "old"], os.listdir()
    """
    with open(folder / "sub" / "old", "rb") as reading:
        succeed(sys.executable, "-c", script, cwd=folder / "sub")
        assert reading.read() == b"old" * 5000
    now = [path.stat().st_ino for path in (folder, folder / "sub", folder / "sub" / "old")]
    assert now == inodes


def test_what_was_there_is_not_touched(place: Writable, tmp_path: Path):
    """Whatever wrote the shard, its bytes are the same up to its end."""
    for number, options in enumerate(
        [["-b", "20"], ["-b", "1"], ["--format=v7"], ["--format=pax"]]
    ):
        (tmp_path / "x").write_bytes(b"x" * 700)
        key = f"as-{number}.tar"
        succeed("tar", *options, "-cf", tmp_path / key, "-C", tmp_path, "x")
        before = (tmp_path / key).read_bytes()
        with tarfile.open(tmp_path / key) as tar:
            (first,) = tar.getmembers()
            end = first.offset_data + 1024
        (place.path / key).write_bytes(before)
        (place.path / f"{key}.d" / "y").write_bytes(b"y")
        after = place.stored(key)
        assert after is not None
        assert after[:end] == before[:end]
        assert after[-1024:] == bytes(1024)
        assert len(after) == end + 1024 + 1024
        assert members(place, key) == {"x": b"x" * 700, "y": b"y"}
        assert succeed("tar", "-tf", place.objects() / key) == b"x\ny\n"


def test_a_tar_without_an_end(place: Writable, tmp_path: Path):
    (tmp_path / "x").write_bytes(b"x" * 700)
    succeed("tar", "-cf", tmp_path / "x.tar", "-C", tmp_path, "x")
    for key, size in (("without.tar", 1536), ("unpadded.tar", 512 + 700), ("half.tar", 2048)):
        (place.path / key).write_bytes((tmp_path / "x.tar").read_bytes()[:size])
        (place.path / f"{key}.d" / "y").write_bytes(b"y")
        assert members(place, key) == {"x": b"x" * 700, "y": b"y"}


def test_what_cannot_be_added_to_says_so_at_once(place: Writable, tmp_path: Path):
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode() * 700)
        succeed("tar", "-cf", tmp_path / f"{name}.tar", "-C", tmp_path, name)
    one, two = ((tmp_path / f"{name}.tar").read_bytes() for name in "ab")
    succeed("tar", "-czf", tmp_path / "a.tgz", "-C", tmp_path, "a")
    for key, content, code in [
        ("truncated.tar", one[:1000], errno.EIO),
        ("joined.tar", one + two, errno.EIO),
        ("no.tar", b"hello" * 300, errno.EIO),
        ("packed.tgz", (tmp_path / "a.tgz").read_bytes(), errno.EROFS),
    ]:
        (place.path / key).write_bytes(content)
        for attempt in (
            lambda key=key: (place.path / f"{key}.d" / "new").write_bytes(b"new"),
            lambda key=key: os.mkdir(place.path / f"{key}.d" / "new"),
        ):
            with pytest.raises(OSError, match=r".") as caught:
                attempt()
            assert caught.value.errno == code, key
        assert place.stored(key) == content
    assert place.unsent() == []


@pytest.mark.parametrize("shards", ["dir", "both"])
def test_joined_and_nested_tars(shards: str, fastpath: bool, tmp_path: Path):
    """A damaged tar in the shard is nothing to the shard; a new member goes behind the last tar."""
    base, work = tmp_path / "base", tmp_path / "work"
    (base / "store" / "b").mkdir(parents=True)
    work.mkdir()
    (work / "x").write_bytes(b"x" * 700)
    succeed("tar", "-cf", work / "in.tar", "-C", work, "x")
    (work / "cut.tar").write_bytes((work / "in.tar").read_bytes()[:1000])
    succeed("tar", "-cf", work / "out.tar", "-C", work, "in.tar", "cut.tar")
    joined = base / "store" / "b" / "s.tar"
    joined.write_bytes((work / "in.tar").read_bytes() + (work / "out.tar").read_bytes())
    options = ["--shards", shards, "--ignore-zeros", "--recursive"]
    damage = [r"in 'cut\.tar'"]
    with writable(base, backend="directory", options=options, expected_log=damage) as place:
        ending = "" if shards == "dir" else ".d"
        folder = place.path / f"s.tar{ending}"
        within = folder / f"in.tar{ending}"
        inodes = [(folder / "x").stat().st_ino, (within / "x").stat().st_ino]
        os.mkdir(folder / "new")
        (folder / "new" / "y").write_bytes(b"y")
        assert [(folder / "x").stat().st_ino, (within / "x").stat().st_ino] == inodes
        assert (within / "x").read_bytes() == b"x" * 700
        assert (folder / "new" / "y").read_bytes() == b"y"
        with pytest.raises(OSError, match="Read-only"):
            os.mkdir(within / "new")
    names = succeed("tar", "--ignore-zeros", "-tf", joined).split()
    assert names == [b"x", b"in.tar", b"cut.tar", b"new/", b"new/y"]


def test_an_empty_object(place: Writable):
    (place.path / "nothing.tar").write_bytes(b"")
    (place.path / "nothing.tar.d" / "y").write_bytes(b"y")
    assert members(place, "nothing.tar") == {"y": b"y"}


def test_many_at_once_go_together(place: Writable):
    """Far fewer uploads than members: while one is under way the others wait, and go together."""
    folder = place.path / "together.tar.d"
    os.mkdir(folder)
    (folder / "large").write_bytes(os.urandom(8 << 20))
    server = place.server
    before = server.requests() if isinstance(server, RunningServer) else {}
    script = """if True:
        import os, sys, threading
        def write(n):
            with open(f"{sys.argv[1]}-{n}", "wb") as file: file.write(b"%d" % n * 1000)
        threads = [threading.Thread(target=write, args=[n]) for n in range(16)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    """
    programs = [
        subprocess.Popen([sys.executable, "-c", script, str(n)], cwd=folder) for n in range(4)
    ]
    assert [program.wait(120) for program in programs] == [0] * 4
    found = members(place, "together.tar")
    del found["large"]
    assert found == {f"{p}-{n}": b"%d" % n * 1000 for p in range(4) for n in range(16)}
    with tarfile.open(place.objects() / "together.tar") as tar:
        assert len(tar.getnames()) == 65, "each is there once"
    if before:
        now = server.requests()
        assert now.get("append", 0) == 0
        assert now["put"] - before["put"] < 40


def test_another_client_writes_the_shard_between_two_members(place: Writable, tmp_path: Path):
    folder = place.path / "theirs.tar.d"
    os.mkdir(folder)
    (folder / "ours").write_bytes(b"ours")
    (tmp_path / "m").write_bytes(b"theirs")
    succeed("tar", "-cf", tmp_path / "theirs.tar", "-C", tmp_path, "m")
    with open(folder / "late", "wb") as late:
        late.write(b"late")
        place.put("theirs.tar", (tmp_path / "theirs.tar").read_bytes())
    assert members(place, "theirs.tar") == {"m": b"theirs", "late": b"late"}


def test_a_program_appends_to_the_tar_between_two_members(place: Writable, tmp_path: Path):
    shard, folder = place.path / "both.tar", place.path / "both.tar.d"
    os.mkdir(folder)
    (folder / "first").write_bytes(b"1")
    (tmp_path / "second").write_bytes(b"2")
    succeed("tar", "-rf", shard, "-C", tmp_path, "second")
    (folder / "third").write_bytes(b"3")
    assert members(place, "both.tar") == {"first": b"1", "second": b"2", "third": b"3"}


@pytest.mark.parametrize("through", ["file", "folder"])
def test_a_mode_that_is_set_between_two_members_stays(through: str, place: Writable):
    shard, folder = place.path / f"{through}.tar", place.path / f"{through}.tar.d"
    os.mkdir(folder)
    (folder / "first").write_bytes(b"1")
    os.chmod(folder if through == "folder" else shard, 0o600)
    (folder / "second").write_bytes(b"2")
    assert stat.S_IMODE(shard.stat().st_mode) == 0o600


def test_overwriting_a_shard_changes_its_folder(place: Writable, tmp_path: Path):
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
        succeed("tar", "-cf", place.path / "whole.tar", "-C", tmp_path, name)
        assert os.listdir(place.path / "whole.tar.d") == [name]
        assert (place.path / "whole.tar.d" / name).read_text() == name
    os.unlink(place.path / "whole.tar")
    assert eventually(lambda: not (place.path / "whole.tar.d").exists())
