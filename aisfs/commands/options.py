"""What commands share: options, exit codes and which error means which, and how their work is run."""

import sys
from collections.abc import Awaitable, Callable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

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
    from aisfs.settings.values import Option


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
    """Return the line for a warning, or for an error that did not end the command."""
    return f"aisfs: {level}: {_one_line(text)}"


def _one_line(text: str) -> str:
    return escaped(" ".join(text.split()))


T = TypeVar("T")
Command = Callable[..., Any]
Decorator = Callable[[Command], Command]

_TYPES = {"DIR": click.Path(path_type=Path), "N": click.INT, "S": click.FLOAT, "SEED": click.INT}
"""By metavar; other values are text, which the settings parse."""


class Described(click.Option):
    """An option of a command, with what docs/CONFIGURATION.md says besides its help."""

    def __init__(
        self,
        *args: Any,  # noqa: ANN401
        why: str = "",
        setting: "Option[Any] | None" = None,
        summary: str = "",
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Take the arguments of click; why and summary, as `setting` has them, are for the document."""
        super().__init__(*args, **kwargs)
        self.why, self.setting, self.summary = why, setting, summary


def own_option(
    words: str,
    summary: str,
    why: str = "",
    *,
    name: str = "",
    **more: Any,  # noqa: ANN401
) -> Decorator:
    """Return an option that is no setting, but of one command.

    Args:
        words: Such as `-l, --long` or `--jobs N`; without a value, and a type, it is a flag.
        summary: What `--help` says of it.
        why: What docs/CONFIGURATION.md adds to that.
        name: Of the parameter, if not the option's.
        more: As click takes it.
    """
    *others, last = words.split(", ")
    option, _, metavar = last.partition(" ")
    names = [*others, option, *filter(None, (name,))]
    flag = (
        True if not metavar and "type" not in more else None
    )  # with False, click lets the value be missing
    more = {"is_flag": flag, "show_default": "default" in more, **more}
    return click.option(
        *names, cls=Described, metavar=metavar or None, help=summary, why=why, **more
    )


def setting(name: str, summary: str = "", why: str = "") -> Decorator:
    """Return the option that sets a setting.

    Args:
        name: Of the setting.
        summary: What it does in this command, if that is not what it does in `aisfs mount`.
        why: What docs/CONFIGURATION.md adds to that.
    """
    from aisfs.settings.values import KNOWN  # `aisfs --help` does not wait for it

    found = KNOWN[name]
    kind, default = found.kind, found.shown_default
    text = summary or ": ".join(filter(None, (found.summary, found.details)))
    text += f" [{default}]." if default else "."
    return click.option(
        f"--{found.parameter.replace('_', '-')}",
        cls=Described,
        setting=found,
        why=why,
        summary=summary,
        **({} if kind.metavar else {"is_flag": True, "default": None}),
        metavar=kind.metavar or None,
        type=click.Choice(kind.words, case_sensitive=not kind.any_case)
        if kind.words
        else _TYPES.get(kind.metavar),
        multiple=kind.repeatable,
        help=text.replace("`", ""),
    )


def settings(*names: str) -> Decorator:
    """Return the options that set some settings."""

    def add(command: Command) -> Command:
        for name in reversed(names):
            command = setting(name)(command)
        return command

    return add


def complete_directory(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Make the shell complete names of directories."""
    return [CompletionItem(incomplete, type="dir")]


STORE = (
    "endpoint",
    "direct",
    "anonymous",
    "requester_pays",
    "proxy",
    "http_headers",
    "follow_links",
)
"""Settings that say how to reach the store of a source: AIStore, a cloud, a web server."""
SOURCES = ("include", "exclude", "files_from")
"""Settings that choose shards besides SOURCE; see `aisfs.mount.setup.read_shards`."""
LOGS = ("log_level", "log_file", "log_format")


config_option = own_option(
    "--config FILE",
    "Configuration file [~/.config/aisfs/config.toml and /etc/aisfs/config.toml].",
    "see [below](#configuration-files)",
    type=click.Path(dir_okay=False, path_type=Path),
)


def with_switched_off(given: Mapping[str, object]) -> dict[str, object]:
    """Return settings with those that an option such as `--no-fastpath` switches off."""
    from aisfs.settings.values import KNOWN

    switches = {o.parameter: name for name, o in KNOWN.items() if o.parameter != name}
    switches["no_lane"] = "fastpath"
    switched = {
        switches[name]: False for name, value in given.items() if name in switches and value
    }
    return {name: value for name, value in given.items() if name not in switches} | switched


def taken(kind: type[T], given: dict[str, object]) -> T:
    """Return the dataclass `kind` of those of the options that its fields name; the others stay in `given`."""
    return kind(**{name: given.pop(name) for name in kind.__dataclass_fields__})  # type: ignore[attr-defined]


def size_value(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Return the bytes of an option's value such as 1GiB: a callback of click."""
    if text is None or context.resilient_parsing:  # the shell completes, and wants no value
        return None
    from aisfs.settings import parse_size

    try:
        return parse_size(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a size such as 1GiB") from None


def without_unset(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings that were given, in place of all that a command takes."""
    return {name: value for name, value in settings.items() if value not in (None, ())}


def jobs_option(explanation: str) -> Callable[[Command], Command]:
    """Return the option `--jobs`."""
    return own_option("--jobs N", explanation, "1 to 64", type=click.IntRange(1, 64), default=4)


def start_logging(
    settings: "LogSettings", *, foreground: bool, mountpoint: Path | None = None
) -> Path | None:
    """Log as the settings say; return the file that a daemon logs to without `--log-file`, if that is new.

    Args:
        settings: What, where, and in which form.
        foreground: Whether to log to stderr without `--log-file`.
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
    known = own is not None and own.exists()
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
    return None if known else own


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
