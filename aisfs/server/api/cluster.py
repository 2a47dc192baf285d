"""Requests about the cluster of one proxy and one target: its map, its health, its jobs."""

import secrets
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cachetools import FIFOCache

from aisfs.server.failures import Failure
from aisfs.server.messages import Reply, Request, json_reply, text_reply
from aisfs.server.storage.checksums import digest_of

VERSION = "5.0"
"""The AIStore release whose recorded behaviour this server follows."""
JOBS_KEPT = 1000


@dataclass(slots=True)
class Job:
    """A finished job; here every job is finished before its id is returned."""

    kind: str
    error: str = ""
    uuid: str = field(default_factory=lambda: secrets.token_urlsafe(6))
    end_time: int = field(default_factory=time.time_ns)


class Cluster:
    """Answers what a proxy answers about itself and the cluster."""

    def __init__(self, root: Path) -> None:
        # The same directory has the same ids after a restart, as real nodes do.
        mark = zlib.crc32(str(root.resolve()).encode())
        self.node_id = f"aisfs{mark:08x}"
        self.proxy_id = f"p{mark:08x}"
        self._started_ns = time.time_ns()
        self._jobs = FIFOCache[str, Job](JOBS_KEPT)

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
            case "status":
                return self._status(request)
            case "qryxstats":
                return json_reply({self.node_id: self._snaps(request)})
            case "status_all" | "running_all" as asked:
                jobs = list(self._jobs.values()) if asked == "status_all" else []
                return json_reply([_status_of(job) for job in jobs])
            case asked:
                text = f"invalid '{request.path}' request: unrecognized 'what={asked}' query"
                raise Failure(400, text)

    def reverse(self, request: Request) -> Reply:
        """Pass a `what=` on to the node named in a header."""
        node = request.header("Ais-Node-Id")
        if node not in (self.node_id, self.proxy_id):
            text = f"p[{{node}}]: cannot forward request to node node {node} not present in Smap v1"
            failure = Failure(404, text, "errNodeNotFound")
            failure.path = request.path.replace("/reverse", "", 1)
            raise failure
        return self.what(request)

    def finished(self, kind: str, error: str = "") -> Reply:
        """Remember a finished job; the reply is its id."""
        job = Job(kind, error)
        self._jobs[job.uuid] = job
        return text_reply(job.uuid)

    def _status(self, request: Request) -> Reply:
        job = self._asked_job(request)
        if job is None:
            raise Failure(404, "x-[{role}] does not exist", "ErrNotFound")
        return json_reply(_status_of(job), "text/plain")

    def _snaps(self, request: Request) -> list[dict[str, Any]]:
        job = self._asked_job(request)
        if job is None:
            return []
        end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(job.end_time / 1e9))
        snap = {"id": job.uuid, "kind": job.kind, "start-time": end, "end-time": end}
        return [{**snap, "err": job.error, "aborted": False, "is_idle": True}]

    def _asked_job(self, request: Request) -> Job | None:
        asked = {name.lower(): value for name, value in request.action().items()}
        return self._jobs.get(str(asked.get("id", "")))

    def _map(self, url: str) -> dict[str, Any]:
        proxy, target = _node(self.proxy_id, "proxy", url), _node(self.node_id, "target", url)
        created = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self._started_ns / 1e9))
        return {
            "pmap": {self.proxy_id: proxy},
            "proxy_si": proxy,
            "tmap": {self.node_id: target},
            "uuid": self.node_id,
            "creation_time": created,
            "version": "1",
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


def _status_of(job: Job) -> dict[str, Any]:
    return {
        "kind": job.kind,
        "uuid": job.uuid,
        "err": job.error,
        "end_time": job.end_time,
        "aborted": False,
    }
