"""What a volume asks for: its attributes, mount options and secrets as settings of a mount.

The authors of pods write them, so there is a list of what is allowed. Nothing on it names a file of the
node or a host that its operator did not permit, takes its disk or memory beyond what the mounter's own
options grant, or sends its token elsewhere. `parse_volume` looks at texts alone, in the driver;
`check_plan` at what they turned out to mean, in the process of the volume.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aisfs.app.csi.permitted import NOTHING_MORE, Permitted
from aisfs.app.plan import SourcePlan
from aisfs.config import ClusterSettings
from aisfs.core.namespace.reach import Reach
from aisfs.core.namespace.sources import BucketSource, DatasetSource, parse_source
from aisfs.core.namespace.urls import split_url
from aisfs.core.views.spec import LabelSource
from aisfs.errors import ConfigError

# fmt: off
ALLOWED = frozenset({
    "attr_ttl", "create_bucket", "dir_mode", "encoding", "endpoint", "exclude", "file_mode", "gid",
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
_TABLE = "csv:"


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume to be mounted."""

    sources: list[str]
    settings: dict[str, Any]
    """By names of settings, as `plan_mount` takes them."""
    secrets: dict[str, str]
    """A token, and certificates as text."""
    read_only: bool
    permitted: Permitted = NOTHING_MORE

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
    permitted: Permitted = NOTHING_MORE,
) -> Volume:
    """Return what a volume asks for.

    Args:
        attributes: `source`, and options of `aisfs mount` by their names.
        options: The same as mount options, `name` or `name=value`.
        secrets: Keys of the secret that the volume names.
        read_only: Whether nothing may be changed, whatever the attributes say.
        permitted: What the operator of this node permits.

    Raises:
        ConfigError: something is missing, unknown or not allowed.
    """
    given = {k: v for k, v in attributes.items() if not k.startswith(_OF_KUBERNETES)}
    for option in options:
        name, equals, value = option.partition("=")
        if option not in _IGNORED:
            given[name] = value if equals else "true"
    if any("\0" in text for pair in given.items() for text in pair):
        raise ConfigError("an attribute has a NUL character")
    sources = given.pop("source", "").split()
    if not sources:
        raise ConfigError("the volume has no attribute source, such as ais://BUCKET")
    for source in sources:
        permitted.reach.check_text("source", source)
    settings: dict[str, Any] = {}
    for word, value in given.items():
        name = word.replace("-", "_")
        if name not in ALLOWED:
            raise ConfigError(f"{word}: no option of volumes (see docs/KUBERNETES.md)")
        settings[name] = tuple(value.split()) if name in _LISTS else value
    label = str(settings.get("label", ""))
    if label.startswith(_TABLE):
        permitted.reach.check_text(f"label {_TABLE}", label.removeprefix(_TABLE))
    if read_only:
        settings.pop("writable", None)
        settings.pop("create_bucket", None)
    read_only = read_only or str(settings.get("writable", "")).lower() not in ("true", "1")
    return Volume(sources, settings, _parse_secrets(secrets or {}), read_only, permitted)


def check_plan(volume: Volume, plan: SourcePlan) -> None:
    """Refuse a volume that would reach what it may not, now that all its names are parsed.

    Raises:
        ConfigError: it would.
    """
    reach = volume.permitted.reach
    match plan.source:
        case BucketSource(bucket):
            reach.check(f"source {bucket}", bucket)
        case DatasetSource(words):
            for word in words:
                for pattern in word.patterns:
                    reach.check(f"source {pattern}", pattern.bucket)
        case _:
            reach.check(f"source {plan.source}", None)
    label = plan.view.label
    if label.source is LabelSource.TABLE:
        table = parse_source(label.text)
        named = table.bucket if isinstance(table, BucketSource) else None
        reach.check(f"label {label}", named)
    most = volume.permitted.io_timeout
    if "io_timeout" in volume.settings and plan.cluster.io_timeout > most:
        raise ConfigError(
            f"io-timeout {plan.cluster.io_timeout:g}: at most {most:g} seconds on this node (its"
            " operator sets --max-io-timeout)"
        )


def check_endpoint(volume: Volume) -> None:
    """Refuse to talk to a cluster that a volume names without permission, and to send it the token of this process.

    Raises:
        ConfigError: the volume names such a cluster.
    """
    if "endpoint" not in volume.settings:
        return
    own = ClusterSettings.load({})
    named = ClusterSettings.load({"endpoint": volume.settings["endpoint"]}).endpoint
    if named == own.endpoint:
        return
    if not named:
        raise ConfigError("endpoint: it is empty; leave it out for the cluster of this node")
    servers = Reach.of_tenant(("http", "https"), volume.permitted.hosts)
    servers.check(f"endpoint {named}", split_url(named)[0])
    has_token = own.token or own.authn_token_file or own.cli_token_file.exists()
    if "token" not in volume.secrets and has_token:
        raise ConfigError(
            f"endpoint {named}: the token of this node is for another cluster; give the volume a"
            " secret with a token"
        )


def _parse_secrets(secrets: Mapping[str, str]) -> dict[str, str]:
    known = (_TOKEN, *_CERTIFICATES)
    unknown = sorted(secrets.keys() - set(known))
    if unknown:
        raise ConfigError(f"secret {unknown[0]}: the keys of the secret are {', '.join(known)}")
    return {name: text.strip() if name == _TOKEN else text for name, text in secrets.items()}
