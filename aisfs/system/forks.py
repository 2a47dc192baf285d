"""Work in forked processes, and libraries that do nothing there.

Some libraries answer all calls in threads that they begin with the first one and never end. A process that is forked later has
none of these threads, and cannot begin others: a call would wait forever.
"""

import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, TypeVar

from aisfs.errors import AisfsError

T = TypeVar("T")
_bound = 0
"""The process that has used such a library."""


def bind() -> bool:
    """Note that such a library is used; return whether it can be, which ends with a fork."""
    global _bound
    _bound = _bound or os.getpid()
    return _bound == os.getpid()


def can_fork() -> bool:
    """Return whether a process that is forked from this one can use such libraries."""
    return not _bound


def in_child(work: Callable[[], T]) -> T:
    """Return what a function returns that is called in a forked process, so that no library is bound to this one.

    Raises:
        AisfsError: the function has raised it, or the process has ended before.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _answer(work, writing)
    os.close(writing)
    try:
        with open(reading, "rb") as pipe:
            found, error = pickle.load(pipe)
    except (EOFError, pickle.UnpicklingError):
        raise AisfsError("a process that was to look for something has ended") from None
    finally:
        with suppress(ChildProcessError):  # the program ignores SIGCHLD
            os.waitpid(child, 0)
    if error is not None:
        raise error
    return found  # type: ignore[no-any-return]


def _answer(work: Callable[[], object], writing: int) -> NoReturn:
    try:
        try:
            answer = pickle.dumps((work(), None))
        except Exception as error:  # noqa: BLE001 - raised by the parent
            answer = pickle.dumps((None, error))
        with open(writing, "wb") as pipe:
            pipe.write(answer)
    finally:
        os._exit(0)
