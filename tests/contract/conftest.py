"""The stores that the contract suites run against, as fixtures."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.subjects import CLUSTER, ClusterSubject, LocalSubject, MemorySubject, Subject
from tests.support.servers import running_server


@dataclass
class Served:
    endpoint: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with running_server(tmp_path_factory.mktemp("contract")) as server:
        yield Served(server.endpoint)


real_cluster = pytest.param(
    "real cluster",
    marks=[
        pytest.mark.real_cluster,
        pytest.mark.skipif(not CLUSTER, reason="AIS_ENDPOINT is not set"),
    ],
)


@pytest.fixture(params=["memory", "retrying", "local", "served", real_cluster])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    made: Subject
    if request.param in ("memory", "retrying"):
        made = MemorySubject(retrying=request.param == "retrying")
    elif request.param == "local":
        root = tmp_path / "bucket"
        root.mkdir()
        made = LocalSubject(root)
    else:
        endpoint = CLUSTER
        if request.param == "served":
            endpoint = request.getfixturevalue("served").endpoint
        made = ClusterSubject(endpoint)
        made.create()
    yield made
    await made.store.aclose()
    if isinstance(made, ClusterSubject):
        made.destroy()
