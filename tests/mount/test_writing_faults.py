"""A server that fails while a file is uploaded: what was acknowledged is stored, the rest is kept."""

import errno
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.mount.writable import Writable, writable
from tests.support.mounts import aisfs, eventually
from tests.support.servers import running_server

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

OLD = b"old content"
NEW = os.urandom(700_000)

FAULTS: dict[str, dict[str, Any]] = {
    "500 from the proxy": {"action": "status", "status": 500},
    "429 from the proxy": {"action": "status", "status": 429},
    "503 from a target": {"action": "status", "status": 503, "match": {"marked": True}},
    "507 from a target": {"action": "status", "status": 507, "match": {"marked": True}},
    "a reset by the proxy": {"action": "reset"},
    "a reset by a target": {"action": "reset", "match": {"marked": True}},
    "a reply cut off": {"action": "truncate", "fraction": 0.0, "match": {"marked": True}},
}
PASSING = sorted(set(FAULTS) - {"507 from a target"})
STAYING = sorted(set(FAULTS) - {"a reply cut off"})
"""A server whose replies are lost has the object; the client finds that out."""


@pytest.fixture(scope="module")
def place(fastpath: bool, tmp_path_factory: pytest.TempPathFactory):
    with writable(
        tmp_path_factory.mktemp("faults"),
        faulty=True,
        options=["--io-timeout", "3"],
        expected_log=["failed", "was not uploaded", "was not renamed"],
        deadline=900,
    ) as place:
        yield place


@pytest.fixture
def strike(place: Writable):
    def set_rule(name: str, times: int) -> None:
        rule = FAULTS[name]
        match = {"method": "PUT", "path_contains": "/v1/objects/b/", **rule.get("match", {})}
        place.server.faults([{**rule, "match": match, "times": times}])

    yield set_rule
    place.server.faults([])
    for record in place.parked():
        record.with_suffix(".data").unlink()
        record.unlink()


@pytest.mark.parametrize("fault", PASSING)
def test_what_passes_is_retried(fault: str, place: Writable, strike):
    path = place.path / f"passing {fault}"
    path.write_bytes(OLD)
    strike(fault, 2)
    path.write_bytes(NEW)
    assert place.stored(path.name) == path.read_bytes() == NEW
    assert place.parked() == []


@pytest.mark.parametrize("old", [OLD, None], ids=["overwritten", "new"])
@pytest.mark.parametrize("fault", STAYING)
def test_what_stays_is_the_error_of_close(fault: str, old: bytes | None, place: Writable, strike):
    path = place.path / f"staying {fault} {old is None}"
    if old is not None:
        path.write_bytes(old)
    strike(fault, -1)
    with pytest.raises(OSError, match=r".") as caught, open(path, "wb", buffering=0) as file:
        file.write(NEW)
    assert caught.value.errno in (errno.EIO, errno.ETIMEDOUT, errno.ENOSPC)
    assert (caught.value.errno == errno.ENOSPC) == fault.startswith("507")
    place.server.faults([])
    assert place.stored(path.name) == old
    assert eventually(lambda: len(place.parked()) == 1)
    listed = aisfs("recover", "--staging-dir", place.staging).stdout.decode()
    assert path.name in listed
    if old is None:
        assert not path.exists()
    else:
        assert path.read_bytes() == old
    done = aisfs("recover", "--staging-dir", place.staging, "--upload", "--all")
    assert done.returncode == 0, done.stderr
    assert place.stored(path.name) == NEW
    assert place.parked() == []


def test_a_failed_fsync_can_be_repeated(place: Writable, strike):
    path = place.path / "repeated"
    with open(path, "wb", buffering=0) as file:
        file.write(NEW)
        strike("500 from the proxy", -1)
        with pytest.raises(OSError, match=r"."):
            os.fsync(file.fileno())
        assert place.stored("repeated") is None
        place.server.faults([])
        os.fsync(file.fileno())
        assert place.stored("repeated") == NEW
    assert place.parked() == []


