"""The settings of a mount: every option as a field, with its default and the reason for it."""

import codecs
import json
import logging
import os
import re
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from platformdirs import user_cache_dir, user_state_dir

from aisfs.choices import Join, KeyRule, LogFormat, LogLevel, Scan, ShardIndex, Shards, View
from aisfs.errors import NoEndpoint
from aisfs.redaction import remember_url, shown
from aisfs.settings.files import user_file
from aisfs.settings.values import (
    FLAG,
    GIB,
    GLOBS,
    MIB,
    MODE,
    SDK_FLAG,
    SECRET,
    Group,
    Kind,
    Option,
    Settings,
    existing_directory,
    flag_of,
    optional,
    path,
    seconds,
    size,
    text,
    whole,
    words,
)

log = logging.getLogger(__name__)

_BUCKET = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")


def _limit(value: int) -> int:
    # Each of max_connections requests must send something within io_timeout.
    if 0 < value < MIB:
        raise ValueError("at least 1MiB, or 0 for no limit")
    return value


def _proxy(value: str) -> str:
    value = value.strip()
    remember_url(value)
    if not value:
        return value
    url = urlsplit(value if "://" in value else f"http://{value}")
    if url.scheme not in ("http", "https") or not url.hostname or url.port == 0:
        raise ValueError("an HTTP proxy looks like http://host:3128")
    return url.geturl()


def _index_bucket(value: str) -> str:
    name = value.removeprefix("ais://").rstrip("/")
    if value and (not _BUCKET.fullmatch(name) or ".." in name):
        raise ValueError("a bucket of AIStore, such as ais://aisfs-index; empty for none")
    return name


def _endpoint(value: str) -> str:
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


