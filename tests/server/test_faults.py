"""The fault injection that the tests of the client and the mount build on."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.support.servers import RunningServer, running_server

DATA = bytes(range(256)) * 1000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    root = tmp_path / "served"
    (root / "b").mkdir(parents=True)
    (root / "b" / "x.tar").write_bytes(DATA)
    with running_server(root, faulty=True) as running:
        yield running
        assert "Traceback" not in running.log()


def get(server: RunningServer) -> bytes:
    with requests.get(f"{server.endpoint}/v1/objects/b/x.tar", timeout=10) as reply:
        reply.raise_for_status()
        return reply.content


def rule(action: str, **more) -> dict:
    return {"match": {"path_contains": "x.tar", "marked": True}, "action": action, **more}


def test_status_strikes_as_often_as_told(server: RunningServer) -> None:
    server.faults([rule("status", status=503, times=2)])
    for _ in range(2):
        with pytest.raises(requests.HTTPError, match="503"):
            get(server)
    assert get(server) == DATA


def test_reset(server: RunningServer) -> None:
    server.faults([rule("reset")])
    with pytest.raises(requests.ConnectionError):
        get(server)
    assert get(server) == DATA


def test_truncate(server: RunningServer) -> None:
    server.faults([rule("truncate", times=-1)])
    for _ in range(3):
        with pytest.raises((requests.ConnectionError, requests.exceptions.ChunkedEncodingError)):
            get(server)
    server.faults([])
    assert get(server) == DATA


@pytest.mark.parametrize("more", [{}, {"fraction": 0.5}])
def test_stall(server: RunningServer, more: dict) -> None:
    server.faults([rule("stall", seconds=0.5, **more)])
    started = time.monotonic()
    assert get(server) == DATA
    assert time.monotonic() - started >= 0.5


def test_drip(server: RunningServer) -> None:
    server.faults([rule("drip", piece=100_000, seconds=0.1)])
    started = time.monotonic()
    assert get(server) == DATA
    assert time.monotonic() - started >= 0.2


def test_rules_match_only_what_they_name(server: RunningServer) -> None:
    server.faults([{"match": {"method": "PUT"}, "action": "reset", "times": -1}])
    assert get(server) == DATA
