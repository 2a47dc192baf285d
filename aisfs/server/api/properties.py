"""Bucket properties: AIStore's defaults, and what a user has set, which is kept with the records."""

import json
import os
from typing import Any

from aisfs.server.failures import Failure
from aisfs.server.storage.bucket import Bucket
from aisfs.server.storage.checksums import HASHERS

_DEFAULTS: dict[str, Any] = {
    "backend_bck": {"name": "", "provider": "", "namespace": {"uuid": "", "name": ""}},
    "write_policy": {"data": "immediate", "md": "immediate"},
    "provider": "ais",
    "Renamed": "",
    "checksum": {
        "type": "xxhash2",
        "validate_cold_get": False,
        "validate_warm_get": False,
        "validate_obj_move": False,
        "enable_read_range": False,
    },
    "extra": {"aws": {}, "gcp": {}, "oci": {}},
    "rate_limit": {
        "backend": {"interval": "1m", "max_tokens": 1000, "enabled": False, "num_retries": 3},
        "frontend": {"interval": "1m", "max_tokens": 1000, "enabled": False, "burst_size": 375},
    },
    "ec": {
        "compression": "never",
        "bundle_multiplier": 2,
        "burst_buffer": 512,
        "objsize_limit": 262144,
        "data_slices": 2,
        "parity_slices": 2,
        "enabled": False,
        "disk_only": False,
    },
    "chunks": {"objsize_limit": "0B", "max_monolithic_size": "1TiB", "chunk_size": "1GiB"},
    "mirror": {"copies": 2, "burst_buffer": 512, "enabled": False},
    "lru": {
        "dont_evict_time": "2h0m",
        "capacity_upd_time": "10m",
        "batch_size": 32768,
        "enabled": False,
    },
    "access": "18446744073709551615",
    "features": "0",
    "bid": "0",
    "versioning": {"enabled": True, "validate_warm_get": False, "synchronize": False},
}


def check(changes: object) -> dict[str, Any]:
    """Accept a set of properties to change.

    Raises:
        Failure: 400 when it is none, or names a checksum nobody knows.
    """
    if changes is None:
        return {}
    if not isinstance(changes, dict):
        raise Failure(400, "bucket properties: expecting a JSON object")
    for name, value in changes.items():
        default = _DEFAULTS.get(name)
        if isinstance(default, dict) and not isinstance(value, dict):
            raise Failure(400, f'bucket properties: invalid value of "{name}"')
    kind = changes.get("checksum", {}).get("type")
    if kind is not None and kind not in HASHERS:
        known = " ".join(sorted(HASHERS.keys() - {"none"})) + " none"
        raise Failure(400, f'invalid checksum type "{kind}" (expecting [{known}])')
    return changes


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Lay changes over a set of properties, section by section."""
    merged = dict(base)
    for name, value in changes.items():
        old = merged.get(name)
        merged[name] = {**old, **value} if isinstance(old, dict) else value
    return merged


def header_of(bucket: Bucket) -> str:
    """Give all properties of a bucket as the one line a HEAD carries."""
    changed = bucket.records.properties()
    changed.setdefault("created", str(os.stat(bucket.folder).st_ctime_ns))
    return json.dumps(merge(_DEFAULTS, changed), separators=(",", ":"))


def checksum_type(bucket: Bucket) -> str:
    """Give the checksum type of new objects."""
    return str(_section(bucket, "checksum")["type"])


def range_checksums(bucket: Bucket) -> bool:
    """Say whether range replies carry the range's own checksum."""
    return bool(_section(bucket, "checksum")["enable_read_range"])


def validates(bucket: Bucket) -> bool:
    """Say whether the checksum of an object is compared when it is read."""
    return bool(_section(bucket, "checksum")["validate_warm_get"])


def versioned(bucket: Bucket) -> bool:
    """Say whether new objects get a version."""
    return bool(_section(bucket, "versioning")["enabled"])


def _section(bucket: Bucket, name: str) -> dict[str, Any]:
    return {**_DEFAULTS[name], **bucket.records.properties().get(name, {})}
