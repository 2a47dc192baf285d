"""Programs people use, writing into a mount."""

import filecmp
import json
import os
import sqlite3
from pathlib import Path

import pytest

from tests.mount.datasets import WITHOUT_TORCH
from tests.mount.writable import Writable, writable
from tests.support.mounts import python, run, succeed

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

LIBRARY = Path(json.__file__).parent


@pytest.fixture(scope="module", params=["ais", "directory"])
def place(request: pytest.FixtureRequest, fastpath: bool, tmp_path_factory: pytest.TempPathFactory):
    base = tmp_path_factory.mktemp(f"p-{request.param}")
    with writable(base, backend=request.param, deadline=900) as place:
        yield place


@pytest.fixture
def folder(place: Writable, request: pytest.FixtureRequest) -> Path:
    path = place.path / request.node.name.split("[")[0]
    path.mkdir()
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A tree with modes and times of its own."""
    root = tmp_path / "source"
    for number, name in enumerate(["a.txt", "deep/er/b.bin", "deep/empty", "script.sh"]):
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(os.urandom(number * 50_000))
        os.utime(file, ns=(0, 1_500_000_000_123_456_789 + number))
    (root / "script.sh").chmod(0o755)
    return root


def same_tree(one: Path, two: Path) -> bool:
    found = filecmp.dircmp(one, two)
    folders = [found, *found.subdirs.values()]
    return all(
        not (each.left_only or each.right_only or each.diff_files or each.funny_files)
        for each in folders
    )


def test_cp(folder: Path, source: Path):
    succeed("cp", "-r", source, folder / "copy")
    assert same_tree(source, folder / "copy")
    succeed("cp", "-a", source, folder / "exact")
    assert (folder / "exact/script.sh").stat().st_mode & 0o777 == 0o755
    assert (folder / "exact/a.txt").stat().st_mtime_ns == 1_500_000_000_123_456_789


def test_rsync_transfers_nothing_the_second_time(folder: Path, source: Path, place: Writable):
    command = ["rsync", "-a", "--itemize-changes", f"{source}/"]
    assert b"script.sh" in succeed(*command, folder / "to")
    assert succeed(*command, folder / "to") == b""
    assert same_tree(source, folder / "to")
    with writable(
        place.path.parent,
        backend="ais" if place.server else "directory",
        server=place.server,
        name="again",
    ) as again:
        changed = succeed(*command, again.path / folder.name / "to")
        assert [line for line in changed.splitlines() if not line.startswith(b".d")] == []


def test_tar(folder: Path, source: Path):
    succeed("tar", "-cf", folder / "x.tar", "-C", source, ".")
    succeed("tar", "-df", folder / "x.tar", "-C", source)
    (folder / "out").mkdir()
    succeed("tar", "-xf", folder / "x.tar", "-C", folder / "out")
    assert same_tree(source, folder / "out")
    assert same_tree(source, folder / "x.tar.d")


def test_git(folder: Path, tmp_path: Path):
    origin = tmp_path / "origin"
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-c", "init.defaultBranch=main"]
    succeed("cp", "-r", LIBRARY, origin)
    succeed(*git, "init", "-q", origin)
    succeed(*git, "-C", origin, "add", ".")
    succeed(*git, "-C", origin, "commit", "-q", "-m", "first")
    succeed("git", "clone", "-q", "--no-local", origin, folder / "clone")
    clone = ["-C", folder / "clone", "-c", "safe.directory=*"]
    succeed(*git, *clone, "fsck", "--strict", "--no-progress")
    assert succeed(*git, *clone, "status", "--porcelain") == b""
    (folder / "clone" / "tool.py").write_text("changed\n")
    succeed(*git, *clone, "commit", "-q", "-a", "-m", "second")
    assert len(succeed(*git, *clone, "log", "--oneline").splitlines()) == 2


def test_sqlite(folder: Path, place: Writable):
    python(
        "import sqlite3, sys\n"
        "with sqlite3.connect(sys.argv[1]) as base:\n"
        "    base.execute('create table t (a, b)')\n"
        "    base.executemany('insert into t values (?, ?)', ((n, 'x' * n) for n in range(500)))\n"
        "    base.execute('delete from t where a % 2')\n"
        "with sqlite3.connect(sys.argv[1]) as base:\n"
        "    assert base.execute('select count(*) from t').fetchone() == (250,)\n"
        "    assert base.execute('pragma integrity_check').fetchone() == ('ok',)\n",
        folder / "base.db",
    )
    with sqlite3.connect(place.objects(f"{folder.name}/") / "base.db") as base:
        assert base.execute("pragma integrity_check").fetchone() == ("ok",)
        assert base.execute("select sum(length(b)) from t").fetchone() == (62250,)


def test_an_editor_saves(folder: Path, place: Writable):
    (folder / "text").write_text("old\n")
    (folder / "text").chmod(0o640)
    with open(folder / ".text.swp", "w") as temporary:
        temporary.write("new\n")
        temporary.flush()
        os.fsync(temporary.fileno())
    os.replace(folder / ".text.swp", folder / "text")
    directory = os.open(folder, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
    assert os.listdir(folder) == ["text"]
    assert place.stored(f"{folder.name}/text") == b"new\n"


def test_small_tools(folder: Path, place: Writable):
    done = run("dd", "if=/dev/urandom", f"of={folder}/z", "bs=50k", "count=10", "conv=fsync")
    assert done.returncode == 0, done.stderr
    succeed("split", "-n", "4", "-d", folder / "z", folder / "part.")
    parts = b"".join((folder / f"part.0{n}").read_bytes() for n in range(4))
    assert parts == (folder / "z").read_bytes() == place.stored(f"{folder.name}/z")
    (folder / "text").write_text("one two\n")
    succeed("sed", "-i", "s/two/three/", folder / "text")
    assert place.stored(f"{folder.name}/text") == b"one three\n"
    succeed("sh", "-c", f"echo more >> '{folder}/text'")
    assert place.stored(f"{folder.name}/text") == b"one three\nmore\n"
    succeed("install", "-m", "750", folder / "text", folder / "installed")
    assert (folder / "installed").stat().st_mode & 0o777 == 0o750
    (folder / "sub").mkdir()
    succeed("mv", folder / "part.00", folder / "part.01", folder / "sub")
    assert sorted(os.listdir(folder / "sub")) == ["part.00", "part.01"]
    succeed("rm", "-r", folder / "sub")
    assert not (folder / "sub").exists()
    succeed("truncate", "-s", "3", folder / "text")
    succeed("touch", "-d", "2001-02-03", folder / "text")
    assert place.stored(f"{folder.name}/text") == b"one"


def test_webdataset_writers(folder: Path):
    """No upload callback: a shard that was closed is in AIStore."""
    python(
        f"{WITHOUT_TORCH}import sys, webdataset as wds\n"
        "with wds.ShardWriter(sys.argv[1] + '/s-%02d.tar', maxcount=4, verbose=0) as sink:\n"
        "    for n in range(10):\n"
        "        sink.write({'__key__': f'k{n:03}', 'txt': f'text {n}', 'cls': n})\n"
        "with wds.TarWriter(sys.argv[1] + '/t.tar') as sink:\n"
        "    sink.write({'__key__': 'k', 'json': {'a': 1}})\n",
        folder,
    )
    assert sorted(os.listdir(folder)) == ["s-00.tar", "s-01.tar", "s-02.tar", "t.tar"]
    listed = [succeed("tar", "-tf", folder / f"s-0{n}.tar").split() for n in range(3)]
    assert [len(names) for names in listed] == [8, 8, 4]
    assert (folder / "s-02.tar.d" / "k009.txt").read_bytes() == b"text 9"
    assert json.loads((folder / "t.tar.d" / "k.json").read_bytes()) == {"a": 1}
