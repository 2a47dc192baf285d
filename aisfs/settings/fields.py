"""The settings of a mount: every option as a field, with its default and the reason for it.

What the environment says of clouds has the names that their own tools have for it. obstore reads the rest itself:
keys, tokens, regions, files with credentials.
"""

import codecs
import json
import logging
import os
import re
import shutil
import zlib
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

import msgspec
from platformdirs import user_cache_dir, user_state_dir
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    Field,
    NonNegativeFloat,
    SecretStr,
    field_validator,
)

from aisfs.choices import Join, KeyRule, LogFormat, LogLevel, Scan, ShardIndex, Shards, View
from aisfs.errors import ConfigError, NoEndpoint
from aisfs.redaction import remember, remember_query, remember_url, shown
from aisfs.settings.files import user_file
from aisfs.settings.values import (
    GIB,
    MIB,
    AbsolutePath,
    FileMode,
    Flag,
    Patterns,
    Settings,
    Size,
    drop_empty_variables,
    existing_directory,
    flag_of,
    set_variables,
    variable,
)


def _when(value: object) -> object:
    """Read what was a flag once: `-o shard_index` has no value, and may have a word for yes."""
    return ShardIndex.ALWAYS if flag_of(value) is True else value


def _codec(name: str) -> str:
    """Return Python's name of an encoding in which ASCII is ASCII."""
    ascii_bytes = bytes(range(128))
    try:
        if name and ascii_bytes.decode(name) != ascii_bytes.decode("ascii"):
            raise LookupError
        return codecs.lookup(name).name if name else ""
    except (LookupError, ValueError):
        raise ValueError(
            f"{name!r} is no encoding of names; give one such as cp932, gbk or cp866"
        ) from None


ID_MOST = (1 << 32) - 2
"""Largest number of a user or group; one more stands for none."""


class TreeSettings(Settings):
    """What the tree looks like, and how long names and listings stay valid."""

    shards: Shards = Shards.FILE
    ignore_zeros: bool = False
    """Read past blocks of zeros, which end a tar: for tars that were joined with cat."""
    recursive: bool = False
    """Open tars that are members of shards. Off, as ratarmount: to most readers such a tar is one
    member of a sample."""
    encoding: Annotated[str, AfterValidator(_codec)] = ""
    """Of names in zips that do not say theirs. Empty: UTF-8 if a name is that, otherwise DOS's code
    page 437, as unzip takes it."""
    magic: bool = False
    """Recognize archives by their first bytes instead of their names. Off, since it costs a request
    for each archive."""
    published_index: bool = True
    """Use the index that was published beside a shard, instead of scanning the shard: it says what a
    scan would, and is checked like any input."""
    shard_index: Annotated[ShardIndex, BeforeValidator(_when)] = ShardIndex.AUTO
    """When to use AIStore's own index of a shard where there is one, instead of scanning the shard. It
    has no times and modes of members, so only views that are not about them use it unasked."""
    scan: Scan = Scan.AUTO
    """How shards without an index are scanned. What is streamed need not be fetched again when it is
    read, unless the cache is too small to keep it."""
    list_xattrs: bool = False
    """List the extended attributes of aisfs. Off, since `rsync -aX` and `cp -a` copy what is listed,
    and fail where the names are not permitted or the values mean nothing."""
    attr_ttl: NonNegativeFloat = 60.0
    """Seconds; gcsfuse and mountpoint-s3 (with a cache) use the same."""
    list_ttl: NonNegativeFloat = 60.0
    """Seconds that a listing answers lookups and stats before the cluster is asked again."""
    negative_ttl: NonNegativeFloat = 5.0
    """Seconds that a missing name stays missing; short, so that new objects appear. As gcsfuse."""
    uid: int = Field(default_factory=os.getuid, ge=0, le=ID_MOST)
    gid: int = Field(default_factory=os.getgid, ge=0, le=ID_MOST)
    file_mode: FileMode = 0o444
    dir_mode: FileMode = 0o555


