"""Where the server destroys or hides data as a real AIStore does, and where it does not."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from tests.support.servers import RunningServer, running_server


@pytest.fixture(params=[True, False], ids=["traps", "kind"])
def traps(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def server(tmp_path: Path, traps: bool) -> Iterator[RunningServer]:
    root = tmp_path / "served"
    (root / "b").mkdir(parents=True)
    with running_server(root, traps=traps) as running:
        yield running
        assert "Traceback" not in running.log()


@pytest.fixture
def http() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


def url(server: RunningServer, key: str) -> str:
    return f"{server.endpoint}/v1/objects/b/{key}"


def upload(http: requests.Session, server: RunningServer, key: str, order: str) -> int:
    """Send parts of 1000 times their number, in this order, and give the status of the end."""
    started = http.post(url(server, key), json={"action": "mpt-upload"})
    query = {"uploadId": started.text}
    for number in order:
        part = http.put(
            url(server, key), data=number.encode() * 1000, params={**query, "partNumber": number}
        )
        assert part.status_code == 200
    listed = [{"part-number": int(number)} for number in sorted(set(order))]
    message = {"action": "mpt-complete", "value": listed}
    return http.post(url(server, key), json=message, params=query).status_code


def test_a_part_sent_twice_is_lost_and_nobody_is_told(
    server: RunningServer, traps: bool, http: requests.Session
) -> None:
    whole = b"1" * 1000 + b"2" * 1000 + b"3" * 1000
    assert upload(http, server, "x", "1223") == 200
    assert http.head(url(server, "x"), allow_redirects=True).headers["Content-Length"] == "3000"
    part = {"Range": "bytes=1500-1500"}
    if traps:
        assert http.get(url(server, "x"), headers=part).status_code == 404
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            http.get(url(server, "x"))
        spanning = {"Range": "bytes=990-1009"}
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            http.get(url(server, "x"), headers=spanning)
    else:
        assert http.get(url(server, "x"), headers=part).content == b"2"
        assert http.get(url(server, "x")).content == whole
    assert upload(http, server, "x", "123") == 200
    assert http.get(url(server, "x")).content == whole


def test_what_is_lost_stays_lost_after_a_restart(tmp_path: Path, http: requests.Session) -> None:
    (tmp_path / "b").mkdir()
    with running_server(tmp_path, traps=True) as first:
        upload(http, first, "x", "122")
        first.kill()
    with running_server(tmp_path) as second:
        assert http.get(url(second, "x"), headers={"Range": "bytes=1000-"}).status_code == 404


def test_line_breaks_in_a_redirect(
    server: RunningServer, traps: bool, http: requests.Session
) -> None:
    http.put(url(server, "a b"), data=b"with a space")
    reply = http.put(url(server, "a%0Ab") + "?pid=p&utm=1", data=b"with a line feed")
    assert reply.status_code == 200
    asked = http.get(url(server, "a%0Ab"), allow_redirects=False)
    path = urlsplit(asked.headers["Location"]).path
    assert path == ("/v1/objects/b/a b" if traps else "/v1/objects/b/a%0Ab")
    followed = http.get(url(server, "a%0Ab"))
    assert followed.content == (b"with a space" if traps else b"with a line feed")