class ClusterSettings(Settings, group=Group.NETWORK):
    """How to reach AIStore, and other stores."""

    # fmt: off
    endpoint = Option(
        text("URL", _endpoint), "", "AIStore proxy, such as `http://host:8080`",
        "a local directory needs none", variable="AIS_ENDPOINT",
        shown="`AIS_ENDPOINT`, else that of the `ais` CLI",
        group=Group.SOURCE, tenants=True,
    )
    direct = Option(
        SDK_FLAG, False, "Read `s3://`, `gs://` and `az://` from the cloud itself, whatever the endpoint is",
        "off, since AIStore keeps copies near", see="16-stores-without-aistore", group=Group.SOURCE, tenants=True,
    )
    anonymous = Option(
        SDK_FLAG, False, "Send no credentials to a store without AIStore: for public buckets",
        "off, since most buckets are private", group=Group.SOURCE, tenants=True,
    )
    requester_pays = Option(
        SDK_FLAG, False, "Pay for requests to a bucket of S3 or Google that demands it",
        "off, since it costs money",
        see="CONFIGURATION.md#clouds-without-aistore", group=Group.SOURCE,
    )
    proxy = Option(
        text("URL", _proxy), "", "HTTP proxy for all requests",
        see="CONFIGURATION.md#http-proxies",
        shown="none for AIStore; `HTTP_PROXY` and its like for other stores",
    )
    http_headers = Option(
        optional(path("FILE")), None, "Tokens and cookies for web servers: lines of `HOST NAME: VALUE`",
        see="CONFIGURATION.md#web-servers-and-hugging-face", rare=True,
    )
    follow_links = Option(
        SDK_FLAG, False, "Follow all symbolic links in local directories", "without it, only some",
        see="1-what-is-mounted",
    )
    client_ca = Option(
        optional(path("FILE")), None, "Certificates to trust, in PEM", "without it, the system's", variable="AIS_CLIENT_CA",
        rare=True,
    )
    client_cert = Option(
        optional(path("FILE")), None, "Certificate of this client", "for AIStore and web servers", variable="AIS_CRT", rare=True
    )
    client_key = Option(
        optional(path("FILE")), None, "Its key, unless the certificate's file has it", variable="AIS_CRT_KEY", rare=True
    )
    skip_verify_crt = Option(
        SDK_FLAG, False, "Do not check the server's certificate",
        "`1`, `t`, `true`, `y`, `yes`, `on` in a variable mean this", variable="AIS_SKIP_VERIFY_CRT", rare=True
    )
    token = Option(optional(SECRET), None, "The token itself", variable="AIS_AUTHN_TOKEN", typed=False)
    authn_token_file = Option(
        optional(path("FILE")), None, "File with the token, as JSON: `{\"token\": \"…\"}`",
        "read again when the cluster refuses the token", see="CONFIGURATION.md#environment",
        variable="AIS_AUTHN_TOKEN_FILE",
    )
    connect_timeout = Option(
        seconds(), 3.0, "Seconds to open a connection", "0 waits indefinitely; the SDK's default",
        variable="AIS_CONNECT_TIMEOUT", typed=False,
    )
    read_timeout = Option(
        seconds(), 20.0, "Seconds without a byte from the server", "0 waits indefinitely; the SDK's default",
        variable="AIS_READ_TIMEOUT", typed=False,
    )
    io_timeout = Option(
        seconds(above=True), 60.0, "Seconds until a request that keeps failing is an error",
        "enough for a proxy to restart", tenants=True,
    )
    index_bucket = Option(
        text("BUCKET", _index_bucket), "aisfs-index",
        "Bucket of AIStore that has the published indexes of all others; `''`: they lie beside the shards",
        see="published-indexes", group=Group.VIEWS, rare=True,
    )
    latest = Option(
        FLAG, False, "Check objects of a cloud or another cluster against the original when they are read",
        "off, since each check is a request there", see="6-consistency", rare=True, tenants=True,
    )
    bandwidth_limit = Option(
        optional(size(check=_limit)), None, "Most bytes a second to fetch, such as 100MiB; 0: no limit",
        "for all readers together; at least 1MiB", rare=True,
    )
    upload_limit = Option(
        optional(size(check=_limit)), None, "Most bytes a second to send; 0: no limit",
        "for all uploads together; at least 1MiB", rare=True,
    )
    # Enough to hide 20 ms of latency at 1 MiB a request and 1 GiB/s.
    max_connections = Option(
        whole(least=1), 32, "Most requests at once", "more would only queue on the targets' disks", rare=True,
        tenants=True,
    )
    # Two seconds at 1 Gbit/s. The clouds behind AIStore take no part below 5 MiB.
    part_size = Option(
        size(5 * MIB), 256 * MIB, "Upload larger files in parts of this size, while they are written",
        "at least 5MiB; a failure costs as much to send again", group=Group.WRITING, rare=True, tenants=True,
    )
    # fmt: on

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


_OF_CLI = {
    "url": "endpoint",
    "client_crt": "client_cert",
    "client_crt_key": "client_key",
    "client_ca_tls": "client_ca",
    "skip_verify_crt": "skip_verify_crt",
}
"""What the `ais` CLI calls what it says of its cluster, and we."""


def _of_cli() -> dict[str, object]:
    """Return what the configuration of the `ais` CLI says, by name of the setting."""
    path = cli_directory() / "cli.json"
    try:
        said = json.loads(path.read_bytes())["cluster"]
        found = {ours: said[theirs] for theirs, ours in _OF_CLI.items() if said.get(theirs)}
        if not all(isinstance(value, str | bool) for value in found.values()):
            raise TypeError(f"cluster: {found}")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        log.warning("%s: not used: %s", path, error)
        return {}
    return found


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