class KernelSettings(Settings):
    """How the kernel is served."""

    fastpath: bool = True
    """Answer in a thread before pyfuse3 what needs no waiting, and let the kernel open files and
    keep listings by itself. Without it every request goes through pyfuse3: slower, same results."""


CACHE_LEAST = 5 * MIB
"""Smallest disk cache; the ledger and its margin take half of it."""
CACHE_MOST = 1 << 62
"""Largest that the ledger can count."""

MEMORY_LEAST = 16 * MIB
"""Smallest memory for fetched bytes."""


class CacheSettings(Settings):
    """What is kept on disk and in memory, and how much is fetched ahead."""

    cache_dir: AbsolutePath = Field(default_factory=lambda: Path(user_cache_dir("aisfs")))
    """Several daemons may share the directory."""
    cache_size: Size | None = None
    """Most bytes on disk; None is 10 GiB or a tenth of the free disk, whichever is less; 0 keeps
    nothing on disk."""
    read_ahead_max: Size = ByteSize(64 * MIB)
    """Most bytes fetched ahead of one sequential reader: a second of work at 64 MiB/s, and 1 GiB/s
    at 60 ms of latency."""
    prefetch_shards: int = Field(default=2, ge=0)
    """Shards fetched ahead of a reader that takes them in the order of their names."""
    memory_limit: Size | None = Field(default=None, ge=MEMORY_LEAST)
    """Bytes of parts in memory; None is 512 MiB, or what the machine and the control group have room for."""

    @field_validator("cache_size")
    @classmethod
    def _check_cache_size(cls, value: ByteSize | None) -> ByteSize | None:
        if value is not None and 0 < value < CACHE_LEAST:
            raise ValueError(f"a disk cache takes {CACHE_LEAST // MIB} MiB at least; 0 is none")
        if value is not None and value > CACHE_MOST:
            raise ValueError("no disk is that large")
        return value

    def disk_limit(self, kept: int = 0) -> int:
        """Return the bytes the cache may take on disk; 0 if the default has hardly any room.

        What it has `kept` there already counts as free, or it would shrink from mount to mount.
        """
        if self.cache_size is not None:
            return int(self.cache_size)
        limit = min(10 * GIB, (self.free_disk() + kept) // 10)
        return limit if limit >= CACHE_LEAST else 0

    def free_disk(self) -> int:
        """Return the free bytes of the cache's disk."""
        return shutil.disk_usage(existing_directory(self.cache_dir, "cache-dir")).free


_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("STORAGE_EMULATOR_HOST", "GOOGLE_BASE_URL"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_OTHER_URLS = {
    "s3": (
        "AWS_METADATA_ENDPOINT",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_ENDPOINT_URL_STS",
    ),
    "az": ("AZURE_AUTHORITY_HOST", "AZURE_MSI_ENDPOINT", "AZURE_IDENTITY_ENDPOINT"),
    "hf": ("HF_ENDPOINT",),
}
"""Where the libraries ask for credentials, and what they panic about."""
_PREFIXES = ("AWS_", "GOOGLE_", "AZURE_", "STORAGE_", "HF_", "HUGGING_FACE_")
_POD_IDENTITY = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
_CREDENTIALS = {
    "s3": (
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        _POD_IDENTITY,
    ),
    "gs": (
        "STORAGE_EMULATOR_HOST",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_SERVICE_ACCOUNT",
        "GOOGLE_SERVICE_ACCOUNT_PATH",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        "GOOGLE_BEARER_TOKEN",
    ),
    "az": (
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_MASTER_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_TOKEN",
        "AZURE_CLIENT_SECRET",
        "AZURE_FEDERATED_TOKEN_FILE",
        "AZURE_USE_AZURE_CLI",
    ),
}
"""What has them, in the order in which they are looked for."""
_SECRETS = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "GOOGLE_BEARER_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_MASTER_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_TOKEN",
    "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_CLIENT_SECRET",
)
_PROFILES = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
_TOKEN_FILES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AZURE_FEDERATED_TOKEN_FILE",
)
"""Have the token of a workload; read again whenever credentials are asked for."""
_IDENTITIES = (
    "AWS_ROLE_ARN",
    "AZURE_CLIENT_ID",
    "AZURE_STORAGE_CLIENT_ID",
    "AZURE_TENANT_ID",
    "AZURE_STORAGE_TENANT_ID",
    "AZURE_AUTHORITY_ID",
    "AZURE_STORAGE_AUTHORITY_ID",
)
"""What such a token is for."""
_SECRET_FILES = (
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
)
_IN_JSON = ("private_key", "refresh_token", "client_secret")
"""What is secret in Google's files."""
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def prepare_environment(store: str) -> None:
    """Make the variables of a cloud fit to be read by its libraries.

    Raises:
        ConfigError: one has no URL where there must be one.
    """
    drop_empty_variables(_PREFIXES)
    for name in _OTHER_URLS.get(store, ()):
        if url := variable(name):
            checked_url(name, url)


