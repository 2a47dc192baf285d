"""How to reach AIStore."""

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import msgspec
from pydantic import ByteSize, Field, NonNegativeFloat, SecretStr, field_validator

from aisfs.config.files import user_file
from aisfs.config.values import MIB, AbsolutePath, Flag, Settings, Size
from aisfs.errors import NoEndpoint
from aisfs.redaction import remember_url, shown

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
