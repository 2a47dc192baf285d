"""What a volume asks for: its attributes, mount options and secrets as settings of a mount.

The authors of pods write them, so there is a list of what is allowed. Nothing on it names a file of the
node or a host that its operator did not permit, takes its disk or memory beyond what the mounter's own
options grant, or sends its token elsewhere. `parse_volume` looks at texts alone, in the driver;
`check_setup` at what they turned out to mean, in the process of the volume.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from aisfs.core.names.reach import Reach
from aisfs.core.names.sources import BucketSource, DatasetSource, parse_source
from aisfs.core.names.urls import split_url
from aisfs.core.views.spec import LabelSource
from aisfs.csi import identity
from aisfs.csi.identity import CLOUD_TOKEN, POD_TOKEN, TOKENS, Cloud
from aisfs.csi.permitted import NOTHING_MORE, Permitted
from aisfs.errors import (
    AccessDenied,
    AisfsError,
    BucketNotFound,
    ConfigError,
    DeadlineExceeded,
    FuseUnavailable,
    MountError,
    SourceMissing,
    Unavailable,
)
from aisfs.mount.setup import SourceSetup
from aisfs.settings import ClusterSettings
from aisfs.settings.values import KNOWN, flag_of

ALLOWED = frozenset(name for name, option in KNOWN.items() if option.tenants)
"""Options of `aisfs mount` that a volume may set."""
_FLAGS = frozenset({"writable", "create_bucket", "direct", "anonymous"})
"""Those that decide what a volume may reach or change: a word that means neither is refused."""
_NO = frozenset({"0", "f", "false", "n", "no", "off", ""})
_IGNORED = frozenset({"ro", "rw", "noatime", "_netdev"})
"""Mount options without meaning here; whether a volume is read-only is a field of its own."""
_OF_KUBERNETES = "csi.storage.k8s.io/"
"""What kubelet adds to the attributes: the pod, and whether the volume is ephemeral."""
_NAMESPACE = f"{_OF_KUBERNETES}pod.namespace"
TOKEN = "token"
_CERTIFICATES = ("client_ca", "client_cert", "client_key")
_TABLE = "csv:"
_TEXT_MOST = 1000
"""Characters: an event of Kubernetes has 1024, and gRPC hands no more than 16 KiB on."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume to be mounted."""

    sources: list[str]
    settings: dict[str, Any]
    """By names of settings, as `mount_setup` takes them."""
    secrets: dict[str, str]
    """Tokens, and certificates as text."""
    read_only: bool
    permitted: Permitted = NOTHING_MORE
    namespace: str = ""
    """Of the pod; empty if Kubernetes does not say it."""
    cloud: Cloud = identity.NO_CLOUD


class Secrets:
    """The secrets of a mount in the memory of its daemon: files without a name, which are written again when they change."""

    def __init__(self, device: int) -> None:
        """Name them by the device number of the mount."""
        self._prefix = f"aisfs {device} "

    def keep(self, secrets: Mapping[str, str]) -> dict[str, str]:
        """Keep secrets in this process; return the settings that name them."""
        found = {}
        for name, text in secrets.items():
            fd = os.memfd_create(self._prefix + name)
            os.write(fd, _content(name, text))
            found[name] = f"/proc/self/fd/{fd}"
        if TOKEN in found:  # a file, since that is read again when its token is refused
            found |= {"authn_token_file": found[TOKEN], TOKEN: ""}
        return found

    def current(self) -> dict[str, str]:
        """Return the secrets that this process keeps, as they are now."""
        found = {}
        for fd in _descriptors(os.getpid()):
            with suppress(OSError):
                name = _MEMORY_FILE.fullmatch(os.readlink(fd))
                if name is not None and name[1].startswith(self._prefix):
                    word, text = name[1].removeprefix(self._prefix), fd.read_text()
                    found[word] = json.loads(text)["token"] if word == TOKEN else text
        return found

    def renew(self, processes: Iterable[int], secrets: Mapping[str, str]) -> str:
        """Write what changed where one of the processes keeps it; return which it keeps none of, and why."""
        left = dict(secrets)
        for pid in processes:
            for fd in _descriptors(pid):
                with suppress(OSError):  # it is closed by now
                    name = _MEMORY_FILE.fullmatch(os.readlink(fd))
                    if name is not None and name[1].startswith(self._prefix):
                        word = name[1].removeprefix(self._prefix)
                        _replace(fd, _content(word, left.pop(word)) if word in left else None)
        if not left:
            return ""
        words = ", ".join(sorted(left))
        return f"{words}: new in the secret; used once the volume is mounted again, in a new pod"


_MEMORY_FILE = re.compile(r"/memfd:(.*) \(deleted\)")


