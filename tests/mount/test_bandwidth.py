"""A mount keeps to its limits on downloads and uploads; only that it is not faster is asserted."""

import os
import time
from pathlib import Path

import pytest

from tests.mount.cache_data import Dataset
from tests.support.mounts import check_refused, mounted
from tests.support.servers import RunningServer

pytestmark = pytest.mark.mount

MIB = 1 << 20


@pytest.fixture(scope="module")
def shards(store: Path) -> Dataset:
    (store / "b").mkdir(parents=True)
    (store / "b" / "big").write_bytes(os.urandom(4 * MIB))
    return Dataset()


def test_downloads_and_uploads_take_their_time(server: RunningServer, mountpoint: Path):
    options = ["--writable", "--bandwidth-limit", "2MiB", "--upload-limit", "2MiB"]
    stored = server.root / "b"
    with mounted("ais://b", mountpoint, endpoint=server.endpoint, options=options) as mount:
        began = time.monotonic()
        assert (mount.path / "big").read_bytes() == (stored / "big").read_bytes()
        # The last part may come as soon as those before it are paid for.
        assert time.monotonic() - began >= 0.4
        content = os.urandom(3 * MIB)
        began = time.monotonic()
        (mount.path / "new").write_bytes(content)
        assert time.monotonic() - began >= 1
        assert (stored / "new").read_bytes() == content


def test_a_limit_below_what_requests_need_is_refused(server: RunningServer, mountpoint: Path):
    check_refused(
        ["ais://b", "--upload-limit", "1000"], mountpoint, endpoint=server.endpoint, code=2,
        said="--upload-limit: at least 1MiB, or 0 for no limit",
    )  # fmt: skip
