"""Places for runs of the demo."""

import tempfile
from pathlib import Path

import pytest

from tests.demo.running import Place


@pytest.fixture
def place():
    # Not below tmp_path: torch's workers make sockets here, whose paths must stay below 108 bytes.
    with tempfile.TemporaryDirectory(prefix="demo-") as directory:
        yield Place(Path(directory))
