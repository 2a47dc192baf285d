"""The one table from errors to errno; docs/SEMANTICS.md prints it and a test compares."""

import errno
import logging

from aisfs.errors import (
    AccessDenied,
    AisfsError,
    AlreadyExists,
    ArchiveTooLarge,
    BucketNotFound,
    ContentUnreadable,
    CrossDevice,
    DeadlineExceeded,
    InvalidName,
    IsADirectory,
    NameGone,
    NameTooLong,
    NoSuchAttribute,
    NotADirectory,
    NotEmpty,
    NotFound,
    NotPermitted,
    OutOfSpace,
    ProtocolError,
    ReadOnly,
    ShardDamaged,
    Stale,
    Unavailable,
    Unsupported,
)

ERRNOS: dict[type[AisfsError], tuple[int, int]] = {
    NotFound: (errno.ENOENT, logging.DEBUG),
    BucketNotFound: (errno.ENOENT, logging.WARNING),
    AccessDenied: (errno.EACCES, logging.WARNING),
    Stale: (errno.ESTALE, logging.WARNING),
    NameGone: (errno.ESTALE, logging.DEBUG),  # of many such only few are seen by a program
    Unavailable: (errno.EIO, logging.ERROR),
    DeadlineExceeded: (errno.ETIMEDOUT, logging.ERROR),
    OutOfSpace: (errno.ENOSPC, logging.ERROR),
    Unsupported: (errno.EOPNOTSUPP, logging.WARNING),
    InvalidName: (errno.EINVAL, logging.WARNING),
    ContentUnreadable: (errno.EIO, logging.ERROR),
    ProtocolError: (errno.EIO, logging.ERROR),
    ShardDamaged: (errno.EIO, logging.ERROR),
    ArchiveTooLarge: (errno.EFBIG, logging.ERROR),
    ReadOnly: (errno.EROFS, logging.DEBUG),
    NameTooLong: (errno.ENAMETOOLONG, logging.DEBUG),
    NotADirectory: (errno.ENOTDIR, logging.DEBUG),
    IsADirectory: (errno.EISDIR, logging.DEBUG),
    NoSuchAttribute: (errno.ENODATA, logging.DEBUG),
    AlreadyExists: (errno.EEXIST, logging.DEBUG),
    NotEmpty: (errno.ENOTEMPTY, logging.DEBUG),
    CrossDevice: (errno.EXDEV, logging.DEBUG),
    NotPermitted: (errno.EPERM, logging.DEBUG),
}
"""Error class to (errno, level at which the failed request is logged)."""


def errno_of(error: AisfsError) -> tuple[int, int]:
    """Find the errno and log level of an error by its nearest class in the table."""
    for cls in type(error).__mro__:
        if cls in ERRNOS:
            return ERRNOS[cls]
    return errno.EIO, logging.ERROR
