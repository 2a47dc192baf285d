"""What a mount makes for itself is for its owner alone, whatever the umask."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.content import fill
from tests.support.archives import make
from tests.support.mounts import eventually, mounted
from tests.support.servers import running_server

pytestmark = pytest.mark.mount


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def test_nobody_else_can_touch_what_a_mount_makes(
    no_umask: None, tmp_path: Path, mountpoint: Path, fastpath: bool
):
    fill(tmp_path / "store" / "b", {"x.tar": make("tar", {"a": b"a"}), "y.tgz": make("tgz", {})})
    own = tmp_path / "own"
    own.mkdir(0o700)
    options = [
        "--writable",
        *("--staging-dir", str(own / "state" / "aisfs" / "staging")),
        *("--cache-dir", str(own / "cache" / "aisfs"), "--cache-size", "64MiB"),
        *("--log-file", str(own / "log")),
    ]
    with (
        running_server(tmp_path / "store") as server,
        mounted(
            "ais://b", mountpoint, endpoint=server.endpoint, options=options, fastpath=fastpath
        ),
    ):
        assert (mountpoint / "x.tar.d" / "a").read_bytes() == b"a"
        assert os.listdir(mountpoint / "y.tgz.d") == []
        assert eventually(lambda: any(own.rglob("*.aisx")))
        with (mountpoint / "new").open("wb", buffering=0) as file:
            file.write(b"new")
            made = {str(path.relative_to(own)): path.stat().st_mode for path in own.rglob("*")}
    assert {Path(name).name for name in made} >= {"lock", "log", "ledger.db", "indexes"}
    assert any(name.endswith(".data") for name in made)
    assert {name: oct(mode) for name, mode in made.items() if mode & 0o077} == {}
