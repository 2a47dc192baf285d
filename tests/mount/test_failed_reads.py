"""A read that failed once: the kernel asks for each of its pages again."""

import os
from pathlib import Path

import pytest

from tests.support.mounts import mounted
from tests.support.servers import running_server

pytestmark = pytest.mark.mount
BOTH_WAYS = True

MIB = 1 << 20


@pytest.mark.parametrize("cache", [True, False])
def test_a_failed_read_is_not_repeated_page_by_page(tmp_path: Path, fastpath: bool, cache: bool):
    place, files = tmp_path / "mnt", tmp_path / "store" / "b"
    place.mkdir()
    files.mkdir(parents=True)
    data = os.urandom(MIB)
    (files / "f").write_bytes(data)
    options = ["--cache-dir", str(tmp_path / "cache")] if cache else ["--cache-size", "0"]
    failing = {"match": {"method": "GET", "range": True, "marked": True}, "action": "status"}
    with (
        running_server(tmp_path / "store", faulty=True) as server,
        mounted(
            "ais://b",
            place,
            endpoint=server.endpoint,
            options=options,
            fastpath=fastpath,
            expected_log=["read failed"],
        ),
    ):
        server.faults([{**failing, "status": 400, "times": 1}])
        assert (place / "f").read_bytes() == data
        gets = server.requests()["get"]
        assert gets <= 4
