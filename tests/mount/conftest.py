"""Fixtures of the tests that mount a real file system."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount import writable
from tests.mount.cache_data import Dataset
from tests.mount.cache_tools import big_directory
from tests.support.mounts import mounting
from tests.support.servers import RunningServer, running_server


@pytest.fixture(autouse=True, scope="session")
def _data_moves(request: pytest.FixtureRequest) -> None:
    writable.MOVES_DATA = request.config.getoption("moving_data")


@pytest.fixture(autouse=True, scope="session")
def _fuse_is_there():
    assert os.path.exists("/dev/fuse"), "these tests need /dev/fuse; a machine without it fails"


def pytest_generate_tests(metafunc: pytest.Metafunc):
    """Let modules that say `BOTH_WAYS` mount without the fast path, too: a user must see no difference."""
    if any(hasattr(metafunc.module, name) for name in ("mounted", "writable", "faulty_store")):
        says_both = getattr(metafunc.module, "BOTH_WAYS", False)
        both = says_both or metafunc.config.getoption("both_ways")
        if metafunc.module.__name__.endswith("test_writing_fastpath"):
            both = False  # it asserts which of the two answered
        modes = ["fastpath", "no-fastpath"] if both else ["fastpath"]
        metafunc.parametrize("fastpath", modes, indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def fastpath(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether mounts have the fast path. Fixtures that keep a mount for a module have to ask for it."""
    with_fastpath = getattr(request, "param", "fastpath") == "fastpath"
    with mounting(fastpath=with_fastpath):
        yield with_fastpath


@pytest.fixture(scope="module")
def store() -> Iterator[Path]:
    """The directory of a module's buckets, not made yet."""
    with big_directory() as directory:
        yield directory / "store"


@pytest.fixture(scope="module")
def server(store: Path, shards: Dataset) -> Iterator[RunningServer]:
    """A server of it; the module says what `shards` are there."""
    with running_server(store) as server:
        yield server


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory that is removed at once: caches are big, and pytest keeps its own for three runs."""
    with big_directory() as directory:
        yield directory


@pytest.fixture
def mountpoint(tmp_path: Path) -> Path:
    """An empty directory."""
    path = tmp_path.resolve() / "mnt"
    path.mkdir()
    return path


@pytest.fixture(scope="module")
def shared_mountpoint(fastpath: bool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty directory for a mount that all tests of a module read."""
    return tmp_path_factory.mktemp("mnt").resolve()


@pytest.fixture
def open_mountpoint() -> Iterator[Path]:
    """An empty directory that other users can reach; pytest's own are closed to them."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        path = Path(folder).resolve() / "mnt"
        path.mkdir()
        yield path