def test_a_failed_rename_leaves_the_source(place: Writable):
    (place.path / "source").write_bytes(NEW)
    (place.path / "victim").write_bytes(OLD)
    rule = {"match": {"path_contains": "/v1/objects/b/"}, "action": "status", "status": 500}
    for method in ("POST", "PUT", "HEAD"):
        place.server.faults([{**rule, "match": {**rule["match"], "method": method}, "times": -1}])
        try:
            os.rename(place.path / "source", place.path / "victim")
        except OSError:
            place.server.faults([])
            assert place.stored("source") == NEW
            assert place.stored("victim") in (OLD, NEW)
        else:
            place.server.faults([])
            assert place.stored("victim") == (place.path / "victim").read_bytes() == NEW
            (place.path / "source").write_bytes(NEW)
            (place.path / "victim").write_bytes(OLD)


def test_a_directory_rename_that_fails_half_way(place: Writable):
    (place.path / "dir").mkdir()
    names = [f"f{n}" for n in range(5)]
    for name in names:
        (place.path / "dir" / name).write_bytes(name.encode())
    rule = {"path_contains": "/v1/objects/b/dir/f3"}
    place.server.faults([{"match": rule, "action": "status", "status": 403, "times": -1}])
    with pytest.raises(OSError, match=r"."):
        os.rename(place.path / "dir", place.path / "moved")
    place.server.faults([])
    for name in names:
        assert place.stored(f"dir/{name}") == name.encode()
    assert sorted(os.listdir(place.path / "dir")) == names
    assert not (place.path / "moved").exists()
    assert "of 5 objects" in place.mount.log()
    os.rename(place.path / "dir", place.path / "moved")
    assert sorted(os.listdir(place.path / "moved")) == names


def test_the_server_dies_and_comes_back(tmp_path: Path):
    base = tmp_path.resolve()
    (base / "store" / "b").mkdir(parents=True)
    (base / "store" / "b" / "f").write_bytes(OLD)
    options = ["--io-timeout", "2"]
    with running_server(base / "store") as server:
        port = int(server.endpoint.rpartition(":")[2])
        with writable(base, server=server, options=options, expected_log=["."]) as place:
            file = open(place.path / "f", "wb", buffering=0)  # noqa: SIM115
            file.write(NEW)
            server.kill()
            with pytest.raises(OSError, match=r"."):
                file.close()
            assert place.stored("f") == OLD
            assert eventually(lambda: len(place.parked()) == 1)
            with running_server(base / "store", port=port):
                assert (place.path / "f").read_bytes() == OLD
                done = aisfs("recover", "--staging-dir", place.staging, "--upload", "--all")
                assert done.returncode == 0, done.stderr
                assert place.stored("f") == NEW


def test_the_daemon_dies_while_it_uploads(tmp_path: Path):
    """The server has all of it, and nobody was told."""
    with writable(tmp_path, faulty=True) as place:
        (place.path / "f").write_bytes(OLD)
        slow = {"action": "stall", "seconds": 20, "fraction": 0.0, "times": -1}
        place.server.faults([{**slow, "match": {"method": "PUT", "marked": True}}])
        file = open(place.path / "f", "wb", buffering=0)  # noqa: SIM115
        file.write(NEW)
        threading.Timer(1.5, os.kill, (place.mount.pid, signal.SIGKILL)).start()
        with pytest.raises(OSError, match=r"."):
            file.close()
        place.server.faults([])
        subprocess.run(["fusermount3", "-uz", place.path], check=True, timeout=30)
        assert place.stored("f") in (OLD, NEW), "whole, whichever it is"
        listed = aisfs("recover", "--staging-dir", place.staging).stdout
        assert b"ais://b/f\n" in listed
        upload = aisfs("recover", "--staging-dir", place.staging, "--upload", "--all")
        assert upload.returncode == 0, upload.stderr
        assert place.stored("f") == NEW
        assert place.parked() == []
