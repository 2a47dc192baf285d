"""A stand-in for the hub of Hugging Face: what its library and a reader of files need of it.

Files come from a second server, as the hub redirects to its storage, with a signature in the URL. That
one refuses whoever shows a token.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

_PAGE = 3
"""Entries of a page of a listing."""
_LFS = 10
"""Bytes from which a file is in LFS."""


@dataclass
class Hub:
    """One repository, `datasets/own/pets`."""

    url: str = ""
    storage: str = ""
    token: str = ""
    """What must be shown; empty for a public repository."""
    files: dict[str, bytes] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    """`METHOD PATH` of each request to the hub, and of each to its storage."""
    to_storage: list[dict[str, str]] = field(default_factory=list)
    """The headers of each request there."""
    _commits: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def commit(self) -> str:
        """Return the commit that `main` names now."""
        said = json.dumps({k: hashlib.sha256(v).hexdigest() for k, v in self.files.items()})
        name = hashlib.sha1(said.encode()).hexdigest()
        self._commits[name] = dict(self.files)
        return name

    def at(self, revision: str) -> dict[str, bytes] | None:
        """Return the files of a commit or branch."""
        return self._commits.get(self.commit() if revision == "main" else revision)


def _described(path: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data)}
    entry["oid"] = hashlib.sha1(b"blob" + data).hexdigest()
    if len(data) >= _LFS:
        sha = hashlib.sha256(data).hexdigest()
        entry["lfs"] = {"oid": sha, "size": len(data), "pointerSize": 130}
    return entry


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    """Head and body at once, or the body would wait for the other side's acknowledgement."""
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def json(self, value: Any, **headers: str) -> None:
        self.answer(200, json.dumps(value).encode(), Content_Type="application/json", **headers)


class _Front(_Handler):
    """The hub itself."""

    def do_GET(self) -> None:
        hub, parts = self.hub, urlsplit(self.path)
        hub.seen.append(f"{self.command} {unquote(parts.path)}")
        length = int(self.headers.get("Content-Length") or 0)
        form = parse_qs(self.rfile.read(length).decode())
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self.answer(401, X_Error_Code="GatedRepo")
        match [unquote(part) for part in parts.path.split("/")[1:]]:
            case ["api", "datasets", "own", "pets"]:
                return self.info("main")
            case ["api", "datasets", "own", "pets", "revision", revision]:
                return self.info(revision)
            case ["api", "datasets", "own", "pets", "tree", revision, *path]:
                return self.tree(hub.at(revision), "/".join(path), parse_qs(parts.query))
            case ["api", "datasets", "own", "pets", "paths-info", revision]:
                files = hub.at(revision) or {}
                wanted = form.get("paths", [])
                return self.json([_described(p, files[p]) for p in wanted if p in files])
            case ["datasets", "own", "pets", "resolve", revision, *path]:
                name = "/".join(path)
                if name not in (hub.at(revision) or {}):
                    return self.answer(404, X_Error_Code="EntryNotFound")
                place = f"{hub.storage}/{revision}/{quote(name, safe='')}?Signature=signed"
                return self.answer(302, Location=place, X_Repo_Commit=revision)
        return self.answer(404, X_Error_Code="RepoNotFound")

    do_HEAD = do_POST = do_GET

    def info(self, revision: str) -> None:
        if self.hub.at(revision) is None:
            return self.answer(404, X_Error_Code="RevisionNotFound")
        commit = self.hub.commit() if revision == "main" else revision
        return self.json(
            {"id": "own/pets", "sha": commit, "lastModified": "2026-01-02T03:04:05.000Z"}
        )

    def tree(self, files: dict[str, bytes] | None, path: str, query: dict[str, list[str]]) -> None:
        prefix = f"{path}/" if path else ""
        below = {p: d for p, d in (files or {}).items() if p.startswith(prefix)}
        if files is None or (path and not below):
            return self.answer(404, X_Error_Code="EntryNotFound")
        entries: dict[str, dict[str, Any]] = {}
        for name, data in sorted(below.items()):
            steps = name[len(prefix) :].split("/")
            for at in range(1, len(steps)):
                folder = prefix + "/".join(steps[:at])
                entries.setdefault(folder, {"type": "directory", "path": folder, "oid": "0"})
            entries[name] = _described(name, data)
        if query.get("recursive", ["false"])[0].lower() != "true":
            entries = {p: e for p, e in entries.items() if "/" not in p[len(prefix) :]}
        start = int(query.get("cursor", ["0"])[0])
        page = list(entries.values())[start : start + _PAGE]
        more = start + _PAGE < len(entries)
        kept = "&".join(f"{k}={v[0]}" for k, v in query.items() if k != "cursor")
        link = (
            f'<{self.hub.url}{urlsplit(self.path).path}?{kept}&cursor={start + _PAGE}>; rel="next"'
        )
        return self.json(page, **({"Link": link} if more else {}))


class _Storage(_Handler):
    """Where the hub redirects to."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.hub.to_storage.append({k.lower(): v for k, v in self.headers.items()})
        if parts.query != "Signature=signed" or "Authorization" in self.headers:
            return self.answer(400)
        _, revision, name = parts.path.split("/")
        data = (self.hub.at(revision) or {})[unquote(name)]
        said = self.headers.get("Range")
        if said is None:
            return self.answer(200, data, ETag='"of-the-storage"')
        start, stop = (int(number) for number in said.removeprefix("bytes=").split("-"))
        part = data[start : stop + 1]
        where = f"bytes {start}-{start + len(part) - 1}/{len(data)}"
        return self.answer(206, part, Content_Range=where, ETag='"of-the-storage"')

    do_HEAD = do_GET


def use_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the library in this process ask the stand-in; it looks at the environment when it is loaded."""
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setenv("HF_TOKEN", hub.token)


@contextmanager
def running_hub(token: str = "") -> Iterator[Hub]:
    """Run the stand-in in threads until the block ends."""
    hub = Hub(token=token)
    servers = []
    for handler in (_Front, _Storage):
        bound = type(handler.__name__, (handler,), {"hub": hub})
        server = ThreadingHTTPServer(("127.0.0.1", 0), bound)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
    hub.url, hub.storage = (f"http://127.0.0.1:{s.server_address[1]}" for s in servers)
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