def endpoint_of(store: str) -> str:
    """Return the URL of a cloud; empty for the cloud's own.

    Raises:
        ConfigError: the variable has no such URL.
    """
    names = _ENDPOINTS.get(store, ())
    url = variable(*names)
    if not url:
        return ""
    # STORAGE_EMULATOR_HOST is written without a scheme.
    whole = url if "://" in url or url.startswith("/") else f"http://{url}"
    return checked_url(next(name for name in names if variable(name)), whole)


def checked_url(name: str, url: str) -> str:
    """Return the URL that a variable or a file has for an endpoint.

    Raises:
        ConfigError: it is none. The libraries would panic, or ask another host.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme.lower() in ("http", "https") and parts.hostname and parts.port != 0
        (parts.hostname or "").encode("idna")
    except ValueError:
        usable = False
    if not usable or re.search(r"\s", url):
        place = url.rpartition("@")[2].partition("?")[0]  # the rest may be secret
        raise ConfigError(f"{name}: {place} is no URL such as http://host:9000")
    return url


def place_of(store: str) -> str:
    """Return what tells a cloud from another with the same names of buckets; empty for the usual one."""
    endpoint = endpoint_of(store)
    if store == "s3" and not endpoint and has_aws_profile():  # which may name an endpoint
        return f"profile {variable('AWS_PROFILE', 'AWS_DEFAULT_PROFILE') or 'default'}"
    return endpoint


def is_gcs_emulator() -> bool:
    """Return whether an emulator stands for Google's cloud."""
    return bool(variable("STORAGE_EMULATOR_HOST"))


def google_project() -> str:
    """Return the project of Google that pays for requests.

    Raises:
        ConfigError: none is named.
    """
    project = variable("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT")
    if not project:
        raise ConfigError("--requester-pays: set GOOGLE_CLOUD_PROJECT to the project that pays")
    return project


class TokenFile(msgspec.Struct):
    """Where the token of a workload is; only a file is read, though Google's own libraries ask other places, too."""

    file: str
    format: dict[str, str] = {}


class Federation(msgspec.Struct, tag_field="type", tag="external_account"):
    """How Google knows a workload by the token of another issuer: a file as `gcloud iam workload-identity-pools` writes it."""

    audience: str
    token_url: str
    credential_source: TokenFile
    subject_token_type: str = "urn:ietf:params:oauth:token-type:jwt"
    service_account_impersonation_url: str = ""
    """Of the service account that the workload acts as; empty if buckets know the workload itself."""

    def token(self) -> str:
        """Return the token of the workload as it is now."""
        text = Path(self.credential_source.file).read_text().strip()
        field = self.credential_source.format.get("subject_token_field_name", "")
        return str(json.loads(text)[field]) if field else text


def google_federation() -> Federation | None:
    """Return how Google knows this process by the token of another issuer; None if it does not.

    Raises:
        ConfigError: the file that says it is of no use.
    """
    path = variable("GOOGLE_APPLICATION_CREDENTIALS")
    try:
        text = Path(path).read_bytes() if path else b""
    except OSError:
        return None  # obstore says so
    if not path or b"external_account" not in text:
        return None
    try:
        found = msgspec.json.decode(text, type=Federation)
        for url in (found.token_url, found.service_account_impersonation_url or found.token_url):
            checked_url("a URL in GOOGLE_APPLICATION_CREDENTIALS", url)
        return found
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"GOOGLE_APPLICATION_CREDENTIALS {path}: of external_account only the kind with a token in a file is read: {error}"
        ) from None