def _descriptors(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # it has ended
        return []


def _content(name: str, text: str) -> bytes:
    return (json.dumps({"token": text}) if name == TOKEN else text).encode()


def _replace(file: Path, content: bytes | None) -> None:
    """Write other content in one step, since it may be read at any moment; None leaves it as it is."""
    if content is None or file.read_bytes().rstrip() == content.rstrip():
        return
    with open(file, "r+b", buffering=0) as opened:
        # JSON, PEM and tokens may end with blank lines for a moment, but not be cut off.
        opened.write(content.ljust(os.fstat(opened.fileno()).st_size, b"\n"))
        opened.truncate(len(content))


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
    options = list(options)
    given = _given(attributes, options)
    secrets = dict(secrets or {})
    tokens = identity.tokens_of_pod(secrets.pop(TOKENS, "") or attributes.get(TOKENS, ""))
    sources = given.pop("source", "").split()
    if not sources:
        raise ConfigError("the volume has no attribute source, such as ais://BUCKET")
    for source in sources:
        permitted.reach.check_text("source", source)
    cloud = identity.parse_cloud(
        {
            word: given.pop(name)
            for name in list(given)
            if (word := name.replace("-", "_")) in identity.ATTRIBUTES
        }
    )
    settings = parse_settings(given)
    label = str(settings.get("label", ""))
    if label.startswith(_TABLE):
        permitted.reach.check_text(f"label {_TABLE}", label.removeprefix(_TABLE))
    if read_only or "ro" in options or not settings.get("writable"):
        read_only = True
        settings.pop("writable", None)
        settings.pop("create_bucket", None)
    kept = _parse_secrets(secrets)
    wanted = {POD_TOKEN: "" if TOKEN in kept else permitted.audience, CLOUD_TOKEN: cloud.audience}
    kept |= identity.secrets_of_pod(tokens, wanted)
    namespace = attributes.get(_NAMESPACE, "")
    return Volume(sources, settings, kept, read_only, permitted, namespace, cloud)


def _given(attributes: Mapping[str, str], options: Iterable[str]) -> dict[str, str]:
    """Return all options by their names, whichever way they came."""
    given = {k: v for k, v in attributes.items() if not k.startswith(_OF_KUBERNETES)}
    for option in options:
        name, equals, value = option.partition("=")
        if option not in _IGNORED:
            given[name] = value if equals else "true"
    if any("\0" in text for pair in given.items() for text in pair):
        raise ConfigError("an attribute has a NUL character")
    return given


def parse_settings(given: Mapping[str, str]) -> dict[str, Any]:
    """Return attributes as settings.

    Raises:
        ConfigError: one is no option of volumes.
    """
    settings: dict[str, Any] = {}
    for word, value in given.items():
        name = word.replace("-", "_")
        if name not in ALLOWED:
            raise ConfigError(f"{word}: no option of volumes (see docs/KUBERNETES.md)")
        settings[name] = tuple(value.split()) if KNOWN[name].kind.repeatable else value
        if name in _FLAGS:
            settings[name] = _parse_flag(name, value)
    return settings


def _parse_flag(name: str, value: str) -> bool:
    if flag_of(value):
        return True
    if value.strip().lower() in _NO:
        return False
    raise ConfigError(f'{name.replace("_", "-")}: "true" or "false" (got {value!r})')


def check_setup(volume: Volume, setup: SourceSetup) -> None:
    """Refuse a volume that would reach what it may not, now that all its names are parsed.

    Raises:
        ConfigError: it would.
    """
    reach = volume.permitted.reach
    match setup.source:
        case BucketSource(bucket):
            reach.check(f"source {bucket}", bucket)
        case DatasetSource(words):
            for word in words:
                for pattern in word.patterns:
                    reach.check(f"source {pattern}", pattern.bucket)
        case _:
            reach.check(f"source {setup.source}", None)
    label = setup.view.label
    if label.source is LabelSource.TABLE:
        table = parse_source(label.text)
        named = table.bucket if isinstance(table, BucketSource) else None
        reach.check(f"label {label}", named)
    most = volume.permitted.io_timeout
    if "io_timeout" in volume.settings and setup.cluster.io_timeout > most:
        raise ConfigError(
            f"io-timeout {setup.cluster.io_timeout:g}: at most {most:g} seconds on this node (its"
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
    whose = "pod" if POD_TOKEN in volume.secrets else "node" if has_token else ""
    if TOKEN not in volume.secrets and whose:
        raise ConfigError(
            f"endpoint {named}: the token of this {whose} is for another cluster; give the volume a"
            " secret with a token"
        )


def _parse_secrets(secrets: Mapping[str, str]) -> dict[str, str]:
    known = (TOKEN, *_CERTIFICATES)
    unknown = sorted(secrets.keys() - set(known))
    if unknown:
        raise ConfigError(f"secret {unknown[0]}: the keys of the secret are {', '.join(known)}")
    return {name: text.strip() if name == TOKEN else text for name, text in secrets.items()}


class Code(IntEnum):
    """Codes of gRPC, by the numbers that it sends."""

    OK = 0
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


_CODES: list[tuple[type[AisfsError], Code]] = [
    (ConfigError, Code.INVALID_ARGUMENT),
    (BucketNotFound, Code.NOT_FOUND),
    (SourceMissing, Code.NOT_FOUND),
    (Unavailable, Code.UNAVAILABLE),
    (DeadlineExceeded, Code.UNAVAILABLE),
    (AccessDenied, Code.PERMISSION_DENIED),
    (FuseUnavailable, Code.FAILED_PRECONDITION),
    (MountError, Code.FAILED_PRECONDITION),
]


def code_of(error: AisfsError) -> Code:
    """Return the code of an error."""
    return next((code for cls, code in _CODES if isinstance(error, cls)), Code.INTERNAL)


class VolumeError(AisfsError):
    """A call that failed, with its code."""

    def __init__(self, code: Code, text: str) -> None:
        text = " ".join(text.split())
        super().__init__(shortened(text))
        self.code = code


def shortened(text: str) -> str:
    """Return a text with its beginning and its end alone, if it is long: an error repeats what was written."""
    return (
        text if len(text) <= _TEXT_MOST else f"{text[: _TEXT_MOST // 2]}…{text[-_TEXT_MOST // 2 :]}"
    )
