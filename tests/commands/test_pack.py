"""`aisfs pack` and `aisfs unpack` as processes, into a directory and into the embedded server."""

import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tarfile
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest
import requests
from rich.console import Console

from aisfs.core.index.published import ScanRules, decode_published
from aisfs.core.names.listing import INDEX_DIRECTORY
from aisfs.core.views.spec import LabelRule, LabelSource
from aisfs.errors import ContentUnreadable
from aisfs.model import ObjectInfo
from aisfs.work.pack import PackOptions, pack, plan_pack
from tests.mount.datasets import WITHOUT_TORCH
from tests.support.archives import make_tar
from tests.support.mounts import finish
from tests.support.preloaded import Preloader, Started
from tests.support.publishing import everything, scanned
from tests.support.servers import RunningServer, running_server
from tests.support.tars import BLOCK, END, entry, header, pad, records, sparse_header

_preloader = Preloader(
    "aisfs",
    ("aisfs.commands.main", "aisfs.commands.pack", "aisfs.work.pack", "aisfs.work.unpack"),
    flags=("-W", "error"),
)


def run(*words, code=0, endpoint=""):
    arguments = [str(word) for word in words]

    def start(out: IO[bytes], err: IO[bytes]) -> Started:
        environment = {**os.environ, "AIS_ENDPOINT": endpoint}
        return _preloader.start(*arguments, stdout=out, stderr=err, env=environment)

    ended = finish(start, arguments)
    done = SimpleNamespace(stdout=ended.stdout.decode(), stderr=ended.stderr.decode())
    assert ended.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for label in ("cat", "dog", "eel"):
        (root / label).mkdir(parents=True)
        for n in range(7):
            (root / label / f"{n:03}.jpg").write_bytes(os.urandom(1000 * n))
            (root / label / f"{n:03}.seg.png").write_bytes(os.urandom(10))
    odd = root / "cat" / ("ü" * 100)
    odd.mkdir()
    (odd / ("long" * 30 + ".x y")).write_bytes(b"odd")
    return root


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("packing") / "served"
    (root / "b").mkdir(parents=True)
    with running_server(root, faulty=True) as running:
        yield running
        assert "Traceback" not in running.log()


def contents(root: Path) -> dict[str, bytes]:
    """All files below a directory but published indexes, which differ by where the shards are."""
    return {
        str(p.relative_to(root)): p.read_bytes()
        for p in root.rglob("*")
        if p.is_file() and p.parent.name != INDEX_DIRECTORY
    }


@pytest.mark.parametrize("more", [[], ["--shuffle", "5"], ["--max-size", "20KiB"]], ids=str)
def test_round_trip(tree, tmp_path, server, more):
    for place, folder in (
        ("ais://b/x/s-{00..}.tar", server.root / "b" / "x"),
        ("out/s-{00..}.tar", tmp_path / "out"),
    ):
        shards = place if "://" in place else tmp_path / place
        said = run("pack", tree, shards, "--max-count", 5, *more, endpoint=server.endpoint)
        assert said.stdout.startswith("22 samples: ")
        back = tmp_path / f"back-{folder.name}"
        run("unpack", shards, back, endpoint=server.endpoint)
        assert contents(back) == contents(tree)
    # The same bytes wherever they go, and whenever.
    assert contents(tmp_path / "out") == contents(server.root / "b" / "x")
    shutil.rmtree(server.root / "b" / "x")


def test_classes(tree, tmp_path):
    shards = tmp_path / "out" / "s-{0..}.tar"
    (tree / "cat").joinpath("ü" * 100).rename(tree / "fox")
    run("pack", tree, shards, "--class-to", "cls", "--shuffle", 1, "--max-count", 10)
    # In a process of its own: webdataset leaves files open.
    script = WITHOUT_TORCH + (
        "import json, sys, webdataset\n"
        "data = webdataset.WebDataset(sys.argv[1:], shardshuffle=False).decode()\n"
        "print(json.dumps([(sample['__key__'], sample['cls']) for sample in data]))\n"
    )
    urls = [str(tmp_path / "out" / f"s-{n}.tar") for n in range(3)]
    read = subprocess.run([sys.executable, "-c", script, *urls], capture_output=True, check=True)
    found = json.loads(read.stdout)
    assert len(found) == 22
    numbers = {"cat": 0, "dog": 1, "eel": 2, "fox": 3}
    assert all(numbers[key.split("/")[0]] == label for key, label in found)
    assert found != sorted(found)
    run("unpack", shards, tmp_path / "back", "--class-to", "cls")
    assert contents(tmp_path / "back") == contents(tree)


