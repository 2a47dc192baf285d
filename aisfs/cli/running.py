"""Runs the work of a command, and prints its tables."""

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

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
