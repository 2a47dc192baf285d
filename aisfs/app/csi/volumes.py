"""What a volume asks for: its attributes, mount options and secrets as settings of a mount.

Whoever may create pods writes them, so there is a list of what is allowed. Nothing on it names a file of
the node, takes its disk or memory beyond what the mounter's own options grant, or sends its token elsewhere.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aisfs.errors import ConfigError

# fmt: off
ALLOWED = frozenset({
    "attr_ttl", "create_bucket", "dir_mode", "endpoint", "exclude", "file_mode", "gid",
    "ignore_attr_changes", "ignore_zeros", "image", "include", "io_timeout", "join", "key_rule",
    "label", "latest", "lazy", "list_ttl", "list_xattrs", "magic", "max_connections",
    "negative_ttl", "part_size", "prefetch_shards", "published_index", "read_ahead_max",
    "recursive", "rename_dir_limit", "require", "samples_per_shard", "scan", "shard_index",
    "shard_size", "shards", "shuffle", "strict", "uid", "view", "writable",
})
# fmt: on
"""Options of `aisfs mount` that a volume may set."""
_LISTS = ("include", "exclude")
_IGNORED = frozenset({"ro", "rw", "noatime", "_netdev"})
"""Mount options without meaning here; whether a volume is read-only is a field of its own."""
_OF_KUBERNETES = "csi.storage.k8s.io/"
"""What kubelet adds to the attributes: the pod, and whether the volume is ephemeral."""
_TOKEN = "token"
_CERTIFICATES = ("client_ca", "client_cert", "client_key")
_IN_CLUSTER = re.compile(r"[a-z0-9]+://")


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume to be mounted."""

    sources: list[str]
    settings: dict[str, Any]
    """By names of settings, as `plan_mount` takes them."""
    secrets: dict[str, str]
    """A token, and certificates as text."""
    read_only: bool

    def settings_with_secrets(self) -> dict[str, Any]:
        """Return all settings. Certificates are in memory, under paths that only this process can open."""
        found = {**self.settings}
        for name, text in self.secrets.items():
            if name == _TOKEN:
                found[name] = text
            else:
                fd = os.memfd_create(name)
                os.write(fd, text.encode())
                found[name] = f"/proc/self/fd/{fd}"
        return found


def parse_volume(
    attributes: Mapping[str, str],
    options: Iterable[str] = (),
    secrets: Mapping[str, str] | None = None,
    *,
    read_only: bool,
) -> Volume:
    """Return what a volume asks for.

    Args:
        attributes: `source`, and options of `aisfs mount` by their names.
        options: The same as mount options, `name` or `name=value`.
        secrets: Keys of the secret that the volume names.
        read_only: Whether nothing may be changed, whatever the attributes say.

    Raises:
        ConfigError: something is missing, unknown or not allowed.
    """
    given = {k: v for k, v in attributes.items() if not k.startswith(_OF_KUBERNETES)}
    for option in options:
        name, equals, value = option.partition("=")
        if option not in _IGNORED:
            given[name] = value if equals else "true"
    sources = given.pop("source", "").split()
    if not sources:
        raise ConfigError("the volume has no attribute source, such as ais://BUCKET")
    for source in sources:
        if not _IN_CLUSTER.match(source):
            raise ConfigError(f"source {source}: a volume shows buckets, such as ais://BUCKET")
    settings: dict[str, Any] = {}
    for word, value in given.items():
        name = word.replace("-", "_")
        if name not in ALLOWED:
            raise ConfigError(f"{word}: no option of volumes (see docs/KUBERNETES.md)")
        settings[name] = tuple(value.split()) if name in _LISTS else value
    label = str(settings.get("label", ""))
    if label.startswith("csv:") and not _IN_CLUSTER.match(label.removeprefix("csv:")):
        raise ConfigError(
            f"label {label}: name the object with its bucket, as in csv:ais://BUCKET/KEY"
        )
    if read_only:
        settings.pop("writable", None)
        settings.pop("create_bucket", None)
    read_only = read_only or str(settings.get("writable", "")).lower() not in ("true", "1")
    return Volume(sources, settings, _parse_secrets(secrets or {}), read_only)


def _parse_secrets(secrets: Mapping[str, str]) -> dict[str, str]:
    known = (_TOKEN, *_CERTIFICATES)
    unknown = sorted(secrets.keys() - set(known))
    if unknown:
        raise ConfigError(f"secret {unknown[0]}: the keys of the secret are {', '.join(known)}")
    return {name: text.strip() if name == _TOKEN else text for name, text in secrets.items()}
