"""The demo, as a user runs it: what it says, and every way in which it ends; nothing is left of it."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from demo.__main__ import _parser
from demo.pictures import MOST
from demo.stage import _marked
from tests.demo.running import LIMIT, REPOSITORY, Place, demo, losses, save, started
from tests.programs.pictures import write_samples
from tests.support.mounts import eventually
from tests.support.web_servers import make_certificate, nginx

pytestmark = [pytest.mark.mount, pytest.mark.timeout(LIMIT + 100)]


def test_a_whole_run(place):
    done = demo(place, "--pictures", "36")
    said = done.stdout
    assert (done.returncode, done.stderr) == (0, "")
    assert "Everything is cleaned up." in said
    assert place.left() == []
    members = ("sample_0000.cls", "sample_0000.image.jpg", "sample_0000.trimap.png")
    for name in ("samples-00.tar", "samples-01.tar", "train.tar", *members):
        assert re.search(rf"^-r--r--r-- .* {name}$", said, re.M)
    assert "JPEG (320, 240)" in said
    sums = re.findall(r"^([0-9a-f]{32})  (mnt|made)/samples-00.tar$", said, re.M)
    assert [where for _, where in sums] == ["mnt", "made"]
    assert len({digest for digest, _ in sums}) == 1
    assert "# equal" in said
    assert "webdataset: 36 samples decoded (12 of class 0, 12 of class 1, 12 of class 2)" in said
    assert "ImageFolder: 36 pictures, classes: cat dog fish" in said
    assert "num_workers=0" in said
    assert "num_workers=2" in said
    seen = losses(said)
    assert len(seen) == 2 * 3  # 36 pictures in batches of 16, twice
    assert seen[-1] < seen[0]
    _, classes, written = re.split("--view class|--writable", said)[:3]
    assert re.search(r"^\$ ls mnt\ncat\ndog\nfish\n", classes, re.M)
    assert re.search(r"^sample_0000.jpg\nsample_0003.jpg\nsample_0006.jpg\n", classes, re.M)
    warmed = classes.partition("$ aisfs warm mnt")[2]
    assert "36 objects" in warmed
    assert re.search(r"^ +cluster +reachable", warmed, re.M)
    assert re.search(r"^\$ aisfs ls .*\nnew.jpg\nsamples-00.tar\n", written, re.M)
    assert re.search(r"^\$ cmp .*\nequal\n", written, re.M)
    words = [" ".join(line.split()[:2]) for line in re.findall(r"^\$ (.+)$", said, re.M)]
    assert words[:2] == ["aisfs serve", "aisfs mount"]
    assert words[-1] == "aisfs umount"


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
