"""Every option with its default and the reason for it; the only reader of the environment.

Values come from the command line first, then from the environment. The names of the variables
that reach the cluster are those of the `ais` CLI and the Python SDK, so one setup serves all.
"""

import os
import re
import shutil
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from platformdirs import user_cache_dir, user_state_dir
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    NonNegativeFloat,
    SecretStr,
    TypeAdapter,
    ValidationError,
    field_validator,
)

from aisfs.errors import ConfigError, NoEndpoint

MIB = 1 << 20
GIB = 1 << 30
CACHE_LEAST = 5 * MIB
"""Smallest disk cache; the ledger and its margin take half of it."""
CACHE_MOST = 1 << 62
"""Largest that the ledger can count."""

_SIZE = re.compile(r"\s*(\d*\.?\d+)\s*([A-Za-z]+)?\s*")
_TRUE = frozenset({"1", "t", "true", "y", "yes", "on"})


def _flag(value: object) -> object:
    """Parse a flag as the SDK does: a few words mean yes, everything else means no."""
    return value.strip().lower() in _TRUE if isinstance(value, str) else value


def _absolute(value: Path) -> Path:
    """Return a path that stays valid when the daemon changes its working directory."""
    return value.expanduser().absolute()


def _words(value: object) -> object:
    """Return a single value as a list of one: `-o name=value` cannot express more."""
    return (value,) if isinstance(value, str) else value


def _octal(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return int(value, 8)
    except ValueError:
        raise ValueError("permissions are written in octal, such as 0644") from None


def _size(value: object) -> object:
    # pydantic's own pattern has no end: 1,5GiB would be one byte.
    if isinstance(value, str) and not _SIZE.fullmatch(value):
        raise ValueError("a size is a number, with a unit or without: 1000, 1.5MiB, 50GiB")
    return value


def parse_size(text: str) -> int:
    """Return the number of bytes of a size such as `1.5GiB`.

    Raises:
        ValueError: it is not a size.
    """
    return int(TypeAdapter(Size).validate_python(text))


def _check_directory(directory: Path, option: str) -> Path:
    """Return the directory on whose disk `directory` is or will be.

    Raises:
        ConfigError: a directory above it cannot be entered.
    """
    try:
        return next(p for p in (directory, *directory.parents) if p.exists())
    except OSError as error:
        raise ConfigError(f"--{option} {directory}: {error.strerror}") from error


Flag = Annotated[bool, BeforeValidator(_flag)]
AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
Size = Annotated[ByteSize, BeforeValidator(_size)]
Patterns = Annotated[tuple[str, ...], BeforeValidator(_words)]
FileMode = Annotated[int, BeforeValidator(_octal), Field(ge=0, le=0o777)]


class Shards(StrEnum):
    """How a tar shard shows up in its directory."""

    FILE = "file"
    """`X.tar` is listed; `X.tar.d/` is found by name."""
    DIR = "dir"
    """`X.tar/` is listed as a directory; its bytes are found at `X.tar.raw`."""
    BOTH = "both"
    """`X.tar` and `X.tar.d/` are both listed."""


class View(StrEnum):
    """How the members of a dataset are laid out."""

    MEMBERS = "members"
    """`<shard>/<member>`."""
    SAMPLES = "samples"
    """`<shard>/<key>/<member>`."""
    CLASS = "class"
    """`<label>/<key>.<ext>`, one file for each sample."""
    FLAT = "flat"
    """`<member>`, of all shards."""
    SHARDS = "shards"
    """`shard-000000.tar`, made of objects that are no shards."""


class KeyRule(StrEnum):
    """Which part of a member's name is the key of its sample, and which its extension."""

    WDS = "wds"
    """The path up to the first dot of its last component; as webdataset, Energon, Hugging Face."""
    LAST_DOT = "last-dot"
    """The path up to the last dot; as AIStore's `archmode=wdskey` and ishard."""
    BASENAME = "basename"
    """The last component up to its first dot, and what follows its last dot; as AISShardReader."""


class Settings(BaseModel):
    """Options; the alias of a field is the one environment variable it is read from."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    @classmethod
    def load(cls, options: Mapping[str, object]) -> Self:
        """Combine what the user typed with the environment and the defaults.

        Args:
            options: Values by field name; None means the user said nothing.

        Raises:
            ConfigError: a value is unusable; the message names it and its variable.
        """
        given: dict[str, Any] = {name: v for name, v in options.items() if v is not None}
        for name, field in cls.model_fields.items():
            variable = field.validation_alias
            if name not in given and isinstance(variable, str) and os.environ.get(variable):
                given[variable] = os.environ[variable]
        try:
            return cls(**given)
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0])
            if name in cls.model_fields:
                name = f"--{name.replace('_', '-')}"
            reason = first["msg"].removeprefix("Value error, ")
            raise ConfigError(f"{name}: {reason} (got {first['input']!r})") from None


class ClusterSettings(Settings):
    """How to reach AIStore."""

    endpoint: str = Field(default="", validation_alias="AIS_ENDPOINT")
    """URL of a proxy, for example http://localhost:8080."""
    token: SecretStr | None = Field(default=None, validation_alias="AIS_AUTHN_TOKEN")
    token_file: AbsolutePath | None = Field(default=None, validation_alias="AIS_AUTHN_TOKEN_FILE")
    """JSON {"token": "…"}; without it the file that `ais auth login` writes, when there is one."""
    client_ca: AbsolutePath | None = Field(default=None, validation_alias="AIS_CLIENT_CA")
    client_cert: AbsolutePath | None = Field(default=None, validation_alias="AIS_CRT")
    client_key: AbsolutePath | None = Field(default=None, validation_alias="AIS_CRT_KEY")
    skip_verify: Flag = Field(default=False, validation_alias="AIS_SKIP_VERIFY_CRT")
    connect_timeout: NonNegativeFloat = Field(default=3.0, validation_alias="AIS_CONNECT_TIMEOUT")
    """Seconds to open a connection; 0 waits indefinitely. The SDK's default."""
    read_timeout: NonNegativeFloat = Field(default=20.0, validation_alias="AIS_READ_TIMEOUT")
    """Seconds without a byte from the server; 0 waits indefinitely. The SDK's default."""
    io_timeout: float = Field(default=60.0, gt=0)
    """Seconds until a request, including its retries, fails (invariant I10)."""
    latest: bool = False
    """Make AIStore compare its copy of a remote or cloud object with the original when it is first
    read. Off, since that is a request to the other cluster or the cloud, which may cost money."""
    max_connections: int = Field(default=32, ge=1)
    """Requests under way at once. Enough to hide 20 ms of latency at 1 MiB a request and
    1 GiB/s; more only queues on the targets' disks."""

    part_size: Size = Field(default=ByteSize(256 * MIB), ge=5 * MIB)
    """Bytes; larger objects are uploaded in parts of this size, in parallel. What a failure costs
    to send again: two seconds at 1 Gbit/s. The clouds behind AIStore take no part below 5 MiB."""

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, value: str) -> str:
        if not value:
            return value
        url = urlsplit(value if "//" in value else f"http://{value}")
        if url.scheme not in ("http", "https") or not url.hostname or url.path.strip("/"):
            raise ValueError("an endpoint looks like http://host:8080")
        url.hostname.encode("idna"), url.port  # both raise if they are invalid
        return f"{url.scheme}://{url.netloc}"

    def require_endpoint(self) -> str:
        """Return the endpoint.

        Raises:
            NoEndpoint: neither an option nor the environment names the cluster.
        """
        if not self.endpoint:
            raise NoEndpoint("no endpoint: give --endpoint URL or set AIS_ENDPOINT")
        return self.endpoint

    @property
    def cli_token_file(self) -> Path:
        """Where `ais auth login` keeps the token."""
        return Path(os.path.expanduser("~")) / ".config" / "ais" / "cli" / "auth.token"


