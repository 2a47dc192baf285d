"""`--recursive`: tars inside shards are folders too, and show what tar makes of them."""

import errno
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aisfs.work.mounts import read_counters
from tests.mount import zoo
from tests.mount.cache_tools import Meter
from tests.mount.content import fill, payload, tree_of
from tests.mount.datasets import tree
from tests.mount.test_hostile_shards import HARMLESS, hostile
from tests.mount.writable import writable
from tests.support.mounts import Mount, aisfs, eventually, mounted
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

OPTION = ("--recursive",)
SHARDS = {"nested.tar": "-cf", "nested.tgz": "-czf"}
DAMAGE = (r"damaged\.tar: in 'in\.tar'", r"damaged\.tar: member .* its tar ends at byte 6144")


def tar_of(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def cut_off() -> bytes:
    """A tar in a tar whose last member is cut off, with somebody else's bytes behind it."""
    inner = tar_of({"whole.txt": b"whole", "cut.bin": b"c" * 9000})[: 512 * 3 + 4096]
    return tar_of({"in.tar": inner, "secret.bin": b"s" * 20_000})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bucket `b` of shards two tars deep, and one of what is damaged or hostile."""
    base = tmp_path_factory.mktemp("recursive")
    work = base / "work"
    fill(work / "deep", {"a/deepest.bin": payload(70_000, 1), "spa ce.txt": b"deep"})
    fill(work / "in", {f"{at:03}.jpg": payload(3000 + at, at) for at in range(150)})
    fill(work / "out", {"first.txt": b"1", "zz/last.txt": b"2", "not.tar": b"no tar" * 200})
    os.link(work / "in" / "007.jpg", work / "in" / "hard.jpg")
    os.symlink("deep.tar", work / "in" / "soft.tar")
    os.symlink("../../first.txt", work / "in" / "out-of-it")
    zoo.gnu_tar("--format=posix", "-cf", str(work / "in" / "deep.tar"), ".", cwd=work / "deep")
    zoo.gnu_tar(
        "-cf", str(work / "out" / "in.tar"), *sorted(os.listdir(work / "in")), cwd=work / "in"
    )
    bucket = fill(base / "store" / "b", {"plain.txt": b"plain"})
    for name, how in SHARDS.items():
        zoo.gnu_tar(
            how, str(bucket / name), "first.txt", "in.tar", "not.tar", "zz", cwd=work / "out"
        )
    bad = {"damaged.tar": cut_off(), "hostile.tar": tar_of({"in.tar": hostile(), "up.txt": b"my"})}
    fill(base / "store" / "bad", bad)
    return base / "store"


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[RunningServer]:
    with running_server(store) as server:
        yield server


@pytest.fixture(scope="module")
def extracted(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What tar makes of the shard, and of each tar that this brings to light."""
    whole = zoo.extract(store / "b" / "nested.tar", tmp_path_factory.mktemp("tar") / "whole")
    inner = zoo.extract(whole / "in.tar", whole / "in.tar.d")
    (inner / "out-of-it").unlink()
    zoo.extract(inner / "deep.tar", inner / "deep.tar.d")
    return whole


@pytest.fixture(scope="module")
def both(server: RunningServer, shared_mountpoint: Path) -> Iterator[Mount]:
    options = (*OPTION, "--shards", "both")
    with mounted("ais://b", shared_mountpoint, endpoint=server.endpoint, options=options) as mount:
        yield mount


@pytest.mark.parametrize("name", SHARDS)
def test_the_folder_is_what_tar_extracts_again_and_again(name: str, both: Mount, extracted: Path):
    found, wanted = tree_of(both.path / f"{name}.d"), tree_of(extracted)
    assert found.files == wanted.files
    assert found.directories == wanted.directories
    assert found.links == wanted.links
    skipped = os.getxattr(both.path / f"{name}.d", "user.aisfs.skipped")
    assert skipped == b"bad link: 1"


def test_attributes_say_where_members_are(both: Mount, store: Path):
    file = both.path / "nested.tar.d" / "in.tar.d" / "deep.tar.d" / "a" / "deepest.bin"
    start = int(os.getxattr(file, "user.aisfs.offset"))
    with open(store / "b" / "nested.tar", "rb") as shard:
        shard.seek(start)
        assert shard.read(70_000) == payload(70_000, 1)
    assert os.getxattr(file.parent, "user.aisfs.shard") == b"nested.tar"
    folder = both.path / "nested.tar.d" / "in.tar.d"
    assert os.stat(folder / "007.jpg").st_ino == os.stat(folder / "hard.jpg").st_ino


def test_folders_are_found_by_name(store: Path, extracted: Path, mountpoint: Path):
    with mounted(str(store / "b"), mountpoint, options=OPTION) as mount:
        folder = mount.path / "nested.tar.d"
        assert sorted(os.listdir(folder)) == ["first.txt", "in.tar", "not.tar", "zz"]
        assert (folder / "in.tar.d" / "deep.tar.d" / "spa ce.txt").read_bytes() == b"deep"
        assert "deep.tar.d" not in os.listdir(folder / "in.tar.d")
        assert not (folder / "not.tar.d").exists()
        assert (folder / "in.tar").read_bytes() == (extracted / "in.tar").read_bytes()


def test_folders_are_listed_under_the_name_of_the_tar(
    store: Path, extracted: Path, mountpoint: Path
):
    with mounted(str(store / "b"), mountpoint, options=(*OPTION, "--shards", "dir")) as mount:
        folder = mount.path / "nested.tar"
        assert sorted(os.listdir(folder)) == ["first.txt", "in.tar", "not.tar", "zz"]
        assert sorted(os.listdir(folder / "in.tar" / "deep.tar")) == ["a", "spa ce.txt"]
        assert (folder / "in.tar.raw").read_bytes() == (extracted / "in.tar").read_bytes()
        assert (folder / "not.tar").is_file()
        assert not (folder / "in.tar.d").exists()


def kept_bytes(mount: Path) -> int:
    return int(read_counters(mount).value("aisfs_cache_used_bytes"))


def test_mounts_with_and_without_share_a_cache(
    server: RunningServer, mountpoint: Path, tmp_path: Path
):
    meter = Meter(server)
    cache = ("--cache-dir", str(tmp_path / "cache"), "--cache-size", "100MiB")
    inside = Path("nested.tar.d", "in.tar.d", "007.jpg")
    size = (server.root / "b" / "nested.tar").stat().st_size
    for turn in range(2):
        for options in ((), OPTION):
            both = (*cache, *options)
            with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=both) as mount:
                assert "in.tar" in os.listdir(mount.path / "nested.tar.d")
                assert (mount.path / inside).exists() == bool(options)
                if options:
                    assert (mount.path / inside).read_bytes() == payload(3007, 7)
                (mount.path / "nested.tar").read_bytes()  # so that nothing is under way at the end
                assert eventually(lambda: kept_bytes(mount.path) >= size)
            if turn or options:  # the shard is here, and then what is in it is known in both ways
                meter.nothing()
            meter.take()


