"""Directories and files that only their owner can read, whatever the umask: staged files exist
nowhere else, and logs name objects."""

import os
from pathlib import Path


def make_directory(path: Path) -> None:
    """Make a directory and its missing parents, unless it exists.

    Raises:
        OSError: it cannot be made.
    """
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        make_directory(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def opener(path: str, flags: int) -> int:
    """Open a file for `open`; only its owner can read a new one."""
    return os.open(path, flags, 0o600)