class ViewSettings(Settings, group=Group.VIEWS):
    """Which shards are shown as one dataset, and how their members are laid out."""

    # fmt: off
    view = Option(
        optional(words(View)), None,
        "Show all shards of SOURCE as one dataset",
        details="a folder for each shard (members), for each sample in it (samples), for each label (class), or all"
        " members in one folder (flat). Or show loose objects as tar files (shards)",
        why="without it, dataset mounts show `members`", see="views", tenants=True,
    )
    key_rule = Option(
        words(KeyRule), KeyRule.WDS,
        "Which part of a member's name is the key of its sample",
        details="the path up to its first dot (wds), up to its last dot (last-dot), or the last component up to its"
        " first dot (basename)",
        why="`wds` is webdataset's rule", tenants=True,
    )
    member_include = Option(optional(GLOBS), None, "In views: only members whose path matches; repeatable", see="views")
    member_exclude = Option(
        optional(GLOBS), None, "In views: no members whose path matches; repeatable", "wins over `--member-include`"
    )
    require = Option(
        optional(text("EXT[,EXT]")), None, "Leave out samples that lack one of these components", "`a;b` accepts either",
        rare=True, tenants=True,
    )
    label = Option(
        text("FROM"), "cls",
        "Where labels come from: `cls`, `txt`, `json:PATH`, `dir`, `re:REGEX`, `csv:OBJECT`", "`cls` is webdataset's usual component",
        see="views", shown="`cls`; `dir` if no sample has it", tenants=True,
    )
    image = Option(
        text("EXT[;EXT]"), "jpg;jpeg;png",
        "Component that `--view class` shows of a sample: the first it has; `jpg` finds `image.jpg`, too; `all`: each picture",
        see="views", tenants=True,
    )
    classes = Option(
        optional(path("FILE")), None, "File with the names of classes 0, 1, …, one per line",
        shown="`classes.txt` beside the shards",
    )
    samples_per_shard = Option(
        optional(whole(least=1)), None, "Samples in each tar of `--view shards`", "see below", shown="1000", rare=True, tenants=True,
    )
    shard_size = Option(
        optional(size(1)), None, "Most bytes in each tar of `--view shards`, such as 1GiB",
        "unless a single sample is larger; not with `--samples-per-shard`", rare=True, tenants=True,
    )
    shuffle = Option(
        optional(whole("SEED")), None, "With `--view shards`: shuffle the samples, reproducibly",
        "SEED is a number from 0; not with `--shard-index always`", see="shuffled-shards", rare=True, tenants=True,
    )
    join = Option(
        optional(words(Join)), None,
        "Combine the parts of each sample from all sources, by its key",
        details="show the samples that every source has (inner, also without a value), or all (outer)",
        see="joined-sources", tenants=True, bare=Join.INNER,
    )
    lazy = Option(
        FLAG, False, "Return before all shards of `--view class` or `flat` are open; the first listing then waits",
        "off, since it would wait in silence", rare=True, tenants=True,
    )
    strict = Option(
        FLAG, False, "Fail if `--view class` or `flat` shows nothing", "exit code 5; off, since there is a warning anyway; not with `--lazy`", rare=True, tenants=True,
    )
    files_from = Option(
        optional(text("FILE")), None, "Read sources from FILE (`-`: stdin), one per line or as wids' JSON",
        "below `SOURCE` if there is one", group=Group.SOURCE,
    )
    include = Option(
        optional(GLOBS), None, "Only keys that match GLOB; repeatable", see="1-what-is-mounted", group=Group.SOURCE,
        tenants=True,
    )
    exclude = Option(
        optional(GLOBS), None, "No keys that match GLOB; repeatable", "wins over `--include`", group=Group.SOURCE,
        tenants=True,
    )
    # fmt: on


_ETLS = re.compile(r"[a-z0-9-]{1,64}(,[a-z0-9-]{1,64})*")


def _etls(value: str) -> str:
    if value and not _ETLS.fullmatch(value):
        raise ValueError("names of ETLs as `aisfs etl list` has them, with commas in between")
    return value


class TransformSettings(Settings, group=Group.SOURCE):
    """What is shown in place of the objects."""

    # fmt: off
    etl = Option(
        text("NAME[,NAME]", _etls), "", "Show objects as this ETL of AIStore transforms them, then the next one",
        "to read only; a result is made once, and kept", see="transformed-objects", tenants=True,
    )
    etl_args = Option(
        text("ARGS"), "", "Arguments for the ETLs, as JSON or as they expect them", see="transformed-objects",
        rare=True, tenants=True,
    )
    transform = Option(
        text("COMMAND"), "", "Show objects as this filter transforms them: stdin to stdout, without a shell",
        "for any SOURCE; with your rights", see="transformed-objects",
    )
    epochs = Option(
        whole(most=10_000), 0, "Show SOURCE N times, as `epoch-0/` and so on: shuffled in another order, or transformed anew",
        "with `--shuffle`, `--etl` or `--transform`", see="epochs", tenants=True,
    )
    # fmt: on

    def __bool__(self) -> bool:
        return bool(self.etl or self.transform)

    def __str__(self) -> str:
        return (
            f"--transform {self.transform}"
            if self.transform
            else f"--etl {self.etl} {self.etl_args}"
        )


