"""No thread of a mount dies unnoticed: the log says so, and the mount ends as on `aisfs umount`."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.content import fill, payload
from tests.support import mounts
from tests.support.mounts import eventually, run
from tests.support.servers import RunningServer, running_server
from tests.support.tars import END, entry

pytestmark = pytest.mark.mount

THROWING = str(Path(__file__).parent / "dying_threads")
WITH_FASTPATH = ("dispatcher", "reply", "notify", "watchdog", "writer")
WITHOUT_FASTPATH = ("writer",)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    shard = b"".join(entry(b"%03d" % row, payload(2000)) for row in range(100)) + END
    fill(tmp_path / "store" / "b", {f"{n}/{n}.tar": shard for n in range(20)})
    with running_server(tmp_path / "store") as server:
        yield server


@pytest.mark.parametrize(
    ("with_fastpath", "name"),
    [(True, name) for name in WITH_FASTPATH] + [(False, name) for name in WITHOUT_FASTPATH],
    ids=str,
)
def test_a_thread_that_dies_ends_the_mount(
    server: RunningServer, mountpoint: Path, tmp_path: Path, with_fastpath: bool, name: str
):
    order = tmp_path / "order"
    with mounts.mounted(
        "ais://b",
        mountpoint,
        endpoint=server.endpoint,
        options=("--cache-dir", str(tmp_path / "cache")),
        fastpath=with_fastpath,
        foreground=True,
        env={"PYTHONPATH": THROWING, "THROW_INTO": str(order)},
        expected_log=[rf"CRITICAL .*aisfs {name} died", "Traceback"],
    ) as mount:
        (tmp_path / "new").write_text(f"aisfs {name}")
        (tmp_path / "new").rename(order)
        assert eventually(lambda: not order.exists())
        for number in range(20):
            if mount.is_mounted():  # a new name, cold bytes, and some that are worth a push
                folder = mount.path / f"{number}/{number}.tar.d"
                run("sh", "-c", f"ls -l {folder}; cat {folder}/*")
        assert mount.wait_until_gone()
        assert mount.process is not None
        assert mount.process.wait() == 0
        assert mount.log().count("died") == 1
        assert "unmounted" in mount.log()
    assert os.listdir(mountpoint) == []
