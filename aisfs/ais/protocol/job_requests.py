"""Requests about the cluster's jobs: start, describe, stop. Pure, like `requests`.

dSort has a path of its own; all other jobs are started on a bucket and described by the cluster.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from aisfs.ais.protocol.requests import (
    CLUSTER,
    JSON,
    SORTS,
    Request,
    bucket_path,
    bucket_query,
    encode_json,
)
from aisfs.errors import ConfigError
from aisfs.model import Bucket

SORT_ID = "srt-"
"""How the id of a dSort job begins."""
INDEX_SHARD = "index-shard"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{1,60}")
_START_SECONDS = 60.0
"""A start is answered once each target has prepared the job."""
_MOST_JOBS = 32 << 20
"""Bytes: thousands of jobs, with the statistics of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SortRequest:
    """What dSort is to do; the fields are those of its specification."""

    source: Bucket
    target: Bucket
    template: str = ""
    """Names of the input shards, without their extension; empty if `names` lists them."""
    names: Sequence[str] = ()
    """Names of the input shards, with their extension."""
    output: str
    """Template of the names of the output shards, without their extension."""
    shard_size: int
    kind: str
    decreasing: bool = False
    seed: str = ""
    key_extension: str = ""
    key_type: str = ""
    description: str = ""


def start_sort(asked: SortRequest) -> Request:
    """Start a dSort job; the reply is its id.

    A shard that is missing ends the job, since its samples would be missing from the copy. The type
    of sorter must be named: AIStore 5.0 refuses a specification without.
    """
    chosen: dict[str, Any] = (
        {"objnames": list(asked.names)} if asked.names else {"template": asked.template}
    )
    spec = {
        "description": asked.description,
        "input_bck": _bucket(asked.source),
        "output_bck": _bucket(asked.target),
        "input_format": chosen,
        "input_extension": ".tar",
        "output_format": asked.output,
        "output_extension": ".tar",
        "output_shard_size": str(asked.shard_size),
        "algorithm": {
            "kind": asked.kind,
            "decreasing": asked.decreasing,
            "seed": asked.seed,
            "extension": asked.key_extension,
            "content_key_type": asked.key_type,
        },
        "dsorter_type": "dsort_general",
        "Config": {"missing_shards": "abort", "duplicated_records": "warn"},
    }
    subject = f"the sort of {asked.source}"
    headers, body = {"Content-Type": JSON}, encode_json(spec)
    return Request("POST", SORTS, "", subject, headers, body, patience=_START_SECONDS)


def list_sorts() -> Request:
    """Ask for all dSort jobs that the cluster remembers."""
    return Request("GET", SORTS, "", "sorts", most_reply=_MOST_JOBS)


def describe_sort(uuid: str) -> Request:
    """Ask what each target has done of a dSort job."""
    query = urlencode({"uuid": check_id(uuid)})
    return Request("GET", SORTS, query, f"job {uuid}", most_reply=_MOST_JOBS)


def abort_sort(uuid: str) -> Request:
    """Stop a dSort job."""
    query = urlencode({"uuid": check_id(uuid)})
    return Request("DELETE", f"{SORTS}/abort", query, f"job {uuid}")


def index_shards(bucket: Bucket, prefix: str) -> Request:
    """Start the job that indexes the shards of a bucket or prefix; the reply is its id."""
    message = {"action": INDEX_SHARD, "name": "", "value": {"prefix": prefix}}
    headers, body = {"Content-Type": JSON}, encode_json(message)
    subject = f"the index of {bucket}/{prefix}"
    path, query = bucket_path(bucket), bucket_query(bucket)
    return Request("POST", path, query, subject, headers, body, patience=_START_SECONDS)


def describe_jobs(*, uuid: str = "", kind: str = "") -> Request:
    """Ask each target for one job, those of a kind, or all that it remembers."""
    asked = {"id": check_id(uuid) if uuid else "", "kind": kind}
    query = urlencode({"what": "qryxstats"})
    headers, body = {"Content-Type": JSON}, encode_json(asked)
    subject = f"job {uuid}" if uuid else "jobs"
    return Request("GET", CLUSTER, query, subject, headers, body, most_reply=_MOST_JOBS)


def stop_job(uuid: str) -> Request:
    """Stop one job."""
    message = {"action": "stop", "name": "", "value": {"ID": check_id(uuid)}}
    headers, body = {"Content-Type": JSON}, encode_json(message)
    return Request("PUT", CLUSTER, "", f"job {uuid}", headers, body)


def check_id(uuid: str) -> str:
    """Return the id of a job, which a user may have typed.

    Raises:
        ConfigError: it can be none.
    """
    if not _ID.fullmatch(uuid):
        raise ConfigError(f"{uuid!r} is not the id of a job; `aisfs jobs` lists them")
    return uuid


def _bucket(bucket: Bucket) -> dict[str, Any]:
    cluster, _, name = bucket.namespace.removeprefix("@").partition("#")
    space = {"uuid": cluster, "name": name}
    return {"name": bucket.name, "provider": bucket.provider.value, "namespace": space}
