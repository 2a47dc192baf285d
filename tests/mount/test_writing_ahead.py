"""Large files are sent while they are written, and nobody sees anything of them before the close."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from aisfs.commands.status import table
from tests.mount.content import payload
from tests.mount.writable import Writable, writable
from tests.support.mounts import aisfs, eventually
from tests.support.servers import RunningServer, running_server

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

MIB = 1 << 20
PART = 5 * MIB
"""The smallest that `--part-size` takes; parts that are sent ahead are as large then."""
OPTIONS = ["--part-size", "5MiB"]
CONTENT = payload(4 * PART + 12_345, "ahead")
NUMBERS = count()


@pytest.fixture(scope="module")
def place(fastpath: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writable]:
    with writable(
        tmp_path_factory.mktemp("ahead"), options=OPTIONS, traps=True, deadline=600
    ) as place:
        yield place


@pytest.fixture
def path(place: Writable, request: pytest.FixtureRequest) -> Path:
    """A file that is not there yet, nor when a test is tried once more."""
    return place.path / f"{request.node.name}-{next(NUMBERS)}"


def write(descriptor: int, data: bytes) -> None:
    """Write in pieces, as `cp` does."""
    for start in range(0, len(data), MIB // 2):
        piece = data[start : start + MIB // 2]
        assert os.write(descriptor, piece) == len(piece)


def status(place: Writable) -> dict[str, Any]:
    """What `aisfs status` shows. It must inherit no descriptor, since closing a copy uploads, too."""
    done = aisfs("status", place.path, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def begin(place: Writable, path: Path, size: int = 3 * PART + 1) -> int:
    """Make a file, write some of it and wait until its parts are on the server."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    write(descriptor, CONTENT[:size])
    assert eventually(lambda: place.sent() >= size // PART * PART)
    return descriptor


def test_parts_are_there_before_the_close(place: Writable, path: Path):
    descriptor = begin(place, path)
    assert place.fetched(path.name) is None
    write(descriptor, CONTENT[3 * PART + 1 :])
    assert place.fetched(path.name) is None
    os.close(descriptor)
    assert place.fetched(path.name) == CONTENT
    assert path.read_bytes() == CONTENT
    assert place.uploads() == []


def test_status_tells_how_far_it_is(place: Writable, path: Path):
    before = status(place)["writing"]["sent_bytes"]
    name = f"ais://{place.bucket}/{path.name}"
    descriptor = begin(place, path)
    assert eventually(
        lambda: status(place)["uploads"] == {name: {"sent_bytes": 3 * PART, "size_bytes": None}}
    )
    assert status(place)["writing"]["staged_bytes"] == 3 * PART + 1
    sections = {title: values for title, values in status(place).items() if title != "warnings"}
    shown = [cell for column in table(sections).columns for cell in column.cells]
    assert "15.0 MiB of a file still being written" in shown
    os.close(descriptor)
    found = status(place)
    assert "uploads" not in found
    assert found["writing"]["staged_bytes"] == 0
    assert found["writing"]["sent_bytes"] == before + 3 * PART + 1


def test_the_old_object_stays_until_the_close(place: Writable, path: Path):
    path.write_bytes(b"old")
    descriptor = begin(place, path)
    assert place.fetched(path.name) == b"old"
    os.close(descriptor)
    assert place.fetched(path.name) == CONTENT[: 3 * PART + 1]
    assert place.uploads() == []


def test_changes_to_what_was_sent(place: Writable, path: Path):
    """As programs do that write a header when they know all of a file."""
    descriptor = begin(place, path)
    for offset in (0, 2 * PART - 2):
        assert os.pwrite(descriptor, b"head", offset) == 4
    os.close(descriptor)
    expected = bytearray(CONTENT[: 3 * PART + 1])
    expected[:4] = expected[2 * PART - 2 : 2 * PART + 2] = b"head"
    assert place.fetched(path.name) == expected
    assert place.uploads() == []


def test_what_was_sent_and_changed_since_is_thrown_away_at_once(place: Writable, path: Path):
    """AIStore would destroy a part that comes twice; so `close` sends all of it, to another upload."""
    descriptor = begin(place, path)
    assert os.pwrite(descriptor, b"head", PART) == 4
    write(descriptor, CONTENT[3 * PART + 1 :])
    assert eventually(lambda: place.uploads() == [])
    os.close(descriptor)
    expected = bytearray(CONTENT)
    expected[PART : PART + 4] = b"head"
    assert place.fetched(path.name) == expected
    assert place.uploads() == []


@pytest.mark.parametrize("size", [0, 1000, PART, PART + 1, 2 * PART, 3 * PART])
def test_cut_below_what_was_sent(place: Writable, path: Path, size: int):
    descriptor = begin(place, path)
    os.ftruncate(descriptor, size)
    os.close(descriptor)
    assert place.fetched(path.name) == CONTENT[:size]
    assert place.uploads() == []


def test_cut_and_made_longer(place: Writable, path: Path):
    descriptor = begin(place, path)
    os.ftruncate(descriptor, PART // 2)
    os.ftruncate(descriptor, 4 * PART)
    os.close(descriptor)
    assert place.fetched(path.name) == CONTENT[: PART // 2].ljust(4 * PART, b"\0")
    assert place.uploads() == []


def test_a_sync_stores_all_and_more_may_follow(place: Writable, path: Path):
    descriptor = begin(place, path)
    os.fsync(descriptor)
    assert place.fetched(path.name) == CONTENT[: 3 * PART + 1]
    assert place.uploads() == []
    write(descriptor, CONTENT[3 * PART + 1 :])
    os.close(descriptor)
    assert place.fetched(path.name) == CONTENT
    assert place.uploads() == []


def test_the_output_of_a_shell(place: Writable, path: Path):
    """A shell closes its own copy of the descriptor before the program begins."""
    (path.parent / f"{path.name}-go").touch()
    program = "import sys, time, os\nfor _ in range(30): os.write(1, bytes(1 << 19))\n"
    program += "while os.path.exists(sys.argv[1]): time.sleep(0.05)\n"
    command = f'"{sys.executable}" -c "$2" "$1-go" > "$1"'
    shell = subprocess.Popen(["sh", "-c", command, "sh", path, program])
    try:
        assert eventually(lambda: place.sent() >= 2 * PART)
    finally:
        (path.parent / f"{path.name}-go").unlink()
    assert shell.wait(60) == 0
    assert place.fetched(path.name) == bytes(15 * MIB)
    assert place.uploads() == []


def test_removed_while_it_is_written(place: Writable, path: Path):
    descriptor = begin(place, path)
    path.unlink()
    assert eventually(lambda: not place.uploads())
    write(descriptor, CONTENT[3 * PART + 1 :])
    os.close(descriptor)
    assert place.fetched(path.name) is None
    assert place.uploads() == []


def test_renamed_while_it_is_written(place: Writable, path: Path):
    descriptor = begin(place, path)
    path.rename(path.with_name(f"{path.name}-moved"))
    write(descriptor, CONTENT[3 * PART + 1 :])
    os.close(descriptor)
    assert place.fetched(f"{path.name}-moved") == CONTENT
    assert place.fetched(path.name) is None
    assert place.uploads() == []


def test_nothing_of_what_may_stay_small_or_is_not_in_order(place: Writable, path: Path):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    write(descriptor, CONTENT[:PART])
    os.lseek(descriptor, 2 * PART, os.SEEK_SET)
    write(descriptor, CONTENT[2 * PART :])
    assert place.uploads() == []
    os.pwrite(descriptor, CONTENT[PART : 2 * PART], PART)
    os.close(descriptor)
    assert place.fetched(path.name) == CONTENT
    assert place.uploads() == []


def test_a_member_of_a_shard_is_appended_whole(place: Writable, path: Path):
    shard = path.with_name(f"{path.name}.tar.d")
    shard.mkdir()
    (shard / "large.bin").write_bytes(CONTENT)
    assert (shard / "large.bin").read_bytes() == CONTENT
    assert place.uploads() == []


@pytest.mark.parametrize("seed", range(4))
def test_at_random_like_a_model(place: Writable, path: Path, seed: int):
    rng = random.Random(seed)
    model = bytearray()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    for _ in range(60):
        what = rng.choice(["append"] * 6 + ["write", "write", "cut", "sync", "read"])
        if what == "append":
            data = rng.randbytes(rng.randrange(1, 2 * MIB))
            assert os.pwrite(descriptor, data, len(model)) == len(data)
            model += data
        elif what == "write" and model:
            start = rng.randrange(len(model))
            data = rng.randbytes(rng.choice([1, 5000, 300_000]))[: len(model) - start]
            assert os.pwrite(descriptor, data, start) == len(data)
            model[start : start + len(data)] = data
        elif what == "cut" and rng.random() < 0.3:
            size = rng.randrange(len(model) + MIB)
            os.ftruncate(descriptor, size)
            model = model[:size].ljust(size, b"\0")
        elif what == "sync" and rng.random() < 0.3:
            os.fsync(descriptor)
            assert place.fetched(path.name) == model
        elif what == "read" and model:
            start = rng.randrange(len(model))
            assert os.pread(descriptor, MIB, start) == model[start : start + MIB]
    os.close(descriptor)
    assert place.fetched(path.name) == model
    assert place.uploads() == []


def test_cut_before_the_upload_began(tmp_path: Path, fastpath: bool):
    with writable(tmp_path, options=OPTIONS, traps=True, faulty=True) as place:
        assert place.server is not None
        stall = {"action": "stall", "seconds": 1.0, "fraction": 0.0, "times": 1}
        place.server.faults([{**stall, "match": {"method": "POST", "marked": True}}])
        descriptor = os.open(place.path / "f", os.O_WRONLY | os.O_CREAT)
        write(descriptor, CONTENT[: PART + 1])
        os.ftruncate(descriptor, 0)
        os.close(descriptor)
        assert place.fetched("f") == b""
        assert place.uploads() == []


# Faults -----------------------------------------------------------------------------------------


def die(place: Writable) -> None:
    """Kill the daemon."""
    for pid in place.mount.pids:
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not place.mount.living())
    subprocess.run(["fusermount3", "-uz", place.path], check=True, timeout=30)


def die_while_writing(place: Writable, size: int = len(CONTENT)) -> None:
    """Kill the daemon when so much of a file is written and it is not closed."""
    soon = min(size, 3 * PART + 1)
    descriptor = begin(place, place.path / "f", soon)
    write(descriptor, CONTENT[soon:size])
    die(place)
    with pytest.raises(OSError, match="not connected"):
        os.close(descriptor)


def check_recovery(place: Writable, action: str, content: bytes) -> None:
    """Recover the one file that was not uploaded; nothing of it stays in the cluster."""
    assert place.fetched("f") is None
    assert len(place.uploads()) == 1
    done = aisfs("recover", "--staging-dir", place.staging, action, "--all")
    assert done.returncode == 0, done.stderr
    assert place.fetched("f") == (content if action == "--upload" else None)
    assert place.uploads() == []


def suppressed_close(descriptor: int) -> None:
    with suppress(OSError):
        os.close(descriptor)


@pytest.mark.parametrize("size", [PART + 1, len(CONTENT)], ids=["no write since", "written"])
@pytest.mark.parametrize("action", ["--upload", "--drop"])
def test_the_daemon_dies(tmp_path: Path, fastpath: bool, action: str, size: int):
    with writable(tmp_path, options=OPTIONS, traps=True) as place:
        die_while_writing(place, size)
        check_recovery(place, action, CONTENT[:size])


@pytest.mark.parametrize("action", ["--upload", "--drop"])
def test_the_daemon_dies_in_an_upload_that_began_at_the_close(
    tmp_path: Path, fastpath: bool, action: str
):
    with writable(tmp_path, options=OPTIONS, traps=True, faulty=True) as place:
        assert isinstance(place.server, RunningServer)
        stall = {"action": "stall", "seconds": 60.0, "fraction": 0.0, "times": -1}
        last = {"method": "PUT", "query_contains": "partNumber=5", "marked": True}
        place.server.faults([{**stall, "match": last}])
        descriptor = os.open(place.path / "f", os.O_WRONLY | os.O_CREAT)
        os.lseek(descriptor, PART, os.SEEK_SET)  # not in order, so nothing is sent before the close
        write(descriptor, CONTENT[PART:])
        os.pwrite(descriptor, CONTENT[:PART], 0)
        assert place.uploads() == []
        closing = threading.Thread(target=lambda: suppressed_close(descriptor))
        closing.start()
        assert eventually(lambda: place.sent() >= 4 * PART)
        die(place)
        closing.join()
        place.server.faults([])
        check_recovery(place, action, CONTENT)


def test_dropped_while_the_cluster_is_away(tmp_path: Path, fastpath: bool):
    (tmp_path / "store" / "b").mkdir(parents=True)
    with (
        running_server(tmp_path / "store", traps=True) as server,
        writable(tmp_path, options=OPTIONS, server=server) as place,
    ):
        die_while_writing(place)
        server.kill()
        done = aisfs("recover", "--staging-dir", place.staging, "--drop", "--all")
        assert done.returncode == 0
        assert b"ais://b/f: dropped" in done.stdout
        assert b"parts of ais://b/f stay in the cluster" in done.stderr
        assert place.unsent() == []


def test_unmounted_while_it_is_written(tmp_path: Path, fastpath: bool):
    with writable(
        tmp_path, options=OPTIONS, traps=True, expected_log=["was not uploaded"]
    ) as place:
        descriptor = begin(place, place.path / "f")
        os.kill(place.mount.pid, signal.SIGTERM)
        assert eventually(lambda: not place.mount.living(), 60)
        with pytest.raises(OSError, match="not connected"):
            os.close(descriptor)
        assert place.uploads() == []
        assert len(place.unsent()) == 1


def test_the_server_forgets_the_parts(tmp_path: Path, fastpath: bool):
    """It was killed and started again; what it had of an upload is gone."""
    (tmp_path / "store" / "b").mkdir(parents=True)
    with running_server(tmp_path / "store", traps=True) as first:
        port = int(first.endpoint.rpartition(":")[2])
        with writable(tmp_path, options=OPTIONS, server=first, expected_log=["."]) as place:
            descriptor = begin(place, place.path / "f")
            first.kill()
            write(descriptor, CONTENT[3 * PART + 1 :])
            with running_server(tmp_path / "store", port=port, traps=True):
                os.close(descriptor)
                assert place.fetched("f") == CONTENT
                assert place.uploads() == []


def test_what_cannot_be_read_back_is_an_error_of_the_close(tmp_path: Path, fastpath: bool):
    options = [*OPTIONS, "--io-timeout", "3"]
    with writable(
        tmp_path,
        options=options,
        traps=True,
        faulty=True,
        expected_log=["flush failed", "was not uploaded"],
    ) as place:
        assert isinstance(place.server, RunningServer)
        gone = {"tcode": "PathError", "message": "chunk does not exist"}
        lost = {"action": "status", "status": 404, "body": gone, "times": -1}
        place.server.faults([{**lost, "match": {"method": "GET", "range": True, "marked": True}}])
        descriptor = os.open(place.path / "f", os.O_WRONLY | os.O_CREAT)
        write(descriptor, CONTENT)
        with pytest.raises(OSError, match="timed out"):
            os.close(descriptor)
        assert eventually(lambda: len(place.unsent()) == 1)
        place.server.faults([])
        done = aisfs("recover", "--staging-dir", place.staging, "--upload", "--all", "--force")
        assert done.returncode == 0, done.stderr
        assert place.fetched("f") == CONTENT
        assert place.uploads() == []


@pytest.mark.parametrize(
    "fault",
    [
        {"action": "status", "status": 500},
        {"action": "status", "status": 507},
        {"action": "reset"},
        {"action": "truncate", "fraction": 0.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("what", ["start", "part"])
def test_a_fault_ahead_of_the_close_is_nobodys_error(
    tmp_path: Path, fastpath: bool, fault: dict[str, object], what: str
):
    with writable(
        tmp_path, options=OPTIONS, traps=True, faulty=True, expected_log=["part"]
    ) as place:
        match = (
            {"method": "POST", "marked": True}
            if what == "start"
            else {"method": "PUT", "query_contains": "partNumber=2", "marked": True}
        )
        assert place.server is not None
        place.server.faults([{**fault, "times": 1, "match": match}])
        descriptor = os.open(place.path / "f", os.O_WRONLY | os.O_CREAT)
        write(descriptor, CONTENT)
        assert eventually(lambda: place.server.struck() == [1])
        os.close(descriptor)
        assert place.fetched("f") == CONTENT
        left = place.uploads()
        assert left == [] or (what == "start" and fault["action"] == "truncate"), "its id got lost"
