"""What commands share: options, exit codes and which error means which, and how their work is run."""

import sys
from collections.abc import Awaitable, Callable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from aisfs.choices import LogFormat, LogLevel, Scan
from aisfs.errors import (
    AccessDenied,
    AisfsError,
    BucketNotFound,
    ConfigError,
    DeadlineExceeded,
    FuseUnavailable,
    MountError,
    NoEndpoint,
    SourceMissing,
    Unavailable,
)
from aisfs.redaction import escaped

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from aisfs.settings import LogSettings


class Exit(IntEnum):
    """Exit codes; docs/SEMANTICS.md prints them and a test compares."""

    OK = 0
    FAILURE = 1
    """Something without a code of its own failed or was left out; the lines before say what."""
    USAGE = 2
    """A wrong option or value."""
    NO_ENDPOINT = 3
    """No endpoint in an option, a variable, a configuration file or the `ais` CLI."""
    UNREACHABLE = 4
    """The cluster does not answer."""
    NO_SOURCE = 5
    """The bucket or the local directory does not exist."""
    DENIED = 6
    """The token is missing or refused."""
    MOUNTPOINT = 7
    """The mountpoint is missing, not a directory, busy or not empty."""
    NO_FUSE = 8
    """No usable /dev/fuse or fusermount3."""
    DAMAGED = 9
    """Some of the shards that were read are damaged."""


EXITS: list[tuple[type[AisfsError], Exit]] = [
    (NoEndpoint, Exit.NO_ENDPOINT),
    (ConfigError, Exit.USAGE),
    (BucketNotFound, Exit.NO_SOURCE),
    (SourceMissing, Exit.NO_SOURCE),
    (Unavailable, Exit.UNREACHABLE),
    (DeadlineExceeded, Exit.UNREACHABLE),
    (AccessDenied, Exit.DENIED),
    (FuseUnavailable, Exit.NO_FUSE),
    (MountError, Exit.MOUNTPOINT),
]


def exit_code(error: AisfsError) -> Exit:
    """Return the exit code of an error."""
    return next((code for cls, code in EXITS if isinstance(error, cls)), Exit.FAILURE)


def fail(reason: str, code: int) -> int:
    """Print in one line why the command failed; return the code."""
    click.echo(f"aisfs: {_one_line(reason)}", err=True)
    return code


def warn(level: str, text: str) -> str:
    """Return the line that tells of a warning or an error which did not end the command."""
    return f"aisfs: {level}: {_one_line(text)}"


def _one_line(text: str) -> str:
    return escaped(" ".join(text.split()))


Command = Callable[..., Any]

_TYPES = {"DIR": click.Path(path_type=Path), "N": click.INT, "S": click.FLOAT, "SEED": click.INT}
"""By metavar; other values are text, which the settings parse."""


def setting(
    words: str, explanation: str, *, multiple: bool = False
) -> Callable[[Command], Command]:
    """Return an option such as `--io-timeout S`, whose default is that of the setting."""
    name, _, metavar = words.partition(" ")
    return click.option(
        name, metavar=metavar, type=_TYPES.get(metavar), multiple=multiple, help=explanation
    )


def flag(name: str, explanation: str) -> Callable[[Command], Command]:
    """Return an option without a value, whose default is that of the setting."""
    return click.option(name, is_flag=True, default=None, help=explanation)


