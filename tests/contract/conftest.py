"""The stores that the contract suites run against, as fixtures."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from tests.contract.subjects import (
    CLUSTER,
    CloudSubject,
    ClusterSubject,
    FsspecSubject,
    HubSubject,
    LocalSubject,
    MemorySubject,
    NginxSubject,
    PythonSubject,
    Subject,
    WebSubject,
)
from tests.support.clouds import (
    S3,
    Cloud,
    azurite,
    fake_gcs,
    google_names,
    moto,
)
from tests.support.hub import Hub, running_hub, use_hub
from tests.support.servers import running_server
from tests.support.web_servers import WebServer, nginx, python_server


@dataclass
class Served:
    endpoint: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with running_server(tmp_path_factory.mktemp("contract")) as server:
        yield Served(server.endpoint)


@pytest.fixture(scope="module")
def nginx_html(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    with nginx(tmp_path_factory.mktemp("html")) as server:
        yield server


@pytest.fixture(scope="module")
def nginx_json(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    with nginx(tmp_path_factory.mktemp("json"), form="json") as server:
        yield server


@pytest.fixture(scope="module")
def python_httpd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    with python_server(tmp_path_factory.mktemp("httpd")) as server:
        yield server


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running_hub(token="hf_of_the_test") as hub:
        use_hub(hub, monkeypatch)
        yield hub


@pytest.fixture(scope="module")
def s3() -> Iterator[Cloud]:
    with moto() as cloud:
        yield cloud


@pytest.fixture(scope="module")
def gcs() -> Iterator[Cloud]:
    with fake_gcs() as cloud:
        yield cloud


@pytest.fixture(scope="module")
def gcs_names(s3: S3) -> Iterator[Cloud]:
    with google_names(s3) as cloud:
        yield cloud


@pytest.fixture(scope="module")
def azure() -> Iterator[Cloud]:
    with azurite() as cloud:
        yield cloud


WEB: dict[str, type[WebSubject] | type[HubSubject]] = {
    "nginx_html": NginxSubject,
    "nginx_json": NginxSubject,
    "python_httpd": PythonSubject,
    "hub": HubSubject,
}
READ_ONLY = [*WEB, "fsspec"]
"""Stores that can only be read."""
real_cluster = pytest.param(
    "real cluster",
    marks=[
        pytest.mark.real_cluster,
        pytest.mark.skipif(not CLUSTER, reason="AIS_ENDPOINT is not set"),
    ],
)


WRITABLE = ["memory", "retrying", "local", "served", real_cluster]
MOTO = ("s3", "gcs_names")
OF_ONE_NAME = "test_writers_of_one_object_each_write_it_whole"
"""moto now and then answers 500 to a HEAD of an object that others replace at that moment."""
WRITABLE += (CLOUDS := ["s3", "gcs_names", "azure"])
_turns = count()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test with all stores; `make test` lets the clouds, whose emulators are slow, take turns."""
    if "subject" in metafunc.fixturenames:
        only_reads = metafunc.module.__name__.endswith("test_object_store")
        stores = WRITABLE
        if only_reads:  # what gcs_names is for, gcs does not know
            stores = [*(s for s in stores if s != "gcs_names"), *READ_ONLY, "gcs"]
        if metafunc.module.__name__.endswith("test_appender"):
            stores = [store for store in stores if store not in ("gcs_names", "azure")]
        if metafunc.definition.name == OF_ONE_NAME:
            stores = [store for store in stores if store not in MOTO]
        asked = any("::" in argument for argument in metafunc.config.args)
        if not asked and not metafunc.config.getoption("all"):
            clouds = [store for store in stores if store in (*CLOUDS, "gcs")]
            del clouds[next(_turns) % len(clouds)]
            stores = [store for store in stores if store not in clouds]
        metafunc.parametrize("subject", stores, indirect=True)


@pytest.fixture
async def subject(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Subject]:
    made: Subject
    if request.param in ("memory", "retrying"):
        made = MemorySubject(retrying=request.param == "retrying")
    elif request.param == "local":
        root = tmp_path / "bucket"
        root.mkdir()
        made = LocalSubject(root)
    elif request.param in (*CLOUDS, "gcs"):
        cloud = request.getfixturevalue(request.param)
        for name, value in cloud.environment.items():
            monkeypatch.setenv(name, value)
        made = CloudSubject(cloud)
    elif request.param == "fsspec":
        made = FsspecSubject()
    elif request.param in WEB:
        server = request.getfixturevalue(request.param)
        made = WEB[request.param](server)
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