def test_indexes_are_published_with_the_shards(tree, tmp_path, server):
    """What a scan would find of them, with labels; and again where they are missing."""
    (tree / "cat").joinpath("ü" * 100).rename(tree / "fox")
    (tree / "dog" / "000.cls").write_bytes(b" 7\n")
    rules = [LabelRule(LabelSource.CONTENT, name) for name in ("cls", "kind")]
    words = ["--max-count", 5, "--class-to", "kind"]
    for place, folder, indexes in (
        ("ais://b/ix/s-{00..}.tar", server.root / "b/ix", server.root / "aisfs-index/ais/b/ix"),
        (tmp_path / "out" / "s-{00..}.tar", tmp_path / "out", tmp_path / "out" / INDEX_DIRECTORY),
    ):
        for missing in (False, True):
            if missing:
                (indexes / "s-03.tar.idx").unlink()
            run("pack", tree, place, *words, endpoint=server.endpoint)
            shards = sorted(folder.glob("s-*.tar"))
            assert len(shards) == 5
            for shard in shards:
                data = (indexes / f"{shard.name}.idx").read_bytes()
                found = decode_published(data, described(server, shard), ScanRules())
                index, labels = scanned(shard.read_bytes(), *rules)
                assert everything(found.index) == everything(index)
                assert found.labels == labels
                assert labels["CONTENT kind"].table
        names = {path.name for path in folder.iterdir()} - {INDEX_DIRECTORY}
        assert names == {"classes.txt", *(shard.name for shard in shards)}
        assert (indexes.parent == folder) == (folder / INDEX_DIRECTORY).exists()
        shutil.rmtree(folder)
    run("pack", tree, place, *words, "--no-index", endpoint=server.endpoint)
    assert len(list(folder.iterdir())) == 6
    shutil.rmtree(folder)


def described(server: RunningServer, shard: Path) -> ObjectInfo:
    facts = shard.stat()
    if not shard.is_relative_to(server.root):
        version = f"{facts.st_mtime_ns}-{facts.st_ino}"
        return ObjectInfo(shard.name, facts.st_size, version, mtime_ns=facts.st_mtime_ns)
    url = f"{server.endpoint}/v1/objects/b/ix/{shard.name}"
    headers = requests.head(url, allow_redirects=True, timeout=30).headers
    checksum = f"{headers['ais-checksum-type']}:{headers['ais-checksum-value']}"
    return ObjectInfo(shard.name, facts.st_size, headers["ais-version"], checksum)


def test_finished_shards_are_recognised(tree, tmp_path, server):
    place = "ais://b/again-{00..}.tar"
    first = run("pack", tree, place, "--max-count", 5, endpoint=server.endpoint)
    assert "5 shards written, 0 were there" in first.stdout
    assert re.search(r"\d bytes: \S+/\S*\{\d+\.\.\}\S*\.tar$", first.stdout, re.MULTILINE)
    second = run("pack", tree, place, "--max-count", 5, endpoint=server.endpoint)
    assert "0 shards written, 5 were there" in second.stdout
    (tree / "eel" / "006.jpg").write_bytes(os.urandom(6000))
    before = server.requests()["put"]
    third = run("pack", tree, place, "--max-count", 5, endpoint=server.endpoint)
    assert "1 shard written, 4 were there" in third.stdout
    assert server.requests()["put"] == before + 2, "the shard and its index"


def test_shards_left_by_an_earlier_run_are_named(tree, server):
    place = "ais://b/fewer/s-{00..}.tar"
    first = run("pack", tree, place, "--max-count", 5, endpoint=server.endpoint)
    assert "remain" not in first.stderr
    again = run("pack", tree, place, "--max-count", 10, endpoint=server.endpoint)
    assert again.stderr.splitlines()[-1] == (
        "aisfs: older shards of these names remain: 2, ais://b/fewer/s-03.tar to ais://b/fewer/s-04.tar. Whatever"
        " reads fewer/s-{00..}.tar reads their samples, too; --replace removes them, and so does `aisfs rm`"
    )
    part = run("pack", tree, "ais://b/fewer/s-{00..02}.tar", "--max-count", 10,
               endpoint=server.endpoint)  # fmt: skip
    assert "remain" not in part.stderr


def test_replace_removes_older_shards_and_their_indexes(tree, tmp_path, server):
    for place, folder, indexes in (
        (
            "ais://b/less/s-{00..}.tar",
            server.root / "b/less",
            server.root / "aisfs-index/ais/b/less",
        ),
        (tmp_path / "out/s-{00..}.tar", tmp_path / "out", tmp_path / "out" / INDEX_DIRECTORY),
    ):
        run("pack", tree, place, "--max-count", 5, endpoint=server.endpoint)
        (folder / "s-1.tar").write_bytes(b"of another name")
        said = run("pack", tree, place, "--max-count", 10, "--replace", endpoint=server.endpoint)
        assert "3 shards written, 0 were there" in said.stdout
        assert "2 older ones removed" in said.stdout
        assert "remain" not in said.stderr
        left = ["s-00.tar", "s-01.tar", "s-02.tar"]
        assert sorted(p.name for p in folder.iterdir() if p.is_file()) == [*left, "s-1.tar"]
        assert sorted(p.name for p in indexes.iterdir()) == [f"{name}.idx" for name in left]


