"""Bucket properties: AIStore's defaults, and the changes a user made, which are stored with the records."""

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
    """Check a set of properties to change, and return it.

    Raises:
        Failure: 400 when it is not a set of properties, or names an unknown checksum.
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
    """Return a set of properties with changes applied, section by section."""
    merged = dict(base)
    for name, value in changes.items():
        old = merged.get(name)
        merged[name] = {**old, **value} if isinstance(old, dict) else value
    return merged


def header_of(bucket: Bucket) -> str:
    """Return all properties of a bucket as the header line of a HEAD reply."""
    changed = bucket.records.properties()
    changed.setdefault("created", str(os.stat(bucket.folder).st_ctime_ns))
    return json.dumps(merge(_DEFAULTS, changed), separators=(",", ":"))


def setting(bucket: Bucket, section: str, name: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return one property of a bucket."""
    return {**_DEFAULTS[section], **bucket.records.properties().get(section, {})}[name]


def checksum_type(bucket: Bucket) -> str:
    """Return the checksum type of new objects."""
    return str(setting(bucket, "checksum", "type"))
