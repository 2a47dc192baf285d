"""The WSGI application: routing of requests, and the replies for errors.

One listener plays proxy and target. An object request that carries `pid` and `utm` was redirected
and is served; any other one is redirected to this same address, as a proxy would do.

Two paths are ours and not AIStore's, the second only with traps:

    GET /-/requests    counts since the start, as JSON: list_page, list_buckets, head_bucket,
                       bucket_change, redirect, get, get_bytes, get_member, head, put, part, put_bytes,
                       append, delete, rename, patch, copy, batch, transform, health, cluster, refused
                       (error replies), and token_leaked: requests to the pod of an ETL that came with a token. Those of the S3 API count too. `get` counts data requests, whole or ranged; `get_bytes` the
                       bytes their replies announced.

    POST /-/move       data begins to move between targets, by the `aisfs.server.storage.traps.Plan`
                       in the body; while it moves, it goes on by the new plan from its beginning
    DELETE /-/move     all data has moved
    GET /-/move        as the others: {"moving": bool, "incomplete": bool, "version": of the map}
"""

import errno
import html
import logging
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from aisfs.server.api.attached import Attached
from aisfs.server.api.buckets import Buckets, check_provider
from aisfs.server.api.cluster import Cluster, Redirects
from aisfs.server.api.get_batch import Batches
from aisfs.server.api.jobs.buckets import ListJobs
from aisfs.server.api.jobs.etl import Commands, Etls
from aisfs.server.api.jobs.registry import JobRules
from aisfs.server.api.jobs.shard_index import ShardIndexes
from aisfs.server.api.jobs.sorts import Sorts
from aisfs.server.api.jobs.transforms import Transforms
from aisfs.server.api.objects import Objects
from aisfs.server.api.s3 import S3, error_document, is_s3
from aisfs.server.api.uploads import Appends, Parts
from aisfs.server.failures import Failure, NotAllowed, no_object, not_remote, text_of, unsupported
from aisfs.server.messages import (
    Counters,
    Environ,
    Reply,
    Request,
    ShortBody,
    StartResponse,
    WsgiApp,
    error_reply,
    json_reply,
    send,
    text_reply,
)
from aisfs.server.storage.bucket import Bucket, check_key
from aisfs.server.storage.objects import STATE_DIRECTORY, Storage
from aisfs.server.storage.traps import Kindness, Traps

log = logging.getLogger(__name__)

_ALLOWED = {
    "buckets": "DELETE, GET, HEAD, PATCH, POST, PUT",
    "objects": "DELETE, GET, HEAD, PATCH, POST, PUT",
    "cluster": "DELETE, GET, POST, PUT",
    "daemon": "DELETE, GET, POST, PUT",
    "reverse": "DELETE, GET, POST, PUT",
    "health": "GET",
    "sort": "DELETE, GET, POST",
    "etl": "DELETE, GET, POST, PUT",
    "download": "DELETE, GET, POST",
    "ml": "GET",
}
_ONLY_HERE = frozenset({"uploadId", "append_type", "archpath", "etl_name"})
"""Queries of a PUT that AIStore passes on to other clusters, and this server does not."""


class Tokens(Protocol):
    """Decides about tokens of other issuers."""

    def check(self, token: str, cluster: str, bucket: str, root: str, method: str) -> None:
        """Refuse a request whose token is not valid, or does not permit it."""
        ...


def make_app(
    root: Path,
    token: str | None = None,
    *,
    tokens: Tokens | None = None,
    traps: bool = False,
    jobs: JobRules | None = None,
    signs: bool = False,
    etls: Commands | None = None,
) -> WsgiApp:
    """Return the application that serves a directory.

    With a token, requests to the proxy without it get 401; `tokens` decides about others; with traps, it destroys and hides what a
    real AIStore would; `jobs` says which jobs its build lacks, and what they wait for. If it `signs`,
    the target takes only what the proxy has redirected so. `etls` are the commands that transform objects; without them, it is a
    build without ETLs.

    Raises:
        ConfigError: the directory is missing or cannot hold the server's own files.
    """
    harm = Traps(root / STATE_DIRECTORY / "disks") if traps else Kindness()
    return Server(root, token, harm, jobs, tokens=tokens, signs=signs, etls=etls)