def test_older_shards_stay_where_packing_fails(tree, server):
    place = "ais://b/stay/s-{00..}.tar"
    run("pack", tree, place, "--max-count", 5, endpoint=server.endpoint)
    refuse = {"match": {"path_contains": "stay/s-01", "method": "PUT", "marked": True}}
    server.faults([{**refuse, "action": "status", "status": 507, "times": -1}])
    run("pack", tree, place, "--max-count", 10, "--replace", endpoint=server.endpoint, code=1)
    server.faults([])
    assert len(list((server.root / "b/stay").glob("s-*.tar"))) == 5


def webdataset_keys(*shards: Path) -> list[str]:
    """What webdataset reads, in a process of its own, since it leaves files open."""
    script = WITHOUT_TORCH + (
        "import json, sys, webdataset\n"
        "data = webdataset.WebDataset(sys.argv[1:], shardshuffle=False, empty_check=False)\n"
        "print(json.dumps([sample['__key__'] for sample in data]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, shards)], capture_output=True, check=True
    )
    keys: list[str] = json.loads(done.stdout)
    return keys


def files_of(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("cat/22.05.jpg", "cat/22.06.jpg"),
        ("cat/IMG.2.jpg", "cat/IMG.jpg"),
        ("cat/Dr. No.jpg", "cat/Dr. Who.jpg"),
        ("cat/John.Doe.jpg", "cat/John.Smith.jpg"),
        ("cat/1.JPG", "cat/1.jpg"),
        ("cat/v1.05", "cat/v1.06"),
    ],
)
def test_files_that_would_share_a_sample_are_refused(tmp_path, first, second):
    """webdataset ends a key at the first dot, and would read one sample for both."""
    tree = files_of(tmp_path / "tree", first, second, "cat/7.jpg", "dog/1.jpg")
    shard = tmp_path / "out" / "s.tar"
    for more in ([], ["--dry-run"], ["--class-to", "cls"]):
        said = run("pack", tree, shard, *more, code=2)
        assert f"aisfs: {first} and {second} would be one sample" in said.stderr
        assert "--key-rule last-dot" in said.stderr
        assert said.stdout == ""
        assert not shard.parent.exists()
    run("pack", tree, shard, "--key-rule", "wds")
    with tarfile.open(shard) as tar:
        assert sorted(tar.getnames()) == sorted([first, second, "cat/7.jpg", "dog/1.jpg"])


def test_last_dot_makes_a_sample_of_each_for_every_reader(tmp_path):
    names = ["cat/22.05.jpg", "cat/22.06.jpg", "d.o.g/1.2.3.tar.png", "d.o.g/plain.jpg"]
    tree, shard = files_of(tmp_path / "tree", *names), tmp_path / "s.tar"
    assert run("pack", tree, shard, "--key-rule", "last-dot").stdout.startswith("4 samples: ")
    keys = ["cat/22_05", "cat/22_06", "d.o.g/1_2_3_tar", "d.o.g/plain"]
    assert webdataset_keys(shard) == keys
    with tarfile.open(shard) as tar:
        contents = [tar.extractfile(member).read().decode() for member in tar.getmembers()]
    assert contents == names
    files_of(tree, "cat/22_05.png")
    said = run("pack", tree, shard, "--key-rule", "last-dot", code=2)
    assert "cat/22.05.jpg and cat/22_05.png would have one key, cat/22_05" in said.stderr


def test_objects_that_would_share_a_sample_are_refused(tmp_path, server):
    files_of(server.root / "b" / "dots", "22.05.jpg", "22.06.jpg")
    words = ["pack", "ais://b/dots/", tmp_path / "s.tar"]
    said = run(*words, endpoint=server.endpoint, code=2)
    assert "22.05.jpg and 22.06.jpg would be one sample" in said.stderr
    run(*words, "--key-rule", "last-dot", endpoint=server.endpoint)
    assert webdataset_keys(tmp_path / "s.tar") == ["22_05", "22_06"]


