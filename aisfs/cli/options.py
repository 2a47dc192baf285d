"""Options that several commands have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from aisfs.process import logs

Command = Callable[..., Any]

cache_dir_option = click.option(
    "--cache-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory of the disk cache [the user's cache directory].",
)
endpoint_option = click.option(
    "--endpoint", metavar="URL", help="AIStore proxy; default: AIS_ENDPOINT."
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
