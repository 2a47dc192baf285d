"""Requests about buckets, answered by the proxy itself."""

import json
from collections.abc import Callable
from typing import Any

from aisfs.server.api.cluster import Cluster
from aisfs.server.api.jobs.buckets import ListJobs, Renames, Summaries, named_in
from aisfs.server.api.jobs.shard_index import ShardIndexes
from aisfs.server.api.jobs.transforms import Transforms
from aisfs.server.api.list_objects import Lister, parse
from aisfs.server.failures import Failure, not_remote, unsupported
from aisfs.server.messages import Counters, Reply, Request, json_reply
from aisfs.server.storage.bucket import check_properties, merge_properties, properties_header
from aisfs.server.storage.objects import Storage

PROVIDERS = frozenset(
    {"", "ais", "aws", "s3", "gcp", "gs", "azure", "az", "oci", "oc"},
)
_REMOTE_ONLY = frozenset({"evict-remote-bck", "evict-listrange", "prefetch-listrange"})
_NOT_OFFERED = {
    "GET": frozenset({"summary-shard", "show-inventory"}),
    "POST": frozenset(
        {
            *("promote", "make-n-copies", "ec-encode", "rechunk", "create-inventory"),
        }
    ),
    "DELETE": frozenset({"destroy-inventory"}),
}
"""What AIStore's buckets do on request and ours do not, by method."""