def test_damage_in_a_tar_in_a_shard(store: Path, mountpoint: Path):
    with mounted(str(store / "bad"), mountpoint, options=OPTION, expected_log=DAMAGE) as mount:
        folder = mount.path / "damaged.tar.d"
        assert sorted(os.listdir(folder / "in.tar.d")) == ["cut.bin", "whole.txt"]
        assert (folder / "in.tar.d" / "whole.txt").read_bytes() == b"whole"
        assert b"in 'in.tar': truncated" in os.getxattr(folder, "user.aisfs.warnings")
        cut = folder / "in.tar.d" / "cut.bin"
        assert cut.stat().st_size == 9000
        with open(cut, "rb", buffering=0) as file:
            assert file.read(4096) == b"c" * 4096
            with pytest.raises(OSError, match="Input/output error"):
                file.read(4096)
        assert (folder / "secret.bin").read_bytes() == b"s" * 20_000
        assert len((folder / "in.tar").read_bytes()) == 512 * 3 + 4096
        check_hostile(mount.path / "hostile.tar.d")


def check_hostile(folder: Path) -> None:
    """Nothing of a hostile tar in a shard is anywhere but in its own folder."""
    inner = folder / "in.tar.d"
    for stored, shown in HARMLESS.items():
        assert (inner / shown).read_bytes() == b"harmless " + stored.encode()
    assert sorted(os.listdir(folder)) == ["in.tar", "up.txt"]
    assert (folder / "up.txt").read_bytes() == b"my"
    for directory, directories, files in os.walk(inner):
        for name in (*directories, *files):
            path = os.path.join(directory, name)
            assert os.path.realpath(path).startswith(f"{inner}/"), path


def test_inspect_counts_what_is_in_them(store: Path):
    done = aisfs("inspect", str(store / "b" / "nested.tar"), "--json", *OPTION, "--cache-size", "0")
    assert done.returncode == 0, done.stderr
    assert b'"members": 158' in done.stdout  # 4, the 152 files of in.tar and the 2 of deep.tar


def test_classes_from_a_tar_of_tars(tmp_path: Path, mountpoint: Path):
    """As ImageNet comes: one tar for each class in one large tar."""
    words = {"n01": ["a", "b"], "n02": ["c"]}
    inner = {
        f"{word}.tar": tar_of({f"{word}_{name}.JPEG": name.encode() for name in names})
        for word, names in words.items()
    }
    fill(tmp_path / "images", {"train.tar": tar_of(inner)})
    options = (*OPTION, "--view", "class", "--label", r"re:n\d+", "--image", "jpeg")
    with mounted(str(tmp_path / "images"), mountpoint, options=options) as mount:
        assert sorted(os.listdir(mount.path)) == ["n01", "n02"]
        assert tree(mount.path) == [
            f"{word}/{word}.tar.d/{word}_{name}.JPEG" for word in words for name in words[word]
        ]


def test_a_dataset_shows_members_alone(tmp_path: Path, mountpoint: Path):
    fill(tmp_path / "data", {"x.tar": tar_of({"in.tar": tar_of({"1.jpg": b"1"}), "2.jpg": b"2"})})
    with mounted(str(tmp_path / "data" / "x.tar"), mountpoint, options=OPTION) as mount:
        assert tree(mount.path) == ["x/2.jpg", "x/in.tar.d/1.jpg"]


def test_tars_in_a_shard_take_no_new_members(tmp_path: Path):
    with writable(tmp_path, backend="directory", options=OPTION) as place:
        place.put("x.tar", tar_of({"in.tar": tar_of({"a.txt": b"a"})}))
        folder = place.path / "x.tar.d"
        assert (folder / "in.tar.d" / "a.txt").read_bytes() == b"a"
        with pytest.raises(OSError, match="Read-only") as failure:
            (folder / "in.tar.d" / "new.txt").write_bytes(b"new")
        assert failure.value.errno == errno.EROFS
        before = place.stored("x.tar")
        (folder / "more.tar").write_bytes(tar_of({"b.txt": b"b"}))
        assert (folder / "more.tar.d" / "b.txt").read_bytes() == b"b"
        assert before is not None
        assert place.stored("x.tar") != before