def test_what_readers_see_otherwise_is_said(tmp_path):
    tree = files_of(tmp_path / "tree", "cat/1.jpg", "cat/1.png", "cat/LICENSE", "dog/1.jpg")
    shard = tmp_path / "s.tar"
    said = run("pack", tree, shard).stderr.splitlines()
    assert said[-2:] == [
        "aisfs: without an extension: 1 file, such as cat/LICENSE; webdataset skips them",
        "aisfs: several pictures in one sample: 1 times, such as cat/1.jpg and cat/1.png; --view class shows"
        " one of them",
    ]
    assert webdataset_keys(shard) == ["cat/1", "dog/1"]
    said = run("pack", tree, shard, "--key-rule", "basename", "--exclude", "LICENSE")
    assert said.stdout.startswith("1 sample: ")
    assert (
        "aisfs: 1 sample packed, and readers that end a key at the first dot see 2" in said.stderr
    )


LITTER = (
    ".DS_Store",
    "._cat",
    "cat/.DS_Store",
    "cat/._1.jpg",
    "cat/Thumbs.db",
    "dog/desktop.ini",
    "dog/.ipynb_checkpoints/1-checkpoint.jpg",
    "__MACOSX/cat/._1.jpg",
    "__MACOSX/cat/2.jpg",
)


def test_litter_is_left_out_and_counted(tmp_path, server):
    tree = files_of(tmp_path / "tree", "cat/1.jpg", "cat/2.jpg", "dog/1.jpg", *LITTER)
    files_of(tree, ".git/config", "dog/.hidden.jpg")
    shutil.copytree(tree, server.root / "b" / "littered")
    wanted = ["cat/1.cls", "cat/1.jpg", "cat/2.cls", "cat/2.jpg", "dog/1.cls", "dog/1.jpg"]
    for source in (tree, "ais://b/littered/"):
        shard = tmp_path / "s.tar"
        said = run("pack", source, shard, "--class-to", "cls", endpoint=server.endpoint)
        assert said.stdout.startswith("3 samples: ")
        assert "aisfs: left out: 8 litter of other programs, such as " in said.stderr
        assert "aisfs: left out: 2 hidden, which --hidden packs, such as " in said.stderr
        with tarfile.open(shard) as tar:
            assert tar.getnames() == wanted
        run("pack", source, shard, "--hidden", endpoint=server.endpoint)
        with tarfile.open(shard) as tar:
            kept = {".git/config", "cat/1.jpg", "cat/2.jpg", "dog/.hidden.jpg", "dog/1.jpg"}
            assert set(tar.getnames()) == kept


def test_globs_choose_what_is_packed(tree, loose, tmp_path, server):
    options = (
        "--include",
        "/cat",
        "--include",
        "00?.jpg",
        "--exclude",
        "*.seg.png",
        "--exclude",
        "/eel",
    )
    found = []
    for source, name in ((tree, "a.tar"), (f"{loose}/", "b.tar")):
        said = run("pack", source, tmp_path / name, *options, endpoint=server.endpoint)
        assert " excluded, such as " in said.stderr
        with tarfile.open(tmp_path / name) as tar:
            found.append([n for n in tar.getnames() if len(n) < 50])
    assert found[0] == [f"{label}/00{n}.jpg" for label in ("cat", "dog") for n in range(7)]
    assert found[0] == found[1]
    said = run("pack", tree, tmp_path / "c.tar", "--include", "*.gif", code=5)
    assert "no files (left out: " in said.stderr


def test_numbers_of_classes_are_printed_and_kept(tmp_path, server):
    """What was packed first decides; later classes follow, so that no number changes its meaning."""
    tree = files_of(tmp_path / "tree", "cat/1.jpg", "dog/1.jpg")
    for place, folder in (
        ("ais://b/named/{}-{{0..}}.tar", server.root / "b/named"),
        (f"{tmp_path}/out/{{}}-{{{{0..}}}}.tar", tmp_path / "out"),
    ):
        words = ["--class-to", "cls"]
        said = run("pack", tree, place.format("a"), *words, endpoint=server.endpoint)
        assert said.stdout.splitlines()[1:3] == ["class 0: cat", "class 1: dog"]
        assert "classes.txt" in said.stdout
        assert (folder / "classes.txt").read_text() == "cat\ndog\n"
        other = files_of(tmp_path / f"other-{folder.name}", "ant/1.jpg", "dog/1.jpg")
        said = run("pack", other, place.format("b"), *words, endpoint=server.endpoint)
        assert said.stdout.splitlines()[1:4] == ["class 0: cat", "class 1: dog", "class 2: ant"]
        assert (folder / "classes.txt").read_text() == "cat\ndog\nant\n"
        with tarfile.open(folder / "b-0.tar") as tar:
            labels = {n: tar.extractfile(n).read() for n in tar.getnames() if n.endswith(".cls")}
        assert labels == {"ant/1.cls": b"2", "dog/1.cls": b"1"}
        (folder / "classes.txt").write_bytes(b"cat\ncat\n")
        said = run("pack", other, place.format("b"), *words, endpoint=server.endpoint, code=2)
        assert "classes.txt: expected different names, one a line" in said.stderr


