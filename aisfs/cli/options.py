"""Options that several commands have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from aisfs.process import logs

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


endpoint_option = setting("--endpoint URL", "AIStore proxy; default: AIS_ENDPOINT.")
cache_dir_option = setting(
    "--cache-dir DIR", "Directory of the disk cache [the user's cache directory]."
)
cache_size_option = setting(
    "--cache-size SIZE",
    "Limit of the disk cache, such as 50GiB; 0: none [10GiB or a tenth of the free disk].",
)
io_timeout_option = setting(
    "--io-timeout S", "Seconds until a request that keeps failing is an error [60]."
)
staging_dir_option = setting(
    "--staging-dir DIR", "Directory of files until they are uploaded [the user's state directory]."
)


def jobs_option(explanation: str) -> Callable[[Command], Command]:
    """Return the option `--jobs`."""
    return click.option(
        "--jobs", type=click.IntRange(1, 64), default=4, show_default=True, help=explanation
    )


def log_options(command: Command) -> Command:
    """Add the options that `logs.configure` takes."""
    levels = click.Choice(logs.LEVELS, case_sensitive=False)
    command = click.option(
        "--log-file", type=click.Path(dir_okay=False, path_type=Path), help="Log to this file."
    )(command)
    return click.option(
        "--log-level", type=levels, default="info", show_default=True, help="Lowest level to log."
    )(command)
