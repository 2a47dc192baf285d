"""The demo, as a user runs it: what it says, and that nothing is left of it."""

import re
import signal
import tempfile
from pathlib import Path

import pytest
from PIL import Image

from bench.interruptions import Interrupted, Interrupts
from demo.__main__ import _parser
from demo.pictures import MOST, class_name, draw_pictures, find_pictures, read_pictures
from demo.stage import _base
from tests.demo.running import LIMIT, demo, losses, save
from tests.support.for_each import for_each

pytestmark = [pytest.mark.mount, pytest.mark.timeout(LIMIT + 100)]


@pytest.fixture(scope="module")
def drawn(shared_place):
    """One whole run, which several tests look at."""
    return demo(shared_place, "--pictures", "36")


def test_ends_well_and_leaves_nothing(drawn, shared_place):
    assert (drawn.returncode, drawn.stderr) == (0, "")
    assert "Everything is cleaned up." in drawn.stdout
    assert shared_place.left() == []


def test_lists_the_bucket_and_the_members_of_a_shard(drawn):
    for shard in ("samples-00.tar", "samples-01.tar", "train.tar"):
        assert re.search(rf"^-r--r--r-- .* {shard}$", drawn.stdout, re.M)
    for member in ("sample_0000.cls", "sample_0000.image.jpg", "sample_0000.trimap.png"):
        assert re.search(rf"^-r--r--r-- .* {member}$", drawn.stdout, re.M)
    assert "JPEG (320, 240)" in drawn.stdout


def test_compares_a_shard_with_its_source(drawn):
    sums = re.findall(r"^([0-9a-f]{32})  (mnt|made)/samples-00.tar$", drawn.stdout, re.M)
    assert [where for _, where in sums] == ["mnt", "made"]
    assert len({digest for digest, _ in sums}) == 1
    assert "# equal" in drawn.stdout


def test_webdataset_reads_every_sample(drawn):
    expected = "webdataset: 36 samples decoded (12 of class 0, 12 of class 1, 12 of class 2)"
    assert expected in drawn.stdout


def test_trains_on_the_folders_of_a_shard(drawn):
    assert "ImageFolder: 36 pictures, classes: cat dog fish" in drawn.stdout
    assert "num_workers=0" in drawn.stdout
    assert "num_workers=2" in drawn.stdout
    seen = losses(drawn.stdout)
    assert len(seen) == 2 * 3  # 36 pictures in batches of 16, twice
    assert seen[-1] < seen[0]


def test_shows_the_classes_of_the_samples(drawn):
    shown = drawn.stdout.partition("--view class")[2]
    assert re.search(r"^\$ ls mnt\ncat\ndog\nfish\n", shown, re.M)
    assert re.search(r"^sample_0000.jpg\nsample_0003.jpg\nsample_0006.jpg\n", shown, re.M)


def test_warms_a_mount_and_shows_its_status(drawn):
    shown = drawn.stdout.partition("$ aisfs warm mnt")[2]
    assert "36 objects" in shown
    assert re.search(r"^ +cluster +reachable", shown, re.M)


def test_writes_a_file_that_the_server_has(drawn):
    shown = drawn.stdout.partition("--writable")[2]
    assert re.search(r"^\$ aisfs ls .*\nnew.jpg\nsamples-00.tar\n", shown, re.M)
    assert re.search(r"^\$ cmp .*\nequal\n", shown, re.M)


def test_commands_appear_in_the_order_of_a_session(drawn):
    programs = re.findall(r"^\$ (.+)$", drawn.stdout, re.M)
    words = [" ".join(line.split()[:2]) for line in programs]
    assert words[:2] == ["aisfs serve", "aisfs mount"]
    assert words[-1] == "aisfs umount"


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


def test_says_of_how_many_pictures_it_shows_only_some(tmp_path, capsys):
    from demo.story import _make_shards  # torch: 3 s of each worker

    for number in range(MOST + 5):
        save(tmp_path / "pictures" / "abc"[number % 3], f"{number}.jpg", number % 90)
    for wanted, folder in (
        (f"# {MOST} of {MOST + 5} pictures of", "pictures"),
        ("# 68 pictures of", "pictures/c"),
    ):
        made = tmp_path / "made of" / folder
        made.mkdir(parents=True)
        _make_shards(_parser().parse_args(["--data", str(tmp_path / folder)]), made)
        said = capsys.readouterr().out
        assert said.startswith(wanted)
        assert "trimap.png is a mask made up for the demo" in said
        assert ("one folder is one class" in said) == (folder == "pictures/c")


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
