"""Where log lines go (stderr in the foreground, a file, or the system's log), and what they look like.

With `debug` every request is logged, and what answered it; otherwise only slow ones. A request that is not logged costs a
comparison. The last warnings are kept for `aisfs status`; those of the start are printed for the user.
"""

import errno
import json
import logging
import logging.handlers
import math
import os
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from aisfs.redaction import escaped, shown
from aisfs.system import locks
from aisfs.system.threads import any_thread

MEMORY, DISK, NETWORK, STAGING = "memory", "disk cache", "network", "staging directory"
"""What can answer a request. A request of the kernel that needed none of the others was answered by memory."""

_answerers: ContextVar[set[str] | None] = ContextVar("answerers", default=None)
"""Of the request that this task or thread works on."""


@any_thread
class RequestLog:
    """Logs requests of the kernel and of the store when they are done."""

    __slots__ = ("_slow", "detailed", "least")

    def __init__(self) -> None:
        """Log none."""
        self.detailed = False
        """Whether all requests are logged, with what answered them."""
        self.least = self._slow = math.inf
        """Seconds from which requests are to be handed to `done`."""

    def configure(self, *, slow: float, detailed: bool) -> None:
        """Log requests that take `slow` seconds (0: none because of that), or all of them."""
        self._slow = slow or math.inf
        self.detailed = detailed
        self.least = 0.0 if detailed else self._slow

    def begin(self) -> None:
        """Begin with a request of the kernel: collect what answers it."""
        if self.detailed:
            _answerers.set(set())

    def note(self, *answerers: str) -> None:
        """Note what answered the current request, or a part of it."""
        if self.detailed and (found := _answerers.get()) is not None:
            found.update(answerers)

    def noted(self) -> set[str]:
        """Return what answered the current request so far; what is noted later is added to it."""
        return (_answerers.get() if self.detailed else None) or set()

    def answered(self, log: logging.Logger, operation: str, subject: str, seconds: float) -> None:
        """Log a request of the kernel that took `least` seconds."""
        answerers = ", ".join(sorted(self.noted())) or MEMORY if self.detailed else None
        self.done(log, operation, subject, seconds, answerers)

    def done(
        self,
        log: logging.Logger,
        operation: str,
        subject: str,
        seconds: float,
        answerers: str | None = None,
    ) -> None:
        """Log a request that took `least` seconds.

        Args:
            log: The caller's logger.
            operation: What was asked for.
            subject: What it is about.
            seconds: How long it took.
            answerers: What answered, if that is known.
        """
        slow = seconds >= self._slow
        fields: dict[str, Any] = {"operation": operation, "subject": subject, "seconds": seconds}
        write = partial(log.log, logging.INFO if slow else logging.DEBUG)
        start = "slow request: " if slow else ""
        if answerers is None:
            write("%s%s of %s took %.6f s", start, operation, subject, seconds, extra=fields)
            return
        fields["answered_by"] = answerers
        text = "%s%s of %s took %.6f s, answered by %s"
        write(text, start, operation, subject, seconds, answerers, extra=fields)


request_log = RequestLog()


FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_IDENT = "aisfs[%(process)d]: "
SYSLOG_FORMAT = f"{_IDENT}%(levelname)s %(message)s"
LEVELS = ("debug", "info", "warning", "error")
TEXT, JSON = FORMATS = ("text", "json")
SYSLOG_SOCKET = Path("/dev/log")
OWN_BYTES = 4 << 20
"""Of a log that nobody asked for, and as much of what was before: months of warnings."""

_NOBODY_WAITS = f"fuse_reply_* failed with {os.strerror(errno.ENOENT)}"
"""Logged by pyfuse3 when a reply came too late: the caller was killed, or the mount ended."""


_USUAL = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
"""What every record has; the rest are the fields of this one, given as `extra`."""


def _printable(text: str) -> str:
    """Escape what is not UTF-8, as in some names, since the line would be lost; remove secrets."""
    return shown(text.encode(errors="backslashreplace").decode())


class _Printable(logging.Formatter):
    """A line of text; a traceback follows in lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escaped(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        return _printable(super().format(record))


class _Json(logging.Formatter):
    """One JSON object in a line. Own code, since secrets are removed from each text before encoding."""

    def __init__(self, before: str = "") -> None:
        """Write `before`, a format, before each object."""
        super().__init__()
        self._before = before

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _USUAL}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        clean = {name: _cleaned(value) for name, value in line.items()}
        return self._before % vars(record) + json.dumps(clean, ensure_ascii=False)


def _cleaned(value: object) -> object:
    return value if isinstance(value, int | float) else _printable(str(value))


_handler: logging.Handler | None = None
"""What `configure` added last."""


class _Stderr(logging.Handler):
    """The stderr of the moment: a progress bar replaces it, to print lines above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:  # noqa: BLE001 - as any handler
            self.handleError(record)


