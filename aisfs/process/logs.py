"""Where log lines go: stderr in the foreground, a file, or the system's log for a daemon."""

import errno
import logging
import logging.handlers
import os
import sys
from io import TextIOWrapper
from pathlib import Path

from aisfs.process import private
from aisfs.redaction import shown

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
SYSLOG_FORMAT = "aisfs[%(process)d]: %(levelname)s %(message)s"
LEVELS = ("debug", "info", "warning", "error")
SYSLOG_SOCKET = Path("/dev/log")

_NOBODY_WAITS = f"fuse_reply_* failed with {os.strerror(errno.ENOENT)}"
"""Logged by pyfuse3 when a reply came too late: the caller was killed, or the mount ended."""


class _Printable(logging.Formatter):
    """Escapes what is not UTF-8, as in some names, since the line would be lost; removes secrets."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record).encode(errors="backslashreplace").decode()
        return shown(line)


class _PrivateFile(logging.FileHandler):
    """A file that only its owner can read: it names objects."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, opener=private.opener)


def configure(level: str, file: Path | None, *, foreground: bool) -> None:
    """Send the lines of all modules of aisfs from `level` up to a file, stderr or the system's log.

    Raises:
        OSError: the log file cannot be written.
    """
    handler: logging.Handler
    if file is not None:
        handler = _PrivateFile(file, encoding="utf-8")
        handler.setFormatter(_Printable(FORMAT))
    elif foreground:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Printable(FORMAT))
    elif SYSLOG_SOCKET.exists():
        handler = logging.handlers.SysLogHandler(str(SYSLOG_SOCKET))
        handler.setFormatter(_Printable(SYSLOG_FORMAT))
    else:
        handler = logging.NullHandler()
    # Other libraries' debug lines would drown ours; their warnings matter.
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("aisfs").setLevel(level.upper())
    logging.getLogger("pyfuse3").addFilter(_is_wanted)


def _is_wanted(record: logging.LogRecord) -> bool:
    return not record.getMessage().endswith(_NOBODY_WAITS)
