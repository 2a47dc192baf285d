"""Gateways that leave headers out: what they do not say is not taken for zero, nor for the version."""

import os
from pathlib import Path

import pytest

from tests.mount.writable import writable
from tests.support.mounts import run
from tests.support.servers import RunningServer

pytestmark = pytest.mark.mount

DATA = os.urandom(20_000)


@pytest.mark.parametrize("also", [[], ["Ais-Checksum-Value"]])
def test_a_file_whose_length_is_left_out_is_not_empty(tmp_path: Path, also: list[str]):
    (tmp_path / "store" / "b").mkdir(parents=True)
    (tmp_path / "store" / "b" / "f").write_bytes(DATA)
    with writable(tmp_path, faulty=True) as place:
        assert isinstance(place.server, RunningServer)
        rule = {"action": "strip", "names": ["Content-Length", *also], "times": -1}
        place.server.faults([{**rule, "match": {"method": "HEAD"}}])
        assert run("cp", place.path / "f", tmp_path / "copy").returncode == 0
        assert (tmp_path / "copy").read_bytes() == DATA
        with open(place.path / "f", "ab") as file:
            file.write(b"more")
        assert place.stored("f") == DATA + b"more"
        (place.path / "empty").touch()
        with open(place.path / "empty", "ab") as file:
            file.write(b"more")
        assert place.stored("empty") == b"more"


def test_bytes_without_a_mark_are_no_data(tmp_path: Path):
    (tmp_path / "store" / "b").mkdir(parents=True)
    (tmp_path / "store" / "b" / "f").write_bytes(DATA)
    options, expected = ["--io-timeout", "2"], ["does not say which version"]
    with writable(tmp_path, faulty=True, options=options, expected_log=expected) as place:
        assert isinstance(place.server, RunningServer)
        (place.path / "f").stat()
        names = ["Ais-Version", "Ais-Checksum-Value"]
        match = {"method": "GET", "path_contains": "/objects/b/f", "marked": True}
        place.server.faults([{"action": "strip", "names": names, "times": -1, "match": match}])
        with pytest.raises(TimeoutError):
            (place.path / "f").read_bytes()
        place.server.faults([])
        assert (place.path / "f").read_bytes() == DATA
