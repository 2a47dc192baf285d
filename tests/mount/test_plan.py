"""`aisfs plan`, --record and --replay: the mount fetches what is about to be read, and nothing else changes."""

import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from aisfs.commands.options import Exit
from aisfs.order import HEADING
from tests.mount.cache_data import Dataset, make_objects, make_shards, shuffled
from tests.mount.cache_tools import MIB, Meter, list_folders, read
from tests.mount.datasets import sample, write_shard
from tests.mount.test_mount_errors import one_line
from tests.support.mounts import Mount, aisfs, check_refused, eventually, mounted
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

NO_DISK = ("--cache-size", "0")
PICTURES = {
    f"class{each % 3}/{each:03}.{suffix}": os.urandom(2000 + each)
    for each in range(90)
    for suffix in ("jpg", "txt")
}


@pytest.fixture(scope="module")
def shards(store: Path) -> Dataset:
    """Eight shards of 2 MiB, 128 members."""
    return make_shards(store / "b" / "train", 8, 16, 128 * 1024)


@pytest.fixture(scope="module")
def objects(store: Path) -> Dataset:
    """Thirty objects of 64 KiB in another bucket."""
    return make_objects(store / "o", 30, 64 * 1024)


@pytest.fixture(scope="module")
def server(store: Path, shards: Dataset, objects: Dataset) -> Iterator[RunningServer]:
    for name, content in PICTURES.items():
        (store / "pictures" / name).parent.mkdir(parents=True, exist_ok=True)
        (store / "pictures" / name).write_bytes(content)
    samples = [sample(f"s{each}", 1, image=b"picture") for each in range(4)]
    write_shard(store / "k" / "few.tar", samples)
    with running_server(store) as server:
        yield server


def some(digests: dict[str, str], start: int, stop: int) -> dict[str, str]:
    return dict(list(digests.items())[start:stop])


def announce(mount: Mount, file: Path, *lines: str) -> str:
    if lines:
        file.write_text("\n".join(lines) + "\n")
    done = aisfs("plan", mount.path, file)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout.decode()


def plans(mount: Mount) -> list[dict[str, Any]]:
    return list(json.loads(aisfs("plan", "--json", mount.path).stdout))


def test_objects_are_there_before_they_are_read(
    server: RunningServer, objects: Dataset, mountpoint: Path, tmp_path: Path
):
    order = shuffled(objects.files, 1)
    with mounted("ais://o", mountpoint, endpoint=server.endpoint, options=NO_DISK) as mount:
        meter = Meter(server)
        assert announce(mount, tmp_path / "lines", *order) == "30 files expected\n"
        assert eventually(lambda: plans(mount)[0]["ahead_bytes"] == objects.size)
        assert meter.take()["get_bytes"] == objects.size
        shown = aisfs("plan", mount.path).stdout.decode()
        assert "default" in shown
        assert "30" in shown
        read(mount.path, order)
        meter.nothing()
        assert eventually(lambda: plans(mount) == [])
        assert aisfs("plan", mount.path).stdout == b"no plans\n"


@pytest.mark.parametrize("made", [0, 1, 20])
def test_objects_that_are_not_transformed_yet(
    server: RunningServer, objects: Dataset, mountpoint: Path, tmp_path: Path, made: int
):
    order = shuffled(objects.files, 1)
    options = ("--transform", "tr a b", "--cache-dir", str(tmp_path / "cache"))
    with mounted("ais://o", mountpoint, endpoint=server.endpoint, options=options) as mount:
        for name in list(order)[:made]:
            (mount.path / name).stat()
        assert announce(mount, tmp_path / "lines", *order) == "30 files expected\n"
        paths = [str(mount.path / name) for name in order]
        total = sum(os.stat(path).st_size for path in paths)
        assert eventually(lambda: plans(mount)[0]["ahead_bytes"] == total)
        for path in paths:
            Path(path).read_bytes()
        assert eventually(lambda: plans(mount) == [])