def google_services() -> tuple[str, str]:
    """Return the URLs of Google's services that exchange tokens, and that act as service accounts."""
    names = "CLOUDSDK_API_ENDPOINT_OVERRIDES_STS", "CLOUDSDK_API_ENDPOINT_OVERRIDES_IAMCREDENTIALS"
    usual = "https://sts.googleapis.com", "https://iamcredentials.googleapis.com"
    sts, iam = (variable(name) or url for name, url in zip(names, usual, strict=True))
    return sts.rstrip("/"), iam.rstrip("/")


def azure_account() -> str:
    """Return whose containers are meant where none is named."""
    return variable("AZURE_STORAGE_ACCOUNT_NAME")


def has_aws_profile() -> bool:
    """Return whether AWS's own files say how to reach S3: a profile was chosen, or no keys are set."""
    if variable(*_PROFILES):
        return True
    if variable("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        return False
    home = Path(os.path.expanduser("~")) / ".aws"
    places = (
        variable("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials",
        variable("AWS_CONFIG_FILE") or home / "config",
    )
    return any(os.path.exists(place) for place in places)


def aws_region() -> str:
    """Return the region of AWS that the environment names; boto3 itself knows only the second name."""
    return variable("AWS_REGION", "AWS_DEFAULT_REGION")


def credentials_of(store: str) -> str:
    """Return where the credentials for a cloud come from; empty if nothing here has any."""
    if store == "s3" and has_aws_profile():
        profile = variable(*_PROFILES) or "default"
        return f"the profile {profile} of AWS"
    return next((name for name in _CREDENTIALS.get(store, ()) if variable(name)), "")


def use_identity(variables: Mapping[str, str], token_file: str) -> None:
    """Let clouds know this process by a token in a file, and by none of the credentials of the environment.

    Args:
        variables: What else is to be set, such as the role that the token is for.
        token_file: That file; empty to go on with the credentials that there are.
    """
    if not token_file:
        set_variables(variables, ())
        return
    others = {*chain.from_iterable(_CREDENTIALS.values()), *_SECRETS, *_PROFILES, *_IDENTITIES}
    if _POD_IDENTITY in variables and (url := variable(_POD_IDENTITY)):
        variables = {**variables, _POD_IDENTITY: url}  # the operator's own
    set_variables({**variables, **dict.fromkeys(_TOKEN_FILES, token_file)}, others)


def remember_secrets() -> None:
    """Strike the secrets of the environment out of whatever is shown from now on."""
    for name in _SECRETS:
        if secret := variable(name):
            remember(secret)
            _remember_json(secret)
            remember_query(secret)  # a SAS token is several values
    for name in _SECRET_FILES:
        with suppress(OSError, UnicodeDecodeError):
            _remember_json(Path(variable(name) or os.devnull).read_text())
    for name in (*chain.from_iterable(_ENDPOINTS.values()), *_PROXIES):
        remember_url(variable(name, name.lower()))


def _remember_json(text: str) -> None:
    with suppress(ValueError, AttributeError):
        said = json.loads(text)
        for name in _IN_JSON:
            if secret := said.get(name):
                remember(str(secret))


log = logging.getLogger(__name__)

_BUCKET = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")


class ClusterSettings(Settings):
    """How to reach AIStore."""

    endpoint: str = Field(default="", validation_alias="AIS_ENDPOINT")
    """URL of a proxy, for example http://localhost:8080."""
    direct: Flag = False
    """Read s3://, gs:// and az:// from the cloud itself, also where there is an AIStore."""
    anonymous: Flag = False
    """Send clouds no credentials: for public buckets."""
    follow_links: Flag = False
    """Follow all symbolic links in local directories, also out of them and to directories."""
    http_headers: AbsolutePath | None = None
    """A file with tokens and cookies for web servers, each for its host."""
    proxy: str = ""
    """URL of an HTTP proxy for all requests. Without it, the environment's proxies lead to all stores but
    AIStore: they are the way out, AIStore is near, and a variable meant for the web must not cut it off."""
    requester_pays: Flag = False
    """Let the account of the credentials pay for requests to S3 and Google, which some buckets demand. Off,
    since it costs money."""
    token: SecretStr | None = Field(default=None, validation_alias="AIS_AUTHN_TOKEN")
    authn_token_file: AbsolutePath | None = Field(
        default=None, validation_alias="AIS_AUTHN_TOKEN_FILE"
    )
    """JSON {"token": "…"}; without it the file that `ais auth login` writes, when there is one."""
    client_ca: AbsolutePath | None = Field(default=None, validation_alias="AIS_CLIENT_CA")
    client_cert: AbsolutePath | None = Field(default=None, validation_alias="AIS_CRT")
    client_key: AbsolutePath | None = Field(default=None, validation_alias="AIS_CRT_KEY")
    skip_verify_crt: Flag = Field(default=False, validation_alias="AIS_SKIP_VERIFY_CRT")
    connect_timeout: NonNegativeFloat = Field(default=3.0, validation_alias="AIS_CONNECT_TIMEOUT")
    """Seconds to open a connection; 0 waits indefinitely. The SDK's default."""
    read_timeout: NonNegativeFloat = Field(default=20.0, validation_alias="AIS_READ_TIMEOUT")
    """Seconds without a byte from the server; 0 waits indefinitely. The SDK's default."""
    io_timeout: float = Field(default=60.0, gt=0)
    """Seconds until a request, including its retries, fails (invariant I10)."""
    index_bucket: str = "aisfs-index"
    """The bucket that has the published indexes of the shards of all others: beside the shards, everything
    that reads a whole bucket would find them. Empty for beside the shards; so are those of stores without
    AIStore, where nobody could make one bucket for all."""
    latest: bool = False
    """Make AIStore compare its copy of a remote or cloud object with the original when it is first
    read. Off, since that is a request to the other cluster or the cloud, which may cost money."""
    max_connections: int = Field(default=32, ge=1)
    """Requests under way at once. Enough to hide 20 ms of latency at 1 MiB a request and
    1 GiB/s; more only queues on the targets' disks."""

    bandwidth_limit: Size | None = None
    """Most bytes of objects fetched in a second, by all readers together; 0 and None set no limit."""
    upload_limit: Size | None = None
    """Most bytes sent in a second, by all uploads together; 0 and None set no limit."""
    part_size: Size = Field(default=ByteSize(256 * MIB), ge=5 * MIB)
    """Bytes; larger objects are uploaded in parts of this size, in parallel. What a failure costs
    to send again: two seconds at 1 Gbit/s. The clouds behind AIStore take no part below 5 MiB."""

    @field_validator("bandwidth_limit", "upload_limit")
    @classmethod
    def _check_limit(cls, value: ByteSize | None) -> ByteSize | None:
        # Each of max_connections requests must send something within io_timeout.
        if value and value < MIB:
            raise ValueError("at least 1MiB, or 0 for no limit")
        return value

    @field_validator("proxy")
    @classmethod
    def _check_proxy(cls, value: str) -> str:
        value = value.strip()
        remember_url(value)
        if not value:
            return value
        url = urlsplit(value if "://" in value else f"http://{value}")
        if url.scheme not in ("http", "https") or not url.hostname or url.port == 0:
            raise ValueError("an HTTP proxy looks like http://host:3128")
        return url.geturl()

    @field_validator("index_bucket")
    @classmethod
    def _check_index_bucket(cls, value: str) -> str:
        name = value.removeprefix("ais://").rstrip("/")
        if value and (not _BUCKET.fullmatch(name) or ".." in name):
            raise ValueError("a bucket of AIStore, such as ais://aisfs-index; empty for none")
        return name

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, value: str) -> str:
        value = value.strip()
        if not value:
            return value
        value = value if "//" in value else f"http://{value}"
        remember_url(value)
        url = urlsplit(value)
        if url.scheme not in ("http", "https") or not url.hostname or url.path.strip("/"):
            raise ValueError("an endpoint looks like http://host:8080")
        url.hostname.encode("idna"), url.port  # both raise if they are invalid
        return f"{url.scheme}://{url.netloc}"

    @classmethod
    def load(cls, options: Mapping[str, object]) -> Self:
        """Combine as all settings do; without an endpoint, take that of the `ais` CLI.

        Its certificates are for its own cluster, so they are taken with the endpoint only.
        """
        made = super().load(options)
        if made.endpoint:
            return made
        found = {name: value for name, value in _of_cli().items() if not getattr(made, name)}
        return super().load({**options, **found}) if "endpoint" in found else made

    @property
    def shown_endpoint(self) -> str:
        """The endpoint without a password that may be in it."""
        return shown(self.endpoint)

    @property
    def without_aistore(self) -> bool:
        """Whether the buckets of clouds are those clouds' own."""
        return self.direct or not self.endpoint

    def require_endpoint(self) -> str:
        """Return the endpoint.

        Raises:
            NoEndpoint: nothing names the cluster.
        """
        if not self.endpoint:
            raise NoEndpoint(
                "no endpoint: give --endpoint URL, set AIS_ENDPOINT, write endpoint = … into"
                f" {user_file()}, or configure the ais CLI"
            )
        return self.endpoint

    @property
    def cli_token_file(self) -> Path:
        """Where `ais auth login` keeps the token."""
        return cli_directory() / "auth.token"


def cli_directory() -> Path:
    """Return where the `ais` CLI keeps its configuration and its token."""
    return Path(os.path.expanduser("~")) / ".config" / "ais" / "cli"


class _Cluster(msgspec.Struct):
    """What the `ais` CLI says of its cluster; the names are its own."""

    url: str = ""
    client_crt: str = ""
    client_crt_key: str = ""
    client_ca_tls: str = ""
    skip_verify_crt: bool = False


class _CliFile(msgspec.Struct):
    cluster: _Cluster


def _of_cli() -> dict[str, object]:
    """Return what the configuration of the `ais` CLI says, by name of the setting."""
    path = cli_directory() / "cli.json"
    try:
        said = msgspec.json.decode(path.read_bytes(), type=_CliFile).cluster
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("%s: not used: %s", path, error)
        return {}
    found = {
        "endpoint": said.url,
        "client_cert": said.client_crt,
        "client_key": said.client_crt_key,
        "client_ca": said.client_ca_tls,
        "skip_verify_crt": said.skip_verify_crt,
    }
    return {name: value for name, value in found.items() if value}


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


class LogSettings(Settings):
    """What is logged, where, and in which form."""

    log_level: Annotated[LogLevel, BeforeValidator(_lower)] = LogLevel.INFO
    log_file: AbsolutePath | None = None
    """None is the system's log, or `own_log` where there is none. Opened anew when it was moved or removed, as logrotate does."""
    log_format: LogFormat = LogFormat.TEXT
    slow_request: NonNegativeFloat = 10.0
    """Seconds from which a request is logged as slow, as in JuiceFS; 0 for none."""


def log_directory() -> Path:
    """Return where daemons log if nothing else takes their log."""
    return Path(user_state_dir("aisfs")) / "log"


def own_log(mountpoint: Path) -> Path:
    """Return the file there of one mount: several would not know when another one rotates it."""
    digest = zlib.crc32(os.fsencode(mountpoint))
    return log_directory() / f"{mountpoint.name[:64]}-{digest:08x}.log"


LOOPBACK = "127.0.0.1"
_ADDRESS = re.compile(r"(?:(\[[^\[\]]+\]|[^:\[\]\s/]*):)?(\d{1,5})")


def _text(value: object) -> object:
    return str(value) if isinstance(value, int) else value  # a port, in a file


def _address(value: str) -> str:
    found = _ADDRESS.fullmatch(value.strip())
    if found is None or int(found[2]) > 65535:
        raise ValueError("an address is HOST:PORT, or PORT to listen on this machine only")
    return f"{found[1] or LOOPBACK}:{int(found[2])}"


class MonitoringSettings(Settings):
    """How a mount is watched."""

    metrics_addr: Annotated[str, BeforeValidator(_text), AfterValidator(_address)] | None = None
    """Where the counters are served over HTTP, without a host on the loopback interface only. Off,
    since they name buckets, and a port must be chosen for each mount; 0 takes a free one."""

    @property
    def listen_on(self) -> tuple[str, int] | None:
        """The host and the port to listen on; None for none."""
        if self.metrics_addr is None:
            return None
        host, _, port = self.metrics_addr.rpartition(":")
        return host.strip("[]"), int(port)


class ViewSettings(Settings):
    """Which shards are shown as one dataset, and how their members are laid out."""

    view: View | None = None
    """None is `members`, and a plain bucket, prefix or directory is shown as it is."""
    key_rule: KeyRule = KeyRule.WDS
    require: str | None = None
    """Components a sample must have, with commas between; samples without are left out."""
    label: str = "cls"
    """Where the label of a sample comes from; webdataset's usual component."""
    image: str = "jpg;jpeg;png"
    """The component shown for each sample: the first of these that it has."""
    classes: AbsolutePath | None = None
    """A file of class names, one per line, the first for label 0."""
    files_from: str | None = None
    """A file of sources, one per line; `-` is standard input."""
    samples_per_shard: int | None = Field(default=None, ge=1)
    """Samples in one virtual shard; without this and `shard_size` it is 1000, or with `shuffle` as
    many as make as many shards as there are."""
    shard_size: Size | None = Field(default=None, ge=1)
    """Most bytes of one virtual shard, unless a single sample is larger."""
    shuffle: int | None = Field(default=None, ge=0)
    """The seed by which the samples of shards are shuffled into virtual ones."""
    join: Join | None = None
    """Each source has some parts of the samples; None: each has samples of its own."""
    lazy: bool = False
    """Return before the dataset is ready; then the first listing waits. Off, since a program that
    lists what was mounted would wait in silence."""
    strict: bool = False
    """Fail the mount if the view shows nothing. Off, since an empty dataset is no error of the mount."""
    member_include: Patterns | None = None
    """Only members are shown whose path in the shard matches one of these."""
    member_exclude: Patterns | None = None
    """No member is shown whose path in the shard matches one of these."""
    include: Patterns | None = None
    exclude: Patterns | None = None


WRITABLE_FILE_MODE = "0644"
WRITABLE_DIR_MODE = "0755"
"""Default permissions of a writable mount."""


class WriteSettings(Settings):
    """How a mount is written, if it is writable."""

    writable: bool = False
    create_bucket: bool = False
    """Make the bucket if it is missing. Off, since a name that is mistyped should fail."""
    allow_bucket_changes: bool = False
    """Let `mkdir` make buckets, where all of them are mounted. Off, since a cluster is shared."""
    staging_dir: AbsolutePath = Field(
        default_factory=lambda: Path(user_state_dir("aisfs")) / "staging"
    )
    """Not below the cache directory: what is here may exist nowhere else."""
    staging_size: Size | None = None
    """Most bytes of files being written and of those kept for `aisfs recover`; None is half of the
    free disk."""
    write_back: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Seconds for which a small file that was closed waits on the local disk before it is uploaded. 0
    makes every close wait for the store: what was closed is then where others see it."""
    rename_dir_limit: int = Field(default=1000, ge=0)
    """Most objects of a directory that is renamed: some seconds of work. Beyond it `mv` copies."""
    ignore_attr_changes: bool = False
    """Accept owners, modes and times that cannot be kept, and forget them."""

    def staging_limit(self) -> int:
        """Return the bytes the staging directory may take."""
        if self.staging_size is not None:
            return int(self.staging_size)
        return shutil.disk_usage(existing_directory(self.staging_dir, "staging-dir")).free // 2
