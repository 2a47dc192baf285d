"""Places for runs of the demo."""

import tempfile
from pathlib import Path

import pytest

from tests.demo.running import Place


@pytest.fixture(scope="module")
def shared_place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("demo"))


@pytest.fixture
def place():
    # Not below tmp_path: torch's workers make sockets here, whose paths must stay below 108 bytes.
    with tempfile.TemporaryDirectory(prefix="demo-") as directory:
        yield Place(Path(directory))
