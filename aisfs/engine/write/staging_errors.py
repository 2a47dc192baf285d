"""From an `OSError` of the staging disk to an error of aisfs: here, and nowhere else."""

import errno
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

from aisfs.errors import AisfsError, OutOfSpace, Unavailable

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

P = ParamSpec("P")
T = TypeVar("T")


class StagingErrors:
    """Turns an `OSError` of a staged file into one of `aisfs.errors`."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        """Name `path` in the error."""
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError):
            raise _turned(error, self._path) from error


def of_staging_disk(work: Callable[P, T]) -> Callable[P, T]:
    """Make a function or method raise errors of aisfs; they name its first argument, or the `path` of that."""

    @functools.wraps(work)
    def turning(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(*args, **kwargs)
        except OSError as error:
            raise _turned(error, getattr(args[0], "path", args[0])) from error

    return turning


def all_of_staging_disk(kind: type[T]) -> type[T]:
    """Do the same with all methods of a class."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method):
            setattr(kind, name, of_staging_disk(method))
    return kind


def _turned(error: OSError, path: object) -> AisfsError:
    kind = OutOfSpace if error.errno in _FULL else Unavailable
    return kind(f"staging file {path}: {error.strerror}")
