"""The one table from errors to errno; docs/SEMANTICS.md prints it and a test compares."""

import errno
import logging

from aisfs import errors
from aisfs.errors import AisfsError

ERRNOS: dict[type[AisfsError], tuple[int, int]] = {
    errors.NotFound: (errno.ENOENT, logging.DEBUG),
    errors.BucketNotFound: (errno.ENOENT, logging.WARNING),
    errors.AccessDenied: (errno.EACCES, logging.WARNING),
    errors.Archived: (errno.EACCES, logging.WARNING),
    errors.Stale: (errno.ESTALE, logging.WARNING),
    errors.NameGone: (errno.ESTALE, logging.DEBUG),  # of many such only few are seen by a program
    errors.Unavailable: (errno.EIO, logging.ERROR),
    errors.Unproven: (errno.EIO, logging.ERROR),
    errors.TransformFailed: (errno.EIO, logging.ERROR),
    errors.TransformBroken: (errno.EIO, logging.ERROR),
    errors.DeadlineExceeded: (errno.ETIMEDOUT, logging.ERROR),
    errors.OutOfSpace: (errno.ENOSPC, logging.ERROR),
    errors.FileTooLarge: (errno.EFBIG, logging.DEBUG),
    errors.Unsupported: (errno.EOPNOTSUPP, logging.WARNING),
    errors.NoRanges: (errno.EOPNOTSUPP, logging.WARNING),
    errors.InvalidName: (errno.EINVAL, logging.WARNING),
    errors.ContentUnreadable: (errno.EIO, logging.ERROR),
    errors.ProtocolError: (errno.EIO, logging.ERROR),
    errors.ShardDamaged: (errno.EIO, logging.ERROR),
    errors.ArchiveTooLarge: (errno.EFBIG, logging.ERROR),
    errors.ReadOnly: (errno.EROFS, logging.DEBUG),
    errors.NameTooLong: (errno.ENAMETOOLONG, logging.DEBUG),
    errors.NotADirectory: (errno.ENOTDIR, logging.DEBUG),
    errors.IsADirectory: (errno.EISDIR, logging.DEBUG),
    errors.NoSuchAttribute: (errno.ENODATA, logging.DEBUG),
    errors.AlreadyExists: (errno.EEXIST, logging.DEBUG),
    errors.NotEmpty: (errno.ENOTEMPTY, logging.DEBUG),
    errors.CrossDevice: (errno.EXDEV, logging.DEBUG),
    errors.NotPermitted: (errno.EPERM, logging.DEBUG),
}
"""Error class to (errno, level at which the failed request is logged)."""


def errno_of(error: AisfsError) -> tuple[int, int]:
    """Find the errno and log level of an error by its nearest class in the table."""
    for cls in type(error).__mro__:
        if cls in ERRNOS:
            return ERRNOS[cls]
    return errno.EIO, logging.ERROR
