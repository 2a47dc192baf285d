"""How many requests are under way, and that none stays open when its reader has gone."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import requests

from tests.mount.cache_data import Dataset, dealt, make_objects, make_shards
from tests.mount.cache_tools import MIB, READER, job, readers
from tests.mount.content import LIMIT, object_url, put
from tests.support.mounts import Mount, environment, eventually, mounted
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount

BIG = "object-0000.bin"
FREE, READ = 200, 202
HELD_SECONDS = 0.1
"""How long the server holds each request: long enough for all that wait to come."""
# Reads a third of a file and then waits for its end, with the file open.
HALF_WAY = """
import sys, time
file = open(sys.argv[1], "rb", buffering=0)
left = int(sys.argv[2])
while left > 0:
    left -= len(file.read(1 << 12))
print("there", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def shards(store: Path) -> Dataset:
    return make_shards(store / "b", 8, 16, 128 * 1024)


@pytest.fixture(scope="module")
def objects(store: Path) -> Dataset:
    return make_objects(store / "b" / "raw", 4, 24 * MIB)


@pytest.fixture(scope="module")
def server(store: Path, shards: Dataset, objects: Dataset) -> Iterator[RunningServer]:
    with running_server(store, faulty=True) as server:
        yield server


def rules(server: RunningServer) -> list[dict[str, Any]]:
    with urlopen(server.endpoint + "/-/faults", timeout=10) as reply:
        found: list[dict[str, Any]] = json.loads(reply.read())
    return found


@pytest.mark.parametrize("most", [1, 5])
def test_no_more_requests_are_under_way_than_allowed(
    most: int,
    server: RunningServer,
    shards: Dataset,
    objects: Dataset,
    mountpoint: Path,
    tmp_path: Path,
):
    """Members in order, which prefetches shards, and large objects, all at once."""
    options = ("--cache-dir", str(tmp_path / "cache"), "--max-connections", str(most))
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        server.faults(
            [{"match": {}, "action": "stall", "seconds": HELD_SECONDS / most, "times": -1}]
        )
        try:
            halves = {n: sha for n, sha in shards.members.items() if n < "shard-0004"}
            jobs = [job(mount.path, part) for part in dealt(halves, 2)]
            jobs += [job(mount.path / "raw", part) for part in dealt(objects.files, 4)]
            with readers(READER, jobs) as wait:
                assert not wait()
            (rule,) = rules(server)
        finally:
            server.faults([])
    assert rule["held_most"] == most, rule


def lock_state(server: RunningServer, key: str) -> int:
    """Ask the server who uses an object."""
    url = object_url(server.endpoint, "b", key)
    return requests.post(url, json={"action": "check-lock"}, timeout=LIMIT).status_code


@pytest.mark.parametrize("end", ["killed", "waiting"])
@pytest.mark.parametrize("what", [f"raw/{BIG}", "shard-0007.tar", "shard-0007.tar.d/00005.jpg"])
def test_no_request_is_left_open_by_a_reader_that_stops_half_way(
    what: str, end: str, server: RunningServer, shards: Dataset, objects: Dataset,
    mountpoint: Path, tmp_path: Path,
):  # fmt: skip
    """AIStore keeps an object locked for as long as a GET of it is not read to its end."""
    key = what.partition(".d/")[0]
    options = ("--cache-dir", str(tmp_path / "cache"), "--cache-size", "8MiB")
    with (
        mounted(
            "ais://b",
            mountpoint,
            endpoint=server.endpoint,
            options=options,
            expected_log=["read failed"],  # the kernel reads ahead of who waits
        ) as mount,  # fmt: skip
        half_way(mount, what) as reader,
    ):
        if end == "killed":
            reader.send_signal(signal.SIGKILL)
            reader.wait(20)
        assert eventually(lambda: lock_state(server, key) == FREE), "a GET is still open"
        content = (server.root / "b" / key).read_bytes()
        put(server.endpoint, "b", key, content)  # waits for all who read


@contextmanager
def half_way(mount: Mount, what: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a reader and wait until it has read a third of a file."""
    path = mount.path / what
    third = os.stat(path).st_size // 3
    with subprocess.Popen(
        [sys.executable, "-c", HALF_WAY, path, str(third)],
        stdout=subprocess.PIPE, env=environment(),
    ) as process:  # fmt: skip
        try:
            assert process.stdout.readline() == b"there\n"
            yield process
        finally:
            process.kill()


def test_the_server_tells_of_a_request_that_is_left_open(server: RunningServer, objects: Dataset):
    """So that the test above would notice one."""
    url = object_url(server.endpoint, "b", f"raw/{BIG}")
    with requests.get(url, stream=True, timeout=LIMIT):
        assert lock_state(server, f"raw/{BIG}") == READ
    assert eventually(lambda: lock_state(server, f"raw/{BIG}") == FREE)
