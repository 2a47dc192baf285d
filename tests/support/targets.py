"""One server that looks like a proxy and several targets, some of which may not have joined yet.

All targets are the same listener under other spellings of its address, so that a client sees several
hosts. An object is with the target that rendezvous hashing chooses among all of them, a shard index
with its shard, as in AIStore, and so misplaced and left out of listings most of the time. Over the listener, of every target that is asked:

    POST /-/targets    {"joined": N, "ready": BOOL}: a proxy that has just started and knows the first N
                       targets; with all of them, or when it is not said, `ready` is whether all are there

With no target, objects are refused with ErrNoNodes. With some, requests go to the best of these, and
the objects of the others are not there: GET, HEAD and DELETE are answered 404, a PUT is acknowledged and
keeps the object where nobody looks for it once all have joined. Until then listings and whatever else
concerns buckets are 503 without a body. `health?prr=true` is 503 until it is `ready`.

What no proxy has led to a target, that target serves if it is a GET or HEAD, and refuses otherwise; where
redirects are signed, or tokens are needed, it refuses that as well.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from xxhash import xxh64_intdigest

from aisfs.server.app import Server, make_app
from aisfs.server.failures import Failure, text_of
from aisfs.server.messages import (
    Environ,
    Reply,
    Request,
    StartResponse,
    error_reply,
    json_reply,
    send,
)
from aisfs.server.storage.records import NODE_SEED, digest_of
from aisfs.server.storage.traps import Traps

PROXY = "127.0.0.1"
HOSTS = ("127.1", "127.0.1", "0x7f.1")
"""Other spellings of its address, by which the targets go."""
_SHARD_INDEXES = b".sys-shardidx"
_WORD = (1 << 64) - 1


def _names(count: int) -> list[str]:
    return [f"{chr(ord('a') + number)}target" for number in range(count)]


class SpreadTraps(Traps):
    """Those of several targets: each makes its own pages, and what is misplaced is left out of them."""

    def __init__(self, folder: Path, count: int) -> None:
        super().__init__(folder)
        self.targets = count
        self._all = _names(count)

    def target_of(self, bucket: str, key: bytes) -> int:
        return self._all.index(_holder(self._all, bucket.encode(), key))

    def is_misplaced(self, bucket: str, key: bytes) -> bool:
        # Nothing but shard indexes ever is; what is sent astray is kept in directories of its own.
        name = bucket.encode()
        return name == _SHARD_INDEXES and (
            _holder(self._all, name, key) != _owner(self._all, name, key)
        )


class Targets:
    """The middleware; the application below keeps what every target rightly has."""

    def __init__(
        self,
        app: Server,
        root: Path,
        count: int,
        joined: int,
        traps: bool,
        *,
        closed: bool = False,
    ) -> None:
        """If it is `closed`, the targets serve nothing that no proxy has led there."""
        self._app = app
        self._root = root
        self._all = _names(count)
        # What is sent to the wrong target lies in a directory of its own.
        folders = [root / ".aisfs-server" / name for name in self._all]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        self._wrong = {f.name: (f, make_app(f, traps=traps)) for f in folders}
        self._closed = closed
        self._joined, self._ready = joined, joined == count

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        host, _, port = environ.get("HTTP_HOST", "").rpartition(":")
        asked = self._all[HOSTS.index(host)] if host in HOSTS[: len(self._all)] else ""
        environ["HTTP_HOST"] = f"{PROXY}:{port}"
        request = Request(environ)
        if request.path == "/-/targets":
            return send(self._control(request), environ, start_response)
        try:
            reply = self._refusal(request)
        except Failure as failure:
            reply = error_reply(failure, request, "proxy")
        if reply is not None:
            request.drain()
            return send(reply, environ, start_response)
        if request.path.startswith("/v1/objects/"):
            return self._object(request, asked, port, start_response)
        if request.path in ("/v1/daemon", "/v1/cluster") and request.query.get("what") == "smap":
            return self._map(environ, port, start_response)
        return self._app(environ, start_response)

    def _control(self, request: Request) -> Reply:
        state = request.action()
        self._joined = state["joined"]
        self._ready = state.get("ready", self._joined == len(self._all))
        return json_reply(state)

    def _refusal(self, request: Request) -> Reply | None:
        """Give what a proxy that has just started answers instead."""
        kind = request.path.split("/")[2] if request.path.startswith("/v1/") else ""
        if kind == "health" and request.query.get("prr") == "true" and not self._ready:
            raise Failure(503, "not ready yet (cluster is starting up)")
        if kind == "buckets" and self._joined < len(self._all):
            return Reply(503)
        if kind in ("objects", "ml") and not self._joined:
            status = 500 if request.method == "HEAD" else 400
            raise Failure(status, "no storage targets in the cluster", "ErrNoNodes")
        return None

    def _object(
        self, request: Request, asked: str, port: str, start_response: StartResponse
    ) -> Iterable[bytes]:
        _, _, _, bucket, key = [*request.raw_path.split(b"/", 4), b"", b""][:5]
        try:
            self._check(request, asked)
        except Failure as refused:
            request.drain()
            return send(error_reply(refused, request, asked), request.environ, start_response)
        if not request.marked and asked:
            query = request.environ.get("QUERY_STRING", "")
            request.environ["QUERY_STRING"] = f"{query}&pid=none&utm=none"
        elif not request.marked:
            goal = _owner(self._all[: self._joined], bucket, key)
            url = f"http://{HOSTS[self._all.index(goal)]}:{port}"
            return self._app(request.environ, _elsewhere(start_response, url))
        if asked in ("", _holder(self._all, bucket, key)):
            return self._app(request.environ, start_response)
        folder, app = self._wrong[asked]
        name = text_of(bucket)
        if (self._root / name).is_dir():
            (folder / name).mkdir(exist_ok=True)
        return app(request.environ, start_response)

    def _check(self, request: Request, asked: str) -> None:
        """Refuse what a target does not serve."""
        if request.marked:
            self._app.redirects.check(request)
        elif asked and self._closed:
            raise Failure(403, "direct target access denied", node="t")
        elif asked and request.method not in ("GET", "HEAD"):
            text = f"{{role}}[{{node}}]: {request.method}(obj) is expected to be redirected"
            raise Failure(400, text, node="t")

    def _map(self, environ: Environ, port: str, start_response: StartResponse) -> Iterable[bytes]:
        environ["HTTP_ACCEPT_ENCODING"] = ""
        found = json.loads(b"".join(self._app(environ, lambda *_: None)))
        (node,) = found["tmap"].values()
        found["tmap"] = {
            name: _node(node, name, f"http://{host}:{port}")
            for name, host in zip(self._all[: self._joined], HOSTS, strict=False)
        }
        for each in list(found["tmap"])[:-1]:  # one is the cause of data that moves
            found["tmap"][each]["flags"] = 0
        # A proxy that starts anew counts anew.
        found["version"] = str(int(found["version"]) + self._joined)
        return send(json_reply(found), environ, start_response)


def _node(like: dict[str, Any], name: str, url: str) -> dict[str, Any]:
    net = {**like["public_net"], "node_ip_addr": url.split("/")[2].split(":")[0], "direct_url": url}
    nets = dict.fromkeys(("public_net", "intra_data_net", "intra_control_net"), net)
    return {**like, **nets, "daemon_id": name, "id_digest": digest_of(name)}


def _elsewhere(start_response: StartResponse, url: str) -> StartResponse:
    """Lead redirects to another target."""

    def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> object:
        moved = [
            (name, f"{url}/{value.split('/', 3)[3]}" if name == "Location" else value)
            for name, value in headers
        ]
        return start_response(status, moved, *rest)

    return start


def _holder(names: list[str], bucket: bytes, key: bytes) -> str:
    """Choose the target that has an object: a shard index is with its shard."""
    if bucket == _SHARD_INDEXES:
        bucket, _, key = key.removeprefix(b"ais/@#/").removesuffix(b".idx").partition(b"/")
    return _owner(names, bucket, key)


def _owner(names: list[str], bucket: bytes, key: bytes) -> str:
    """Choose a target by rendezvous hashing, as AIStore does."""
    digest = xxh64_intdigest(b"ais/@#/" + bucket + b"/" + key, seed=NODE_SEED)
    return max(names, key=lambda name: _score(digest_of(name) ^ digest))


def _score(seed: int) -> int:
    z = (seed + 0x9E3779B97F4A7C15) & _WORD
    z = _mix((_mix(z) + 0x9E3779B97F4A7C15) & _WORD) * 5 & _WORD
    return (z << 7 | z >> 57) * 9 & _WORD


def _mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _WORD
    return z ^ (z >> 31)