def test_members_are_fetched_just_ahead_and_once(
    server: RunningServer, shards: Dataset, mountpoint: Path, tmp_path: Path
):
    """With memory for a quarter of the data, and no disk."""
    order = shuffled(shards.members, 2)
    options = (*NO_DISK, "--memory-limit", "16MiB", "--prefetch-shards", "0")
    with mounted("ais://b/train", mountpoint, endpoint=server.endpoint, options=options) as mount:
        list_folders(mount.path, shards)
        meter = Meter(server)
        announce(mount, tmp_path / "lines", *order)
        assert eventually(lambda: plans(mount)[0]["ahead_bytes"] >= 4 * MIB)
        before = meter.take()
        assert before["get_bytes"] < 9 * MIB
        read(mount.path, order)
        assert meter.take()["get_bytes"] + before["get_bytes"] < 1.3 * shards.size


def test_a_permutation_numbers_pictures_as_torchvision_does(
    server: RunningServer, mountpoint: Path, tmp_path: Path
):
    datasets = pytest.importorskip("torchvision.datasets")
    with mounted("ais://pictures", mountpoint, endpoint=server.endpoint) as mount:
        pictures = [path for path, _ in datasets.ImageFolder(str(mount.path)).samples]
        permutation = numpy.random.default_rng(3).permutation(len(pictures))
        numpy.save(tmp_path / "order.npy", permutation)
        assert announce(mount, tmp_path / "order.npy") == f"{len(pictures)} files expected\n"
        for at in permutation[:-1]:
            Path(pictures[at]).read_bytes()
        [plan] = plans(mount)
        assert (plan["position"], plan["followed"]) == (len(pictures) - 1, len(pictures) - 1)
        numpy.save(tmp_path / "order.npy", permutation.astype("int32"))
        assert announce(mount, tmp_path / "order.npy") == f"{len(pictures)} files expected\n"
        assert aisfs("plan", "--drop", mount.path).stdout == b"1 plan ended\n"
        numpy.save(tmp_path / "order.npy", numpy.arange(91))
        done = aisfs("plan", mount.path, tmp_path / "order.npy")
        assert done.returncode == Exit.USAGE
        assert b"numbers files up to 90, and there are 90" in done.stderr


def test_keys_stand_for_all_files_of_their_samples(
    server: RunningServer, mountpoint: Path, tmp_path: Path
):
    with mounted("ais://k", mountpoint, endpoint=server.endpoint) as mount:
        keys = [f"few.tar.d/s{each}" for each in (2, 0, 3)]
        assert announce(mount, tmp_path / "lines", *keys) == "6 files expected\n"


def test_an_order_that_was_recorded_is_fetched_by_a_fresh_mount(
    server: RunningServer, shards: Dataset, objects: Dataset, mountpoint: Path, tmp_path: Path
):
    recorded = tmp_path / "order"
    files = some(shuffled(shards.members, 5), 0, 40)
    record = (*NO_DISK, "--record", str(recorded))
    with mounted(None, mountpoint, endpoint=server.endpoint, options=record) as mount:
        root = mount.path / "ais"
        read(root / "b" / "train", files)
        read(root / "o", shuffled(objects.files, 6))
        total = objects.size + sum((root / "b" / "train" / name).stat().st_size for name in files)
    replay = (*NO_DISK, "--replay", str(recorded))
    with mounted(None, mountpoint, endpoint=server.endpoint, options=replay) as mount:
        root = mount.path / "ais"
        assert eventually(lambda: plans(mount)[0]["ahead_bytes"] == total)
        read(root / "b" / "train", files)
        read(root / "o", shuffled(objects.files, 6))
        assert eventually(lambda: plans(mount) == [])
    with mounted(None, mountpoint, endpoint=server.endpoint, options=NO_DISK) as mount:
        assert announce(mount, recorded) == "70 files expected\n"
        assert eventually(lambda: plans(mount)[0]["ahead_bytes"] == total)
    data = recorded.read_bytes()
    recorded.write_bytes(data[:-9])  # its daemon was killed
    with mounted(None, mountpoint, endpoint=server.endpoint, options=replay) as mount:
        assert plans(mount)[0]["files"] == 68


