"""Fixtures of the tests that run other people's programs on a mount."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.cache_tools import big_directory


@pytest.fixture(autouse=True, scope="session")
def _fuse_is_there():
    assert os.path.exists("/dev/fuse"), "these tests need /dev/fuse; a machine without it fails"


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """A directory for all of a module, removed at once."""
    with big_directory() as directory:
        (directory / "mnt").mkdir()
        (directory / "store").mkdir()
        yield directory
