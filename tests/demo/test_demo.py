"""The demo: a short run, which trains nothing, and its parts. Whole runs are in test_endings."""

import re
import signal
import tempfile
from pathlib import Path

import pytest
from PIL import Image

from bench.interruptions import Interrupted, Interrupts
from demo.pictures import class_name, draw_pictures, find_pictures, read_pictures
from demo.stage import _base
from tests.demo.running import LIMIT, demo, save
from tests.mount.datasets import sample, write_shard
from tests.support.for_each import for_each

pytestmark = [pytest.mark.mount, pytest.mark.timeout(LIMIT + 100)]


def test_shows_what_a_directory_has(place, tmp_path):
    for name in "ab":
        write_shard(
            tmp_path / "data" / f"{name}.tar", [sample(f"{name}0", 0), sample(f"{name}1", 1)]
        )
    done = demo(place, "--source", tmp_path / "data")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^\$ ls mnt \| head -n 10\na.tar\nb.tar\n", done.stdout, re.M)
    assert "Everything is cleaned up." in done.stdout
    assert place.left() == []


def test_drawn_pictures_are_the_same_every_time():
    assert list(draw_pictures(4)) == list(draw_pictures(4))


def test_pictures_in_the_folder_itself_are_one_class(tmp_path):
    for number in range(3):
        save(tmp_path / "flat", f"{number}.jpg", number)
    pictures = list(read_pictures(find_pictures(tmp_path / "flat")))
    assert [picture.label for picture in pictures] == ["flat"] * 3
    assert [picture.jpeg for picture in pictures] == [
        (tmp_path / "flat" / f"{number}.jpg").read_bytes() for number in range(3)
    ]


def test_classes_take_turns_and_hidden_files_stay_out(tmp_path):
    for name in ("a/1.jpg", "a/2.jpg", "b/1.jpg", "a/.hidden.jpg", ".thumbnails/1.jpg"):
        save((tmp_path / name).parent, Path(name).name, 0)
    found = find_pictures(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in found] == ["a/1.jpg", "b/1.jpg", "a/2.jpg"]


def test_a_huge_picture_is_scaled_down(tmp_path):
    Image.new("RGB", (3000, 1500), "red").save(tmp_path / "huge.jpg")
    (picture,) = read_pictures([tmp_path / "huge.jpg"])
    (tmp_path / "small.jpg").write_bytes(picture.jpeg)
    with Image.open(tmp_path / "small.jpg") as image:
        assert image.size == (1024, 512)


@for_each("folder, name", [("cats & dogs", "cats_dogs"), ("x.y", "x_y"), ("été", "été")])
def test_class_names_are_safe_in_keys(folder, name):
    assert class_name(Path("/data") / folder / "1.jpg") == name


def test_a_long_path_is_no_place_for_sockets(monkeypatch):
    for length, chosen in [(30, True), (51, True), (52, False), (200, False)]:
        base = "/" + "d" * (length - 1)
        monkeypatch.setattr(tempfile, "tempdir", base)
        assert _base() == Path(base if chosen else "/tmp")


def test_an_interruption_waits_for_what_must_not_be_cut_short():
    interruptions = Interrupts()
    done = []

    def work():
        with interruptions.held():
            interruptions._arrived(signal.SIGINT, None)
            done.append("held")

    with pytest.raises(Interrupted):
        work()
    interruptions._arrived(signal.SIGINT, None)  # a second one does nothing
    assert done == ["held"]
