"""A listing that fails is an error to every program: it never looks like an empty directory."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.mount.content import LIMIT, fill, object_url, put
from tests.support.mounts import Mount, mounted, run, succeed
from tests.support.servers import RunningServer, running_server
from tests.support.tars import END, entry

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120)]
BOTH_WAYS = True

FILES = {"a.txt": b"a", "dir/b.txt": b"b", "dir/c.txt": b"c"}
GONE = {"tcode": "ErrBckNotFound", "message": 'bucket "ais://b" does not exist', "status": 404}
PARTIAL_TRANSFER = 23
"""rsync's exit code when something could not be read; it deletes nothing then."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("listings") / "store"
    fill(root / "b", FILES)
    fill(root / "cut", {"a.txt": b"a"})
    with running_server(root, faulty=True) as server:
        yield server


@pytest.fixture
def mount(server: RunningServer, fastpath: bool, tmp_path: Path) -> Iterator[Mount]:
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


def break_shard(endpoint: str, bucket: str, key: str) -> None:
    """Have the cluster append to a padded shard, and notice that its record of it is wrong now."""
    put(endpoint, bucket, key, entry(b"old", b"") + END + bytes(8192))
    url = object_url(endpoint, bucket, key)
    appended = requests.put(
        url, data=b"new", params={"archpath": "new"}, headers={"Ais-Pine": "2"}, timeout=LIMIT
    )
    appended.raise_for_status()
    read = [requests.get(url, timeout=LIMIT).status_code for _ in range(2)]
    assert read == [200, 500]


def test_a_listing_that_ends_at_a_corrupt_object_is_an_error(server: RunningServer, tmp_path: Path):
    """The cluster leaves out all names behind the object and says nothing; the mount knows better."""
    names = ["a.txt", "shard.tar", "z.txt"]
    put(server.endpoint, "cut", "shard.tar", entry(b"old", b"") + END)
    put(server.endpoint, "cut", "z.txt", b"z")
    place = tmp_path / "mnt"
    place.mkdir()
    with mounted(
        "ais://cut", place, endpoint=server.endpoint, options=["--list-ttl", "0"],
        expected_log=["listing is cut short", "ErrLmetaCorrupted"],
    ) as mount:  # fmt: skip
        assert succeed("ls", place).decode().split() == names
        break_shard(server.endpoint, "cut", "shard.tar")
        done = run("ls", place)
        assert done.returncode != 0
        assert b"Input/output error" in done.stderr
        assert "put an object over it" in mount.log()
        assert (place / "z.txt").read_bytes() == b"z"
        put(server.endpoint, "cut", "shard.tar", b"over it")
        assert succeed("ls", place).decode().split() == names