ID_MOST = (1 << 32) - 2
"""Largest number of a user or group; one more stands for none."""


class TreeSettings(Settings, group=Group.VIEWS):
    """What the tree looks like, and how long names and listings stay valid."""

    # fmt: off
    shards = Option(
        words(Shards), Shards.FILE,
        "How `X.tar` is shown",
        details="its members are in `X.tar.d/`, which is not listed (file), `X.tar` is a directory and its bytes are"
        " `X.tar.raw` (dir), or both are listed (both)",
        why="with `file`, tools see each byte once; not for dataset mounts", see="4-shards", tenants=True,
    )
    ignore_zeros = Option(
        FLAG, False, "Read past zero blocks, for tars joined by `cat`", "off as in GNU tar", rare=True, tenants=True
    )
    recursive = Option(
        FLAG, False, "Also open tars inside shards",
        "off as in ratarmount: such a tar is usually one member of a sample", see="tars-inside-shards", rare=True,
        tenants=True,
    )
    encoding = Option(
        text("NAME", _codec), "",
        "Encoding of names in zips that do not say theirs, such as `cp932` or `gbk`",
        "others: UTF-8, else code page 437", shown="UTF-8 or cp437",
        tenants=True,
    )
    magic = Option(
        FLAG, False, "Recognize archives by content, not by name; `X.d/` opens any archive `X`",
        "off, since it costs one request per archive", see="forms-of-archives", rare=True, tenants=True,
    )
    published_index = Option(
        FLAG, True, "Scan shards even if their indexes are published", "off, since an index has what a scan finds",
        see="published-indexes", rare=True, tenants=True,
    )
    shard_index = Option(
        words(ShardIndex, "[WHEN]", before=_when), ShardIndex.AUTO,
        "Use AIStore's own index, which lacks times, instead of a scan",
        details="in the views class and flat (auto), always (also without WHEN), or never",
        see="member-indexes", rare=True, tenants=True, bare=ShardIndex.ALWAYS,
    )
    scan = Option(
        words(Scan), Scan.AUTO,
        "How to find the members of a shard without an index",
        details="read its headers where that is cheaper (headers), or all of it (stream); auto: all if the data fits"
        " the disk cache, else the headers",
        why="`auto` skips data only where the disk cache could not keep it",
        see="member-indexes", rare=True, tenants=True,
    )
    list_xattrs = Option(
        FLAG, False, "List the extended attributes of aisfs; they can always be read by name",
        "off, since `rsync -aX` and `cp -a` would copy them", see="8-extended-attributes", rare=True, tenants=True,
    )
    attr_ttl = Option(
        seconds(), 60.0, "Seconds until a name looked up alone is looked up again", "as gcsfuse and mountpoint-s3",
        group=Group.CACHING, rare=True, tenants=True,
    )
    list_ttl = Option(
        seconds(), 60.0, "Seconds until a directory is listed again", "holds for a later mount, too; as gcsfuse",
        see="6-consistency", group=Group.CACHING, rare=True, tenants=True,
    )
    negative_ttl = Option(
        seconds(), 5.0, "Seconds until a missing name is looked up again", "short, so that new objects show up",
        group=Group.CACHING, rare=True, tenants=True,
    )
    uid = Option(
        whole(most=ID_MOST), os.getuid, "Owner of everything", shown="the mounting user", group=Group.PERMISSIONS, tenants=True
    )
    gid = Option(
        whole(most=ID_MOST), os.getgid, "Group of everything", shown="the mounting user's", group=Group.PERMISSIONS, tenants=True
    )
    file_mode = Option(
        MODE, 0o444, "Permissions of files", shown="0444, or 0644 if writable",
        group=Group.PERMISSIONS, rare=True, tenants=True,
    )
    dir_mode = Option(
        MODE, 0o555, "Permissions of directories", shown="0555, or 0755 if writable",
        group=Group.PERMISSIONS, rare=True, tenants=True,
    )
    # fmt: on


