"""A cache directory that another process holds for ever: an error that says so, and no hang."""

import fcntl
import os
from pathlib import Path

import pytest

from aisfs.cache import directory
from aisfs.cache.directory import CacheDirectory
from aisfs.errors import ConfigError


def test_a_lock_that_is_never_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "_OPENING_SECONDS", 0.2)
    held = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with (
            pytest.raises(ConfigError, match="being opened by another process"),
            CacheDirectory(tmp_path).opening(),
        ):
            pass
    finally:
        os.close(held)
    with CacheDirectory(tmp_path).opening():
        pass
