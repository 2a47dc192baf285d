"""The demo, as a user runs it: what it says, and that nothing is left of it."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

from bench.interruptions import Interrupted, Interrupts
from demo.__main__ import _parser
from demo.pictures import MOST, class_name, draw_pictures, find_pictures, read_pictures
from demo.stage import _base, _marked
from demo.story import _make_shards
from tests.programs.pictures import write_samples
from tests.support.mounts import eventually
from tests.support.web_servers import make_certificate, nginx

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT = 300
_MARK = "AISFS_TEST_OF_DEMO"

pytestmark = [pytest.mark.mount, pytest.mark.timeout(LIMIT + 100)]


class Place:
    """A directory for all temporary files of one run, and a mark on all its processes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
        places = dict.fromkeys(("HOME", "TMPDIR", _MARK), str(directory))
        self.environment = inherited | places

    def left(self) -> list[str]:
        """What a run left behind: mounts, processes, files."""
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        processes = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [
            *(f"mount: {line}" for line in mounts if str(self.directory) in line),
            *(f"process: {entry.name}" for entry in processes if self._started(entry)),
            *(f"file: {path}" for path in self.directory.iterdir()),
        ]

    def _started(self, process: Path) -> bool:
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            return False  # it has ended, or is not ours
        return f"{_MARK}={self.directory}".encode() in environment


@pytest.fixture(scope="module")
def shared_place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("demo"))


@pytest.fixture
def place():
    # Not below tmp_path: torch's workers make sockets here, whose paths must stay below 108 bytes.
    with tempfile.TemporaryDirectory(prefix="demo-") as directory:
        yield Place(Path(directory))


def demo(place: Place, *arguments: str | Path, env: Mapping[str, str] | None = None):
    with started(place, *arguments, env=env) as process:
        out, err = process.communicate(timeout=LIMIT)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@contextmanager