class KernelSettings(Settings):
    """How the kernel is served."""

    # fmt: off
    fastpath = Option(
        FLAG, True, "Serve the kernel through pyfuse3 alone: slower, with the same results",
        "see below and [ADR 0012](adr/0012-the-fast-path.md)", rare=True,
    )
    keeper = Option(
        FLAG, True, "Keep no second process that starts the daemon again when it dies",
        "see [SEMANTICS](SEMANTICS.md#12-beginning-and-end) and [ADR 0040](adr/0040-a-mount-outlives-its-daemon.md)",
        rare=True,
    )
    # fmt: on


CACHE_LEAST = 5 * MIB
"""Smallest disk cache; the ledger and its margin take half of it."""
CACHE_MOST = 1 << 62
"""Largest that the ledger can count."""

MEMORY_LEAST = 16 * MIB
"""Smallest memory for fetched bytes."""


def _cache_size(value: int) -> int:
    if 0 < value < CACHE_LEAST:
        raise ValueError(f"a disk cache takes {CACHE_LEAST // MIB} MiB at least; 0 is none")
    if value > CACHE_MOST:
        raise ValueError("no disk is that large")
    return value


class CacheSettings(Settings, group=Group.CACHING):
    """What is kept on disk and in memory, and how much is fetched ahead."""

    # fmt: off
    cache_dir = Option(
        path("DIR"), lambda: Path(user_cache_dir("aisfs")), "Directory of the disk cache",
        "mounts of one user may share it; not on a network file system (SQLite)", see="the-disk-cache",
        shown="the user's cache directory",
    )
    cache_size = Option(
        optional(size(check=_cache_size)), None, "Limit of the disk cache, such as 50GiB; 0: none",
        "the default is the smaller of the two; otherwise give at least 5MiB",
        shown="10GiB or a tenth of the free disk",
    )
    read_ahead_max = Option(
        size(), 64 * MIB, "Most bytes fetched ahead of a sequential reader",
        "enough for 1 GiB/s at 60 ms of latency; 0 turns it off", rare=True, tenants=True,
    )
    prefetch_shards = Option(
        whole(), 2, "Shards fetched ahead of a reader that takes them in name order", "0 turns it off", rare=True,
        tenants=True,
    )
    record = Option(
        optional(path("FILE")), None, "Write the order in which files are read first into FILE, for --replay",
        "for programs whose order cannot be announced", see="the-order-of-reading", rare=True,
    )
    replay = Option(
        optional(path("FILE")), None, "Fetch ahead in the order that --record has written to FILE",
        "what is not read in that order is read as without it", see="the-order-of-reading", rare=True,
    )
    memory_limit = Option(
        optional(size(MEMORY_LEAST)), None, "Most bytes of objects in memory",
        "beyond it nothing is read ahead; at least 16MiB; eight windows of 64 MiB; see below",
        shown="512MiB, or what fits", rare=True,
    )
    # fmt: on

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


class LogSettings(Settings, group=Group.LOGGING):
    """What is logged, where, and in which form."""

    # fmt: off
    log_level = Option(
        words(LogLevel, any_case=True), LogLevel.INFO, "Lowest level to log; debug shows each request",
        see="CONFIGURATION.md#the-log",
    )
    log_file = Option(
        optional(path("FILE")), None, "Log to this file, which logrotate may move",
        "readable by its owner only; without it, the log is elsewhere", see="CONFIGURATION.md#the-log",
    )
    log_format = Option(
        words(LogFormat), LogFormat.TEXT, "Form of each line: text, or a JSON object", rare=True
    )
    slow_request = Option(
        seconds(), 10.0, "Log requests that take this many seconds; 0: none for that", "as in JuiceFS", rare=True
    )
    # fmt: on


