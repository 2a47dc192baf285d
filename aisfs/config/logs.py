"""What is logged, where, and in which form."""

import os
import zlib
from pathlib import Path
from typing import Annotated

from platformdirs import user_state_dir
from pydantic import BeforeValidator, NonNegativeFloat

from aisfs.choices import LogFormat, LogLevel
from aisfs.config.values import AbsolutePath, Settings


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


class LogSettings(Settings):
    """What is logged, where, and in which form."""

    log_level: Annotated[LogLevel, BeforeValidator(_lower)] = LogLevel.INFO
    log_file: AbsolutePath | None = None
    """None is the system's log, or `own_log` where there is none. Opened anew when it was moved or removed, as logrotate does."""
    log_format: LogFormat = LogFormat.TEXT
    slow_request: NonNegativeFloat = 10.0
    """Seconds from which a request is logged as slow, as in JuiceFS; 0 for none."""


def log_directory() -> Path:
    """Return where daemons log if nothing else takes their log."""
    return Path(user_state_dir("aisfs")) / "log"


def own_log(mountpoint: Path) -> Path:
    """Return the file there of one mount: several would not know when another one rotates it."""
    digest = zlib.crc32(os.fsencode(mountpoint))
    return log_directory() / f"{mountpoint.name[:64]}-{digest:08x}.log"
