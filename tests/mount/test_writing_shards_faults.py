"""New members of shards on a cluster as treacherous as AIStore, and while things fail.

The server has AIStore's traps: its append in place destroys shards, an object it has destroyed ends
listings, and where reads are validated it is deleted.
"""

import io
import os
import random
import signal
import subprocess
import sys
import tarfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.mount.writable import Writable, writable
from tests.support.mounts import aisfs, eventually
from tests.support.servers import running_server

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

PASSING = {
    "503 before": {"action": "status", "status": 503, "stage": "headers"},
    "500 after the body": {"action": "status", "status": 500, "stage": "body"},
    "a reset in the middle": {"action": "reset", "stage": "mid"},
    "the reply lost": {"action": "reset", "stage": "done"},
}


def padded(names: dict[str, bytes]) -> bytes:
    """Make a shard as GNU tar, Python and webdataset do: filled up to 10 KiB."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, data in names.items():
            header = tarfile.TarInfo(name)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
    assert len(file.getvalue()) % 10240 == 0
    return file.getvalue()


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Writable]:
    """A mount of shards `0.tar` to `9.tar`, each with `x`."""
    base = tmp_path.resolve()
    shards = base / "store" / "b"
    shards.mkdir(parents=True)
    for n in range(10):
        (shards / f"{n}.tar").write_bytes(padded({"x": b"x"}))
    with (
        running_server(base / "store", faulty=True, traps=True) as server,
        writable(
            base,
            server=server,
            options=["--io-timeout", "3"],
            expected_log=["failed", "was not uploaded"],
        ) as place,
    ):
        yield place


def members(place: Writable, key: str) -> dict[str, bytes]:
    """Read a shard as another client does; each member is there once."""
    objects = f"{place.server.endpoint}/v1/objects/b/"
    reply = requests.get(f"{objects}{key}?provider=ais", timeout=30)
    assert reply.status_code == 200, reply.text
    with tarfile.open(fileobj=io.BytesIO(reply.content)) as tar:
        found = [(one.name, tar.extractfile(one).read()) for one in tar if one.isfile()]
    assert max(Counter(name for name, _ in found).values(), default=1) == 1
    return dict(found)


def listed(place: Writable) -> list[str]:
    reply = requests.get(
        f"{place.server.endpoint}/v1/buckets/b?provider=ais",
        json={"action": "list", "name": "", "value": {"props": "name,size,checksum"}},
        headers={"Accept": "application/json"},
        timeout=30,
    )
    return [entry["name"] for entry in reply.json()["entries"]]


def recover(place: Writable) -> None:
    done = aisfs("recover", "--staging-dir", place.staging, "--upload", "--all")
    assert done.returncode == 0, done.stderr
    assert place.unsent() == []


def set_rule(place: Writable, rule: dict[str, Any], times: int) -> None:
    match = {"method": "PUT", "path_contains": "/v1/objects/b/", "marked": True}
    place.server.faults([{**rule, "match": match, "times": times}])


@pytest.mark.parametrize("validating", [False, True])
def test_padded_shards_survive(validating: bool, place: Writable):
    if validating:
        reply = requests.patch(
            f"{place.server.endpoint}/v1/buckets/b?provider=ais",
            json={
                "action": "set-bprops",
                "name": "",
                "value": {"checksum": {"validate_warm_get": True}},
            },
            timeout=30,
        )
        assert reply.status_code == 200, reply.text
    for n in range(10):
        (place.path / f"{n}.tar.d" / "y").write_bytes(b"y" * (n + 1))
    for n in range(10):
        for _ in range(2):  # the first reading is what notices damage
            assert members(place, f"{n}.tar") == {"x": b"x", "y": b"y" * (n + 1)}
    assert listed(place) == [f"{n}.tar" for n in range(10)]
    for n in range(10):
        (place.path / f"{n}.tar.d" / "z").write_bytes(b"z")
        assert members(place, f"{n}.tar") == {"x": b"x", "y": b"y" * (n + 1), "z": b"z"}


@pytest.mark.parametrize("fault", PASSING)
def test_what_passes_is_retried(fault: str, place: Writable):
    set_rule(place, PASSING[fault], 1)
    (place.path / "3.tar.d" / "y").write_bytes(b"y" * 50_000)
    (place.path / "3.tar.d" / "z").write_bytes(b"z")
    assert members(place, "3.tar") == {"x": b"x", "y": b"y" * 50_000, "z": b"z"}
    assert place.unsent() == []


@pytest.mark.parametrize("fault", sorted(set(PASSING) - {"the reply lost"}))
def test_what_stays_is_the_error_of_close(fault: str, place: Writable):
    set_rule(place, PASSING[fault], -1)
    folder = place.path / "3.tar.d"
    with pytest.raises(OSError, match=r"."):
        (folder / "y").write_bytes(b"y" * 50_000)
    place.server.faults([])
    assert members(place, "3.tar") == {"x": b"x"}
    assert eventually(lambda: len(place.unsent()) == 1)
    (folder / "z").write_bytes(b"z")
    recover(place)
    assert members(place, "3.tar") == {"x": b"x", "y": b"y" * 50_000, "z": b"z"}


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_the_daemon_dies_on_the_way(method: str, place: Writable):
    """While it reads the shard, or when the cluster has it and nobody was told: whole, and once."""
    os.mkdir(place.path / "3.tar.d" / "sub")
    key, name = ("4.tar", "y") if method == "GET" else ("3.tar", "sub/y")
    file = open(place.path / f"{key}.d" / name, "wb", buffering=0)  # noqa: SIM115
    file.write(b"y" * 50_000)
    match = {"method": method, "path_contains": f"/v1/objects/b/{key}", "marked": True}
    rule = {"match": match, "action": "stall", "seconds": 20, "fraction": 0.0, "times": -1}
    place.server.faults([rule])
    threading.Timer(1.0, os.kill, (place.mount.pid, signal.SIGKILL)).start()
    with pytest.raises(OSError, match=r"."):
        file.close()
    place.server.faults([])
    subprocess.run(["fusermount3", "-uz", place.path], check=True, timeout=30)
    before, after = {"x": b"x"}, {"x": b"x", name: b"y" * 50_000}
    assert members(place, key) == (before if method == "GET" else after)
    recover(place)
    assert members(place, key) == after


def test_the_daemon_dies_under_many_writers(place: Writable):
    """What was acknowledged is in the shard; the rest is recovered, or was never written whole."""
    script = """if True:
        import sys
        for n in range(1000):
            with open(f"{sys.argv[1]}-{n:03}", "wb", buffering=0) as file:
                file.write(b"%d" % n * 5000)
            print(n, flush=True)
    """
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", script, name],
            cwd=place.path / "3.tar.d",
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for name in "abc"
    ]
    for writer in writers:  # all of them are at it
        assert writer.stdout.readline() == b"0\n"
    threading.Timer(random.uniform(0.1, 1.0), os.kill, (place.mount.pid, signal.SIGKILL)).start()
    acknowledged = {"x": b"x"}
    for name, writer in zip("abc", writers, strict=True):
        said = [0, *map(int, writer.communicate(timeout=120)[0].split())]
        acknowledged |= {f"{name}-{n:03}": b"%d" % n * 5000 for n in said}
    subprocess.run(["fusermount3", "-uz", place.path], check=True, timeout=30)
    found = members(place, "3.tar")
    assert found.items() >= acknowledged.items()
    assert len(found) <= len(acknowledged) + 3, "one of each was under way"
    recover(place)
    found = members(place, "3.tar")
    assert found.items() >= acknowledged.items()
    for name in found.keys() - acknowledged.keys():
        n = int(name.partition("-")[2])
        assert (b"%d" % n * 5000).startswith(found[name])


def test_the_server_dies_and_comes_back(tmp_path: Path):
    base = tmp_path.resolve()
    (base / "store" / "b").mkdir(parents=True)
    old = padded({"x": b"x"})
    (base / "store" / "b" / "s.tar").write_bytes(old)
    with running_server(base / "store", traps=True) as server:
        port = int(server.endpoint.rpartition(":")[2])
        options = ["--io-timeout", "2"]
        with writable(base, server=server, options=options, expected_log=["."]) as place:
            folder = place.path / "s.tar.d"
            file = open(folder / "y", "wb", buffering=0)  # noqa: SIM115
            file.write(b"y")
            server.kill()
            with pytest.raises(OSError, match=r"."):
                file.close()
            assert place.stored("s.tar") == old
            assert eventually(lambda: len(place.unsent()) == 1)
            with running_server(base / "store", port=port, traps=True):
                recover(place)
                (folder / "z").write_bytes(b"z")
                assert members(place, "s.tar") == {"x": b"x", "y": b"y", "z": b"z"}


def test_a_shard_that_is_gone_comes_back_by_force_only(place: Writable):
    file = open(place.path / "3.tar.d" / "y", "wb", buffering=0)  # noqa: SIM115
    file.write(b"y")
    place.delete("3.tar")
    with pytest.raises(OSError, match=r"."):
        file.close()
    assert eventually(lambda: len(place.unsent()) == 1)
    words = ["recover", "--staging-dir", place.staging, "--upload", "--all"]
    assert aisfs(*words).returncode == 1
    assert place.stored("3.tar") is None
    assert aisfs(*words, "--force").returncode == 0
    assert members(place, "3.tar") == {"y": b"y"}


@pytest.mark.parametrize("fault", [None, "the reply lost"])
def test_a_large_shard_goes_in_parts(fault: str | None, tmp_path: Path):
    """AIStore destroys a part that it gets twice, as it would when the reply to it was lost."""
    base = tmp_path.resolve()
    (base / "store" / "b").mkdir(parents=True)
    large = random.Random(7).randbytes(12 << 20)
    (base / "store" / "b" / "s.tar").write_bytes(padded({"x": large}))
    with (
        running_server(base / "store", faulty=True, traps=True) as server,
        writable(base, server=server, options=["--part-size", "5MiB"]) as place,
    ):
        folder = place.path / "s.tar.d"
        (folder / "y").write_bytes(b"y" * 3000)
        if fault is not None:
            set_rule(place, PASSING[fault], 1)
        (folder / "z").write_bytes(b"z")
        assert members(place, "s.tar") == {"x": large, "y": b"y" * 3000, "z": b"z"}
        assert server.requests()["part"] >= (6 if fault is None else 7)
        assert (folder / "x").read_bytes() == large
