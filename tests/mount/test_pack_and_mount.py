"""README's path: a folder of pictures is packed, and mounted as a folder of classes without a further option."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.content import put
from tests.mount.datasets import ImageFolder, encode, sample, tree
from tests.support.mounts import aisfs, mounted
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

VIEW = ["--view", "class"]
BY_DIRECTORY = (
    "aisfs: labels are the first directories of the members, since no sample has a part cls"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("packed").resolve() / "store"
    (root / "b").mkdir(parents=True)
    with running_server(root) as running:
        yield running


@pytest.fixture
def pics(tmp_path: Path) -> Path:
    for name in ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "eel/deep/1.jpg"):
        (tmp_path / "pics" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pics" / name).write_bytes(name.encode())
    return tmp_path / "pics"


def pack(server: RunningServer, *words: str | Path) -> str:
    done = aisfs("pack", *words, env={"AIS_ENDPOINT": server.endpoint})
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


@pytest.mark.parametrize("foreground", [False, True])
def test_folders_are_the_classes(
    server: RunningServer, pics: Path, tmp_path: Path, mountpoint: Path, foreground: bool
):
    pack(server, pics, "ais://b/plain/p-{00..}.tar", "--max-count", "2")
    pack(server, pics, tmp_path / "out" / "p-{00..}.tar", "--max-count", "2")
    for source in ("ais://b/plain", "ais://b/plain/p-{00..}.tar", str(tmp_path / "out")):
        with mounted(source, mountpoint, endpoint=server.endpoint, options=VIEW,
                     foreground=foreground) as m:  # fmt: skip
            assert tree(m.path) == tree(pics)
            assert (m.path / "eel/deep/1.jpg").read_bytes() == b"eel/deep/1.jpg"
            assert ImageFolder(str(m.path)).class_to_idx == ImageFolder(str(pics)).class_to_idx
            assert m.log().splitlines().count(BY_DIRECTORY) == 1
            assert os.listxattr(m.path) == []


def test_labels_in_the_samples_come_first(server: RunningServer, mountpoint: Path):
    """One labelled sample is enough: then the others have none, and nothing is guessed."""
    samples = [sample("cat/1", 7), {"__key__": "dog/1", "jpg": b"x"}, sample("dog/2", 7)]
    put(server.endpoint, "b", "some/x.tar", encode(samples))
    with mounted("ais://b/some", mountpoint, endpoint=server.endpoint, options=VIEW) as m:
        assert tree(m.path) == ["7/cat/1.jpg", "7/dog/2.jpg"]
        assert os.getxattr(m.path, "user.aisfs.skipped") == b"no label: 1"
        assert "labels are" not in m.log()
    # A label that was asked for is the only one.
    put(server.endpoint, "b", "none/x.tar", encode([{"__key__": "cat/1", "jpg": b"x"}]))
    options = [*VIEW, "--label", "cls"]
    with mounted("ais://b/none", mountpoint, endpoint=server.endpoint, options=options,
                 expected_log=["--view class shows nothing: 1 sample has no cls"]) as m:  # fmt: skip
        assert tree(m.path) == []


def test_joined_samples_have_the_folders_as_classes_too(server: RunningServer, mountpoint: Path):
    put(server.endpoint, "b", "pictures/x.tar", encode([{"__key__": "cat/1", "jpg": b"x"}]))
    put(server.endpoint, "b", "captions/x.tar", encode([{"__key__": "cat/1", "txt": b"a cat"}]))
    sources, options = ["ais://b/pictures", "ais://b/captions"], [*VIEW, "--join"]
    with mounted(sources, mountpoint, endpoint=server.endpoint, options=options) as m:
        assert tree(m.path) == ["cat/1.jpg"]
        assert BY_DIRECTORY in m.log()


def test_numbers_are_shown_as_the_names_that_were_stored(
    server: RunningServer, pics: Path, tmp_path: Path, mountpoint: Path
):
    for place in ("ais://b/named", str(tmp_path / "named")):
        pack(server, pics, f"{place}/p-{{00..}}.tar", "--class-to", "cls", "--max-count", "2")
        with mounted(place, mountpoint, endpoint=server.endpoint, options=VIEW) as m:
            assert tree(m.path) == tree(pics)
            assert ImageFolder(str(m.path)).class_to_idx == {"cat": 0, "dog": 1, "eel": 2}
            assert f"aisfs: labels are called as in {place}/classes.txt\n" in m.log()
        # A list that was asked for is the only one.
        (tmp_path / "own.txt").write_text("x\ny\nz\n")
        options = [*VIEW, "--classes", str(tmp_path / "own.txt")]
        with mounted(place, mountpoint, endpoint=server.endpoint, options=options) as m:
            assert sorted(os.listdir(m.path)) == ["x", "y", "z"]
            assert "labels are called" not in m.log()


def test_names_that_do_not_fit_are_not_used(server: RunningServer, mountpoint: Path):
    odd = mountpoint.parent.name
    put(server.endpoint, "b", f"{odd}/x.tar", encode([sample("1", 0), sample("2", 5)]))
    put(server.endpoint, "b", f"{odd}/sub/y.tar", encode([sample("3", 1)]))
    for names, classes in (
        (b"ant\nbee\n", ["5", "ant", "bee"]),  # a label without a name stays a number
        (b"ant\nant\n", ["0", "1", "5"]),
        (b"a/b\n", ["0", "1", "5"]),
        (b"", ["0", "1", "5"]),
    ):
        put(server.endpoint, "b", f"{odd}/classes.txt", names)
        with mounted(f"ais://b/{odd}", mountpoint, endpoint=server.endpoint, options=VIEW) as m:
            assert sorted(os.listdir(m.path)) == classes
    put(server.endpoint, "b", f"{odd}/classes.txt", b"ant\nbee\n")
    put(server.endpoint, "b", f"{odd}/sub/classes.txt", b"bee\nant\n")
    differ = f"{odd}/classes.txt and ais://b/{odd}/sub/classes.txt differ, so labels are shown as numbers"
    with mounted(f"ais://b/{odd}", mountpoint, endpoint=server.endpoint, options=VIEW,
                 expected_log=[differ]) as m:  # fmt: skip
        assert sorted(os.listdir(m.path)) == ["0", "1", "5"]
        assert differ in m.log()


def test_names_of_new_classes_are_shown_after_a_refresh(
    server: RunningServer, pics: Path, mountpoint: Path
):
    source, options = f"ais://b/{mountpoint.parent.name}", ["--class-to", "cls"]
    place = f"{source}/{{}}-{{{{00..}}}}.tar"
    pack(server, pics, place.format("a"), *options)
    with mounted(source, mountpoint, endpoint=server.endpoint, options=VIEW) as m:
        assert sorted(os.listdir(m.path)) == ["cat", "dog", "eel"]
        (pics / "ant").mkdir()
        (pics / "ant" / "9.jpg").write_bytes(b"an ant")
        pack(server, pics, place.format("b"), *options, "--include", "/ant")
        assert aisfs("refresh", m.path).returncode == 0
        assert sorted(os.listdir(m.path)) == ["ant", "cat", "dog", "eel"]
        assert (m.path / "ant" / "9.jpg").read_bytes() == b"an ant"