class TreeSettings(Settings):
    """What the tree looks like, and how long names and listings stay valid."""

    shards: Shards = Shards.FILE
    ignore_zeros: bool = False
    """Read past blocks of zeros, which end a tar: for tars that were joined with cat."""
    recursive: bool = False
    """Open tars that are members of shards. Off, as ratarmount: to most readers such a tar is one
    member of a sample."""
    magic: bool = False
    """Recognize archives by their first bytes instead of their names. Off, since it costs a request
    for each archive."""
    shard_index: bool = False
    """Use AIStore's own index of a shard where there is one, instead of scanning the shard. Off,
    since it has no times and modes of members: they would depend on what indexed the shard."""
    attr_ttl: NonNegativeFloat = 60.0
    """Seconds; gcsfuse and mountpoint-s3 (with a cache) use the same."""
    list_ttl: NonNegativeFloat = 60.0
    """Seconds that a listing answers lookups and stats before the cluster is asked again."""
    negative_ttl: NonNegativeFloat = 5.0
    """Seconds that a missing name stays missing; short, so that new objects appear. As gcsfuse."""
    uid: int = Field(default_factory=os.getuid, ge=0)
    gid: int = Field(default_factory=os.getgid, ge=0)
    file_mode: FileMode = 0o444
    dir_mode: FileMode = 0o555


class KernelSettings(Settings):
    """How the kernel is served."""

    fastpath: bool = True
    """Answer in a thread before pyfuse3 what needs no waiting, and let the kernel open files and
    keep listings by itself. Without it every request goes through pyfuse3: slower, same results."""


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
    include: Patterns | None = None
    exclude: Patterns | None = None


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
    memory_limit: Size = Field(default=ByteSize(512 * MIB), ge=16 * MIB)
    """Bytes of parts in memory; eight readers with a window of 64 MiB each."""

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
        return shutil.disk_usage(_check_directory(self.cache_dir, "cache-dir")).free


class WriteSettings(Settings):
    """How a mount is written, if it is writable."""

    writable: bool = False
    staging_dir: AbsolutePath = Field(
        default_factory=lambda: Path(user_state_dir("aisfs")) / "staging"
    )
    """Not below the cache directory: what is here may exist nowhere else."""
    staging_size: Size | None = None
    """Most bytes of files being written and of those kept for `aisfs recover`; None is half of the
    free disk."""
    rename_dir_limit: int = Field(default=1000, ge=0)
    """Most objects of a directory that is renamed: some seconds of work. Beyond it `mv` copies."""
    ignore_attr_changes: bool = False
    """Accept owners, modes and times that cannot be kept, and forget them."""

    def staging_limit(self) -> int:
        """Return the bytes the staging directory may take."""
        if self.staging_size is not None:
            return int(self.staging_size)
        return shutil.disk_usage(_check_directory(self.staging_dir, "staging-dir")).free // 2


WRITABLE_FILE_MODE = "0644"
WRITABLE_DIR_MODE = "0755"
"""Default permissions of a writable mount."""
