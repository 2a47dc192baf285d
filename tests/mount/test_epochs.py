"""Mounts with `--epochs`: the same source several times, transformed anew or shuffled in another order."""

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aisfs.commands.options import Exit
from tests.mount.datasets import sample, write_shard
from tests.support.mounts import aisfs, check_refused, mounted
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

EPOCHS = ["epoch-0", "epoch-1", "epoch-2"]
RANDOM = """sh -c 'head -c 8 /dev/urandom | od -An -tx1 | tr -d " \\n"; cat'"""
"""Sixteen random digits before the content."""
MARKED = """sh -c 'sed "s/pixels/$(od -An -N3 -tx1 /dev/urandom | tr -d " \\n")/g"'"""
"""A tar, whose pictures get another content of six bytes."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("epochs") / "served"
    for name in ("cat/a.jpg", "cat/b.jpg", "dog/c.jpg"):
        (root / "loose/train" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "loose/train" / name).write_bytes(name.encode())
    for shard in range(3):
        samples = (sample(f"s{shard}{each}", each, image=b"pixels") for each in range(6))
        write_shard(root / f"pets/train/samples-{shard:02}.tar", list(samples))
    (root / "pets/train/classes.txt").write_text("cat\ndog\nbird\nfish\nfox\nhen\n")
    with running_server(root, etls={"random-etl": RANDOM, "marked-etl": MARKED}) as running:
        yield running


@pytest.fixture
def epochs(server: RunningServer, mountpoint: Path, tmp_path: Path) -> Any:
    def mount(source: str, *options: str, number: int = 3, **more: Any) -> Any:
        options = (*options, "--epochs", str(number), "--cache-dir", str(tmp_path / "cache"))
        endpoint = server.endpoint if "://" in source else None
        return mounted(source, mountpoint, endpoint=endpoint, options=options, **more)

    return mount


def tree(top: Path) -> dict[str, bytes]:
    """Return all files below a directory, which no number names twice."""
    found, numbers = {}, set()
    for directory, _, names in os.walk(top):
        numbers.add(os.stat(directory).st_ino)
        for name in names:
            path = Path(directory, name)
            found[str(path.relative_to(top))] = path.read_bytes()
            assert path.stat().st_size == len(path.read_bytes())
            numbers.add(path.stat().st_ino)
    assert len(numbers) >= len(found)
    return found


def check_anew(mountpoint: Path, names: set[str], changed: set[str]) -> dict[str, dict[str, bytes]]:
    """Check that each epoch has the same names, with contents and inode numbers of its own; return all."""
    assert sorted(os.listdir(mountpoint)) == EPOCHS
    found = {epoch: tree(mountpoint / epoch) for epoch in EPOCHS}
    for name in changed:
        assert len({found[epoch][name] for epoch in EPOCHS}) == 3, name
        assert len({(mountpoint / epoch / name).stat().st_ino for epoch in EPOCHS}) == 3
    for epoch in EPOCHS:
        assert set(found[epoch]) == names
        assert tree(mountpoint / epoch) == found[epoch]
    return found


LOOSE = {"cat/a.jpg", "cat/b.jpg", "dog/c.jpg"}


@pytest.mark.parametrize("how", ["etl", "command", "directory"])
def test_each_epoch_has_results_of_its_own(
    epochs: Any, mountpoint: Path, server: RunningServer, how: str
) -> None:
    options = ("--etl", "random-etl") if how == "etl" else ("--transform", RANDOM)
    source = str(server.root / "loose/train") if how == "directory" else "ais://loose/train/"
    with epochs(source, *options):
        found = check_anew(mountpoint, LOOSE, LOOSE)
        for name, content in found["epoch-2"].items():
            assert content[16:] == name.encode()
        assert not (mountpoint / "epoch-3").exists()
        assert not (mountpoint / "cat").exists()
        assert not (mountpoint / "epoch-00").exists()
        assert os.path.samefile(mountpoint / "epoch-1/cat/../..", mountpoint)
    # The next mount knows them, and epoch 0 is what a mount without epochs shows.
    with epochs(source, *options, number=5):
        assert {epoch: tree(mountpoint / epoch) for epoch in EPOCHS} == found
    with epochs(source, *options, number=0):
        assert tree(mountpoint) == found["epoch-0"]


def test_each_bucket_of_a_mount_of_all(
    server: RunningServer, mountpoint: Path, tmp_path: Path
) -> None:
    options = ("--etl", "random-etl", "--epochs", "2", "--cache-dir", str(tmp_path / "cache"))
    with mounted(None, mountpoint, endpoint=server.endpoint, options=options):
        top = mountpoint / "ais/loose"
        assert sorted(os.listdir(top)) == EPOCHS[:2]
        found = [(top / epoch / "train/cat/a.jpg").read_bytes() for epoch in EPOCHS[:2]]
        assert found[0] != found[1]


def test_what_is_left_out_is_left_out_in_each_epoch(epochs: Any, mountpoint: Path) -> None:
    options = ("--transform", RANDOM, "--include", "/cat", "--exclude", "b*")
    with epochs("ais://loose/train/", *options):
        for epoch in EPOCHS:
            assert set(tree(mountpoint / epoch)) == {"cat/a.jpg"}


VIEWS = {
    "class": "fish/s13.jpg",
    "flat": "s13.jpg",
    "samples": "samples-01/s13/s13.jpg",
    "members": "samples-01/s13.jpg",
}


@pytest.mark.parametrize("view", VIEWS)
def test_views_of_each_epoch(epochs: Any, mountpoint: Path, view: str) -> None:
    with epochs("ais://pets/train/", "--etl", "marked-etl", "--view", view):
        names = set(tree(mountpoint / "epoch-0"))
        pictures = {name for name in names if name.endswith("jpg")}
        assert len(pictures) == 18
        assert VIEWS[view] in pictures
        found = check_anew(mountpoint, names, pictures)
        assert all(len(found["epoch-1"][name]) == 6 for name in pictures)
        top = mountpoint / "epoch-1" / VIEWS[view].partition("/")[0]
        assert not top.is_dir() or os.path.samefile(top / "..", mountpoint / "epoch-1")


def order(directory: Path) -> list[str]:
    """Return the names of all members of the tars in a directory, one tar after the other."""
    names: list[str] = []
    for shard in sorted(directory.iterdir()):
        with tarfile.open(shard) as tar:
            names += tar.getnames()
    return names


def test_each_epoch_is_shuffled_in_its_own_order(epochs: Any, mountpoint: Path) -> None:
    options = ("--view", "shards", "--shuffle", "7", "--samples-per-shard", "4")
    with epochs("ais://pets/train/", *options):
        assert sorted(os.listdir(mountpoint)) == EPOCHS
        orders = [order(mountpoint / epoch) for epoch in EPOCHS]
        numbers = [(mountpoint / epoch / "shard-000001.tar").stat().st_ino for epoch in EPOCHS]
        assert len(set(numbers)) == 3
    assert len(set(map(tuple, orders))) == 3
    assert {tuple(sorted(each)) for each in orders} == {tuple(sorted(orders[0]))}
    with epochs("ais://pets/train/", *options, number=0):
        assert order(mountpoint) == orders[0]
    with epochs("ais://pets/train/", *options, number=2):
        assert order(mountpoint / "epoch-1") == orders[1]


def test_shuffled_and_transformed(epochs: Any, mountpoint: Path) -> None:
    options = ("--view", "shards", "--shuffle", "7", "--etl", "marked-etl")
    with epochs("ais://pets/train/", *options, number=2):
        contents = []
        for epoch in ("epoch-0", "epoch-1"):
            found = set()
            for shard in (mountpoint / epoch).iterdir():
                with tarfile.open(shard) as tar:
                    files = (tar.extractfile(member) for member in tar if "jpg" in member.name)
                    found |= {file.read() for file in files if file is not None}
            assert len(found) == 3  # one for each shard
            contents.append(found)
        assert not contents[0] & contents[1]


@pytest.mark.parametrize("options", [("--view", "shards", "--shuffle", "1"), ("--view", "class")])
def test_another_daemon_goes_on(epochs: Any, mountpoint: Path, options: tuple[str, ...]) -> None:
    log = ["died|started again|SIGKILL"]
    with epochs(
        "ais://pets/train/", *options, "--etl", "marked-etl", keeper=True, expected_log=log
    ) as mount:
        before = tree(mountpoint / "epoch-1")
        name = next(iter(before))
        with open(mountpoint / "epoch-1" / name, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            os.kill(mount.pid, 9)
            mount.daemon_now()
            assert file.read() == before[name]
        assert tree(mountpoint / "epoch-1") == before


def test_a_refresh_reaches_the_epochs(epochs: Any, mountpoint: Path, server: RunningServer) -> None:
    with epochs("ais://pets/train/", "--etl", "marked-etl", "--view", "flat", number=2):
        assert len(tree(mountpoint / "epoch-1")) == 36
        new = server.root / "pets/train/samples-99.tar"
        write_shard(new, [sample("s99", 0, image=b"pixels")])
        try:
            assert aisfs("refresh", mountpoint).returncode == 0
            assert {len(tree(mountpoint / epoch)) for epoch in EPOCHS[:2]} == {38}
        finally:
            new.unlink()


def test_wrong_words(server: RunningServer, mountpoint: Path) -> None:
    for words in (("--epochs", "2"), ("--view", "class", "--epochs", "2")):
        said = "--epochs needs --shuffle, --etl or --transform"
        source = ("ais://pets/train/", *words)
        check_refused(source, mountpoint, endpoint=server.endpoint, code=Exit.USAGE, said=said)
