"""The server that looks like several targets: the ones that have not joined, and shard indexes."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from tests.support.servers import RunningServer, running_server
from tests.support.targets import HOSTS

KEYS = [f"dir/{number}" for number in range(24)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    root = tmp_path / "served"
    (root / "b").mkdir(parents=True)
    with running_server(root, traps=True, targets=3) as running:
        yield running
        assert "Traceback" not in running.log()


def url(server: RunningServer, key: str, bucket: str = "b") -> str:
    return f"{server.endpoint}/v1/objects/{bucket}/{key}"


def cluster_map(http: requests.Session, server: RunningServer) -> tuple[int, int]:
    found = http.get(f"{server.endpoint}/v1/daemon?what=smap").json()
    return len(found["tmap"]), int(found["version"])


def test_objects_are_spread_over_the_targets(server: RunningServer, http: requests.Session) -> None:
    hosts = set()
    for key in KEYS:
        assert http.put(url(server, key), data=key.encode()).status_code == 200
        reply = http.get(url(server, key))
        assert reply.content == key.encode()
        hosts.add(urlsplit(reply.url).hostname)
    assert len(hosts) == 3
    listed = http.get(
        f"{server.endpoint}/v1/buckets/b", json={"action": "list", "value": {}}
    ).json()["entries"]
    assert {entry["name"] for entry in listed} == set(KEYS)
    assert cluster_map(http, server) == (3, 4)


def test_a_proxy_that_knows_no_target(server: RunningServer, http: requests.Session) -> None:
    http.put(url(server, "x"), data=b"old")
    server.join(0)
    for method, status in (("GET", 400), ("PUT", 400), ("DELETE", 400), ("HEAD", 500)):
        reply = http.request(method, url(server, "x"), data=b"x" if method == "PUT" else None)
        assert reply.status_code == status
        assert "ErrNoNodes" in (reply.text or reply.headers["Hdr-Error"])
    listing = http.get(f"{server.endpoint}/v1/buckets/b", json={"action": "list", "value": {}})
    assert (listing.status_code, listing.content) == (503, b"")
    assert http.get(f"{server.endpoint}/v1/health").status_code == 200
    assert http.get(f"{server.endpoint}/v1/health?prr=true").status_code == 503
    assert cluster_map(http, server) == (0, 1)
    server.join(3)
    assert http.get(f"{server.endpoint}/v1/health?prr=true").status_code == 200
    assert http.get(url(server, "x")).content == b"old"


def test_what_is_put_while_targets_are_missing_is_acknowledged_and_not_there_afterwards(
    server: RunningServer, http: requests.Session
) -> None:
    for key in KEYS:
        http.put(url(server, key), data=b"old")
    server.join(1)
    hidden = [key for key in KEYS if http.get(url(server, key)).status_code == 404]
    assert 0 < len(hidden) < len(KEYS)
    assert all(http.delete(url(server, key)).status_code == 404 for key in hidden)
    for key in KEYS:
        stored = http.put(url(server, key), data=b"new")
        assert stored.status_code == 200
        assert stored.headers["Ais-Checksum-Value"]
    assert http.get(url(server, hidden[0])).content == b"new"
    assert cluster_map(http, server) == (1, 2)
    server.join(3, ready=False)
    assert http.get(f"{server.endpoint}/v1/health?prr=true").status_code == 503
    after = {key: http.get(url(server, key)).content for key in KEYS}
    assert after == {key: b"old" if key in hidden else b"new" for key in KEYS}


def test_a_shard_index_is_with_its_shard(server: RunningServer, http: requests.Session) -> None:
    """So most of them are not found by their name."""
    found = set()
    for number in range(12):
        shard = f"s{number}.tar"
        index = server.root / ".sys-shardidx" / "ais" / "@#" / "b" / f"{shard}.idx"
        index.parent.mkdir(parents=True, exist_ok=True)
        index.write_bytes(b"index")
        http.put(url(server, shard), data=b"shard")
        asked = http.get(url(server, shard), allow_redirects=False).headers["Location"]
        name = f"ais/@%23/b/{shard}.idx"
        there = urlsplit(asked)
        at_shard = f"http://{there.netloc}/v1/objects/.sys-shardidx/{name}?{there.query}"
        assert http.get(at_shard).content == b"index"
        found.add(http.get(url(server, name, ".sys-shardidx")).status_code)
    assert found == {200, 404}


def test_a_target_says_otherwise_than_a_proxy_that_a_bucket_is_missing(
    server: RunningServer, http: requests.Session
) -> None:
    """As AIStore 5.0 does before the first shard is indexed."""
    http.put(url(server, "s.tar"), data=b"shard")
    asked = urlsplit(http.get(url(server, "s.tar"), allow_redirects=False).headers["Location"])
    at_target = f"http://{asked.netloc}/v1/objects/.sys-shardidx/ais/@%23/b/s.tar.idx?{asked.query}"
    for method, place, status in [
        ("GET", url(server, "s.tar.idx", ".sys-shardidx"), 404),
        ("GET", at_target, 400),
        ("DELETE", at_target, 404),
    ]:
        reply = http.request(method, place)
        assert (reply.status_code, reply.json()["tcode"]) == (status, "ErrBckNotFound")


def test_a_misplaced_shard_index_is_listed_only_where_misplaced_ones_are_asked_for(
    server: RunningServer, http: requests.Session
) -> None:
    """As recorded from AIStore 5.0 with three targets; names alone never show them."""
    folder = server.root / ".sys-shardidx" / "ais" / "@#" / "b"
    folder.mkdir(parents=True)
    indexes = {f"ais/@#/b/s{number}.tar.idx" for number in range(12)}
    for name in indexes:
        (server.root / ".sys-shardidx" / name).write_bytes(b"index")

    def listed(**value: str | int) -> list[tuple[str, int]]:
        found, token = [], ""
        while True:
            message = {"action": "list", "value": {**value, "continuation_token": token}}
            page = http.get(f"{server.endpoint}/v1/buckets/.sys-shardidx", json=message).json()
            found += [(entry["name"], entry["flags"]) for entry in page["entries"] or []]
            if not (token := page["continuation_token"]):
                return found

    there = {
        name
        for name in indexes
        if http.get(url(server, name.replace("#", "%23"), ".sys-shardidx")).status_code == 200
    }
    assert 0 < len(there) < len(indexes)
    right = [(name, 64) for name in sorted(there)]
    for flags in ("0", "16", "18"):
        assert listed(flags=flags) == right
    assert listed(flags="2", props="name") == right
    everything = sorted((name, 64 if name in there else 65) for name in indexes)
    assert listed(flags="2") == everything
    assert listed(flags="2", pagesize=5) == everything
    assert listed(flags="2050", prefix="ais/@#/b/") == everything
    assert listed(flags="2048", prefix="ais/@#/") == [("ais/@#/b/", 256)]


def test_an_object_beside_a_directory_of_its_name(
    server: RunningServer, http: requests.Session
) -> None:
    """Seldom refused with three targets; and then only those with its disks lose names."""
    both = []
    for name in (f"e{number}" for number in range(24)):
        for key in ("1", "2"):
            http.put(url(server, f"{name}/{key}"), data=b"1")
        if http.put(url(server, name), data=b"object").status_code == 200:
            both.append(name)
    assert 6 < len(both) < 24
    counts = set()
    for name in both:
        assert http.get(url(server, name)).content == b"object"
        for _ in range(20):
            message = {"action": "list", "value": {"prefix": f"{name}/"}}
            page = http.get(f"{server.endpoint}/v1/buckets/b", json=message).json()
            counts.add(len(page["entries"] or []))
    assert counts == {0, 1, 2}


def test_what_no_proxy_has_led_to_a_target(server: RunningServer, http: requests.Session) -> None:
    """Is read there, if that is the right target, and never changed."""
    port = urlsplit(server.endpoint).port
    statuses = []
    for host, key in product(HOSTS, KEYS):
        http.put(url(server, key), data=b"1")
        place = f"http://{host}:{port}/v1/objects/b/{key}"
        read = http.get(place, allow_redirects=False)
        assert http.head(place, allow_redirects=False).status_code == read.status_code
        statuses.append(read.status_code)
        for method in ("PUT", "DELETE", "PATCH", "POST"):
            refused = http.request(method, place, data=b"2", allow_redirects=False)
            assert refused.status_code == 400
            assert "is expected to be redirected" in refused.json()["message"]
            assert refused.json()["node"].startswith("t[")
        assert http.get(url(server, key)).content == b"1"
    for at in range(0, len(statuses), len(KEYS)):
        assert set(statuses[at : at + len(KEYS)]) == {200, 404}


def test_an_expired_token_is_quoted(tmp_path: Path, http: requests.Session) -> None:
    (tmp_path / "b").mkdir()
    headers = {"Authorization": "Bearer eyJh.eyJi.c"}
    with running_server(tmp_path, faulty=True, token="eyJh.eyJi.c") as server:
        server.faults([{"action": "expire", "match": {"method": "PUT"}}])
        reply = http.put(url(server, "x"), data=b"1", headers=headers)
        assert reply.status_code == 401
        assert reply.json()["tcode"] == "wrapError"
        assert reply.json()["message"].endswith("[err: token expired]: eyJh.eyJi.c")
        assert http.put(url(server, "x"), data=b"1", headers=headers).status_code == 200