def log_directory() -> Path:
    """Return where daemons log if nothing else takes their log."""
    return Path(user_state_dir("aisfs")) / "log"


def own_log(mountpoint: Path) -> Path:
    """Return the file there of one mount: several would not know when another one rotates it."""
    digest = zlib.crc32(os.fsencode(mountpoint))
    return log_directory() / f"{mountpoint.name[:64]}-{digest:08x}.log"


LOOPBACK = "127.0.0.1"
_ADDRESS = re.compile(r"(?:(\[[^\[\]]+\]|[^:\[\]\s/]*):)?(\d{1,5})")


def _text(value: object) -> str:
    return str(value)  # a port is a number in a file


def _address(value: str) -> str:
    found = _ADDRESS.fullmatch(value.strip())
    if found is None or int(found[2]) > 65535:
        raise ValueError("an address is HOST:PORT, or PORT to listen on this machine only")
    return f"{found[1] or LOOPBACK}:{int(found[2])}"


class MonitoringSettings(Settings, group=Group.MONITORING):
    """How a mount is watched."""

    # fmt: off
    metrics_addr = Option(
        optional(Kind(lambda value: _address(_text(value)), "HOST:PORT")), None,
        "Serve counters for Prometheus at `/metrics`, and `/healthz`; PORT alone: for this machine only",
        "each mount needs its own; 0: a free one", see="MONITORING.md",
    )
    # fmt: on

    @property
    def listen_on(self) -> tuple[str, int] | None:
        """The host and the port to listen on; None for none."""
        if self.metrics_addr is None:
            return None
        host, _, port = self.metrics_addr.rpartition(":")
        return host.strip("[]"), int(port)


WRITABLE_FILE_MODE = "0644"
WRITABLE_DIR_MODE = "0755"
"""Default permissions of a writable mount."""


class WriteSettings(Settings, group=Group.WRITING):
    """How a mount is written, if it is writable."""

    # fmt: off
    writable = Option(
        FLAG, False, "Permit changes: files are staged, and uploaded when they are closed",
        "off, since training only reads; not for datasets, `--include` or `--exclude`", see="15-writing",
        tenants=True,
    )
    create_bucket = Option(
        FLAG, False, "With `--writable`: make the bucket of SOURCE if it is missing",
        "off, since a name that is mistyped should fail", rare=True, tenants=True,
    )
    allow_bucket_changes = Option(
        FLAG, False, "With `--writable` and all buckets: `mkdir` makes buckets", "`mkdir MNT/ais/NEW`; off, since a cluster is shared", rare=True,
    )
    staging_dir = Option(
        path("DIR"), lambda: Path(user_state_dir("aisfs")) / "staging", "Directory of files until they are uploaded",
        "in `aisfs/staging`; mounts of one user may share it; not a cache",
        shown="the user's state directory", rare=True,
    )
    staging_size = Option(
        optional(size()), None, "Most bytes in the staging directory",
        "files being written and those that `aisfs recover` lists; beyond it, writes are ENOSPC",
        shown="half of the free disk", rare=True,
    )
    write_back = Option(
        seconds(finite=True), 0.0,
        "With `--writable`: close small files once they are safe on the local disk, and upload them after S seconds; 0:"
        " before close returns",
        see="closing-small-files-early",
    )
    rename_dir_limit = Option(
        whole(), 1000, "Most objects of a directory that can be renamed", "some seconds of work; beyond it EXDEV, and"
        " `mv` copies", rare=True, tenants=True,
    )
    ignore_attr_changes = Option(
        FLAG, False, "Accept and ignore owners, modes and times that cannot be kept", "off, since a backup should know",
        rare=True, tenants=True,
    )
    # fmt: on

    def staging_limit(self) -> int:
        """Return the bytes the staging directory may take."""
        if self.staging_size is not None:
            return int(self.staging_size)
        return shutil.disk_usage(existing_directory(self.staging_dir, "staging-dir")).free // 2
