"""A server whose S3 API answers as Amazon's does."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.s3.asking import Ask, asking
from tests.support.servers import RunningServer, running_server


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "served"
    (folder / "b").mkdir(parents=True)
    return folder


@pytest.fixture
def server(root: Path) -> Iterator[RunningServer]:
    with running_server(root, traps=False) as running:
        yield running
        assert "Traceback" not in running.log()


@pytest.fixture
def ask(server: RunningServer) -> Iterator[Ask]:
    with asking(server) as function:
        yield function