def test_shards_in_the_tree_are_not_packed(tree):
    for folder in (tree, tree / "cat"):
        first = run("pack", tree, folder / "s-{0..}.tar", "--max-count", 10)
        again = run("pack", tree, folder / "s-{0..}.tar", "--max-count", 10)
        assert "3 shards written, 0 were there" in first.stdout
        assert "0 shards written, 3 were there" in again.stdout
        for shard in folder.glob("s-*.tar"):
            shard.unlink()


def shards_at(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("*.tar"))]


@pytest.fixture
def loose(tree: Path, server: RunningServer) -> Iterator[str]:
    """The tree as objects."""
    name = f"loose-{tree.parent.name}"
    shutil.copytree(tree, server.root / "b" / name)
    yield f"ais://b/{name}"
    shutil.rmtree(server.root / "b" / name)


def test_objects_make_the_shards_that_files_make(tree, loose, tmp_path, server):
    options = ("--max-count", 5, "--class-to", "cls")
    run("pack", tree, tmp_path / "files" / "s-{00..}.tar", *options)
    made = run("pack", loose, tmp_path / "objects" / "s-{00..}.tar", *options,
               endpoint=server.endpoint)  # fmt: skip
    assert "22 samples: 5 shards written" in made.stdout
    assert shards_at(tmp_path / "objects") == shards_at(tmp_path / "files") != []
    # In the bucket, and among the objects: a second time, the shards are not packed themselves.
    for count in ("5 shards written, 0 were there", "0 shards written, 5 were there"):
        done = run("pack", f"{loose}/", f"{loose}/s-{{00..}}.tar", *options, "--jobs", 8,
                   endpoint=server.endpoint)  # fmt: skip
        assert count in done.stdout
    stored = server.root / "b" / loose.rpartition("/")[2]
    assert shards_at(stored) == shards_at(tmp_path / "files")
    assert not (stored / INDEX_DIRECTORY).exists()
    indexes = server.root / "aisfs-index" / "ais" / stored.relative_to(server.root)
    assert len(list(indexes.iterdir())) == 5


def test_objects_by_pattern_and_list(loose, tmp_path, server):
    run("pack", f"{loose}/{{cat,eel}}/00[1-3].jpg", tmp_path / "s.tar", endpoint=server.endpoint)
    prefix = loose.removeprefix("ais://b/")
    names = [f"{prefix}/{label}/00{n}.jpg" for label in ("cat", "eel") for n in (1, 2, 3)]
    with tarfile.open(tmp_path / "s.tar") as tar:
        assert tar.getnames() == names
    said = run("pack", "--dry-run", f"{loose}/cat", f"{loose}/dog", tmp_path / "t.tar",
               endpoint=server.endpoint, code=2)  # fmt: skip
    assert "would both be 000.jpg" in said.stderr
    missing = run("pack", f"{loose}/cow/", tmp_path / "t.tar", endpoint=server.endpoint, code=5)
    assert "no such object or directory" in missing.stderr
    assert not (tmp_path / "t.tar").exists()


def test_an_object_that_cannot_be_read_is_named(loose, tmp_path, server):
    gone = {"match": {"path_contains": "dog/003.jpg", "method": "GET", "marked": True}}
    server.faults([{**gone, "action": "status", "status": 404, "times": -1}])
    said = run("pack", loose, tmp_path / "s.tar", endpoint=server.endpoint, code=1)
    server.faults([])
    assert "dog/003.jpg" in said.stderr
    assert not (tmp_path / "s.tar").exists()


def test_it_goes_on_after_an_error(tree, tmp_path, server):
    place = "ais://b/broken-{00..}.tar"
    refuse = {"match": {"path_contains": "broken-03", "method": "PUT", "marked": True}}
    server.faults([{**refuse, "action": "status", "status": 507, "times": -1}])
    failed = run(
        "pack", tree, place, "--max-count", 5, "--jobs", 1, endpoint=server.endpoint, code=1
    )
    assert "broken-03.tar: the cluster has no room left" in failed.stderr
    server.faults([])
    done = run("pack", tree, place, "--max-count", 5, endpoint=server.endpoint)
    assert "2 shards written, 3 were there" in done.stdout


