"""Runs the work of a command, and shows how far it is."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

T = TypeVar("T")


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
