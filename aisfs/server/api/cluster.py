"""The cluster of one proxy and one target: its map, its health, and redirects from one to the other.

AIStore 5.1 signs, where its configuration says so. The signature covers the method, the decoded path, the
proxy, the version of the cluster's map, the length of the body and a number that is never used again, so
a target refuses (401) what was not asked of the proxy in the same way.
"""

import base64
import hashlib
import hmac
import itertools
import os
import time
import zlib
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from aisfs.server.api.jobs.registry import Job, JobRules, Registry
from aisfs.server.failures import Failure, unsupported
from aisfs.server.messages import Reply, Request, base36, json_reply, text_reply
from aisfs.server.storage.objects import Storage
from aisfs.server.storage.records import digest_of
from aisfs.server.storage.traps import Plan

VERSION = "5.0"
"""The AIStore release whose recorded behaviour this server follows."""

_OF_A_NODE = frozenset(
    {
        *("bmd", "config", "smapvote", "snode", "log", "node_stats", "node_status", "metrics"),
        *("sysinfo", "mountpaths", "disk", "tls_certificate"),
    }
)
_OF_THE_CLUSTER = frozenset(
    {
        *("bmd", "cluster_config", "smapvote", "snode", "node_stats", "sysinfo", "mountpaths"),
        *("backends", "target_ips"),
    }
)
"""What AIStore answers of itself and this server does not."""


class Cluster:
    """Answers what a proxy answers about itself and the cluster."""

    def __init__(self, storage: Storage, rules: JobRules) -> None:
        # The same directory has the same ids after a restart, as real nodes do.
        mark = zlib.crc32(str(storage.root.resolve()).encode())
        self.node_id = f"aisfs{mark:08x}"
        self.proxy_id = f"p{mark:08x}"
        self._started_ns = time.time_ns()
        self.jobs = Registry(self.node_id, rules)
        self._storage, self._moving = storage, storage.traps.moving

    def health(self) -> Reply:
        """Report that the node is up."""
        uptime = str(time.time_ns() - self._started_ns)
        return Reply(headers=[("Ais-Cluster-Uptime", uptime), ("Ais-Node-Uptime", uptime)])

    def what(self, request: Request) -> Reply:
        """Answer `what=` of the daemon and of the cluster."""
        match request.query.get("what", ""):
            case "smap":
                return json_reply(self._map(request.base_url))
            case "remote":
                return json_reply({"a": None, "ver": 0})
            case "software_version":
                return text_reply(VERSION)
            case "status" | "status_all" | "running_all" | "qryxstats" as asked:
                return self.jobs.what(request, asked)
            case asked:
                here = request.path.rstrip("/").endswith("/cluster")
                if asked in (_OF_THE_CLUSTER if here else _OF_A_NODE):
                    raise unsupported(f"what={asked}")
                text = f"invalid '{request.path}' request: unrecognized 'what={asked}' query"
                raise Failure(400, text)

    def reverse(self, request: Request) -> Reply:
        """Pass a `what=` on to the node named in a header."""
        node = request.header("Ais-Node-Id")
        if node not in (self.node_id, self.proxy_id):
            smap = f"Smap v{self._moving.version}"
            text = f"p[{{node}}]: cannot forward request to node node {node} not present in {smap}"
            failure = Failure(404, text, "errNodeNotFound")
            failure.path = request.path.replace("/reverse", "", 1)
            raise failure
        return self.what(request)

    def move(self, request: Request) -> Reply:
        """Begin or end to move data between targets, or say whether it moves."""
        if request.method == "POST":
            try:
                plan = msgspec.json.decode(request.body() or b"{}", type=Plan)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise Failure(400, f"no such plan: {error}") from error
            if self._storage.begin_move(plan):
                job = Job("rebalance", uuid=f"g{self._moving.version}")
                self.jobs.start(job, self._storage.wait_for_move)
        elif request.method == "DELETE":
            self._storage.end_move()
        return json_reply(self._moving.describe())

    def _map(self, url: str) -> dict[str, Any]:
        proxy, target = _node(self.proxy_id, "proxy", url), _node(self.node_id, "target", url)
        target["flags"] = self._moving.flags
        created = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self._started_ns / 1e9))
        return {
            "pmap": {self.proxy_id: proxy},
            "proxy_si": proxy,
            "tmap": {self.node_id: target},
            "uuid": self.node_id,
            "creation_time": created,
            "version": str(self._moving.version),
        }


def _node(node_id: str, kind: str, url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    net = {
        "node_ip_addr": parts.hostname or "",
        "daemon_port": str(parts.port or 80),
        "direct_url": url,
    }
    return {
        "public_net": net,
        "intra_data_net": net,
        "intra_control_net": net,
        "daemon_type": kind,
        "daemon_id": node_id,
        "flags": 0,
        "id_digest": digest_of(node_id),
    }


_SIGNATURE = 86
"""Characters of a signature; AIStore's are of Ed25519, and here those of SHA-512 are as long."""


class Redirects:
    """Makes the redirects of one proxy, and checks them."""

    def __init__(self, proxy_id: str, version: Callable[[], int], *, signs: bool = False) -> None:
        """`version` returns that of the cluster's map."""
        self._proxy_id = proxy_id
        self._version = version
        self.signs = signs
        self._key = os.urandom(32)
        self._numbers = itertools.count(int.from_bytes(os.urandom(4)))

    def make(self, status: int, request: Request, path: str, asked: bytes | None = None) -> Reply:
        """Return a redirect to the target, which is this same listener.

        Args:
            status: Of the reply.
            request: What to redirect.
            path: As it is written in the redirect.
            asked: The path that the target will be asked for, decoded; by default that of the request.
        """
        query = request.environ.get("QUERY_STRING", "")
        mark = f"pid={self._proxy_id}&utm={base36(time.time_ns())}"
        if self.signs:
            version, number = base36(self._version()), base36(next(self._numbers))
            signature = self._sign(request, asked or request.raw_path, version, number)
            mark += f"&vpams={version}&x={number}&u={signature}"
        start = "&" if "?" in path else "?"
        location = f"{request.base_url}{path}{start}{query}{'&' if query else ''}{mark}"
        return Reply(status, [("Location", location)])

    def check(self, request: Request) -> None:
        """Check a request that came to the target.

        Raises:
            Failure: 401; this proxy did not redirect it so.
        """
        if not self.signs:
            return
        query = request.query
        given = query.get("u", "")
        if not given:
            raise Failure(401, "missing signature", node="t")
        if len(given) != _SIGNATURE:
            raise Failure(401, f"invalid signature length: {len(given)}", node="t")
        right = self._sign(request, request.raw_path, query.get("vpams", ""), query.get("x", ""))
        if query["pid"] != self._proxy_id or not hmac.compare_digest(
            given.encode(), right.encode()
        ):
            raise Failure(401, "node signature verification failed", node="t")

    def _sign(self, request: Request, path: bytes, version: str, number: str) -> str:
        length = str(request.length)
        parts = [request.method.encode(), path, self._proxy_id.encode()]
        parts += [text.encode() for text in (version, length, number)]
        digest = hmac.digest(self._key, b"\0".join(parts), hashlib.sha512)
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")