def test_what_changed_since_the_record_is_read_as_it_is(
    server: RunningServer, store: Path, mountpoint: Path, tmp_path: Path
):
    recorded, place = tmp_path / "order", store / "changing"
    place.mkdir()
    for name in "abc":
        (place / name).write_text(f"{name} before")
    options = ("--record", str(recorded))
    with mounted("ais://changing", mountpoint, endpoint=server.endpoint, options=options) as mount:
        assert [(mount.path / name).read_text() for name in "abc"] == [f"{n} before" for n in "abc"]
    (place / "b").write_text("b afterwards")
    (place / "c").unlink()
    replay = ("--replay", str(recorded))
    with mounted("ais://changing", mountpoint, endpoint=server.endpoint, options=replay) as mount:
        assert (mount.path / "a").read_text() == "a before"
        assert (mount.path / "b").read_text() == "b afterwards"
        assert not (mount.path / "c").exists()


@pytest.fixture(scope="module")
def spread(store: Path) -> list[str]:
    """Four hundred objects, of which a mount with 16 MiB of memory has a twentieth ahead."""
    names = [f"{number:03}" for number in range(400)]
    (store / "spread").mkdir()
    for name in names:
        (store / "spread" / name).write_bytes(name.encode() * 66_000)
    return random.Random(7).sample(names, len(names))


def test_readers_may_begin_in_the_middle(
    server: RunningServer, spread: list[str], mountpoint: Path, tmp_path: Path
):
    options = (*NO_DISK, "--memory-limit", "16MiB")
    with mounted("ais://spread", mountpoint, endpoint=server.endpoint, options=options) as mount:
        announce(mount, tmp_path / "lines", *spread)
        for name in spread[200:]:
            assert (mount.path / name).read_bytes() == name.encode() * 66_000
        assert eventually(lambda: plans(mount) == [])
        assert "200 of 400 files were read in its order" in mount.log()


def test_recorded_orders_add_up(
    server: RunningServer, objects: Dataset, mountpoint: Path, tmp_path: Path
):
    """Each says what its own numbers stand for."""
    halves = (some(objects.files, 0, 15), some(objects.files, 15, 30))
    for number, half in enumerate(halves):
        options = (*NO_DISK, "--record", str(tmp_path / f"order{number}"))
        with mounted("ais://o", mountpoint, endpoint=server.endpoint, options=options) as mount:
            read(mount.path, half)
    with mounted("ais://o", mountpoint, endpoint=server.endpoint, options=NO_DISK) as mount:
        for number in range(2):
            assert announce(mount, tmp_path / f"order{number}") == "15 files expected\n"
        assert eventually(lambda: plans(mount)[0]["ahead_bytes"] == objects.size)


def test_a_plan_that_nobody_follows_ends_and_says_so(
    server: RunningServer, spread: list[str], store: Path, mountpoint: Path, tmp_path: Path
):
    place = store / "many"
    place.mkdir()
    for number in range(1200):
        (place / f"{number:04}").write_text(str(number))
    expected = ["plan default ends: what is read is not in it"]
    options = (*NO_DISK, "--memory-limit", "16MiB")
    with mounted(
        None, mountpoint, endpoint=server.endpoint, options=options, expected_log=expected
    ) as mount:
        announce(mount, tmp_path / "lines", *(f"ais/spread/{name}" for name in spread))
        for number in range(1200):
            assert (mount.path / f"ais/many/{number:04}").read_text() == str(number)
        assert eventually(lambda: plans(mount) == [])
        assert b"plan default ends" in aisfs("status", mount.path).stdout