@pytest.mark.parametrize("now", [b"shorter", b"longer than it was before"], ids=len)
async def test_a_file_that_changes_while_it_is_packed_is_named(tmp_path, now):
    tree, shard = tmp_path / "tree", tmp_path / "s.tar"
    tree.mkdir()
    (tree / "a.txt").write_bytes(b"as it was found")
    plan = await plan_pack([str(tree)], str(shard), {}, PackOptions(max_count=9, max_size=9999))
    (tree / "a.txt").write_bytes(now)
    with pytest.raises(ContentUnreadable, match=r"a\.txt: changed while it was packed"):
        await pack(plan, {}, 1, Console(file=io.StringIO()))
    assert not shard.exists()


def test_dry_run_writes_nothing(tree, tmp_path):
    said = run("pack", tree, tmp_path / "out" / "s-{0..}.tar", "--max-count", 10, "--dry-run")
    lines = [line.rpartition("/")[2].split(", ")[:2] for line in said.stdout.splitlines()]
    # Of the 22 samples one has a single file.
    assert lines == [
        ["s-0.tar: 10 samples", "19 files"],
        ["s-1.tar: 10 samples", "20 files"],
        ["s-2.tar: 2 samples", "4 files"],
    ]
    assert not (tmp_path / "out").exists()


def test_odd_things_are_named(tree, tmp_path):
    os.mkfifo(tree / "pipe")
    (tree / "empty").mkdir()
    (tree / "dangling").symlink_to("nowhere")
    (tree / "link").symlink_to("cat/001.jpg")
    assert "pipe: no file" in run("pack", tree, tmp_path / "s.tar", "--dry-run", code=1).stderr
    said = run("pack", tree, tmp_path / "s.tar", code=1)
    assert {line.rpartition("/")[2] for line in said.stderr.splitlines() if "left out" in line} == {
        "pipe: no file",
        "empty: an empty directory",
        "dangling: No such file or directory",
    }
    with tarfile.open(tmp_path / "s.tar") as tar:
        link = tar.getmember("link")
        assert tar.extractfile(link).read() == (tree / "cat" / "001.jpg").read_bytes()


