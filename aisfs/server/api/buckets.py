"""Requests about buckets, answered by the proxy itself."""

from typing import Any

from aisfs.server.api import properties
from aisfs.server.api.cluster import Cluster
from aisfs.server.api.jobs.listrange import ListJobs
from aisfs.server.api.jobs.shard_index import ShardIndexes
from aisfs.server.api.list_objects import Lister, parse
from aisfs.server.counters import Counters
from aisfs.server.failures import Failure, unsupported
from aisfs.server.messages import Reply, Request, json_reply
from aisfs.server.storage.objects import Storage

PROVIDERS = frozenset(
    {"", "ais", "aws", "s3", "gcp", "gs", "azure", "az", "oci", "oc"},
)
_REMOTE_ONLY = frozenset({"evict-remote-bck", "evict-listrange", "prefetch-listrange"})
_NOT_OFFERED = frozenset({"move-bck", "etl-bck", "etl-listrange", "summary-bck", "promote"})


class Buckets:
    """Listing, creating, describing and destroying buckets; listing objects; starting jobs."""

    def __init__(
        self,
        storage: Storage,
        cluster: Cluster,
        jobs: ListJobs,
        indexes: ShardIndexes,
        counters: Counters,
    ) -> None:
        self._storage = storage
        self._jobs = jobs
        self._indexes = indexes
        self._counters = counters
        self._lister = Lister(cluster.node_id, storage.traps)

    def serve(self, request: Request, name: str) -> Reply:
        """Answer a request below `/v1/buckets`; `name` is empty for all buckets."""
        check_provider(request)
        if request.method == "HEAD":
            self._counters.add("head_bucket")
            bucket = self._storage.bucket(name)
            return Reply(headers=[("Ais-Bucket-Props", properties.header_of(bucket))])
        if not name and request.method != "GET":
            text = f"URL '{request.path.lstrip('/')}' is too short: expected 3 items, got 2"
            raise Failure(400, text)
        message = self._message(request, name)
        if request.method == "GET":
            return self._get(request, name, message)
        self._counters.add("bucket_change")
        match request.method, message.get("action"):
            case "POST", "create-bck":
                self._storage.create(name, properties.check(message.get("value")))
                return Reply()
            case "DELETE", "destroy-bck":
                self._storage.destroy(name)
                return Reply()
            case "PATCH", "set-bprops" | "reset-bprops":
                return self._set(name, message)
            case _:
                return self._job(request, name, message)

    @staticmethod
    def _message(request: Request, name: str) -> dict[str, Any]:
        if request.method == "GET" and not name:
            is_json = "json" in request.environ.get("CONTENT_TYPE", "")
            return request.action() if is_json else {"action": "list"}
        return request.action()

    def _get(self, request: Request, name: str, message: dict[str, Any]) -> Reply:
        action = message.get("action")
        if action in _NOT_OFFERED:
            raise unsupported(f"action {action}")
        if action != "list":
            raise Failure(400, f'invalid action "{action}"')
        if not name:
            self._counters.add("list_buckets")
            identity = {"provider": "ais", "namespace": {"uuid": "", "name": ""}}
            asked = request.query.get("provider", "")
            names = self._storage.names() if asked in ("", "ais") else []
            return json_reply([{"name": n, **identity} for n in names])
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
            new = properties.merge(old, properties.check(message.get("value")))
        bucket.records.set_properties(new)
        return Reply()

    def _job(self, request: Request, name: str, message: dict[str, Any]) -> Reply:
        action, value = message.get("action"), message.get("value") or {}
        if not isinstance(value, dict):
            raise Failure(400, f'action "{action}": its value must be a JSON object')
        if action in _REMOTE_ONLY:
            self._storage.bucket(name)
            text = f"{action}: expecting remote bucket (have ais://{name})"
            raise Failure(400, text, "ErrNotRemoteBck")
        if action in _NOT_OFFERED:
            raise unsupported(f"action {action}")
        match request.method, action:
            case "DELETE", "delete-listrange":
                return self._jobs.delete(self._storage.bucket(name), value)
            case "POST", "index-shard":
                return self._indexes.start(self._storage.bucket(name), value)
            case "POST", "copy-bck":
                to = request.query.get("bck_to", "").strip("/").rpartition("/")[2]
                return self._jobs.copy_bucket(self._storage.bucket(name), to, value)
            case "POST", "copy-listrange":
                return self._jobs.copy_list(self._storage.bucket(name), value)
            case "PUT", "archive":
                return self._jobs.archive(self._storage.bucket(name), value)
        raise Failure(400, f'invalid action "{action}"')


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
