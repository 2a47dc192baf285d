"""Directories and files for their owner alone, whatever the umask: what is written exists nowhere
else, and logs name objects."""

import os
from pathlib import Path


def make_directory(path: Path) -> None:
    """Make a directory, and what is missing above it, unless it is there.

    Raises:
        OSError: it cannot be made.
    """
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        make_directory(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def opener(path: str, flags: int) -> int:
    """Open a file as `open` asks for; a new one belongs to its owner alone."""
    return os.open(path, flags, 0o600)