def started(place: Place, *arguments: str | Path, env: Mapping[str, str] | None = None):
    process = subprocess.Popen(
        [sys.executable, "-m", "demo", *map(str, arguments)],
        cwd=REPOSITORY,
        env={**place.environment, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with process:
            yield process
    finally:
        if process.poll() is None:  # the test has failed; let the demo clean up even so
            process.terminate()
            process.wait(LIMIT)


def losses(output: str) -> list[float]:
    lines = re.findall(r"^epoch \d, num_workers=\d, loss of each batch: (.+)$", output, re.M)
    return [float(word) for line in lines for word in line.split()]


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


def test_takes_pictures_of_ones_own_and_keeps_the_mount(place, tmp_path):
    for number in range(3):
        save(tmp_path / "pictures" / "my cats", f"{number}.jpg", number)
        save(tmp_path / "pictures" / "Vögel", f"{number}.png", number)
    (tmp_path / "pictures" / "Vögel" / "broken.jpg").write_bytes(b"no picture")
    done = demo(place, "--data", tmp_path / "pictures", "--keep")
    try:
        kept = [path.name for path in place.directory.glob("aisfs-demo-*/mnt/*")]
    finally:
        printed = re.findall(r"^  (/.* umount /.*|kill .*)$", done.stdout, re.M)
        ended = [ended_with(command, place) for command in printed]
    assert (done.returncode, done.stderr) == (0, "")
    assert {"new.jpg", "train.tar"} <= set(kept)
    assert "cleaned up" not in done.stdout
    assert ended == [0, 0]
    assert "# 6 pictures of" in done.stdout
    assert "1 unreadable left out" in done.stdout
    assert "ImageFolder: 6 pictures, classes: Vögel my_cats" in done.stdout
    assert "webdataset: 6 samples decoded (3 of class 0, 3 of class 1)" in done.stdout
    assert losses(done.stdout)
    assert eventually(lambda: place.left() == [], 10), place.left()


def ended_with(command: str, place: Place) -> int:
    code = subprocess.run(command, shell=True).returncode
    # umount returns before the daemon has ended, which may still write into the directory
    kept = list(place.directory.glob("aisfs-demo-*"))
    eventually(lambda: not any(_marked(directory, b"mount") for directory in kept), 20)
    return code


def test_shows_what_a_web_server_has(place, tmp_path):
    write_samples(tmp_path / "data", shards=2, samples=4)
    certificate = make_certificate(tmp_path)
    with nginx(tmp_path, certificate=certificate) as server:
        source, trust = f"{server.url}/data/samples-{{00..01}}.tar", str(certificate[0])
        done = demo(place, "--source", source, env={"AIS_CLIENT_CA": trust})
        refused = demo(place, "--source", f"{server.url}/nowhere/", env={"AIS_CLIENT_CA": trust})
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^\$ ls mnt \| head -n 10\nsamples-00\nsamples-01\n", done.stdout, re.M)
    assert len(re.findall(r"^[0-9a-f]{32}  mnt/samples-00/sample_0000", done.stdout, re.M)) == 3
    assert "Everything is cleaned up." in done.stdout
    assert refused.returncode
    assert "nothing is below it" in refused.stderr
    assert place.left() == []


@pytest.mark.parametrize(
    ("name", "reason"), [("empty", "has no pictures"), ("missing", "is not a directory")]
)
def test_refuses_a_folder_without_pictures(place, tmp_path, name, reason):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("no picture")
    done = demo(place, "--data", tmp_path / name)
    assert done.returncode == 2
    assert done.stderr.startswith("demo: ")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1
    assert place.left() == []


def test_make_refuses_a_missing_folder_before_it_installs_anything(tmp_path):
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    # Below another make, which runs the tests, it would also say which directory it enters.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "demo", "DATA=/no such/folder"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("demo: DATA=/no such/folder is not a directory\n")


def test_a_sum_that_differs_fails_the_demo(place, tmp_path):
    liar = tmp_path / "bin" / "md5sum"
    liar.parent.mkdir()
    liar.write_text("#!/bin/sh\necho 0  $1\necho 1  $2\n")
    liar.chmod(0o755)
    done = demo(place, "--pictures", "2", env={"PATH": f"{liar.parent}:{os.environ['PATH']}"})
    assert done.returncode == 1
    assert done.stderr.startswith("demo: the shard read through the mount differs")
    assert place.left() == []


def test_a_command_that_fails_ends_the_demo_with_what_it_said(place, tmp_path):
    broken = tmp_path / "bin" / "cp"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho 'cp: out of order' >&2\nexit 3\n")
    broken.chmod(0o755)
    done = demo(place, "--pictures", "2", env={"PATH": f"{broken.parent}:{os.environ['PATH']}"})
    assert done.returncode == 1
    assert re.fullmatch(r"demo: `cp .*` failed: cp: out of order\n", done.stderr)
    assert place.left() == []


@pytest.mark.parametrize("moment", ["$ aisfs mount", "ImageFolder:"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_nothing(place, moment, number):
    with started(place, "--pictures", "60") as process:
        seen = any(line.startswith(moment) for line in process.stdout)
        process.send_signal(number)
        process.send_signal(number)  # an impatient user
        _, err = process.communicate(timeout=LIMIT)
    assert seen
    assert process.returncode == 128 + number
    assert err == f"demo: stopped by {number.name}; everything is cleaned up\n"
    assert eventually(lambda: place.left() == [], 5), place.left()


def test_an_interruption_of_the_imports_is_silent_too(place):
    with started(place) as process:
        ready = eventually(lambda: catches_signals(process.pid), 20)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=LIMIT)
    assert ready
    assert process.returncode == 130
    assert err.startswith("demo: stopped by SIGINT")
    assert err.count("\n") == 1
    assert place.left() == []


def catches_signals(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(re.search(r"^SigCgt:\s*(\w+)$", status, re.M)[1], 16)
    return bool(caught & 1 << (signal.SIGTERM - 1))


def test_a_reader_that_goes_away_leaves_nothing(place):
    with started(place, "--pictures", "2") as process:
        process.stdout.readline()
        process.stdout.close()
        process.wait(LIMIT)
        assert process.stderr.read() == ""
    assert process.returncode == 1
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


def test_says_of_how_many_pictures_it_shows_only_some(tmp_path, capsys):
    for number in range(MOST + 5):
        save(tmp_path / "pictures" / "abc"[number % 3], f"{number}.jpg", number % 90)
    for wanted, folder in (
        (f"# {MOST} of {MOST + 5} pictures of", "pictures"),
        ("# 68 pictures of", "pictures/c"),
    ):
        made = tmp_path / "made of" / folder
        made.mkdir(parents=True)
        _make_shards(_parser().parse_args(["--data", str(tmp_path / folder)]), made)
        assert capsys.readouterr().out.startswith(wanted)


def test_a_huge_picture_is_scaled_down(tmp_path):
    Image.new("RGB", (3000, 1500), "red").save(tmp_path / "huge.jpg")
    (picture,) = read_pictures([tmp_path / "huge.jpg"])
    (tmp_path / "small.jpg").write_bytes(picture.jpeg)
    with Image.open(tmp_path / "small.jpg") as image:
        assert image.size == (1024, 512)


@pytest.mark.parametrize(
    ("folder", "name"), [("cats & dogs", "cats_dogs"), ("x.y", "x_y"), ("été", "été")]
)
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


def save(folder: Path, name: str, number: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (90 + number, 60), (number * 60, 80, 160)).save(folder / name)
