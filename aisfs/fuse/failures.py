"""From an exception to the errno that the kernel is told: counted and logged once, here."""

import errno
import logging

from aisfs.errors import AisfsError
from aisfs.filesystem.errnos import errno_of
from aisfs.metrics import Metrics

log = logging.getLogger(__name__)


def failure(metrics: Metrics, operation: str, error: Exception) -> int:
    """Count and log a failed request; gives the errno the table says."""
    if isinstance(error, AisfsError):
        code, level = errno_of(error)
        log.log(level, "%s failed: %s", operation, error)
    else:
        code = errno.EIO
        bug = "%s failed: this is a bug in aisfs, please report it"
        log.error(bug, operation, exc_info=error)
    metrics.failures.labels(operation, errno.errorcode[code]).inc()
    return code
