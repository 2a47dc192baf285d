"""A listing of many pages whose reader was ended: the cluster is asked for no more of them."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.mount.content import fill
from tests.support.mounts import eventually, mounted, run
from tests.support.servers import running_server

pytestmark = pytest.mark.mount

PAGES = 12
PAGE = 10_000
SLOW = {"action": "stall", "seconds": 0.5, "times": -1, "match": {"path_contains": "/v1/buckets/b"}}


@pytest.mark.parametrize("options", [[], ["--writable"]], ids=["read-only", "writable"])
def test_it_ends_with_its_reader(tmp_path: Path, mountpoint: Path, lane: bool, options: list[str]):
    if not lane:
        pytest.skip("pyfuse3 does not tell who was interrupted; limits end the listing there")
    folder = fill(tmp_path / "store" / "b" / "many", {})
    for number in range(PAGES * PAGE):
        (folder / f"{number:07}").touch()
    with (
        running_server(tmp_path / "store", faulty=True) as server,
        mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options),
    ):
        server.faults([SLOW])

        def pages() -> int:
            return server.requests().get("list_page", 0)

        before = pages()
        with subprocess.Popen(["ls", "-U", mountpoint / "many"], stdout=subprocess.DEVNULL) as ls:
            assert eventually(lambda: pages() > before + 2)
            ls.send_signal(signal.SIGINT)
            assert ls.wait(20) == -signal.SIGINT
        time.sleep(1.5)  # for the page that was under way
        left = pages()
        assert left < before + PAGES
        time.sleep(2.5)  # in which there would be four more
        assert pages() == left
        server.faults([])
        assert len(run("ls", "-U", mountpoint / "many").stdout.splitlines()) == PAGES * PAGE
