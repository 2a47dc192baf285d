"""A listing that fails is an error to every program: it never looks like an empty directory."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.content import fill
from tests.support.mounts import Mount, mounted, run, succeed
from tests.support.servers import RunningServer, running_server

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120)]

FILES = {"a.txt": b"a", "dir/b.txt": b"b", "dir/c.txt": b"c"}
GONE = {"tcode": "ErrBckNotFound", "message": 'bucket "ais://b" does not exist', "status": 404}
PARTIAL_TRANSFER = 23
"""rsync's exit code when something could not be read; it deletes nothing then."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("listings") / "store"
    fill(root / "b", FILES)
    with running_server(root, faulty=True) as server:
        yield server


@pytest.fixture
def mount(server: RunningServer, lane: bool, tmp_path: Path) -> Iterator[Mount]:
    place = tmp_path / "mnt"
    place.mkdir()
    options = ["--list-ttl", "0", "--io-timeout", "1"]
    log = ["dir failed", "answered in its place", "no such bucket", "given up"]
    with mounted(
        "ais://b", place, endpoint=server.endpoint, options=options, expected_log=log
    ) as mount:
        yield mount
        server.faults([])


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 404},
        {"status": 404, "body": GONE},
        {"status": 503},
        {"status": 500, "body": GONE},
    ],
    ids=["a gateway's 404", "the bucket is gone", "503", "500"],
)
def test_a_copy_is_kept_when_the_listing_fails(
    fault: dict[str, object], mount: Mount, server: RunningServer, tmp_path: Path
):
    copy = tmp_path / "copy"
    succeed("rsync", "-a", f"{mount.path}/", f"{copy}/")
    assert {name: (copy / name).read_bytes() for name in FILES} == FILES
    listing = {"method": "GET", "path_contains": "/v1/buckets/b"}
    server.faults([{"match": listing, "action": "status", "times": -1, **fault}])
    done = run("rsync", "-a", "--delete", f"{mount.path}/", f"{copy}/")
    assert done.returncode == PARTIAL_TRANSFER, done.stderr
    assert {name: (copy / name).read_bytes() for name in FILES} == FILES
    with pytest.raises(OSError) as caught:  # noqa: PT011 - any error but the one of an end
        os.listdir(mount.path)
    assert caught.value.errno not in (0, errno.ENOENT)
