"""How many files the daemon may have open, and how many it has."""

import gc
import os
import resource
import signal
import subprocess
from pathlib import Path

import pytest
import trio

from aisfs.model import Bucket
from aisfs.settings import ClusterSettings
from aisfs.stores.ais.client import AISClient
from tests.support.mounts import COMMAND, eventually, is_mountpoint, mounted
from tests.support.servers import running_server

pytestmark = pytest.mark.mount


@pytest.mark.parametrize(("hard", "expected"), [(1024, 1024), (20_000, 20_000)])
def test_a_daemon_takes_as_many_descriptors_as_it_may(tmp_path, hard, expected):
    source, mountpoint = tmp_path / "source", tmp_path / "mnt"
    source.mkdir()
    mountpoint.mkdir()
    words = [*COMMAND, "mount", str(source), str(mountpoint), "--foreground"]
    environment = {**os.environ, "HOME": str(tmp_path), "AISFS_KEEPER": "no"}

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))

    with subprocess.Popen(
        words, env=environment, preexec_fn=limited, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert eventually(lambda: is_mountpoint(mountpoint))
            assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (expected, hard)
        finally:
            process.send_signal(signal.SIGTERM)


def test_many_cached_objects_leave_descriptors_to_connections(tmp_path):
    """With no more than 256 there is no room for all files that would be open otherwise."""
    served, cache = tmp_path / "served", tmp_path / "cache"
    (served / "b").mkdir(parents=True)
    for number in range(120):
        (served / "b" / f"{number}").write_bytes(b"%d" % number * 50_000)
    (tmp_path / "mnt").mkdir()
    with running_server(served) as server:
        options = ("--cache-dir", str(cache), "--cache-size", "1GiB")
        with mounted(
            "ais://b", tmp_path / "mnt", endpoint=server.endpoint, options=options
        ) as mount:
            resource.prlimit(mount.pid, resource.RLIMIT_NOFILE, (256, 256))
            for number in range(120):
                assert (mount.path / f"{number}").read_bytes() == b"%d" % number * 50_000
            assert len(os.listdir(f"/proc/{mount.pid}/fd")) < 200


async def test_an_idle_connection_takes_one_descriptor(tmp_path):
    (tmp_path / "served" / "b").mkdir(parents=True)
    (tmp_path / "served" / "b" / "k").write_bytes(b"x")
    bucket = Bucket("b")
    with running_server(tmp_path / "served") as server:
        client = AISClient(ClusterSettings(endpoint=server.endpoint))
        before = _sockets()
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(client.head, bucket, "k")
        assert 0 < _sockets() - before <= 8
        await client.head(bucket, "k")
        await client.aclose()
        assert _sockets() == before


def _sockets() -> int:
    gc.collect()  # tests before may have left some to it
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found += str(entry.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue
    return found
