"""Requests about the cluster of one proxy and one target: its map and its health."""

import time
import zlib
from typing import Any
from urllib.parse import urlsplit

import msgspec

from aisfs.server.api.jobs.registry import Job, JobRules, Registry
from aisfs.server.failures import Failure, unsupported
from aisfs.server.messages import Reply, Request, json_reply, text_reply
from aisfs.server.storage.checksums import digest_of
from aisfs.server.storage.moving import Plan
from aisfs.server.storage.objects import Storage

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