def test_the_control_call_needs_no_import(
    server: RunningServer, objects: Dataset, mountpoint: Path, tmp_path: Path
):
    with mounted("ais://o", mountpoint, endpoint=server.endpoint) as mount:
        (tmp_path / "numbers").write_bytes(
            b"".join(os.stat(mount.path / n).st_ino.to_bytes(8, "little") for n in objects.files)
        )
        script = "import os, sys; print(os.getxattr(sys.argv[1], 'user.aisfs.plan.0.mine'))"
        words = ["python3", "-c", script, str(mount.path)]
        with open(tmp_path / "numbers", "rb") as numbers:
            done = subprocess.run(words, stdin=numbers, capture_output=True, check=True)
        assert b'{"files": 30}' in done.stdout
        assert plans(mount)[0]["name"] == "mine"
        piped = subprocess.run(words, input=b"12345678", capture_output=True, check=True)
        assert b"no file of at most" in piped.stdout
        assert aisfs("plan", "--drop", "--name", "other", mount.path).stdout == b"0 plans ended\n"
        assert len(plans(mount)) == 1


def test_wrong_input_is_said_in_a_line(
    server: RunningServer, mountpoint: Path, tmp_path: Path, objects: Dataset
):
    lines = tmp_path / "lines"
    with mounted("ais://o", mountpoint, endpoint=server.endpoint) as mount:
        name = next(iter(objects.files))
        lines.write_text(f"{name}\nnone\nd/none\n")
        done = aisfs("plan", mount.path, lines)
        assert done.stdout == b"1 file expected\n"
        assert b"2 lines left out: there is no file or sample" in done.stderr
        for content, said in (
            (b"none\n", b"it names no file"),
            (b"\x93NUMPYxxxx", b"numpy.save"),
            (bytes(range(8)), b"neither lines nor a permutation nor a recorded order"),
        ):
            lines.write_bytes(content)
            done = aisfs("plan", mount.path, lines)
            assert done.returncode == Exit.USAGE
            assert said in one_line(done.stderr).encode()
        done = aisfs("plan", "--drop", mount.path, lines)
        assert done.returncode == Exit.USAGE
    damaged = tmp_path / "damaged"
    damaged.write_bytes(HEADING + (9).to_bytes(4, "little") + b"\x01" + b"x" * 9)
    with mounted("ais://o", mountpoint, endpoint=server.endpoint) as mount:
        done = aisfs("plan", mount.path, damaged)
        assert "the recorded order is damaged" in one_line(done.stderr)
    lines.write_text("a\n")
    done = aisfs("plan", tmp_path, lines)
    assert b"not a mountpoint" in done.stderr or b"not of aisfs" in done.stderr
    for options, said in (
        (("--replay", str(tmp_path / "none")), "No such file"),
        (("--replay", str(lines)), "no order that --record has written"),
        (("--replay", str(damaged)), "the recorded order is damaged"),
        (("--record", str(tmp_path / "none" / "x")), "No such file"),
        (("--record", "/dev/full"), "--record /dev/full: "),
        (("--record", str(lines), "--no-fastpath"), "not with --no-fastpath"),
    ):
        words = ["ais://o", *options]
        check_refused(words, mountpoint, endpoint=server.endpoint, code=Exit.USAGE, said=said)
    words = ["ais://o", "--record", str(mountpoint / "order")]
    said = "--record lies below the mountpoint"
    check_refused(words, mountpoint, endpoint=server.endpoint, code=Exit.MOUNTPOINT, said=said)


def test_a_record_goes_on_where_a_daemon_broke_off(
    server: RunningServer, objects: Dataset, mountpoint: Path, tmp_path: Path
):
    recorded = tmp_path / "order"
    options = ("--record", str(recorded))
    with mounted(
        "ais://o",
        mountpoint,
        endpoint=server.endpoint,
        options=options,
        keeper=True,
        expected_log=["goes on with the mount"],
    ) as mount:
        read(mount.path, some(objects.files, 0, 10))
        assert eventually(lambda: recorded.stat().st_size > 100)
        pid = json.loads(os.getxattr(mount.path, "user.aisfs.about"))["pid"]
        with recorded.open("ab") as file:
            file.write(b"\xff\0\0\0\x05half a record")
        os.kill(pid, 9)
        read(mount.path, some(objects.files, 10, 30))
    with mounted("ais://o", mountpoint, endpoint=server.endpoint) as mount:
        assert announce(mount, recorded) == "30 files expected\n"


