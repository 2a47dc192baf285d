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

PAGES = 10
PAGE = 10_000
SLOW = {"action": "stall", "seconds": 0.5, "times": -1, "match": {"path_contains": "/v1/buckets/b"}}


@pytest.fixture(scope="module")
def many(store: Path) -> Path:
    """A store whose bucket has one directory of many pages."""
    folder = fill(store / "b" / "many", {})
    for number in range(PAGES * PAGE):
        (folder / f"{number:07}").touch()
    return store


@pytest.mark.parametrize("options", [[], ["--writable"]], ids=["read-only", "writable"])
def test_it_ends_with_its_last_reader(many: Path, mountpoint: Path, options: list[str]):
    with (
        running_server(many, faulty=True) as server,
        mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options),
    ):

        def pages() -> int:
            return server.requests().get("list_page", 0)

        def listing(to: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
            return subprocess.Popen(["ls", "-U", mountpoint / "many"], stdout=to)

        assert (mountpoint / "many").is_dir()
        server.faults([SLOW])
        before = pages()
        with listing() as ls:
            assert eventually(lambda: pages() > before + 2)
            ls.send_signal(signal.SIGINT)
            assert ls.wait(20) == -signal.SIGINT

        def rests() -> bool:
            seen = pages()
            time.sleep(2.5)  # in which there would be more
            return pages() == seen

        assert eventually(rests)
        assert pages() < before + PAGES, "it asks no further than a little ahead of its reader"
        before = pages()
        with listing() as ls, listing(subprocess.PIPE) as other:
            assert eventually(lambda: pages() > before)
            ls.send_signal(signal.SIGINT)
            listed, _ = other.communicate(timeout=60)
            assert len(listed.splitlines()) == PAGES * PAGE
        assert ls.returncode == -signal.SIGINT
        assert pages() <= before + PAGES + 1, "it was begun anew"
        server.faults([])
        assert len(run("ls", "-U", mountpoint / "many").stdout.splitlines()) == PAGES * PAGE
