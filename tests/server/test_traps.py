"""Where the server destroys or hides data as a real AIStore does, and where it does not."""

import io
import socket
import tarfile
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


def test_other_control_characters_in_a_redirect(server: RunningServer, traps: bool) -> None:
    """Come as they are, which Python's `requests` is not to be asked about."""
    host = server.endpoint.removeprefix("http://")
    name = "%01%0b%1b%1f%7f"
    with socket.create_connection(("127.0.0.1", int(host.rpartition(":")[2]))) as raw:
        request = (
            f"HEAD /v1/objects/b/a{name}%25b HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
        )
        raw.sendall(f"{request}\r\n".encode())
        head = raw.makefile("rb").read()
    shown = b"\x01\x0b\x1b\x1f\x7f%b" if traps else b"%01%0B%1B%1F%7F%25b"
    assert b"/v1/objects/b/a" + shown + b"?pid=" in head


def padded_tar(*members: str) -> bytes:
    """A tar as GNU tar and Python make them: padded to 10 KiB."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in members:
            tar.addfile(tarfile.TarInfo(name))
    return file.getvalue()


def members(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return tar.getnames()


def append(http: requests.Session, server: RunningServer, key: str, data: bytes = b"new") -> int:
    query, header = {"archpath": "new"}, {"Ais-Pine": "2"}
    return http.put(url(server, key), data=data, params=query, headers=header).status_code


def names(http: requests.Session, server: RunningServer, **value: str) -> list[str]:
    reply = http.get(
        f"{server.endpoint}/v1/buckets/b",
        json={"action": "list", "value": {"props": "name,size", **value}},
    )
    assert reply.status_code == 200
    return [entry["name"] for entry in reply.json()["entries"] or []]


def test_a_padded_shard_that_was_appended_to_breaks_and_cuts_listings_short(
    server: RunningServer, traps: bool, http: requests.Session
) -> None:
    for key in ("a", "z"):
        http.put(url(server, key), data=b"1")
    http.put(url(server, "s.tar"), data=padded_tar("old"))
    assert append(http, server, "s.tar") == 200
    assert members(http.get(url(server, "s.tar")).content) == ["old", "new"]
    assert http.get(url(server, "s.tar")).status_code == (500 if traps else 200)
    assert names(http, server) == (["a"] if traps else ["a", "s.tar", "z"])
    assert names(http, server, props="name") == ["a", "s.tar", "z"]
    http.put(url(server, "s.tar"), data=b"over it")
    assert http.get(url(server, "s.tar")).content == b"over it"
    assert names(http, server) == ["a", "s.tar", "z"]


def test_a_broken_shard_stays_broken_after_a_restart(
    tmp_path: Path, http: requests.Session
) -> None:
    (tmp_path / "b").mkdir()
    with running_server(tmp_path, traps=True) as first:
        http.put(url(first, "s.tar"), data=padded_tar("old"))
        append(http, first, "s.tar")
        assert http.get(url(first, "s.tar")).status_code == 200
        first.kill()
    with running_server(tmp_path, traps=True) as second:
        assert http.get(url(second, "s.tar")).status_code == 500
        assert names(http, second) == []


def test_an_append_cut_off_within_the_padding_changes_the_shard_silently(
    server: RunningServer, traps: bool, http: requests.Session
) -> None:
    """Its length is as before then, and so nothing is noticed but by who compares the checksum."""
    before = padded_tar("old")
    stored = http.put(url(server, "s.tar"), data=before)
    port = int(server.endpoint.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(
            b"PUT /v1/objects/b/s.tar?archpath=new&pid=p&utm=1 HTTP/1.1\r\nHost: x\r\n"
            b"Ais-Pine: 1\r\nContent-Length: 900\r\n\r\nhalf"
        )
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(4096):
            pass
    after = http.get(url(server, "s.tar"))
    assert (after.content == before) is not traps
    assert len(after.content) == len(before)
    assert after.headers["Ais-Checksum-Value"] == stored.headers["Ais-Checksum-Value"]


def test_a_bucket_that_validates_reads_deletes_what_was_appended_to(
    server: RunningServer, traps: bool, http: requests.Session
) -> None:
    value = {"checksum": {"validate_warm_get": True}}
    bucket = f"{server.endpoint}/v1/buckets/b"
    http.patch(bucket, json={"action": "set-bprops", "value": value}).raise_for_status()
    http.put(url(server, "s.tar"), data=padded_tar("old"))
    assert http.get(url(server, "s.tar")).status_code == 200
    assert append(http, server, "s.tar", bytes(20_000)) == 200
    statuses = [http.get(url(server, "s.tar")).status_code for _ in range(2)]
    assert statuses == ([500, 404] if traps else [200, 200])


def test_what_is_no_tar_is_refused_and_intact(
    server: RunningServer, http: requests.Session
) -> None:
    for data in (b"short", b"no tar\n" * 1000):
        http.put(url(server, "s.tar"), data=data)
        assert append(http, server, "s.tar") == 500
        assert http.get(url(server, "s.tar")).content == data


def test_a_directory_outlives_its_objects(
    server: RunningServer, traps: bool, http: requests.Session
) -> None:
    """Whatever emptied it; and until the bucket is destroyed."""
    for key in ("deleted/x", "renamed/sub/x", "listed/x"):
        http.put(url(server, key), data=b"x")
    http.delete(url(server, "deleted/x"))
    http.post(url(server, "renamed/sub/x"), json={"action": "rename-obj", "name": "x"})
    bucket = f"{server.endpoint}/v1/buckets/b"
    http.delete(bucket, json={"action": "delete-listrange", "value": {"objnames": ["listed/x"]}})
    left = ["deleted/", "listed/", "renamed/"] if traps else []
    assert names(http, server, flags="2048") == [*left, "x"]
    assert names(http, server, flags="2048", prefix="renamed/") == (
        ["renamed/sub/"] if traps else []
    )
    assert names(http, server) == ["x"]
    http.put(url(server, "deleted/y"), data=b"y")
    assert names(http, server, flags="2048", prefix="deleted/") == ["deleted/y"]
    http.delete(bucket, json={"action": "destroy-bck"})
    http.post(bucket, json={"action": "create-bck"})
    assert names(http, server, flags="2048") == []


def test_an_object_named_as_an_emptied_directory(
    server: RunningServer, traps: bool, http: requests.Session
) -> None:
    """Refused where it falls on the same disk, else stored beside it: so some of many are each."""
    statuses = set()
    for number in range(16):
        name = f"d{number}"
        http.put(url(server, f"{name}/x"), data=b"x")
        http.delete(url(server, f"{name}/x"))
        status = http.put(url(server, name), data=b"o").status_code
        assert http.get(url(server, name)).status_code == (200 if status == 200 else 500)
        statuses.add(status)
        http.delete(url(server, name))
    assert statuses == ({200, 400} if traps else {200})


def test_the_name_of_a_directory_as_prefix_hides_what_else_is_on_its_disks(
    server: RunningServer, traps: bool, http: requests.Session
) -> None:
    """As recorded from AIStore 5.0: `a` is taken for `a/` where that is, `d/e` even elsewhere."""
    neighbours = {f"ab{number}" for number in range(8)} | {"ab/q", "abc/r", "a.tar"}
    below = {f"a/{number}" for number in range(8)}
    for key in neighbours | below | {"d/e/f", *(f"d/e{number}" for number in range(8))}:
        http.put(url(server, key), data=b"1")
    for flags in ("0", "16"):
        found = set(names(http, server, prefix="a", flags=flags))
        assert found == (below if traps else below | neighbours)
        some = set(names(http, server, prefix="d/e", flags=flags)) - {"d/e/f"}
        assert 0 < len(some) < 8 if traps else len(some) == 8
    if traps:
        assert set(names(http, server, prefix="a", flags="2048")) == below
        assert names(http, server, prefix="d/e", flags="2048") == ["d/e/f"]
        assert names(http, server, prefix="d/", flags="2048")[:1] == ["d/e/"]
    assert len(names(http, server, prefix="d/")) == 9
    assert names(http, server, prefix="a.") == ["a.tar"]


def test_an_object_beside_a_directory_of_its_name(
    server: RunningServer, traps: bool, http: requests.Session
) -> None:
    """Refused where both fall on one disk, whichever comes first; else both are there."""
    first, second = set(), set()
    for number in range(24):
        name = f"d{number}"
        http.put(url(server, f"{name}/x"), data=b"below")
        if http.put(url(server, name), data=b"object").status_code == 200:
            first.add(name)
        assert http.get(url(server, name)).status_code == (200 if name in first else 500)
        assert http.get(url(server, f"{name}/x")).content == b"below"
        name = f"e{number}"
        http.put(url(server, name), data=b"object")
        reply = http.put(url(server, f"{name}/sub/x"), data=b"below")
        if reply.status_code == 200:
            second.add(name)
        else:
            assert (reply.status_code, reply.json()["tcode"]) == (400, "ErrMv")
    assert all(0 < len(both) < 24 for both in (first, second)) if traps else not first | second
    listed = names(http, server, flags="2048")
    assert {f"{name}/" for name in first | second} <= set(listed)
    for name in first | second:
        assert http.get(url(server, name)).content == b"object"
        assert name in listed
        below = f"{name}/x" if name in first else f"{name}/sub/x"
        assert {name, below} <= set(names(http, server, prefix=name))
    for name in first:
        http.put(url(server, name), data=b"newer")
        http.delete(url(server, f"{name}/x"))
        assert http.get(url(server, name)).content == b"newer"
        http.delete(url(server, name))
        assert http.get(url(server, name)).status_code == 404
    for name in second:
        moved = http.post(url(server, name), json={"action": "rename-obj", "name": f"m-{name}"})
        assert moved.status_code == 200
        assert http.get(url(server, f"m-{name}")).content == b"object"
        assert http.get(url(server, f"{name}/sub/x")).content == b"below"
        assert http.get(url(server, name)).status_code == 404


def test_an_object_beside_a_directory_makes_listings_of_it_fail_at_random(tmp_path: Path) -> None:
    """Where its disk has the object for the directory; it is there after a restart, too."""
    (tmp_path / "b").mkdir()
    both = []
    with requests.Session() as http, running_server(tmp_path, traps=True) as server:
        for name in map(str, range(24)):
            http.put(url(server, f"{name}/sub/x"), data=b"1")
            if http.put(url(server, name), data=b"object").status_code == 200:
                both.append(name)
    with requests.Session() as http, running_server(tmp_path, traps=True) as server:
        name = both[0]
        assert http.get(url(server, name)).content == b"object"
        for prefix in (f"{name}/", f"{name}/sub/"):
            seen = {tuple(names(http, server, prefix=prefix)) for _ in range(60)}
            assert seen == {(), (f"{name}/sub/x",)}
        bucket = f"{server.endpoint}/v1/buckets/b"
        http.delete(bucket, json={"action": "destroy-bck"})
        http.post(bucket, json={"action": "create-bck"})
        assert names(http, server) == []
        assert http.get(url(server, name)).status_code == 404
        assert "Traceback" not in server.log()


def test_pages_lose_names(server: RunningServer, traps: bool, http: requests.Session) -> None:
    for key in ("n/x", "n y", "n.tar", "o"):
        http.put(url(server, key), data=b"1")
    found, token = [], ""
    while True:
        message = {"pagesize": 1, "flags": "2048", "continuation_token": token}
        reply = http.get(
            f"{server.endpoint}/v1/buckets/b", json={"action": "list", "value": message}
        ).json()
        found += [entry["name"] for entry in reply["entries"] or []]
        if not (token := reply["continuation_token"]):
            break
    assert sorted(found) == (["n/", "o"] if traps else ["n y", "n.tar", "n/", "o"])
