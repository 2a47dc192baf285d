"""A remount of a large directory uses the listing that the mount before it has made."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from aisfs.server.api.list_objects import PAGE
from tests.support.mounts import aisfs, mounted
from tests.support.servers import RunningServer, running_server

COUNT = PAGE + 50


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    large = tmp_path / "store" / "b" / "large"
    large.mkdir(parents=True)
    for number in range(COUNT):
        (large / f"{number:06}").touch()
    (tmp_path / "store" / "b" / "small").mkdir()
    (tmp_path / "store" / "b" / "small" / "one").write_bytes(b"1")
    with running_server(tmp_path / "store") as server:
        yield server


def test_listing_of_a_large_directory_survives_a_remount(
    server: RunningServer, mountpoint: Path, tmp_path: Path
):
    cache = ["--cache-dir", str(tmp_path / "c"), "--cache-size", "64MiB"]

    def pages(options: list[str], source: str = "ais://b") -> int:
        """Mount, list both directories, and count the pages that were asked for."""
        with mounted(source, mountpoint, endpoint=server.endpoint, options=[*cache, *options]):
            before = server.requests().get("list_page", 0)
            assert len(os.listdir(mountpoint / "large")) == COUNT
            assert os.stat(mountpoint / "large" / f"{COUNT - 1:06}").st_size == 0
            assert os.listdir(mountpoint / "small") == ["one"]
            return server.requests().get("list_page", 0) - before

    day = ["--list-ttl", "86400"]
    first = pages(day)
    assert first >= 3
    assert pages(day) == first - 2, "only what fits one page is asked for again"
    assert pages(["--list-ttl", "0"]) >= first, "younger than that none can be"
    assert pages([*day, "--exclude", "nothing"]) == first, "other names could be shown there"
    assert pages([*day, "--writable", "--staging-dir", str(tmp_path / "s")]) == first
    assert pages(day) == first, "a writable mount may have changed what was listed"
    assert pages(day) == first - 2
    assert aisfs("cache", "clear", "--cache-dir", tmp_path / "c").returncode == 0
    assert pages(day) == first
    for directory in [tmp_path / "c", *(tmp_path / "c").rglob("*")]:
        assert directory.stat().st_mode & 0o077 == 0 or directory == tmp_path / "c"