def complete_directory(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Make the shell complete names of directories."""
    return [CompletionItem(incomplete, type="dir")]


endpoint_option = setting(
    "--endpoint URL", "AIStore proxy [AIS_ENDPOINT, else that of the ais CLI]."
)


proxy_option = setting(
    "--proxy URL",
    "HTTP proxy for all requests [none for AIStore; for other stores HTTP_PROXY, HTTPS_PROXY, NO_PROXY].",
)


def store_options(command: Command) -> Command:
    """Add the options that say how to reach the store of a source: AIStore, a cloud, a web server."""
    for option in (
        flag("--follow-links", "Follow all symbolic links in local directories."),
        setting(
            "--http-headers FILE", "Tokens and cookies for web servers: lines of HOST NAME: VALUE."
        ),
        proxy_option,
        flag("--requester-pays", "Pay for requests to a bucket of S3 or Google that demands it."),
        flag("--anonymous", "Send no credentials to a store without AIStore: for public buckets."),
        flag(
            "--direct",
            "Read s3://, gs:// and az:// from the cloud itself, whatever the endpoint is.",
        ),
        endpoint_option,
    ):
        command = option(command)
    return command


cache_dir_option = setting(
    "--cache-dir DIR", "Directory of the disk cache [the user's cache directory]."
)
cache_size_option = setting(
    "--cache-size SIZE",
    "Limit of the disk cache, such as 50GiB; 0: none [10GiB or a tenth of the free disk].",
)
config_option = click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Configuration file [~/.config/aisfs/config.toml and /etc/aisfs/config.toml].",
)
encoding_option = setting(
    "--encoding NAME",
    "Encoding of names in zips that do not say theirs, such as cp932 or gbk [UTF-8 or cp437].",
)
files_from_option = setting(
    "--files-from FILE", "Read sources from FILE, one per line or as wids' JSON; - is stdin."
)
io_timeout_option = setting(
    "--io-timeout S", "Seconds until a request that keeps failing is an error [60]."
)
scan_option = click.option(
    "--scan",
    type=click.Choice([s.value for s in Scan]),
    help="How to find the members of a shard without an index: read its headers where that is cheaper "
    "(headers), or all of it (stream) [auto: stream if the data fits the disk cache, else headers].",
)
staging_dir_option = setting(
    "--staging-dir DIR", "Directory of files until they are uploaded [the user's state directory]."
)

index_bucket_option = setting(
    "--index-bucket BUCKET",
    "Bucket of AIStore that has the published indexes of all others; '': they lie beside the shards"
    " [aisfs-index].",
)
no_published_index_flag = flag(
    "--no-published-index", "Scan shards even if their indexes are published."
)
_SWITCHES = {
    "no_fastpath": "fastpath",
    "no_lane": "fastpath",
    "no_published_index": "published_index",
}
"""Options that switch a setting off."""


def with_switched_off(given: Mapping[str, object]) -> dict[str, object]:
    """Return settings with those that an option such as `--no-fastpath` switches off."""
    switched = {
        _SWITCHES[name]: False for name, value in given.items() if name in _SWITCHES and value
    }
    return {name: value for name, value in given.items() if name not in _SWITCHES} | switched


def size_value(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Return the bytes of an option's value such as 1GiB: a callback of click."""
    if text is None or context.resilient_parsing:  # the shell completes, and wants no value
        return None
    from aisfs.settings import parse_size

    try:
        return parse_size(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a size such as 1GiB") from None


def source_options(command: Command) -> Command:
    """Add the options that choose shards besides SOURCE; see `aisfs.mount.plan.read_shards`."""
    exclude = setting("--exclude GLOB", "No shards that match GLOB; repeatable.", multiple=True)
    include = setting("--include GLOB", "Only shards that match GLOB; repeatable.", multiple=True)
    return files_from_option(include(exclude(command)))


def without_unset(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings that were given, in place of all that a command takes."""
    return {name: value for name, value in settings.items() if value not in (None, ())}


def jobs_option(explanation: str) -> Callable[[Command], Command]:
    """Return the option `--jobs`."""
    return click.option(
        "--jobs", type=click.IntRange(1, 64), default=4, show_default=True, help=explanation
    )


slow_request_option = setting(
    "--slow-request S", "Log requests that take this many seconds; 0: none for that [10]."
)


def log_options(command: Command) -> Command:
    """Add the options that say what is logged, and where."""
    for option in (
        click.option(
            "--log-format",
            type=click.Choice([f.value for f in LogFormat]),
            help="Form of each line: text [default], or a JSON object.",
        ),
        setting("--log-file FILE", "Log to this file, which logrotate may move."),
        click.option(
            "--log-level",
            type=click.Choice([level.value for level in LogLevel], case_sensitive=False),
            help="Lowest level to log: debug (each request), info [default], warning or error.",
        ),
    ):
        command = option(command)
    return command


def start_logging(
    settings: "LogSettings", *, foreground: bool, mountpoint: Path | None = None
) -> Path | None:
    """Log as the settings say; return the file that a daemon logs to if nobody said where.

    Args:
        settings: What, where, and in which form.
        foreground: Whether to log to stderr if nobody said where.
        mountpoint: Of the daemon.

    Raises:
        ConfigError: the log file cannot be written.
    """
    from aisfs.settings import own_log
    from aisfs.system import logs

    def configure(own: Path | None) -> None:
        logs.configure(
            settings.log_level,
            settings.log_file,
            foreground=foreground,
            own=own,
            style=settings.log_format,
            slow=settings.slow_request,
        )

    placed = settings.log_file is not None or foreground or logs.SYSLOG_SOCKET.exists()
    own = None if placed or mountpoint is None else own_log(mountpoint)
    try:
        configure(own)
    except OSError as error:
        if own is None:
            raise ConfigError(f"--log-file {settings.log_file}: {error.strerror}") from error
        text = (
            f"there will be no log: {own.parent}: {error.strerror}; --log-file FILE names a place"
        )
        click.echo(warn("warning", text), err=True)
        configure(None)
        return None
    return own


T = TypeVar("T")
_ENDLESS = 1 << 20
"""Columns where there is no terminal: grep and awk want each row in one line."""


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Run it; Ctrl-C, which trio raises in groups, ends the command without a traceback."""
    import trio  # neither help nor completion needs it

    interrupted = False
    try:
        return trio.run(work)
    except* KeyboardInterrupt:
        interrupted = True
    assert interrupted, "nothing else is swallowed"
    raise click.Abort


def output() -> "Console":
    """Return where tables are printed: as wide as the terminal, or as they need where there is none."""
    from rich.console import Console

    console = Console(markup=False, emoji=False, highlight=False)
    if not sys.stdout.isatty():
        console.width = _ENDLESS
    return console


def print_parts(*parts: "RenderableType") -> None:
    """Print tables and lines of text."""
    console = output()
    if sys.stdout.isatty():
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, str))
        return
    with console.capture() as captured:
        console.print(*parts, sep="\n")
    # The last column is as wide as its widest cell. All at once: `head` may close the pipe after some lines.
    lines = captured.get().rstrip("\n").split("\n")
    click.echo("\n".join(line.rstrip() for line in lines))
