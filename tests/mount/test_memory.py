"""What a member costs the daemon: the growth of its memory between two sizes of one dataset."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.mounts import eventually, mounted
from tests.support.servers import running_server

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120)]

MIB = 1 << 20
SAMPLES = 2000
FEW, MANY = 12, 60
MEMBERS = (MANY - FEW) * SAMPLES * 2
LABELS = 50
LIMIT = 80
"""Bytes for each member beyond its name: show 4 of issue 5."""
NAME = len("00000000.cls")


def write_shard(path: Path, first: int) -> None:
    """Samples of an empty picture and a label, in the ustar form; tarfile takes ten times as long."""
    with path.open("wb") as file:
        for number in range(first, first + SAMPLES):
            key = b"%08d" % number
            label = b"%03d" % (number % LABELS)
            file.write(header(key + b".cls", len(label)) + label.ljust(512, b"\0"))
            file.write(header(key + b".jpg", 0))
        file.write(bytes(1024))


def header(name: bytes, size: int) -> bytes:
    fields = name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2
    fields += b"%011o\0%011o\0" % (size, 1_700_000_000)
    rest = b"0".ljust(101, b"\0") + b"ustar\x0000"
    total = sum(fields) + 8 * ord(" ") + sum(rest)
    return (fields + b"%06o\0 " % total + rest).ljust(512, b"\0")


def anonymous_bytes(pid: int) -> int:
    """Memory that is the process' own: not the program, nor the disk cache as it is mapped."""
    with open(f"/proc/{pid}/status") as status:
        (line,) = (line for line in status if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def test_members_of_a_class_view_take_little_memory(tmp_path: Path):
    """While the view is built shards are in memory too, up to --memory-limit; not for long."""
    base = tmp_path.resolve()
    (base / "store" / "b").mkdir(parents=True)
    for number in range(MANY):
        write_shard(base / "store" / "b" / f"{number:02}.tar", number * SAMPLES)
    with running_server(base / "store") as server, ExitStack() as stack:
        daemons = {}
        for count in (FEW, MANY):
            place = base / f"mnt-{count}"
            place.mkdir()
            source = f"ais://b/{{00..{count - 1:02}}}.tar"
            options = ["--view", "class", "--cache-dir", str(base / f"cache-{count}")]
            mount = mounted(source, place, endpoint=server.endpoint, options=options)
            daemons[count] = stack.enter_context(mount).pid
            assert len(os.listdir(place)) == LABELS

        def each() -> float:
            taken = {count: anonymous_bytes(pid) for count, pid in daemons.items()}
            return (taken[MANY] - taken[FEW]) / MEMBERS - NAME

        assert eventually(lambda: each() <= LIMIT), each()


@pytest.mark.parametrize("cached", [True, False])
def test_readers_of_single_ranges_stay_within_the_memory_limit(tmp_path: Path, cached: bool):
    """A range of a mebibyte takes as much, where nothing of it goes to disk."""
    base, size, count, limit = tmp_path.resolve(), 16 * MIB, 16, 64 * MIB
    (base / "store" / "b").mkdir(parents=True)
    for number in range(count):
        (base / "store" / "b" / f"{number:02}.bin").write_bytes(bytes([number]) * size)
    place = base / "mnt"
    place.mkdir()
    options = ["--memory-limit", "64MiB", "--cache-dir", str(base / "cache")]
    options += [] if cached else ["--cache-size", "0"]
    with (
        running_server(base / "store") as server,
        mounted("ais://b", place, endpoint=server.endpoint, options=options) as mount,
    ):
        os.listdir(place)
        before, most = anonymous_bytes(mount.pid), 0
        for start in range(size - MIB, -1, -MIB):  # backwards: nothing looks like a stream
            for number in range(count):
                with (place / f"{number:02}.bin").open("rb", buffering=0) as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
                    assert os.pread(file.fileno(), MIB, start) == bytes([number]) * MIB
            most = max(most, anonymous_bytes(mount.pid) - before)
        # Beside the parts: threads, connections, what Python keeps for itself.
        assert most <= limit + 48 * MIB, most
