"""A bucket with names that no directory on disk can hold: cloud buckets list such keys.

Answers just what a read-only client needs (health, buckets, pages of listings in JSON, HEAD and
ranged GET behind a redirect), three entries a page, whatever page size the client asks for.
"""

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

BUCKET = "odd"
PAGE = 8
NO_RECURSION = 2048
DIRECTORY = 256
STARTED_NS = time.monotonic_ns()
PROPS = {"provider": "ais", "versioning": {"enabled": True}, "checksum": {"type": "none"}}


@contextmanager
def serving_keys(
    objects: Mapping[str, bytes],
    *,
    held_from: int | None = None,
    release: threading.Event | None = None,
) -> Iterator[str]:
    """Serve these keys as the bucket `odd`; yields the endpoint.

    Bytes of objects from `held_from` on are sent after `release`.
    """
    members = {"objects": dict(objects), "held_from": held_from, "release": release}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), members))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]
    held_from: int | None
    release: threading.Event | None

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        parts = unquote(url.path).split("/", 4)[1:]
        match parts:
            case ["v1", "health", *_]:
                self._reply(200, b"", {"Ais-Node-Uptime": str(time.monotonic_ns() - STARTED_NS)})
            case ["v1", "buckets"] | ["v1", "buckets", ""]:
                self._json(
                    [{"name": BUCKET, "provider": "ais", "namespace": {"uuid": "", "name": ""}}]
                )
            case ["v1", "buckets", bucket, *_] if bucket == BUCKET:
                self._bucket(body)
            case ["v1", "objects", bucket, key] if bucket == BUCKET and key in self.objects:
                self._object(key, url.query)
            case _:
                missing = '{"tcode":"ErrNotFound","message":"does not exist","status":404}'
                # A HEAD has no body: AIStore says it in a header then.
                self._reply(404, f"{missing}\n".encode(), {"Hdr-Error": missing})

    def _bucket(self, body: bytes) -> None:
        if self.command == "HEAD":
            return self._reply(200, b"", {"Ais-Bucket-Props": json.dumps(PROPS)})
        value = json.loads(body)["value"] or {}
        prefix, token = value.get("prefix", ""), value.get("continuation_token", "")
        flags = int(value.get("flags", "0"))
        names: dict[str, dict[str, Any]] = {}
        for key, data in self.objects.items():
            if not key.startswith(prefix):
                continue
            head, slash, _ = key[len(prefix) :].partition("/")
            if flags & NO_RECURSION and slash:
                name = prefix + head + slash
                names[name] = {"name": name, "flags": DIRECTORY}
            else:
                names[key] = {"name": key, "size": str(len(data)), "version": "1", "flags": 64}
        rows = [names[name] for name in sorted(names) if name > token]
        page = rows[: min(PAGE, value.get("pagesize") or PAGE)]
        more = page[-1]["name"] if len(page) < len(rows) else ""
        return self._json(
            {"uuid": "d0HAy-6u_l", "continuation_token": more, "entries": page or None, "flags": 0}
        )

    def _object(self, key: str, query: str) -> None:
        if "pid=" not in query:
            target = f"http://{self.headers['Host']}{self.path}{'&' if query else '?'}pid=p1&utm=1"
            status = 301 if self.command == "GET" else 307
            return self._reply(status, b"", {"Location": target})
        data = self.objects[key]
        headers = {"Ais-Version": "1", "Ais-Present": "true"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if self.command == "HEAD" or not wanted:
            return self._reply(200, data, headers)
        first, last = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
        if first >= len(data):
            return self._reply(416, b"{}", {"Content-Range": f"bytes */{len(data)}"})
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        at_once = None if self.held_from is None else max(self.held_from - first, 0)
        return self._reply(206, data[first : last + 1], headers, at_once)

    def _json(self, value: object) -> None:
        self._reply(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _reply(
        self,
        status: int,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        at_once: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:at_once])
            if self.release is not None and at_once is not None and at_once < len(body):
                self.release.wait(60)
                self.wfile.write(body[at_once:])
