"""What the embedded server refuses: names and links that lead out, foreign pages, endless requests."""

import ctypes
import errno
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import requests

from aisfs.openat2 import open_beneath
from tests.support.for_each import for_each
from tests.support.servers import RunningServer, running_server

AT_TARGET = "pid=p&utm=1"
"""Marks a request as one that a proxy has redirected."""


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory that the server must not touch, beside the one it serves."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text("not for clients")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "served"
    (folder / "b" / "dir").mkdir(parents=True)
    (folder / "b" / "o").write_text("hello")
    (folder / "b" / "o.tar").write_text("hello")
    return folder


@pytest.fixture
def server(root: Path) -> Iterator[RunningServer]:
    with running_server(root) as running:
        yield running
        assert "Traceback" not in running.log()


def act(server: RunningServer, method: str, action: str, value: object, query: str = "") -> int:
    body = json.dumps({"action": action, "name": "", "value": value})
    return requests.request(method, f"{server.endpoint}/v1/buckets/b{query}", data=body).status_code


def everything(server: RunningServer) -> dict[str, bytes]:
    """Every object of every bucket that clients can read."""
    found = {}
    for bucket in requests.get(f"{server.endpoint}/v1/buckets").json():
        url = f"{server.endpoint}/v1/buckets/{bucket['name']}"
        listed = requests.get(url, json={"action": "list", "value": {}}).json()["entries"] or []
        for entry in listed:
            path = f"{bucket['name']}/{entry['name']}"
            found[path] = requests.get(f"{server.endpoint}/v1/objects/{path}").content
    return found


CLIMBING = {
    "delete a name": ("DELETE", "delete-listrange", {"objnames": ["../../outside/secret"]}),
    "delete a template": ("DELETE", "delete-listrange", {"template": "../../outside/secre{0..1}"}),
    "copy a name": (
        "POST",
        "copy-listrange",
        {"objnames": ["../../outside/secret"], "tobck": {"name": "c"}},
    ),
    "archive a name": (
        "PUT",
        "archive",
        {"archname": "x.tar", "objnames": ["../../outside/secret"]},
    ),
    "copy to a prefix": (
        "POST",
        "copy-listrange",
        {"objnames": ["o"], "tobck": {"name": "b"}, "prepend": "../../outside/"},
    ),
    "archive to a name": ("PUT", "archive", {"archname": "../../outside/x.tar", "objnames": ["o"]}),
}


@for_each("request_", CLIMBING.values())
def test_jobs_stay_in_the_served_directory(
    server: RunningServer, outside: Path, request_: tuple[str, str, object]
) -> None:
    act(server, *request_)
    act(server, "POST", "copy-bck", {"prepend": "../../outside/"}, "?bck_to=ais/@%23/c/")
    assert [p.name for p in outside.iterdir()] == ["secret"]
    assert not any(b"not for clients" in content for content in everything(server).values())


def test_links_lead_nowhere_else(server: RunningServer, root: Path, outside: Path) -> None:
    (root / "b" / "file").symlink_to(outside / "secret")
    (root / "b" / "folder").symlink_to(outside)
    (root / "bucket").symlink_to(outside)
    (root / "b" / "inside").symlink_to("o")
    objects = f"{server.endpoint}/v1/objects"
    for path in ("b/file", "b/folder/secret", "bucket/secret"):
        for method in ("GET", "HEAD", "DELETE", "PUT"):
            reply = requests.request(method, f"{objects}/{path}", data=b"changed")
            # A name in the served directory may be replaced and removed, with the link it is.
            if path != "b/file" or method in ("GET", "HEAD"):
                assert reply.status_code in (400, 404), (method, path)
        assert requests.put(f"{objects}/b/new?{AT_TARGET}&object_to=ais/@%23/{path}").status_code
    requests.put(f"{objects}/b/folder/new", data=b"x")
    act(server, "POST", "copy-listrange", {"objnames": ["o"], "tobck": {"name": "bucket"}})
    assert {p.name: p.read_text() for p in outside.iterdir()} == {"secret": "not for clients"}
    found = everything(server)
    assert not any(b"not for clients" in content for content in found.values())
    assert found["b/inside"] == b"hello"


