"""Readers of class folders: the same on a mount as on the same files on disk.

Each runs on objects of a bucket and on the members of a shard.
"""

import pickle
import shutil
from collections.abc import Iterator
from hashlib import md5
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from torchvision.datasets import CIFAR10, DatasetFolder, ImageFolder

from tests.mount import zoo
from tests.programs.pictures import CLASSES, write_folders
from tests.support.mounts import Mount, mounted
from tests.support.servers import running_server

pytestmark = pytest.mark.mount

PICTURES = 60
BATCH = 20


class Roots(NamedTuple):
    """The same tree twice."""

    disk: Path
    mount: Path


@pytest.fixture(scope="module")
def mount(base: Path) -> Iterator[Mount]:
    tree = base / "tree"
    write_folders(tree / "train", PICTURES)
    (tree / "arrays").mkdir()
    for at, name in enumerate(CLASSES):
        (tree / "arrays" / name).mkdir()
        np.save(tree / "arrays" / name / "one.npy", np.full(5, at))
    write_cifar(tree / "cifar-10-batches-py")
    bucket = base / "store" / "field"
    shutil.copytree(tree, bucket)
    zoo.gnu_tar("-C", str(tree), "--sort=name", "-cf", str(bucket / "all.tar"), "train", "arrays")
    with (
        running_server(base / "store") as server,
        mounted("ais://field", base / "mnt", endpoint=server.endpoint, deadline=300) as mount,
    ):
        yield mount


@pytest.fixture(params=["", "all.tar.d"], ids=["objects", "members"])
def roots(request: pytest.FixtureRequest, base: Path, mount: Mount) -> Roots:
    return Roots(base / "tree", mount.path / request.param)


def relative(rows, root: Path) -> list[tuple]:
    return [(str(Path(row[0]).relative_to(root)), *row[1:]) for row in rows]


def test_torchvision_image_folder(roots: Roots):
    disk, mounted = (ImageFolder(str(root / "train")) for root in roots)
    assert mounted.classes == disk.classes == list(CLASSES)
    assert mounted.class_to_idx == disk.class_to_idx
    assert relative(mounted.samples, roots.mount) == relative(disk.samples, roots.disk)
    assert len(mounted) == PICTURES
    for (image, label), (expected, expected_label) in zip(mounted, disk, strict=True):
        assert np.array_equal(np.asarray(image), np.asarray(expected))
        assert label == expected_label


def test_torchvision_dataset_folder(roots: Roots):
    disk, mounted = (
        DatasetFolder(str(root / "arrays"), loader=np.load, extensions=(".npy",)) for root in roots
    )
    assert relative(mounted.samples, roots.mount) == relative(disk.samples, roots.disk)
    assert [(array.tolist(), label) for array, label in mounted] == [
        ([at] * 5, at) for at in range(len(CLASSES))
    ]


@pytest.mark.filterwarnings("ignore:unclosed file", "ignore:Exception ignored")
def test_timm_folder_reader(roots: Roots):
    from timm.data import create_dataset  # which leaves its files to the garbage collector

    disk, mounted = (create_dataset("", root=str(root / "train")) for root in roots)
    assert mounted.reader.class_to_idx == disk.reader.class_to_idx
    assert relative(mounted.reader.samples, roots.mount) == relative(
        disk.reader.samples, roots.disk
    )
    assert len(mounted) == PICTURES
    for (image, label), (expected, expected_label) in zip(mounted, disk, strict=True):
        assert np.array_equal(np.asarray(image), np.asarray(expected))
        assert label == expected_label


def test_hugging_face_imagefolder(roots: Roots, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    disk, mounted = (
        datasets.load_dataset(
            "imagefolder", data_dir=str(root / "train"), split="train",
            cache_dir=str(tmp_path / name),
        )
        for name, root in zip(("disk", "mount"), roots, strict=True)
    )  # fmt: skip
    assert mounted.features["label"].names == disk.features["label"].names == list(CLASSES)
    assert mounted["label"] == disk["label"]
    assert len(mounted) == PICTURES
    for row, expected in zip(mounted, disk, strict=True):
        assert np.array_equal(np.asarray(row["image"]), np.asarray(expected["image"]))


def test_keras_listing_of_class_folders(roots: Roots, monkeypatch):
    """What keras' image_dataset_from_directory does before it hands the paths to TensorFlow."""
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    import keras
    from keras.src.utils.dataset_utils import index_directory

    (disk, disk_labels, disk_names), (paths, labels, names) = (
        index_directory(
            str(root / "train"), "inferred", formats=(".jpg",), seed=3, verbose=False
        )
        for root in roots
    )  # fmt: skip
    assert names == disk_names == list(CLASSES)
    assert labels.tolist() == disk_labels.tolist()
    assert len(paths) == PICTURES
    for path, expected in zip(paths, disk, strict=True):
        assert Path(path).relative_to(roots.mount) == Path(expected).relative_to(roots.disk)
        image, wanted = (
            keras.utils.load_img(name, target_size=(8, 8)) for name in (path, expected)
        )
        assert np.array_equal(np.asarray(image), np.asarray(wanted))


# CIFAR-10 --------------------------------------------------------------------------------------


def write_cifar(folder: Path) -> None:
    """Pickles in the format of cifar-10-python.tar.gz, a few pictures in each."""
    folder.mkdir(parents=True)
    chance = np.random.default_rng(10)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        content = {
            "batch_label": name,
            "labels": chance.integers(0, 10, BATCH).tolist(),
            "data": chance.integers(0, 256, (BATCH, 3072)).astype(np.uint8),
            "filenames": [f"{name}_{at}.png" for at in range(BATCH)],
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    meta = {"num_cases_per_batch": BATCH, "label_names": list("abcdefghij"), "num_vis": 3072}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))


@pytest.fixture
def cifar(base: Path, mount: Mount) -> type[CIFAR10]:
    """torchvision reads only files of the MD5 it knows: the class, with those of our files."""

    def sums(names):
        folder = base / "tree" / CIFAR10.base_folder
        return [[name, md5((folder / name).read_bytes()).hexdigest()] for name in names]

    (meta,) = sums([CIFAR10.meta["filename"]])
    known = {
        "train_list": sums(name for name, _ in CIFAR10.train_list),
        "test_list": sums(name for name, _ in CIFAR10.test_list),
        "meta": {**CIFAR10.meta, "md5": meta[1]},
    }
    return type("SmallCIFAR10", (CIFAR10,), known)


@pytest.mark.parametrize("train", [True, False])
def test_torchvision_cifar10_on_a_bucket(cifar, base: Path, mount: Mount, train: bool):
    disk, mounted = (cifar(root=root, train=train) for root in (base / "tree", mount.path))
    assert mounted.classes == disk.classes == list("abcdefghij")
    assert len(mounted) == (5 if train else 1) * BATCH
    assert np.array_equal(mounted.data, disk.data)
    assert mounted.targets == disk.targets


def test_torchvision_cifar10_checks_what_it_reads(mount: Mount):
    with pytest.raises(RuntimeError, match="not found or corrupted"):
        CIFAR10(root=mount.path)  # not the original files
