"""What can go wrong, as the one line that the reader of the screen gets."""

from collections.abc import Iterator
from contextlib import contextmanager


class DemoError(Exception):
    """The demo cannot go on; the message says why, in one line."""

    exit_code = 1


class DataError(DemoError):
    """What the user named with --data has no pictures."""

    exit_code = 2


@contextmanager
def step(name: str) -> Iterator[None]:
    """Name the step in which an unforeseen error happens."""
    try:
        yield
    except (DemoError, BrokenPipeError):
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise DemoError(f"{name}: {reason}") from error
