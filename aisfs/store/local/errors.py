"""The system's errors on files, as `aisfs.errors`; for the store that is a directory."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from aisfs.errors import (
    AccessDenied,
    AisfsError,
    IsADirectory,
    NameTooLong,
    NotADirectory,
    NotFound,
    OutOfSpace,
    ProtocolError,
    ReadOnly,
    Unavailable,
)


@contextmanager
def os_errors(subject: str) -> Iterator[None]:
    """Turn the system's errors into ours. No sink is called in the block."""
    try:
        yield
    except OSError as error:
        raise error_of(subject, error) from error


@contextmanager
def writing_errors(subject: str) -> Iterator[None]:
    """Likewise, where a missing directory would be made, and another kind of file is in the way."""
    try:
        yield
    except (NotADirectoryError, FileExistsError) as error:
        raise NotADirectory(f"{subject}: a part of the path is an object") from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotADirectory(f"{subject}: a part of the path is a symbolic link") from error
        raise error_of(subject, error) from error


def error_of(subject: str, error: OSError) -> AisfsError:
    """Return the system's error as one of ours."""
    kind: type[AisfsError] = Unavailable
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
        kind = NotFound
    elif error.errno in (errno.EACCES, errno.EPERM):
        kind = AccessDenied
    elif error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        kind = OutOfSpace
    elif error.errno == errno.EROFS:
        kind = ReadOnly
    elif error.errno in (errno.EISDIR, errno.ENOTEMPTY):
        kind = IsADirectory
    elif error.errno == errno.EIO:
        kind = ProtocolError  # a broken disk: trying again would only wait
    elif error.errno == errno.ENAMETOOLONG:
        kind = NameTooLong
    return kind(f"{subject}: {error.strerror}")