def test_a_plan_ends_though_some_of_its_files_are_never_read(
    server: RunningServer, store: Path, mountpoint: Path, tmp_path: Path
):
    place = store / "some"
    place.mkdir()
    for name, content in (("a", "a"), ("b", "b"), ("empty", "")):
        (place / name).write_text(content)
    with mounted("ais://some", mountpoint, endpoint=server.endpoint) as mount:
        announce(mount, tmp_path / "lines", "a", "b", "empty")
        assert [(mount.path / name).read_text() for name in "ab"] == ["a", "b"]
        assert eventually(lambda: plans(mount) == [])


def test_a_restarted_daemon_goes_on_without_the_plan_and_with_the_record(
    server: RunningServer, objects: Dataset, mountpoint: Path, tmp_path: Path
):
    recorded = tmp_path / "order"
    options = ("--record", str(recorded))
    expected = ["goes on with the mount"]
    with mounted(
        "ais://o",
        mountpoint,
        endpoint=server.endpoint,
        options=options,
        keeper=True,
        expected_log=expected,
    ) as mount:
        announce(mount, tmp_path / "lines", *objects.files)
        read(mount.path, some(objects.files, 0, 10))
        assert eventually(lambda: recorded.stat().st_size > 100)
        pid = json.loads(os.getxattr(mount.path, "user.aisfs.about"))["pid"]
        os.kill(pid, 9)
        read(mount.path, some(objects.files, 10, 30))
    options = ("--replay", str(recorded))
    with mounted("ais://o", mountpoint, endpoint=server.endpoint, options=options) as mount:
        assert plans(mount)[0]["files"] >= 20


@pytest.mark.parametrize("kept", [True, False])
def test_an_order_in_its_own_mount_whose_daemon_dies(
    server: RunningServer, store: Path, mountpoint: Path, kept: bool
):
    """The daemon reads it through itself: the next one takes it, and without a keeper the call fails."""
    (store / "own").mkdir(exist_ok=True)
    (store / "own" / "numbers").write_bytes(os.urandom(8 << 20))
    options = (*NO_DISK, "--bandwidth-limit", "1MiB")
    log = ["goes on with the mount"] if kept else []
    endpoint = server.endpoint
    with mounted(
        "ais://own", mountpoint, endpoint=endpoint, options=options, keeper=kept, expected_log=log
    ) as mount:
        meter = Meter(server)
        script = "import os, sys; print(os.getxattr(sys.argv[1], 'user.aisfs.plan.0'))"
        with open(mount.path / "numbers", "rb") as numbers:
            words = ["python3", "-c", script, str(mount.path)]
            asking = subprocess.Popen(
                words, stdin=numbers, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        assert eventually(lambda: meter.take()["get"])
        os.kill(json.loads(os.getxattr(mount.path, "user.aisfs.about"))["pid"], 9)
        output, errors = asking.communicate(timeout=120)
        if kept:
            assert b'{"files": 1048576}' in output, errors
        else:
            assert b"Software caused connection abort" in errors


def test_random_readers_get_the_right_bytes_while_the_plan_is_wrong(
    server: RunningServer, shards: Dataset, mountpoint: Path, tmp_path: Path
):
    """Announced in one order, read by four in others."""
    source = random.Random(4)
    options = (
        "--memory-limit",
        "16MiB",
        "--cache-size",
        "6MiB",
        "--cache-dir",
        str(tmp_path / "c"),
    )
    with mounted("ais://b/train", mountpoint, endpoint=server.endpoint, options=options) as mount:
        announce(mount, tmp_path / "lines", *shuffled(shards.members, 9))
        read(
            mount.path,
            *(dict(source.sample(sorted(shards.members.items()), 60)) for _ in range(4)),
            some(shards.files, 0, 2),
        )
