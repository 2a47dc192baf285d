"""A session of HTTP."""

from collections.abc import Iterator

import pytest
import requests


@pytest.fixture
def http() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session