@pytest.mark.parametrize("prefix", ["folder/", "folder", "folder/s", "fi"])
@pytest.mark.parametrize("flags", ["0", "2048", "16", "2064"])
def test_listings_do_not_follow_links_out(
    server: RunningServer, root: Path, outside: Path, prefix: str, flags: str
) -> None:
    (root / "b" / "file").symlink_to(outside / "secret")
    (root / "b" / "folder").symlink_to(outside)
    value = {"prefix": prefix, "flags": flags, "props": "name,size"}
    reply = requests.get(f"{server.endpoint}/v1/buckets/b", json={"action": "list", "value": value})
    assert reply.json()["entries"] is None


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_without_the_system_call_it_is_as_strict(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Containers of before 2021 refuse system calls they do not know as not permitted."""

    def unknown(*_: object) -> int:
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr("aisfs.openat2._syscall", unknown)
    (tmp_path / "root" / "a").mkdir(parents=True)
    (tmp_path / "root" / "a" / "f").write_text("found")
    (tmp_path / "root" / "out").symlink_to(outside)
    (tmp_path / "root" / "link").symlink_to(outside / "secret")
    root = os.open(tmp_path / "root", os.O_PATH)
    try:
        with open(open_beneath(root, b"a/f", os.O_RDONLY)) as file:
            assert file.read() == "found"
        for path in (b"out/secret", b"link", b"../outside/secret", b"/etc/passwd", b"a/../../x"):
            with pytest.raises(OSError):  # noqa: PT011 - which one depends on the way out
                os.close(open_beneath(root, path, os.O_RDONLY))
    finally:
        os.close(root)


@pytest.fixture
def command(root: Path) -> Iterator[str]:
    """The endpoint of `aisfs serve --allow-host data.example`."""
    words = ["serve", str(root), "--port", "0", "--allow-host", "data.example"]
    with subprocess.Popen(
        [sys.executable, "-m", "aisfs", *words], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        yield process.stdout.readline().strip()
        process.terminate()


def test_other_sites_are_refused(command: str) -> None:
    port = command.rpartition(":")[2]
    url = f"{command}/v1/buckets"

    def status(**headers: str) -> int:
        return requests.get(url, headers=headers).status_code

    ours = ("127.0.0.1", "localhost", f"localhost:{port}", "data.example", "[::1]:80", "10.1.2.3")
    for host in ours:
        assert status(Host=host) == 200, host
        assert status(Host=host, Origin=f"http://{host}") == 200, host
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "data.example.evil",
        "127.0.0.1.evil",
        "[",
    ):
        assert status(Host=host) == 403, host
    for origin in ("http://evil.example", "null", "http://["):
        assert status(Origin=origin) == 403, origin
    refused = requests.get(url, headers={"Host": "other.example"}).json()["message"]
    assert "other.example" in refused
    assert "--allow-host" in refused


def test_silent_clients_stop_nobody(server: RunningServer) -> None:
    port = int(server.endpoint.rpartition(":")[2])
    beginnings = (
        b"",
        b"GET /v1/health HT",
        b"PUT /v1/objects/b/x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nabc",
    )
    with ExitStack() as stack:
        held = []
        for number in range(90):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(beginnings[number % 3])
            held.append(client)
        deadline = time.monotonic() + 20
        assert requests.get(f"{server.endpoint}/v1/health", timeout=20).status_code == 200
        assert time.monotonic() < deadline
        # Slow is not silent: what comes piece by piece is served.
        for piece in (b"TP/1.1\r\nHost: 127.0.0.1\r\nConn", b"ection: close\r\n", b"\r\n"):
            held[1].sendall(piece)
            time.sleep(0.05)
        assert held[1].recv(100).startswith(b"HTTP/1.1 200")


ODD_BODIES = {
    "a deep list": b"[" * 100_000,
    "a deep object": b'{"a":' * 100_000,
    "a long number": b'{"action": "list", "value": ' + b"9" * 6000 + b"}",
    "a huge page": b'{"action": "list", "value": {"pagesize": 1000000000000000000000000000000}}',
    "a lone surrogate": b'{"action": "list", "value": {"prefix": "\\ud800"}}',
    "a NUL": b'{"action": "list", "value": {"prefix": "a\\u0000b/", "flags": "2048"}}',
    "a list for an action": b'{"action": []}',
    "a number for an object": b'{"action": "delete-listrange", "value": 5}',
    "a text for an object": b'{"action": "archive", "value": "x"}',
    "a number for a list": b'{"action": "delete-listrange", "value": {"objnames": 5}}',
    "no such character": b'{"action": "archive", "value": {"archname": "\\ud800.tar"}}',
    "too many names": b'{"action": "delete-listrange", "value": {"template": "{0..9999999}{0..9}"}}',
    "no step": b'{"action": "delete-listrange", "value": {"template": "x{0..9..0}"}}',
}


@for_each("body", ODD_BODIES.values())
def test_odd_control_messages_are_refused(server: RunningServer, body: bytes) -> None:
    for method in ("GET", "POST", "DELETE", "PUT", "PATCH"):
        reply = requests.request(
            method,
            f"{server.endpoint}/v1/buckets/b",
            data=body,
            headers={"Content-Type": "application/json"},
        )
        assert reply.status_code in (200, 400, 501), (method, reply.text)
        assert reply.status_code == 200 or reply.json()["message"]
    assert "b/o" in everything(server)


def test_odd_requests_about_objects_are_refused(server: RunningServer) -> None:
    url = f"{server.endpoint}/v1/objects/b/o.tar?{AT_TARGET}"
    for query in ("archregx=%ff", "archregx=(", "archregx=(a%2B)%2Bb"):
        reply = requests.get(f"{url}&archmode=regexp&{query}", timeout=10)
        assert reply.status_code in (400, 404, 500), query
        assert reply.json()["message"]
    for name in ("\\ud800", "a\\u0000"):
        body = b'{"action": "rename-obj", "name": "%s"}' % name.encode()
        assert requests.post(url, data=body).status_code == 400
    assert requests.get(url, headers={"Range": f"bytes=0-{'9' * 5000}"}).status_code in (206, 400)


def test_a_control_message_has_a_limit(server: RunningServer) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(200):
            yield b" " * (1 << 20)

    status = 400
    with suppress(requests.ConnectionError):  # refused before all of it was sent
        status = requests.post(f"{server.endpoint}/v1/buckets/b", data=endless()).status_code
    assert status == 400
    assert "b/o" in everything(server)
