"""`mount.aisfs`, as mount(8) calls it for `mount -t aisfs` and for lines of fstab."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aisfs.commands.mount import sort_options
from aisfs.errors import ConfigError
from tests.support.mounts import run, succeed
from tests.support.servers import RunningServer, running_server

pytestmark = pytest.mark.mount


@pytest.fixture
def helper(tmp_path: Path) -> Path:
    """The link that mount(8) calls, to the program of this environment."""
    link = tmp_path / "mount.aisfs"
    link.symlink_to(Path(sys.executable).parent / "aisfs")
    return link


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    """A server that asks for a token."""
    (tmp_path / "store" / "pets").mkdir(parents=True)
    with running_server(tmp_path / "store", token="s3cret") as server:
        yield server


def test_a_line_of_fstab(server: RunningServer, mountpoint: Path, helper: Path, tmp_path: Path):
    token = tmp_path / "token.json"
    token.write_text('{"token": "s3cret"}')
    words = "ro,_netdev,noauto,user=someone,nofail,x-systemd.automount,X-mount.mkdir,relatime"
    options = f"{words},endpoint={server.endpoint},cache_size=0,authn_token_file={token}"
    options += f",log_file={tmp_path / 'log'}"
    checked = run(helper, "aisfs", mountpoint, "-f", "-o", options)
    assert (checked.returncode, checked.stderr) == (0, b"")
    assert not os.path.ismount(mountpoint)
    words = ("-s", "-n", "-v", "-t", "aisfs", "-o", f"{options},blue=1")
    done = run(helper, "aisfs", mountpoint, *words)
    try:
        assert (done.returncode, done.stderr) == (0, b"")
        assert "pets" in os.listdir(mountpoint / "ais")
    finally:
        succeed("umount", mountpoint)


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [("authn_token=s3cret", 1, "write it into a file"), ("io_timeout=1", 32, "127.0.0.1:1")],
)
def test_the_helper_fails_as_mount_does(
    options: str, code: int, reason: str, mountpoint: Path, helper: Path
):
    options = f"{options},cache_size=0,endpoint=http://127.0.0.1:1"
    done = run(helper, "ais://pets", mountpoint, "-o", options)
    assert (done.returncode, done.stdout) == (code, b"")
    assert reason in done.stderr.decode()
    assert b"s3cret" not in done.stderr


def test_unknown_options_are_named_without_their_values():
    with pytest.raises(ConfigError, match=r"^-o blue: unknown mount option$"):
        sort_options(("ro,blue=s3cret",), ())
    with pytest.raises(ConfigError, match="mount it again"):
        sort_options(("remount,ro",), ())
    assert sort_options(("blue=s3cret,nosuid",), (), sloppy=True) == ({"nosuid"}, {})
