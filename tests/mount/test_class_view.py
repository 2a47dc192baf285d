"""Shards as a folder of classes: what ImageFolder and its like train on."""

import io
import json
import os
import random
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from aisfs.commands.options import Exit
from tests.mount.content import delete, put
from tests.mount.datasets import ImageFolder, encode, sample, tree, write_shard
from tests.support.mounts import Mount, aisfs, mounted
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

SHARDS = 3
EACH = 20
CLASSES = 12
SOURCE = "ais://pets/samples-{00..02}.tar"
VIEW = ["--view", "class"]


def jpeg(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def pets() -> list[list[dict]]:
    """Samples by shard; every class occurs, labels come in no order."""
    labels = [number % CLASSES for number in range(SHARDS * EACH)]
    random.Random(5).shuffle(labels)
    samples = [
        {
            "__key__": f"sample_{number:04}",
            "image.jpg": jpeg(number),
            "cls": label,
            "trimap.png": b"a mask",
            "json": json.dumps({"a": {"name": f"kind-{label}", "id": label}}).encode(),
        }
        for number, label in enumerate(labels)
    ]
    return [samples[at : at + EACH] for at in range(0, len(samples), EACH)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("classes").resolve() / "store"
    for number, samples in enumerate(pets()):
        write_shard(root / "pets" / f"samples-{number:02}.tar", samples)
    (root / "odd").mkdir()
    with running_server(root) as server:
        yield server


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same data as the folder of pictures that somebody packed."""
    root = tmp_path_factory.mktemp("unpacked")
    for samples in pets():
        for each in samples:
            place = root / f"{each['cls']:02}"
            place.mkdir(exist_ok=True)
            (place / f"{each['__key__']}.jpg").write_bytes(each["image.jpg"])
    return root


@pytest.fixture(params=["ais", "local"])
def pet_mount(
    request: pytest.FixtureRequest, server: RunningServer, mountpoint: Path
) -> Iterator[Mount]:
    source = SOURCE if request.param == "ais" else f"{server.root}/pets/samples-{{00..02}}.tar"
    options = [*VIEW, "--image", "image.jpg"]
    with mounted(source, mountpoint, endpoint=server.endpoint, options=options) as mount:
        yield mount


def test_all_pictures_of_samples_with_marked_labels(server: RunningServer, mountpoint: Path):
    """Labels as Windows editors save them, with two pictures each."""
    samples = [
        sample(f"s{n}", "", left_jpg=jpeg(n), right_jpg=jpeg(n + 9)) | {"cls": f"\ufeffkind{n}\r\n"}
        for n in range(2)
    ]
    for each in samples:
        del each["jpg"]
    put(server.endpoint, "odd", "two.tar", encode(samples))
    try:
        options = [*VIEW, "--image", "all"]
        source = "ais://odd/two.tar"
        with mounted(source, mountpoint, endpoint=server.endpoint, options=options):
            assert tree(mountpoint) == [
                f"kind{n}/s{n}.{side}.jpg" for n in range(2) for side in ("left", "right")
            ]
            assert (mountpoint / "kind1" / "s1.right.jpg").read_bytes() == jpeg(10)
            assert len(ImageFolder(mountpoint)) == 4
    finally:
        delete(server.endpoint, "odd", "two.tar")


def test_image_folder_sees_what_it_sees_unpacked(pet_mount: Mount, unpacked: Path):
    ours, theirs = ImageFolder(pet_mount.path), ImageFolder(unpacked)
    assert ours.classes == theirs.classes
    assert ours.class_to_idx == theirs.class_to_idx
    assert [(os.path.relpath(path, pet_mount.path), label) for path, label in ours.samples] == [
        (os.path.relpath(path, unpacked), label) for path, label in theirs.samples
    ]
    assert all(int(name) == index for name, index in ours.class_to_idx.items())
    for mine, other in zip(ours, theirs, strict=True):
        assert mine[1] == other[1]
        assert np.array_equal(np.asarray(mine[0]), np.asarray(other[0]))


def test_nothing_else_is_listed(pet_mount: Mount, unpacked: Path):
    assert tree(pet_mount.path) == tree(unpacked)
    assert sorted(os.listdir(pet_mount.path)) == sorted(os.listdir(unpacked))
    with pytest.raises(FileNotFoundError):
        os.stat(pet_mount.path / "00" / "nothing.jpg")
    with pytest.raises(FileNotFoundError):
        os.stat(pet_mount.path / "nothing")


def test_a_member_has_one_number_in_every_view(server: RunningServer, tmp_path: Path):
    numbers = {}
    for view, path in (
        ("members", "samples-00/sample_0000.image.jpg"),
        ("samples", "samples-00/sample_0000/sample_0000.image.jpg"),
        ("flat", "sample_0000.image.jpg"),
        ("class", "*/sample_0000.jpg"),
    ):
        place = tmp_path.resolve() / view
        place.mkdir()
        options = ["--view", view, *(["--image", "image.jpg"] if view == "class" else [])]
        with mounted(SOURCE, place, endpoint=server.endpoint, options=options) as mount:
            (found,) = mount.path.glob(path)
            status = os.stat(found)
            numbers[view] = status.st_ino
            assert found.read_bytes() == jpeg(0)
            assert os.getxattr(found, "user.aisfs.shard") == b"samples-00.tar"
    assert len(set(numbers.values())) == 1, numbers


@pytest.mark.parametrize(
    ("label", "classes"),
    [
        ("json:a.name", sorted(f"kind-{n}" for n in range(CLASSES))),
        ("json:a.id", [f"{n:02}" for n in range(CLASSES)]),
        ("re:_000(.)$", list("0123456789")),
        ("csv:labels.csv", ["cat", "dog"]),
    ],
)
def test_where_labels_come_from(
    label: str, classes: list[str], server: RunningServer, mountpoint: Path
):
    table = "key,note,label\nsample_0000,x,cat\nsample_0001.image.jpg,y,dog\n"
    put(server.endpoint, "pets", "labels.csv", table.encode())
    options = [*VIEW, "--image", "image.jpg", "--label", label]
    few = {
        "re:_000(.)$": "shows 10 of 60 samples: 50 samples have no match of re:_000",
        "csv:labels.csv": "shows 2 of 60 samples: 58 samples have no row in csv:labels.csv; a key is",
    }
    said = [few[label]] if label in few else []
    with mounted(
        SOURCE, mountpoint, endpoint=server.endpoint, options=options, expected_log=said
    ) as mount:
        assert all(text in mount.log() for text in said)
        assert sorted(os.listdir(mount.path)) == classes
        for place in mount.path.rglob("*.jpg"):
            number = int(place.stem.removeprefix("sample_"))
            assert place.read_bytes() == jpeg(number)
        shown = len(tree(mount.path))
        assert shown == {"re:_000(.)$": 10, "csv:labels.csv": 2}.get(label, SHARDS * EACH)
        skipped = b"no label: %d" % (SHARDS * EACH - shown)
        assert shown == SHARDS * EACH or os.getxattr(mount.path, "user.aisfs.skipped") == skipped


def test_labels_in_a_local_table(
    server: RunningServer, unpacked: Path, mountpoint: Path, tmp_path: Path
):  # fmt: skip
    (tmp_path / "labels.csv").write_text("\ufefffilename,label\nsample_0000,cat\nsample_0001,dog\n")
    local = f"{server.root}/pets/samples-{{00..02}}.tar"
    for source, place in (
        (local, "labels.csv"), (local, tmp_path / "labels.csv"), (SOURCE, "./labels.csv"),
    ):  # fmt: skip
        options = [*VIEW, "--image", "image.jpg", "--label", f"csv:{place}"]
        with mounted(
            source,
            mountpoint,
            endpoint=server.endpoint,
            options=options,
            cwd=tmp_path,
            expected_log=["58 samples have no row"],
        ) as mount:
            assert tree(mount.path) == ["cat/sample_0000.jpg", "dog/sample_0001.jpg"]


def test_json_as_python_writes_it(server: RunningServer, mountpoint: Path):
    texts = {
        "a": json.dumps({"label": "cat", "similarity": float("nan")}).encode(),
        "b": json.dumps({"label": "cat"}).encode("utf-8-sig"),
        "c": json.dumps({"label": "dog"}).encode("utf-16"),
        "d": json.dumps({"label": "dog", "text": "\ud83d"}).encode(),
        "e": b'{"label": "dog"',
    }
    samples = [{"__key__": key, "jpg": b"", "json": text} for key, text in texts.items()]
    put(server.endpoint, "odd", "json.tar", encode(samples))
    options = [*VIEW, "--label", "json:label"]
    with mounted("ais://odd/json.tar", mountpoint, endpoint=server.endpoint, options=options) as m:
        assert tree(m.path) == ["cat/a.jpg", "cat/b.jpg", "dog/c.jpg", "dog/d.jpg"]
        assert os.getxattr(m.path, "user.aisfs.skipped") == b"bad label: 1"


def test_the_first_directory_as_the_label(server: RunningServer, mountpoint: Path):
    samples = [sample(f"{kind}/x/{n}", 0) for kind in ("cat", "dog") for n in range(2)]
    put(server.endpoint, "odd", "dirs.tar", encode([*samples, sample("loose", 0)]))
    options = [*VIEW, "--label", "dir"]
    with mounted("ais://odd/dirs.tar", mountpoint, endpoint=server.endpoint, options=options) as m:
        assert tree(m.path) == ["cat/x/0.jpg", "cat/x/1.jpg", "dog/x/0.jpg", "dog/x/1.jpg"]
        assert os.getxattr(m.path, "user.aisfs.skipped") == b"no label: 1"


def test_names_of_classes(server: RunningServer, mountpoint: Path, tmp_path: Path):
    names = tmp_path / "names.txt"
    names.write_text("".join(f"{chr(ord('z') - n)}\n" for n in range(CLASSES - 1)))
    options = [*VIEW, "--image", "image.jpg", "--classes", str(names)]
    with mounted(SOURCE, mountpoint, endpoint=server.endpoint, options=options) as mount:
        assert sorted(os.listdir(mount.path)) == sorted(names.read_text().split())
        assert os.getxattr(mount.path, "user.aisfs.skipped") == b"no class name: 5"


def test_samples_without_image_or_label_are_left_out_and_counted(
    server: RunningServer, mountpoint: Path
):
    bad = {"__key__": "bad", "jpg": b"x", "cls": b"a/b"}
    samples = [
        sample("a", 0),
        {"__key__": "unlabelled", "jpg": b"x"},
        {"__key__": "blind", "cls": b"1"},
        {"__key__": "blank", "jpg": b"x", "cls": b" \n"},
        {"__key__": ".hidden", "jpg": b"x", "cls": b"0"},
    ]
    put(server.endpoint, "odd", "left.tar", encode(samples))
    put(server.endpoint, "odd", "left2.tar", encode([bad, {**sample("b", 0), "cls": b"cat"}]))
    with mounted(
        "ais://odd/left.tar",
        mountpoint,
        endpoint=server.endpoint,
        options=VIEW,
        expected_log=["--view class shows 1 of 4 samples: "],
    ) as m:
        assert tree(m.path) == ["0/a.jpg"]
        assert os.getxattr(m.path, "user.aisfs.skipped").decode().splitlines() == [
            "bad label: 1", "hidden: 2", "no image: 1", "no label: 1",
        ]  # fmt: skip
        stats = os.getxattr(m.path, "user.aisfs.stats")
        assert b'aisfs_dataset_left_out{reason="no_image"} 1.0' in stats
        said = json.loads(aisfs("status", m.path, "--json").stdout)
        assert said["left_out"] == {"bad_label": 1, "hidden": 2, "no_image": 1, "no_label": 1}
        table = aisfs("status", m.path).stdout.decode()
        assert re.search(r"left out +bad label +1\s+hidden +2\s", table), table
    with mounted("ais://odd/left2.tar", mountpoint, endpoint=server.endpoint, options=VIEW) as m:
        assert tree(m.path) == ["cat/b.jpg"]


def test_one_component_of_each_sample(server: RunningServer, mountpoint: Path):
    samples = [
        {"__key__": "a", "png": b"png a", "jpg": b"jpg a", "cls": 0},
        {"__key__": "b", "png": b"png b", "JPEG": b"never", "cls": 0},
        {"__key__": "c", "JPEG": b"jpeg c", "cls": 1},
    ]
    put(server.endpoint, "odd", "parts.tar", encode(samples))
    with mounted("ais://odd/parts.tar", mountpoint, endpoint=server.endpoint, options=VIEW) as m:
        assert tree(m.path) == ["0/a.jpg", "0/b.JPEG", "1/c.JPEG"]
        assert (m.path / "0" / "a.jpg").read_bytes() == b"jpg a"


def test_a_damaged_shard_shows_what_lies_before_the_damage(server: RunningServer, mountpoint: Path):
    good = encode([sample(f"g{n}", n % 2) for n in range(4)])
    bad = bytearray(encode([sample(f"b{n}", n % 2) for n in range(4)]))
    bad[len(bad) // 2 :] = bytes(b ^ 0x55 for b in bad[len(bad) // 2 :])
    put(server.endpoint, "odd", "dmg-0.tar", bytes(bad))
    put(server.endpoint, "odd", "dmg-1.tar", good)
    with mounted(
        "ais://odd/dmg-{0,1}.tar",
        mountpoint,
        endpoint=server.endpoint,
        options=VIEW,
        expected_log=["dmg-0.tar: damaged"],
    ) as mount:
        found = tree(mount.path)
        assert [name for name in found if "/g" in name] == [
            "0/g0.jpg",
            "0/g2.jpg",
            "1/g1.jpg",
            "1/g3.jpg",
        ]
        assert 0 < len([name for name in found if "/b" in name]) < 4
        assert b"damaged shard: 1" in os.getxattr(mount.path, "user.aisfs.skipped")


def test_a_shard_that_changes_is_laid_out_anew(server: RunningServer, mountpoint: Path):
    # The scan does not read it, so that nobody has it yet: not even where requests take 50 ms.
    large = bytes(32 << 20)
    for name in "ab":
        put(server.endpoint, "odd", f"ch-{name}.tar", encode([sample(f"{name}1", 1, large)]))
    with mounted(
        "ais://odd/ch-{a,b}.tar",
        mountpoint,
        endpoint=server.endpoint,
        options=[*VIEW, "--cache-size", "0"],
        expected_log=["changed", "is gone"],
    ) as mount:
        assert tree(mount.path) == ["1/a1.jpg", "1/b1.jpg"]
        assert (mount.path / "1" / "b1.jpg").read_bytes() == large
        put(
            server.endpoint,
            "odd",
            "ch-a.tar",
            encode([sample("a1", 2, b"new"), sample("a2", 1, large)]),
        )
        with pytest.raises(OSError, match="Stale"):
            (mount.path / "1" / "a1.jpg").read_bytes()
        assert tree(mount.path) == ["1/a2.jpg", "1/b1.jpg", "2/a1.jpg"]
        assert (mount.path / "2" / "a1.jpg").read_bytes() == b"new"
        delete(server.endpoint, "odd", "ch-a.tar")
        with pytest.raises(OSError, match="Stale"):
            (mount.path / "1" / "a2.jpg").read_bytes()
        assert tree(mount.path) == ["1/b1.jpg"]
        assert os.getxattr(mount.path, "user.aisfs.skipped") == b"missing shard: 1"


def test_flat_shows_the_members_of_all_shards(server: RunningServer, mountpoint: Path):
    put(server.endpoint, "odd", "flat-a.tar", encode([sample("d/1", 1, b"first"), sample("2", 2)]))
    put(server.endpoint, "odd", "flat-b.tar", encode([sample("d/1", 9, b"second")]))
    options = ["--view", "flat"]
    source = "ais://odd/flat-{a,b}.tar"
    with mounted(source, mountpoint, endpoint=server.endpoint, options=options) as mount:
        assert tree(mount.path) == [
            "2.cls", "2.jpg", "d/1.cls", "d/1.jpg", "d/1~flat-b.cls", "d/1~flat-b.jpg",
        ]  # fmt: skip
        assert (mount.path / "d/1.jpg").read_bytes() == b"first"
        assert (mount.path / "d/1~flat-b.jpg").read_bytes() == b"second"
        assert (mount.path / "d/1~flat-b.cls").read_bytes() == b"9"
    options += ["--require", "image.jpg"]
    with mounted(
        source,
        mountpoint,
        endpoint=server.endpoint,
        options=options,
        expected_log=["--view flat shows nothing"],
    ) as mount:
        assert tree(mount.path) == []
        assert os.getxattr(mount.path, "user.aisfs.skipped") == b"incomplete sample: 3"


def test_a_table_that_is_not_there(server: RunningServer, mountpoint: Path):
    done = aisfs(
        "mount", SOURCE, mountpoint, "--endpoint", server.endpoint, *VIEW, "--label", "csv:none.csv"
    )
    assert done.returncode == Exit.NO_SOURCE
    assert b"ais://pets/none.csv does not exist" in done.stderr
    done = aisfs(
        "mount", SOURCE, mountpoint, "--endpoint", server.endpoint, *VIEW, "--label", "csv:/no.csv"
    )
    assert done.returncode == Exit.NO_SOURCE
    assert b"/no.csv: No such file or directory" in done.stderr


@pytest.mark.parametrize(
    ("place", "word"),
    [
        ("ais://pets", "ais://pets names a bucket, not an object of it"),
        ("http://host/labels.csv", "is in another store than the shards"),
        ("a/./labels.csv", "ais://pets/a/./labels.csv: a prefix has no empty part, `.` or `..`"),
    ],
)
def test_a_table_that_cannot_be(server: RunningServer, mountpoint: Path, place: str, word: str):
    done = aisfs(
        "mount", SOURCE, mountpoint, "--endpoint", server.endpoint, *VIEW, "--label", f"csv:{place}"
    )
    assert done.returncode == Exit.USAGE
    assert done.stderr.decode().startswith("aisfs: --label csv: ")
    assert word in done.stderr.decode()


def test_one_pass_is_enough(tmp_path: Path, mountpoint: Path):
    """Labels come from the scan: the data is fetched once, a remount fetches nothing."""
    root = tmp_path.resolve() / "store"
    count = 5
    for number in range(count):
        samples = [sample(f"{number}-{n:04}", n % 7, b"x" * 3000) for n in range(200)]
        write_shard(root / "many" / f"{number}.tar", samples)
    size = sum(path.stat().st_size for path in (root / "many").iterdir())
    options = [*VIEW, "--lazy", "--cache-dir", str(tmp_path / "cache"), "--cache-size", "100MiB"]
    with running_server(root) as server:
        source = f"ais://many/{{0..{count - 1}}}.tar"
        for again in (False, True):
            with mounted(source, mountpoint, endpoint=server.endpoint, options=options) as mount:
                before = server.requests()
                assert sorted(os.listdir(mount.path)) == [str(n) for n in range(7)]
                after_pass = server.requests()
                assert again == (after_pass == before), "only the first mount reads shards"
                assert len(tree(mount.path)) == count * 200
                os.listdir(mount.path)
                assert server.requests() == after_pass
                stats = os.getxattr(mount.path, "user.aisfs.stats").decode()
                (line,) = (
                    x for x in stats.splitlines() if x.startswith("aisfs_fetched_bytes_total")
                )
                assert float(line.split()[1]) == (0 if again else size)


@pytest.mark.parametrize(
    ("view", "shown"),
    [
        ([], ["x/cat/1.cls", "x/cat/1.jpg", "x/cat/2.cls", "x/cat/2.jpg"]),
        (["--view", "samples"],
         ["x/cat/1/1.cls", "x/cat/1/1.jpg", "x/cat/2/2.cls", "x/cat/2/2.jpg"]),
        (["--view", "flat"], ["cat/1.cls", "cat/1.jpg", "cat/2.cls", "cat/2.jpg"]),
        (VIEW, ["7/cat/1.jpg", "7/cat/2.jpg"]),
    ],
    ids=["members", "samples", "flat", "class"],
)  # fmt: skip
def test_members_are_chosen_in_all_views(
    view: list[str], shown: list[str], server: RunningServer, mountpoint: Path
):
    names = ("cat/1", "cat/2", "dog/1", "cat/__MACOSX/1")
    put(server.endpoint, "odd", "chosen/x.tar", encode([sample(n, 7, json=b"{}") for n in names]))
    options = [*view, "--member-include", "/cat", "--member-exclude", "__MACOSX",
               "--member-exclude", "*.json"]  # fmt: skip
    source = "ais://odd/chosen/x.tar"
    with mounted(source, mountpoint, endpoint=server.endpoint, options=options) as m:
        assert tree(m.path) == shown
        root = m.path / "x" if view in ([], ["--view", "samples"]) else m.path
        assert b"excluded member: 8" in os.getxattr(root, "user.aisfs.skipped")


def test_members_of_virtual_and_joined_shards_are_chosen(server: RunningServer, mountpoint: Path):
    left = [sample(n, 7, json=b"{}") for n in ("1", "2")]
    right = [{"__key__": n, "txt": b"a text", "png": b"a mask"} for n in ("1", "2")]
    for name, samples in (("l", left), ("r", right)):
        put(server.endpoint, "odd", f"pairs/{name}.tar", encode(samples))
    only = ["--member-include", "*.{cls,txt}"]
    both = ["ais://odd/pairs/l.tar", "ais://odd/pairs/r.tar"]
    with mounted(both[0], mountpoint, endpoint=server.endpoint,
                 options=["--view", "shards", "--shuffle", "1", *only]) as m:  # fmt: skip
        (shard,) = m.path.iterdir()
        with tarfile.open(shard) as tar:
            assert sorted(tar.getnames()) == ["1.cls", "2.cls"]
    with mounted(both, mountpoint, endpoint=server.endpoint,
                 options=["--view", "samples", "--join", *only]) as m:  # fmt: skip
        assert {Path(name).suffix for name in tree(m.path)} == {".cls", ".txt"}
    for options, said in (
        (["ais://odd"], "--member-include needs --view, or shards as the SOURCE"),
        (["ais://odd", "--view", "shards"], "chosen with --include and --exclude"),
    ):
        done = aisfs("mount", *options, *only, mountpoint, "--endpoint", server.endpoint)
        assert done.returncode == Exit.USAGE
        assert said in done.stderr.decode()
