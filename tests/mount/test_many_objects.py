"""Listing costs pages, not files: counted at the server."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.mount.content import fill
from tests.support.mounts import mounted, python, succeed
from tests.support.servers import RunningServer, running_server

pytestmark = [pytest.mark.mount, pytest.mark.timeout(400)]

PAGE = 10_000


def total(counters: Mapping[str, int]) -> int:
    """Every request, whatever its kind; a redirect and the request it leads to are two."""
    return sum(
        value for name, value in counters.items() if not name.endswith("bytes") and name != "total"
    )


def spent(server: RunningServer, before: Mapping[str, int]) -> int:
    return total(server.requests()) - total(before)


def test_ls_of_many_objects(tmp_path: Path, mountpoint: Path):
    count = 2 * PAGE  # the last page is full, so its token leads to an empty one
    folder = fill(tmp_path / "store" / "many" / "folder", {})
    for number in range(count):
        (folder / f"{number:06}.jpg").touch()
    with (
        running_server(tmp_path / "store") as server,
        mounted("ais://many", mountpoint, endpoint=server.endpoint, deadline=350) as mount,
    ):
        before = server.requests().get("list_page", 0)
        _total, *listed = succeed("ls", "-l", mount.path / "folder", timeout=300).splitlines()
        assert {line.split()[-1] for line in listed} == {b"%06d.jpg" % n for n in range(count)}
        assert len(listed) == count
        # Pages overlap by some names, lest AIStore lose some between two: at most 100 of 10,000.
        assert server.requests()["list_page"] - before <= 2 * -(-count // (PAGE - 100))


def test_stat_of_listed_files_asks_nothing(tmp_path: Path, mountpoint: Path):
    fill(tmp_path / "store" / "b", {f"d/{number:04}": b"x" for number in range(2000)})
    with (
        running_server(tmp_path / "store") as server,
        mounted("ais://b", mountpoint, endpoint=server.endpoint) as mount,
    ):
        names = os.listdir(mount.path / "d")
        assert len(names) == 2000
        before = server.requests()
        script = "import os, sys\nfor n in os.listdir(sys.argv[1]): os.stat(f'{sys.argv[1]}/{n}')"
        python(script, mount.path / "d")
        succeed("find", mount.path / "d", "-size", "+0")
        assert spent(server, before) == 0, server.requests()


def test_find_costs_one_listing_for_each_directory(tmp_path: Path, mountpoint: Path):
    folders = 20
    keys = {f"{folder}/{number}": b"x" for folder in range(folders) for number in range(30)}
    fill(tmp_path / "store" / "b", keys)
    with (
        running_server(tmp_path / "store") as server,
        mounted("ais://b", mountpoint, endpoint=server.endpoint) as mount,
    ):
        before = server.requests()
        succeed("find", mount.path, "-type", "f", "-printf", "%s %T@ %p\n")
        assert spent(server, before) <= 2 * (folders + 1), server.requests()