def _open_private(handler: logging.FileHandler) -> TextIOWrapper:
    """Open the file of a handler so that only its owner can read it: it names objects."""
    return open(handler.baseFilename, "a", encoding="utf-8", opener=locks.opener)


class _OwnFile(logging.handlers.RotatingFileHandler):
    """A file that nobody asked for, and that stays within bounds."""

    def __init__(self, file: Path) -> None:
        locks.make_directory(file.parent)
        super().__init__(file, maxBytes=OWN_BYTES, backupCount=1)

    def _open(self) -> TextIOWrapper:
        return _open_private(self)


class _PrivateFile(logging.handlers.WatchedFileHandler):
    """The log file; made again after logrotate has moved it."""

    def _open(self) -> TextIOWrapper:
        return _open_private(self)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # its directory is gone, for example; what logs must not fail
            self.handleError(record)


def configure(
    level: str,
    file: Path | None,
    *,
    foreground: bool,
    own: Path | None = None,
    style: str = TEXT,
    slow: float = 0.0,
) -> None:
    """Send the lines of all modules of aisfs from `level` up to a file, stderr or the system's log.

    Args:
        level: One of `LEVELS`.
        file: Where they go, if it is given.
        foreground: Whether they go to stderr otherwise.
        own: Where they go if there is no system's log either. It is rotated.
        style: One of `FORMATS`.
        slow: Seconds from which a request is slow; 0 for none.

    Raises:
        OSError: the log file cannot be written.
    """
    handler: logging.Handler
    text, before = FORMAT, ""
    if file is not None:
        handler = _PrivateFile(file)
    elif foreground:
        handler = _Stderr()
    elif SYSLOG_SOCKET.exists():
        handler = logging.handlers.SysLogHandler(str(SYSLOG_SOCKET))
        text, before = SYSLOG_FORMAT, _IDENT
    elif own is not None:
        handler = _OwnFile(own)
    else:
        handler = logging.NullHandler()
    handler.setFormatter(_Json(before) if style == JSON else _Printable(text))
    handler.setLevel(level.upper())
    _replace_handler(handler)
    # Warnings are kept for `aisfs status` even if the log has none.
    logging.getLogger("aisfs").setLevel(min(logging.WARNING, logging.getLevelName(level.upper())))
    logging.getLogger("pyfuse3").addFilter(_is_wanted)
    request_log.configure(slow=slow, detailed=level == "debug")


def _replace_handler(handler: logging.Handler) -> None:
    """Log with this handler instead of the one before; others, such as `RecentWarnings`, stay."""
    global _handler
    root = logging.getLogger()
    # Other libraries' debug lines would drown ours; their warnings matter.
    root.setLevel(logging.WARNING)
    root.addHandler(handler)
    if _handler is not None:
        root.removeHandler(_handler)
        _handler.close()
    _handler = handler


def _is_wanted(record: logging.LogRecord) -> bool:
    return not record.getMessage().endswith(_NOBODY_WAITS)


KEPT = 20
"""Different texts; `aisfs status` shows them all, on one screen."""
TEXT_MAX = 700
"""Characters of each: together they fit into an extended attribute, which takes 64 KiB."""


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning, and how often it came."""

    time: float
    """Of the last time, in seconds since the epoch."""
    level: str
    text: str
    count: int


class RecentWarnings(logging.Handler):
    """A log handler that remembers the last different texts from WARNING up, without secrets."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        super().__init__(logging.WARNING)
        self.listener: Callable[[str, str], None] | None = None
        """Told of the level and text of each that is not among those remembered."""
        self._found: dict[str, Warned] = {}

    def attach(self) -> None:
        """Receive what all modules log from now on."""
        logging.getLogger().addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Remember a record. The caller holds this handler's lock."""
        try:
            line = record.getMessage().encode(errors="backslashreplace").decode()
            text = " ".join(shown(line).split())
            text = text[: TEXT_MAX - 1] + "…" if len(text) > TEXT_MAX else text
            known = self._found.pop(text, None)
            level = record.levelname.lower()
            count = known.count + 1 if known is not None else 1
            self._found[text] = Warned(time.time(), level, text, count)
            if len(self._found) > KEPT:
                del self._found[next(iter(self._found))]
            if known is None and self.listener is not None:
                self.listener(level, text)
        except Exception:  # noqa: BLE001 - what is logged must not fail what logs
            self.handleError(record)

    def all(self) -> list[Warned]:
        """Return what is remembered, the oldest first."""
        self.acquire()
        try:
            return list(self._found.values())
        finally:
            self.release()
