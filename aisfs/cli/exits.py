"""Exit codes, and which error means which."""

from enum import IntEnum

import click

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