class Buckets:
    """Listing, creating, describing and destroying buckets; listing objects; starting jobs."""

    def __init__(
        self,
        storage: Storage,
        cluster: Cluster,
        jobs: ListJobs,
        indexes: ShardIndexes,
        transforms: Transforms,
        counters: Counters,
        elsewhere: Callable[[], list[dict[str, Any]]],
    ) -> None:
        """`elsewhere` gives the buckets of other clusters that are in use."""
        self._storage = storage
        self._jobs = jobs
        self._indexes = indexes
        self._transforms = transforms
        self._counters = counters
        self._elsewhere = elsewhere
        self._lister = Lister(cluster.node_id, storage.traps)
        self._renames = Renames(storage, cluster.jobs)
        self._summaries = Summaries(storage, cluster.jobs)

    def serve(self, request: Request, name: str) -> Reply:
        """Answer a request below `/v1/buckets`; `name` is empty for all buckets."""
        check_provider(request)
        if request.method == "HEAD":
            self._counters.add("head_bucket")
            return self._head(request, name)
        if not name and request.method != "GET":
            text = f"URL '{request.path.lstrip('/')}' is too short: expected 3 items, got 2"
            raise Failure(400, text)
        message = message_in(request, name)
        if request.method == "GET":
            return self._get(request, name, message)
        self._counters.add("bucket_change")
        match request.method, message.get("action"):
            case "POST", "create-bck":
                self._storage.create(name, check_properties(message.get("value")))
                return Reply()
            case "DELETE", "destroy-bck":
                self._storage.destroy(name)
                return Reply()
            case "PATCH", "set-bprops" | "reset-bprops":
                return self._set(name, message)
            case _:
                return self._job(request, name, message)

    def _head(self, request: Request, path: str) -> Reply:
        """Describe a bucket; with `bsumm_remote` also its objects, or those below a prefix."""
        name, _, prefix = path.partition("/")
        summed = "bsumm_remote" in request.query
        if prefix and not summed:
            text = f"invalid URL '{request.path}': expecting just the bucket name"
            raise Failure(400, f"{text}, got '{name}' and '{prefix}'")
        bucket = self._storage.bucket(name)
        reply = Reply(headers=[("Ais-Bucket-Props", properties_header(bucket))])
        if not summed:
            return reply
        uuid = request.query.get("uuid", "")
        if uuid:
            reply.status, (found, *_) = self._summaries.results(uuid, present=True)
            summary = json.dumps(found, separators=(",", ":"))
            reply.headers.append(("Ais-Bucket-Summ", summary))
        else:
            reply.status, uuid = 202, self._summaries.start(bucket, prefix)
        reply.headers.append(("Ais-Xaction-Id", uuid))
        return reply

    def _get(self, request: Request, name: str, message: dict[str, Any]) -> Reply:
        action = message.get("action")
        if action in _NOT_OFFERED["GET"]:
            raise unsupported(f"action {action}")
        if action == "summary-bck":
            value = message.get("value") or {}
            if not isinstance(value, dict):
                raise Failure(400, f'action "{action}": its value must be a JSON object')
            return self._summaries.serve(self._storage.bucket(name) if name else None, value)
        if action != "list":
            raise Failure(400, f'invalid action "{action}"')
        if not name:
            self._counters.add("list_buckets")
            identity = {"provider": "ais", "namespace": {"uuid": "", "name": ""}}
            asked = request.query.get("provider", "")
            if asked not in ("", "ais"):
                return json_reply([])
            here = [{"name": n, **identity} for n in self._storage.names()]
            return json_reply(here + self._elsewhere())
        bucket = self._storage.bucket(name)
        self._counters.add("list_page")
        packed = "msgpack" in request.header("Accept")
        return self._lister.page(bucket, parse(message.get("value"), name), packed)

    def easy_listing(self, name: str) -> Reply:
        """List a bucket by its easy URL."""
        self._counters.add("list_page")
        return self._lister.page(self._storage.bucket(name), parse({}, name), packed=False)

    def _set(self, name: str, message: dict[str, Any]) -> Reply:
        bucket = self._storage.bucket(name)
        old = bucket.records.properties()
        if message["action"] == "reset-bprops":
            new = {"created": old["created"]} if "created" in old else {}
        else:
            new = merge_properties(old, check_properties(message.get("value")))
        bucket.records.set_properties(new)
        return Reply()

    def _job(self, request: Request, name: str, message: dict[str, Any]) -> Reply:
        action, value = message.get("action"), message.get("value") or {}
        if not isinstance(value, dict):
            raise Failure(400, f'action "{action}": its value must be a JSON object')
        self._refuse(request.method, action, name)
        match request.method, action:
            case "DELETE", "delete-listrange":
                return self._jobs.delete(self._storage.bucket(name), value)
            case "POST", "index-shard":
                return self._indexes.start(self._storage.bucket(name), value)
            case "POST", "copy-bck":
                bucket = self._storage.bucket(name)
                return self._jobs.copy_bucket(bucket, named_in(request), value)
            case "POST", "etl-bck" | "etl-listrange":
                return self._transforms.start(request, action, self._storage.bucket(name), value)
            case "POST", "move-bck":
                return self._renames.start(self._storage.bucket(name), named_in(request))
            case "POST", "copy-listrange":
                return self._jobs.copy_list(self._storage.bucket(name), value)
            case "PUT", "archive":
                return self._jobs.archive(self._storage.bucket(name), value)
        raise Failure(400, f'invalid action "{action}"')

    def _refuse(self, method: str, action: object, name: str) -> None:
        """Refuse what only buckets that are elsewhere have, and what is not offered."""
        if action in _REMOTE_ONLY:
            self._storage.bucket(name)
            raise not_remote(action, name)
        if action in _NOT_OFFERED.get(method, ()):
            raise unsupported(f"action {action}")


def message_in(request: Request, name: str) -> dict[str, Any]:
    """Return the message of a request about a bucket, or about all of them for an empty name."""
    if request.method == "GET" and not name:
        is_json = "json" in request.environ.get("CONTENT_TYPE", "")
        return request.action() if is_json else {"action": "list"}
    return request.action()


def check_provider(request: Request) -> None:
    """Refuse unknown providers (400), and those whose backend this server has not (501)."""
    provider = request.query.get("provider", "")
    if provider not in PROVIDERS:
        listed = "ais, aws (s3://), gcp (gs://), azure (az://), oci (oc://)"
        text = f'invalid backend provider "{provider}": must be one of [{listed}]'
        raise Failure(400, text, "ErrInvalidBackendProvider")
    if provider not in ("", "ais") and request.path.strip("/") != "v1/buckets":
        raise unsupported(f"backend provider {provider}")
    if request.query.get("namespace", "") not in ("", "@", "@#", "#"):
        raise unsupported("namespaces")
