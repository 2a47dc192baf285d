"""Samples whose parts lie in several sets of shards: `--join` on real mounts."""

import hashlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from aisfs.commands.options import Exit
from tests.mount.content import put
from tests.mount.datasets import WITHOUT_TORCH, ImageFolder, encode, tree, webdataset, write_shard
from tests.support.mounts import Mount, aisfs, check_refused, mounted, python
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

EACH = 10
"""Samples of each of three shards of images."""
ALL = 3 * EACH
CLASSES = 4
LABELLED = range(5, ALL + 5)
"""The samples that have labels: not the first five images, and five that have no image."""
IMAGES, LABELS = "ais://images/x-{00..02}.tar", "ais://labels/x-{00..01}.tar"
JOINED = [f"d/s{number:02}" for number in range(5, ALL)]


def jpeg(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def label(number: int) -> int:
    return number * 7 % CLASSES


def number_of(key: str) -> int:
    return int(key[-2:])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Labels are in other shards than their images, in reverse order."""
    root = tmp_path_factory.mktemp("joined").resolve() / "store"
    for shard in range(3):
        numbers = range(shard * EACH, (shard + 1) * EACH)
        images = [{"__key__": f"d/s{n:02}", "jpg": jpeg(n)} for n in numbers]
        write_shard(root / "images" / f"x-{shard:02}.tar", images)
    backwards = list(reversed(LABELLED))
    for shard, numbers in enumerate((backwards[:12], backwards[12:])):
        parts = [
            {"__key__": f"d/s{n:02}", "cls": label(n), "json": json.dumps({"n": n}).encode()}
            for n in numbers
        ]
        write_shard(root / "labels" / f"x-{shard:02}.tar", parts)
    (root / "odd").mkdir()
    with running_server(root) as server:
        yield server


def joined(server: RunningServer, mountpoint: Path, *options: str, **more):
    sources = more.pop("sources", [IMAGES, LABELS])
    return mounted(
        sources, mountpoint, endpoint=server.endpoint, options=["--view", *options], **more
    )


def skipped(mount: Mount) -> dict[str, int]:
    os.listdir(mount.path)
    lines = os.getxattr(mount.path, "user.aisfs.skipped").decode().splitlines()
    return {reason: int(number) for reason, number in (line.split(": ") for line in lines)}


def test_image_folder_with_labels_from_other_shards(server: RunningServer, mountpoint: Path):
    with joined(server, mountpoint, "class", "--join") as mount:
        dataset = ImageFolder(mount.path)
        assert dataset.classes == [str(label) for label in range(CLASSES)]
        found = {}
        for (path, index), (image, _) in zip(dataset.samples, dataset, strict=True):
            number = number_of(Path(path).stem)
            assert index == label(number)
            assert Path(path).read_bytes() == jpeg(number)
            assert np.asarray(image).shape == (8, 8, 3)
            found[f"d/s{number:02}"] = path
        assert sorted(found) == JOINED
        assert skipped(mount) == {"unjoined sample": 10}
        status = json.loads(aisfs("status", mount.path, "--json").stdout)
        assert status["left_out"] == {"unjoined_sample": 10}
        assert "--join: 30 keys in ais://labels/x-{00..01}.tar" in mount.log()


def test_a_folder_for_each_sample(server: RunningServer, mountpoint: Path):
    with joined(server, mountpoint, "samples", "--join", "inner") as mount:
        assert os.listdir(mount.path) == ["x-00", "x-01", "x-02"]
        assert tree(mount.path) == sorted(
            f"x-{number_of(key) // EACH:02}/{key}/{key[2:]}.{extension}"
            for key in JOINED
            for extension in ("jpg", "cls", "json")
        )
        place = mount.path / "x-01" / "d" / "s12"
        assert os.listdir(place) == ["s12.jpg", "s12.cls", "s12.json"]
        assert (place / "s12.jpg").read_bytes() == jpeg(12)
        assert (place / "s12.cls").read_bytes() == b"%d" % label(12)
        assert os.getxattr(place / "s12.cls", "user.aisfs.shard") == b"x-01.tar"
        with pytest.raises(FileNotFoundError):
            os.stat(mount.path / "x-00" / "d" / "s00")
        with pytest.raises(FileNotFoundError):
            os.stat(mount.path / "labels~x-00")
        assert skipped(mount) == {"unjoined sample": 10}


def test_all_samples_with_outer(server: RunningServer, mountpoint: Path):
    with joined(server, mountpoint, "samples", "-o", "join=outer") as mount:
        assert os.listdir(mount.path) == ["x-00", "x-01", "x-02", "labels~x-00"]
        assert os.listdir(mount.path / "x-00" / "d" / "s00") == ["s00.jpg"]
        assert len(os.listdir(mount.path / "labels~x-00" / "d")) == 5
        assert len(tree(mount.path)) == ALL + 2 * ALL
        with pytest.raises(OSError, match="No data available"):
            os.getxattr(mount.path, "user.aisfs.skipped")


def test_flat_shows_the_members_of_joined_samples(server: RunningServer, mountpoint: Path):
    with joined(server, mountpoint, "flat", "-o", "ro,join", "--require", "jpg,cls") as mount:
        assert tree(mount.path) == sorted(
            f"{key}.{extension}" for key in JOINED for extension in ("jpg", "cls", "json")
        )
        for key in JOINED:
            assert json.loads((mount.path / f"{key}.json").read_bytes()) == {"n": number_of(key)}


def samples_of(shard: Path) -> dict[str, tuple[str | None, dict[str, str]]]:
    """What webdataset reads; from memory, since it leaves shards open."""
    readers = webdataset().tariterators
    stream = {"url": str(shard), "stream": io.BytesIO(shard.read_bytes())}
    found = {}
    for sample in readers.group_by_keys(readers.tar_file_expander([stream])):
        assert sample["__key__"] not in found, "no sample comes twice"
        image = hashlib.sha256(sample["jpg"]).hexdigest() if "jpg" in sample else None
        parts = {name: sample[name].decode() for name in ("cls", "json") if name in sample}
        found[sample["__key__"]] = (image, parts)
    return found


def expected(key: str, *, image: bool = True, parts: bool = True):
    number = number_of(key)
    return (
        hashlib.sha256(jpeg(number)).hexdigest() if image else None,
        {"cls": str(label(number)), "json": json.dumps({"n": number})} if parts else {},
    )


def test_shards_of_joined_samples_as_webdataset_reads_them(server: RunningServer, mountpoint: Path):
    sums = []
    for _ in range(2):
        with joined(server, mountpoint, "shards", "--join") as mount:
            names = os.listdir(mount.path)
            assert names == [f"shard-{n:06}.tar" for n in range(3)]
            shards = [mount.path / name for name in names]
            for at, shard in enumerate(shards):
                own = [key for key in JOINED if number_of(key) // EACH == at]
                found = samples_of(shard)
                assert list(found) == own, "in the order of the first source"
                assert found == {key: expected(key) for key in own}
            sums.append([shard.read_bytes() for shard in shards])
            assert skipped(mount) == {"unjoined sample": 10}
    assert sums[0] == sums[1]


WEBDATASET = (
    WITHOUT_TORCH
    + """
import json, sys, webdataset
dataset = webdataset.WebDataset(sys.argv[1:], shardshuffle=False)
print(json.dumps([sample["__key__"] for sample in dataset]))
"""
)


def test_shuffled_shards_of_joined_samples(server: RunningServer, mountpoint: Path):
    options = ["shards", "--join=outer", "--shuffle", "3", "--samples-per-shard", "16"]
    with joined(server, mountpoint, *options) as mount:
        shards = [mount.path / name for name in os.listdir(mount.path)]
        found = [samples_of(shard) for shard in shards]
        assert [len(each) for each in found] == [16, 16, 3]
        together = {key: sample for each in found for key, sample in each.items()}
        keys = [f"d/s{number:02}" for number in range(ALL + 5)]
        assert list(together) != keys
        keys_of = json.loads(python(WEBDATASET, *shards))
        assert keys_of == list(together)
        assert together == {
            key: expected(key, image=number_of(key) < ALL, parts=number_of(key) >= 5)
            for key in keys
        }


def test_a_part_that_two_sources_have(server: RunningServer, mountpoint: Path):
    first = [{"__key__": "a", "jpg": b"1", "cls": 1}, {"__key__": "b", "jpg": b"2"}]
    second = [{"__key__": "b", "cls": 0}, {"__key__": "a", "cls": 9}]
    for name, samples in (("two-a", first), ("two-b", second)):
        put(server.endpoint, "odd", f"{name}.tar", encode(samples))
    with joined(
        server, mountpoint, "class", "--join", sources=["ais://odd/two-a.tar", "ais://odd/two-b.tar"],
        expected_log=["1 parts are left out, since an earlier source or shard has them: 1 of 'cls'"],
    ) as mount:  # fmt: skip
        assert tree(mount.path) == ["0/b.jpg", "1/a.jpg"]
        assert skipped(mount) == {"repeated part": 1}


def test_keys_that_do_not_fit(server: RunningServer, mountpoint: Path):
    put(server.endpoint, "odd", "other.tar", encode([{"__key__": "s05", "cls": 1}]))
    sources = [IMAGES, "ais://odd/other.tar"]
    said = (
        "no key is in all sources; the first keys are 'd/s00' in ais://images/x-{00..02}.tar, 's05'"
    )
    with joined(
        server, mountpoint, "flat", "--join", sources=sources,
        expected_log=[said.replace("{", r"\{"), "--view flat shows nothing"],
    ) as mount:  # fmt: skip
        assert tree(mount.path) == []
        assert said in mount.log()
    options = ["flat", "--join", "--key-rule", "basename"]
    few = "shows 1 of 30 samples: 29 samples have no part in some source; try --join outer"
    with joined(server, mountpoint, *options, sources=sources, expected_log=[few]) as mount:
        assert tree(mount.path) == ["d/s05.jpg", "s05.cls"]
        assert few in mount.log()


def test_each_line_of_a_list_is_a_source(server: RunningServer, mountpoint: Path, tmp_path: Path):
    (tmp_path / "sources").write_text(f"# two\n{IMAGES}\n{LABELS}\n")
    options = ["class", "--join", "--files-from", str(tmp_path / "sources")]
    with joined(server, mountpoint, *options, sources=[]) as mount:
        assert len(tree(mount.path)) == len(JOINED)


def test_local_shards(server: RunningServer, mountpoint: Path):
    sources = [f"{server.root}/images", f"{server.root}/labels"]
    with joined(server, mountpoint, "class", "--join", sources=sources) as mount:
        assert len(tree(mount.path)) == len(JOINED)


def test_shards_that_are_replaced_while_mounted(server: RunningServer, mountpoint: Path):
    large = bytes(4 << 20)  # the scan does not read it, so that nobody has it yet

    def store(image: str, labels: dict[str, int], content: bytes = large) -> None:
        images = encode([{"__key__": image, "jpg": content}, {"__key__": "z", "jpg": b"z"}])
        put(server.endpoint, "odd", "re-i.tar", images)
        parts = [{"__key__": key, "cls": value} for key, value in labels.items()]
        put(server.endpoint, "odd", "re-l.tar", encode(parts))

    for view in ("class", "samples", "flat"):
        store("a", {"a": 1, "z": 1})
        with joined(
            server, mountpoint, view, "--join", "--cache-size", "0",
            sources=["ais://odd/re-i.tar", "ais://odd/re-l.tar"],
            expected_log=["changed", "2 samples have no part in some source"],
        ) as mount:  # fmt: skip
            before = tree(mount.path)
            (image,) = mount.path.rglob("a.jpg")
            store("b", {"b": 3, "a": 2}, b"new")
            with pytest.raises(OSError, match="Stale"):
                image.read_bytes()
            after = tree(mount.path)
            assert after != before
            assert (
                after
                == {
                    "class": ["3/b.jpg"],
                    "samples": ["re-i/b/b.cls", "re-i/b/b.jpg"],
                    "flat": ["b.cls", "b.jpg"],
                }[view]
            ), "images and labels are of one time"
            (image,) = mount.path.rglob("b.jpg")
            assert image.read_bytes() == b"new"
            assert skipped(mount) == {"unjoined sample": 2}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--view", "class", "--join", IMAGES], Exit.USAGE, "--join: give at least two SOURCEs"),
        (["--join", IMAGES, LABELS], Exit.USAGE, "--join needs --view samples or --view class"),
        (
            ["--view", "members", "--join", IMAGES, LABELS],
            Exit.USAGE,
            "--join needs --view samples or --view class or --view flat or --view shards",
        ),
        (
            ["--view", "flat", "--join", "ais://images", IMAGES],
            Exit.USAGE,
            "--join: all shards of ais://images/x-{00..02}.tar belong to an earlier source",
        ),
        (["--view", "flat", "-o", "join=left", IMAGES, LABELS], Exit.USAGE, "join"),
        (
            ["--view", "shards", "--join", "--shard-index", IMAGES, LABELS],
            Exit.USAGE,
            "--shard-index: not with --view shards --join",
        ),
        (
            ["--view", "shards", "--join", "--key-rule", "last-dot", "--require", "png", IMAGES,
             LABELS],
            Exit.NO_SOURCE,
            "no samples in 5 shards: 25 incomplete samples, 10 unjoined samples",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(
    arguments: list[str], code: Exit, said: str, server: RunningServer, mountpoint: Path
):
    check_refused(arguments, mountpoint, endpoint=server.endpoint, code=code, said=said)
