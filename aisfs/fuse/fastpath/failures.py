"""From an exception to the errno that the kernel is told: counted and logged once, here."""

import errno
import logging

from aisfs.errors import AisfsError
from aisfs.filesystem.errnos import errno_of
from aisfs.metrics import Metrics

log = logging.getLogger(__name__)

LISTING = frozenset({"opendir", "readdir"})
"""Requests that list a directory. ENOENT is no answer to these: the C library takes it for the end
of the directory, and `rsync --delete` then empties the copy."""


def failure(metrics: Metrics, operation: str, error: Exception) -> int:
    """Count and log a failed request; returns the errno the table says."""
    if isinstance(error, AisfsError):
        code, level = errno_of(error)
        if code == errno.ENOENT and operation in LISTING:
            code = errno.ESTALE
        log.log(level, "%s failed: %s", operation, error)
    else:
        code = errno.EIO
        bug = "%s failed: this is a bug in aisfs, please report it"
        log.error(bug, operation, exc_info=error)
    metrics.failures.labels(operation, errno.errorcode[code]).inc()
    return code
