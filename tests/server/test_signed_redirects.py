"""A server that signs its redirects: what is not asked of the target as of the proxy is refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from tests.support.servers import RunningServer, running_server


@pytest.fixture(params=[1, 3])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningServer]:
    root = tmp_path / "served"
    (root / "b").mkdir(parents=True)
    for key in ("a", "b"):
        (root / "b" / key).write_bytes(key.encode())
    with running_server(root, signs=True, targets=request.param) as running:
        yield running
        assert "Traceback" not in running.log()


def url(server: RunningServer, key: str) -> str:
    return f"{server.endpoint}/v1/objects/b/{key}"


def location(method: str, address: str, length: int = 0) -> str:
    headers = {"Content-Length": str(length), "Connection": "close"}
    with requests.Session() as http:
        asked = requests.Request(method, address).prepare()
        asked.headers.update(headers)
        return http.send(asked, allow_redirects=False).headers["Location"]


def test_it_holds_for_what_was_asked_and_nothing_else(server: RunningServer) -> None:
    place = location("GET", url(server, "a"))
    assert requests.get(place, timeout=30).content == b"a"
    other_name = place.replace("/b/a?", "/b/b?")
    unsigned = place.partition("&u=")[0]
    number = place.partition("&x=")[2].partition("&")[0]
    others = [
        requests.get(other_name, timeout=30),
        requests.get(unsigned, timeout=30),
        requests.get(place[:-1], timeout=30),
        requests.get(place.replace(f"&x={number}", "&x=1"), timeout=30),
        requests.get(place.replace("&vpams=", "&vpams=9"), timeout=30),
        requests.delete(place, timeout=30),
    ]
    assert [reply.status_code for reply in others] == [401] * len(others)
    head = requests.head(other_name, timeout=30)
    assert (head.status_code, json.loads(head.headers["Hdr-Error"])["status"]) == (401, 401)
    assert requests.get(url(server, "b"), timeout=30).content == b"b"


def test_the_length_of_the_body_has_to_be_announced(server: RunningServer) -> None:
    announced, not_announced = (location("PUT", url(server, "a"), length) for length in (3, 0))
    assert requests.put(not_announced, data=b"new", timeout=30).status_code == 401
    assert requests.get(url(server, "a"), timeout=30).content == b"a"
    assert requests.put(announced, data=b"new", timeout=30).status_code == 200
    assert requests.get(url(server, "a"), timeout=30).content == b"new"


def test_a_target_serves_nothing_that_is_not_signed(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b/a").write_bytes(b"a")
    with running_server(tmp_path, signs=True, targets=3) as server:
        place = urlsplit(location("GET", url(server, "a")))
        direct = requests.get(f"http://{place.netloc}{place.path}", timeout=30)
        assert direct.status_code == 403