class Server:
    """The application; one instance per directory and process."""

    def __init__(
        self,
        root: Path,
        token: str | None,
        traps: Kindness,
        rules: JobRules | None = None,
        *,
        tokens: Tokens | None = None,
        signs: bool = False,
        etls: Commands | None = None,
    ) -> None:
        self._token = token
        self._tokens = tokens
        self.counters = Counters()
        self._storage = Storage(root, traps)
        self._cluster = Cluster(self._storage, rules or JobRules())
        node = self._cluster.node_id
        self._objects = Objects(self._storage, node)
        self.redirects = Redirects(
            self._cluster.proxy_id, lambda: traps.moving.version, signs=signs
        )
        self._attached = Attached(
            self._storage.state / "attached" if traps.attaches else None,
            node,
            self.redirects,
            self.counters,
        )
        self._appends = Appends(self._storage, self._objects, node)
        self._parts = Parts(self._storage, self._objects)
        registry = self._cluster.jobs
        self._batches = Batches(self._storage, self.redirects, self.counters, registry)
        self._sorts = Sorts(self._storage, self._objects, registry, node)
        self._indexes = ShardIndexes(self._storage, self._objects, registry)
        self._etls = Etls(self._storage, self._objects, registry, node, self.counters, etls)
        self._s3 = S3(
            self._storage,
            self._objects,
            self._parts,
            self._etls,
            self.counters,
            node_id=node,
            redirects=self.redirects,
        )
        jobs = ListJobs(self._storage, self._objects, registry)
        self._buckets = Buckets(
            self._storage,
            self._cluster,
            jobs,
            self._indexes,
            Transforms(self._storage, self._objects, registry, self._etls, jobs),
            self.counters,
            self._attached.in_use,
        )

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        request = Request(environ)
        try:
            reply = self._route(request)
        except NotAllowed as refused:
            self.counters.add("refused")
            reply = text_reply("Method Not Allowed\n", 405)
            reply.headers.append(("Allow", refused.allow))
        except (Failure, ShortBody, ValueError, OSError, sqlite3.Error) as error:
            failure, node = self._failure(request, error), self._cluster.node_id
            reply = (error_document if is_s3(request) else error_reply)(failure, request, node)
        try:
            return send(reply, environ, start_response)
        except BaseException:
            if reply.file is not None:
                reply.file.close()  # it holds a lock
            raise

    def _failure(self, request: Request, error: Exception) -> Failure:
        if isinstance(error, ShortBody):
            # The client is gone; this must neither look like success nor like an error of ours.
            log.debug("%s %s: %s", request.method, request.path, error)
            return Failure(400, "short body")
        if isinstance(error, OSError | sqlite3.Error):
            log.error("%s %r: %s", request.method, request.path, error)
            return _disk_failure(error)
        self.counters.add("refused")
        # A ValueError is a NUL, a lone surrogate or a number of thousands of digits.
        return error if isinstance(error, Failure) else Failure(400, f"bad value: {error}")

    def close(self) -> None:
        """Close the databases."""
        self._storage.close()

    def _route(self, request: Request) -> Reply:
        parts = request.raw_path.split(b"/", 3)
        root = parts[1] if len(parts) > 1 else b""
        if request.raw_path == b"/-/requests":
            return json_reply(self.counters.snapshot())
        if request.raw_path == b"/-/move" and self._storage.traps.moves_data:
            return self._cluster.move(request)
        if caller := request.header("Ais-Caller-Id"):
            text = f"unexpected intra-cluster header on pub: 'Ais-Caller-Id={caller}'"
            raise Failure(403, text)
        if request.marked:
            self.redirects.check(request)
        if is_s3(request):
            return self._serve_s3(request)
        if root == b"ais" and len(parts) > 2 and parts[2]:
            return self._easy(request, parts)
        return self._v1(request, parts[2:] if root == b"v1" else [])

    def _v1(self, request: Request, parts: list[bytes]) -> Reply:
        name = parts[0].decode("latin-1") if parts else ""
        if name not in _ALLOWED:
            text = f"invalid request URI: '{request.method} {request.path}' from {request.remote}"
            raise Failure(400, text)
        if request.method == "OPTIONS":
            return Reply(headers=[("Allow", "DELETE, GET, HEAD, POST, PUT")])
        if request.method not in _ALLOWED[name].split(", "):
            raise NotAllowed(_ALLOWED[name])
        if name == "health":
            self.counters.add("health")
            return self._cluster.health()
        rest = parts[1] if len(parts) > 1 else b""
        self._authorize(request, name, text_of(rest.partition(b"/")[0]))
        match name:
            case "objects":
                bucket, _, key = rest.partition(b"/")
                return self._object(request, text_of(bucket), key)
            case "buckets":
                far = self._attached.named_in(request)
                return (far or self._buckets).serve(request, text_of(rest).strip("/"))
        return self._rest(request, name, text_of(rest))

    def _serve_s3(self, request: Request) -> Reply:
        # AIStore looks for the token here too, since signatures take the other header.
        path = request.raw_path.removeprefix(b"/s3")[1:]
        if request.header("X-Amz-Security-Token") != self._token:
            self._authorize(request, bucket=text_of(path.partition(b"/")[0]))
        return self._s3.serve(request, path)

    def _rest(self, request: Request, name: str, rest: str) -> Reply:
        if name == "ml":
            self.counters.add("batch" if request.marked else "redirect")
            far = self._attached.named_in(request)
            return (far.batches if far else self._batches).serve(request, rest)
        self.counters.add("cluster")
        if name in ("daemon", "cluster") and request.method == "GET":
            if request.query.get("what") == "remote":
                return self._attached.listed()
            return self._cluster.what(request)
        if name == "cluster" and request.method == "PUT" and rest in ("attach", "detach"):
            return self._attached.change(request, rest)
        if name == "cluster" and request.method == "PUT":
            return self._cluster.jobs.change(request)
        if name == "reverse" and request.method == "GET":
            return self._cluster.reverse(request)
        if name == "sort":
            return self._sorts.serve(request, rest)
        if name == "etl":
            return self._etls.serve(request, rest)
        raise unsupported(f"{request.method} {request.path}")

    def _authorize(self, request: Request, root: str = "objects", bucket: str = "") -> None:
        if request.marked:
            return
        if self._tokens is not None:
            bearer = request.header("Authorization")
            found = bearer.removeprefix("Bearer ") if bearer.startswith("Bearer ") else ""
            found = found or request.header("X-Amz-Security-Token")
            self._tokens.check(found, self._cluster.node_id, bucket, root, request.method)
        if self._token is None:
            return
        if request.header("Authorization") != f"Bearer {self._token}":
            raise Failure(401, "token is missing or not valid")

    def _easy(self, request: Request, parts: list[bytes]) -> Reply:
        """Serve `/ais/<bucket>[/<object>]`."""
        self._authorize(request, bucket=text_of(parts[2]))
        if request.method not in ("GET", "HEAD"):
            raise NotAllowed("GET, HEAD")
        bucket, key = text_of(parts[2]), parts[3] if len(parts) > 3 else b""
        if not key:
            return self._buckets.easy_listing(bucket)
        return self._object(request, bucket, key)

    def _object(self, request: Request, name: str, key: bytes) -> Reply:
        far = self._attached.named_in(request)
        if far is None:
            check_provider(request)
        if not name or not key:
            raise self._too_short(request, name)
        if request.method == "HEAD" and key.endswith(b"/"):
            raise no_object(name, key)
        check_key(key)
        bucket = self._bucket(request, name) if far is None else far.copies.bucket(name)
        if not request.marked:
            return self._redirect(request)
        objects = self._objects if far is None else far.objects
        return self._at_target(request, objects, bucket, key)

    def _at_target(self, request: Request, objects: Objects, bucket: Bucket, key: bytes) -> Reply:
        count = self.counters.add
        etls = self._etls.asked(request) if request.method == "GET" else []
        objects.check_moved(request, bucket, key)
        match request.method:
            case "GET" if etls:
                if objects is not self._objects:
                    raise unsupported("ETL of a remote bucket")
                return self._etls.read(request, etls, bucket, key)
            case "GET":
                member = any(request.query.get(k) for k in ("archpath", "archmode"))
                reply = objects.get(request, bucket, key)
                count("get_member" if member else "get")
                count("get_bytes", _length(reply))
                return reply
            case "HEAD":
                count("head")
                return objects.head(request, bucket, key)
            case "PUT":
                return self._put(request, objects, bucket, key)
            case "DELETE":
                if "uploadId" in request.query:
                    return self._parts.abort(request, bucket, key)
                count("delete")
                reply = objects.delete(request, bucket, key)
                if objects is self._objects:
                    self._indexes.forget(bucket, key)
                return reply
            case "PATCH":
                count("patch")
                return objects.patch(request, bucket, key)
        return self._post(request, objects, bucket, key)

    def _too_short(self, request: Request, name: str) -> Failure:
        if request.method == "POST" and name:
            self._refuse_action(request.action().get("action"), name)
        got, path = 2 + bool(name), request.path.lstrip("/")
        return Failure(400, f"URL '{path}' is too short: expected 4 items, got {got}")

    def _bucket(self, request: Request, name: str) -> Bucket:
        try:
            return self._storage.bucket(name)
        except Failure as error:
            if request.marked and request.method == "GET":
                error.status = 400  # as a target says; 404 is what a proxy says of it
            raise

    def _put(self, request: Request, objects: Objects, bucket: Bucket, key: bytes) -> Reply:
        query, count = request.query, self.counters.add
        if to := query.get("object_to"):
            count("copy")
            is_here = objects is self._objects and to.split("/")[1:2] in (["@#"], ["@"], [""])
            if etls := self._etls.asked(request):
                if not is_here:
                    raise unsupported("ETL of a remote bucket")
                return self._etls.copy(request, etls, bucket, key, to)
            if is_here:
                return objects.copy(bucket, key, to)
            return self._attached.copy(objects, bucket, key, to)
        if objects is not self._objects and query.keys() & _ONLY_HERE:
            raise unsupported("parts and appends in a remote bucket")
        if "uploadId" in query:
            count("part")
            count("put_bytes", request.length)
            return self._parts.put(request, bucket, key)
        if "etl_name" in query:
            raise unsupported("ETL")
        if "append_type" in query:
            count("append")
            return self._appends.handle_request(request, bucket, key)
        if query.get("archpath"):
            count("append")
            return self._appends.archive(request, bucket, key)
        count("put")
        count("put_bytes", request.length)
        return objects.put(request, bucket, key)

    def _post(self, request: Request, objects: Objects, bucket: Bucket, key: bytes) -> Reply:
        message = request.action()
        if objects is not self._objects:
            raise unsupported(f"{message.get('action')} in a remote bucket")
        match message.get("action"):
            case "mpt-complete":
                return self._parts.complete(request, message.get("value"), bucket, key)
            case "rename-obj":
                self.counters.add("rename")
                return self._objects.rename(bucket, key, str(message.get("name") or ""))
            case "check-lock":
                return self._objects.lock_state(bucket, key)
            case "mpt-upload":
                return self._parts.start(bucket, key)
            case action:
                self._refuse_action(action, bucket.name)
                raise Failure(400, f'invalid action "{action}"')

    def _refuse_action(self, action: object, name: str) -> None:
        """Refuse what AIStore does with objects that are elsewhere."""
        if action in ("promote", "blob-download"):
            self._storage.bucket(name)
            raise unsupported("action promote") if action == "promote" else not_remote(action, name)

    def _redirect(self, request: Request) -> Reply:
        """Redirect the client to the target, which is this same listener."""
        # A client that sends its body without waiting for the redirect would otherwise lose the
        # connection. One that wants it closed may not send the body; Go does not read it either.
        if request.header("Connection").lower() != "close":
            request.drain()
        self.counters.add("redirect")
        path = self._storage.traps.location(request.raw_path)
        status = 301 if request.method == "GET" else 307
        reply = self.redirects.make(status, request, path)
        if request.method in ("GET", "HEAD"):
            link = html.escape(dict(reply.headers)["Location"])
            reply.headers.append(("Content-Type", "text/html; charset=utf-8"))
            reply.body = f'<a href="{link}">Moved</a>.\n\n'.encode("latin-1", "replace")
        return reply


def _length(reply: Reply) -> int:
    announced = dict(reply.headers).get("Content-Length", "0")
    return len(reply.body) or int(announced)


def _disk_failure(error: OSError | sqlite3.Error) -> Failure:
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "full" in str(error):
        return Failure(507, f"out of space: {error}", "ErrCapExceeded")
    return Failure(500, str(error))