def test_unpack_stays_inside(tmp_path):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in ("../out.txt", "/etc/out.txt", "in.txt"):
            header = tarfile.TarInfo(name)
            header.size = 1
            tar.addfile(header, io.BytesIO(b"x"))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        tar.addfile(link)
    (tmp_path / "s.tar").write_bytes(file.getvalue())
    said = run("unpack", tmp_path / "s.tar", tmp_path / "a" / "b", code=1)
    assert contents(tmp_path / "a") == {"b/in.txt": b"x", "b/etc/out.txt": b"x"}
    assert "link" in said.stderr
    assert "out.txt" in said.stderr


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["pack", "nowhere", "s.tar"], 5, "no such directory"),
        (["pack", ".", "s"], 2, "ends in .tar"),
        (["pack", ".", "s.tar", "--max-size", "much"], 2, "not a size"),
        (["pack", ".", "ais://b"], 2, "write ais://BUCKET"),
        (["pack", ".", "no_pe://b/s.tar"], 2, "unknown provider"),
        (["pack", ".", "ais://b/s.tar"], 3, "no endpoint"),
        (["pack", ".", "ais://b/s.tar", "--endpoint", "http://127.0.0.1:9"], 4, "refused"),
        (["unpack", "ais://b/s.tar", "."], 3, "no endpoint"),
        (["unpack", "ais://b/s.tar", ".", "--endpoint", "http://127.0.0.1:9"], 4, "refused"),
        (["unpack", "nowhere/s.tar", "."], 5, "no such directory"),
        (["unpack", "s-{0..}.tar", "."], 5, "no shard"),
        (["unpack", "."], 2, "give a SOURCE"),
        (["pack", ".", "ais://b/s-*.tar"], 2, "new shards need names, not a pattern"),
        (["pack", ".", "ais://b/train-%03d.tar"], 2, "write 'ais://b/train-{000..}.tar'"),
        (["pack", ".", "100%d/s-%d.tar"], 2, "write '100%d/s-{0..}.tar'"),
        (["pack", ".", "out-?/s.tar"], 2, "a new directory needs a name"),
        (["pack", "ais://b/loose/", "s.tar"], 3, "no endpoint"),
        (["pack", ".", "ais://b/loose/", "s.tar"], 2, "SOURCE is one local directory"),
        (["pack", "s.tar"], 2, "SOURCE"),
        (["pack", "ais://", "s.tar", "--endpoint", "http://127.0.0.1:9"], 2, "pack one bucket"),
    ],
)
def test_errors_are_one_line(tmp_path, monkeypatch, words, code, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(b"x")
    said = run(*words, code=code)
    assert reason in said.stderr
    assert len(said.stderr.splitlines()) == 1


def test_too_few_names_write_nothing(tree, tmp_path):
    said = run("pack", tree, tmp_path / "s-{0..1}.tar", "--max-count", 5, code=2)
    assert "only 2 names" in said.stderr
    assert not list(tmp_path.glob("*.tar"))


def test_damaged_shard(tmp_path):
    (tmp_path / "s.tar").write_bytes(b"nonsense" * 1000)
    said = run("unpack", tmp_path / "s.tar", tmp_path / "back", code=9)
    assert "damaged: " in said.stderr
    assert "s.tar" in said.stderr


def test_a_truncated_shard_leaves_whole_files_only(tmp_path):
    shard = tmp_path / "s.tar"
    shard.write_bytes(tar_of(("first.bin", 200_000), ("second.bin", 200_000)))
    os.truncate(shard, 300_000)
    said = run("unpack", shard, tmp_path / "back", code=9)
    assert "s.tar" in said.stderr
    assert [path.name for path in (tmp_path / "back").iterdir()] == ["first.bin"]
    assert (tmp_path / "back" / "first.bin").stat().st_size == 200_000


def tar_of(*members):
    """Make a tar of members, each a name with a size or a content."""
    return make_tar(
        [(name, os.urandom(value) if isinstance(value, int) else value) for name, value in members],
        mtime=0,
    )


@pytest.mark.parametrize("kind", ["checksum", "cut", "joined", "zeros"])
def test_what_tarfile_takes_for_the_end_is_told(tmp_path, kind):
    whole = tar_of(("a", b"1"), ("b", b"2"), ("c", b"3"))
    data = {
        "checksum": whole[:1024] + b"x" + whole[1025:],
        "cut": whole[: 1024 + 300],
        "joined": tar_of(("a", b"1")) + whole,
        "zeros": whole[:1024] + bytes(512) + whole[1024:],
    }[kind]
    (tmp_path / "s-0.tar").write_bytes(data)
    (tmp_path / "s-1.tar").write_bytes(tar_of(("z", b"9")))
    said = run("unpack", tmp_path / "s-{0..}.tar", tmp_path / "back", code=9)
    assert "s-0.tar: nothing behind byte 1024 is read" in said.stderr
    assert contents(tmp_path / "back") == {"a": b"1", "z": b"9"}


def test_one_path_in_two_shards_is_refused(tmp_path):
    for number in range(2):
        data = tar_of((f"{number}.txt", b"x"), ("same.txt", b"%d" % number * 200_000))
        (tmp_path / f"s-{number}.tar").write_bytes(data)
    for _ in range(4):
        said = run("unpack", tmp_path / "s-{0..}.tar", tmp_path / "back", code=1)
        assert "same.txt is in another of these shards too" in said.stderr
        assert (tmp_path / "back" / "same.txt").read_bytes() in (b"0" * 200_000, b"1" * 200_000)
    # One shard again, over what is there, is not another.
    for number in (0, 1, 1):
        run("unpack", tmp_path / f"s-{number}.tar", tmp_path / "back")
        assert (tmp_path / "back" / "same.txt").read_bytes() == b"%d" % number * 200_000


def test_the_last_of_two_members_counts(tmp_path):
    (tmp_path / "s.tar").write_bytes(tar_of(("a", b"long and old"), ("b", b"2"), ("./a", b"new")))
    said = run("unpack", tmp_path / "s.tar", tmp_path / "back")
    assert contents(tmp_path / "back") == {"a": b"new", "b": b"2"}
    assert said.stdout.startswith("2 files of 1 shard")


@pytest.mark.parametrize("name", ["first/below", "y" * 256, ".", "d"])
def test_a_name_that_cannot_be_a_file_is_left_out(tmp_path, name):
    data = tar_of(("d/x", b"0"), ("first", b"1"), (name, b"2"), ("after", b"3"))
    (tmp_path / "s.tar").write_bytes(data)
    said = run("unpack", tmp_path / "s.tar", tmp_path / "back", code=1)
    assert f"left out: {tmp_path}/s.tar: {name!r}: " in said.stderr
    assert contents(tmp_path / "back") == {"d/x": b"0", "first": b"1", "after": b"3"}


def memory_of(*arguments):
    """Run the command line in a process of its own; return its code and the most memory it had."""
    script = (
        "import resource, sys; from aisfs.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as end: code = end.code\n"
        "print('\\n', code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    code, kib = done.stdout.split()[-2:]
    return int(code), int(kib) << 10, done.stderr


def test_unpacking_takes_no_memory_in_proportion(tmp_path):
    """Neither to the number of members, nor to the length of a header."""
    few, many = tmp_path / "few.tar", tmp_path / "many.tar"
    for path, count in ((few, 10), (many, 40_000)):
        with path.open("wb") as file:
            for at in range(count):
                file.write(entry(b"d%03d/%06d" % (at // 1000, at), b""))
            file.write(END)
    long = tmp_path / "long.tar"
    said = [(b"comment", b"x" * (24 << 20)), (b"path", b"named.txt")]
    long.write_bytes(entry(b"p", records(said), kind=b"x") + entry(b"a", b"content") + END)
    code, base, _ = memory_of("unpack", few, tmp_path / "few")
    assert code == 0
    for path, files in ((many, 40_000), (long, 1)):
        code, taken, _ = memory_of("unpack", path, tmp_path / path.stem)
        assert code == 0
        assert sum(one.is_file() for one in (tmp_path / path.stem).rglob("*")) == files
        assert taken < base + (24 << 20)  # two windows of 8 MiB, and what Python needs
    assert contents(tmp_path / "long") == {"named.txt": b"content"}


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_a_header_without_end_costs_its_member(tmp_path, kind):
    size = 64 << 20
    with (tmp_path / "s.tar").open("wb") as file:
        file.write(entry(b"first", b"1") + header(b"p", size=size, kind=kind))
        file.truncate(file.tell() + size)
        file.seek(0, os.SEEK_END)
        file.write(entry(b"a", b"2") + entry(b"b", b"3") + END)
    said = run("unpack", tmp_path / "s.tar", tmp_path / "back", code=9)
    at = 1024 if kind == b"g" else 1024 + BLOCK + size
    assert f"at byte {at} is skipped" in said.stderr
    assert "nothing behind" not in said.stderr
    rest = {"a": b"2"} if kind == b"g" else {}
    assert contents(tmp_path / "back") == {"first": b"1", **rest, "b": b"3"}


def test_modes_times_and_sparse_members_are_kept(tmp_path):
    pairs, real = [(4096, 5), (100_000, 3)], 200_000
    data = entry(b"x.sh", b"#!", mode=0o755, mtime=1_600_000_000)
    data += entry(b"secret", b"s", mode=0o600, mtime=1_600_000_001)
    data += sparse_header(b"holes", pairs, 8, real) + pad(b"helloend")
    data += entry(b"none", b"n", mtime=0) + entry(b"big", b"b" * (9 << 20)) + END
    (tmp_path / "s.tar").write_bytes(data)
    run("unpack", tmp_path / "s.tar", tmp_path / "back")
    found = {path.name: path.stat() for path in (tmp_path / "back").iterdir()}
    assert found["x.sh"].st_mode & 0o777 == 0o755
    assert found["secret"].st_mode & 0o777 == 0o600
    assert found["x.sh"].st_mtime == 1_600_000_000
    assert found["none"].st_mtime > 1_700_000_000
    holes = bytearray(real)
    holes[4096:4101], holes[100_000:100_003] = b"hello", b"end"
    assert contents(tmp_path / "back")["holes"] == holes
    assert contents(tmp_path / "back")["big"] == b"b" * (9 << 20)


def test_names_do_not_control_a_terminal_nor_flood_it(tmp_path):
    bad = [b"l\x1b[2J\nfake: line %d" % at for at in range(5000)]
    data = b"".join(entry(name, kind=b"2", target=b"x") for name in bad)
    (tmp_path / "s.tar").write_bytes(data + END)
    said = run("unpack", tmp_path / "s.tar", tmp_path / "back", code=1)
    assert "\x1b" not in said.stderr
    assert r"\x1b[2J\nfake: line 0" in said.stderr
    assert "4980 more" in said.stderr
    assert len(said.stderr.splitlines()) < 30


def test_a_terminal_shows_how_far_it_is_and_the_time_left(tmp_path: Path):
    (tmp_path / "tree").mkdir()
    for n in range(4):
        (tmp_path / "tree" / f"{n}.bin").write_bytes(bytes(20 << 20))
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    words = ("pack", str(tmp_path / "tree"), f"{tmp_path}/x-{{00..}}.tar", "--max-count", "1")
    with (tmp_path / "out").open("wb") as out, open(theirs, "wb") as terminal:
        command = _preloader.start(
            *words, stdout=out, stderr=terminal, env={**os.environ, "TERM": "xterm"}
        )
    shown = b""
    with suppress(OSError):  # how a terminal ends
        while piece := os.read(ours, 65536):
            shown += piece
    os.close(ours)
    assert command.wait(60) == 0
    rows = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()))
    bars = [row for row in rows if row.startswith("shards ")]
    assert bars
    for bar in bars:
        assert re.fullmatch(
            r"shards [━╸╺ ]+ [\d.]+/80\.0 MiB( +[\d.,]+ [KMG]?i?B/s)? +(-:--:--|\d+:\d\d:\d\d) *",
            bar,
        )
