"""The threads that a mount cannot do without, and the mark of code that any thread may call."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import TypeVar

log = logging.getLogger(__name__)

FunctionT = TypeVar("FunctionT", bound=Callable[..., object])


def any_thread(function: FunctionT) -> FunctionT:
    """Mark a function, or all public methods of a class, as safe to call from any thread.

    Code without the mark belongs to the trio thread, or to the thread that its class or module
    names. In engine/, filesystem/ and fuse/ marked code waits only for locks held for microseconds.
    """
    return function


def ask_to_end() -> None:
    """End this process as SIGTERM does: a mount is unmounted first."""
    os.kill(os.getpid(), signal.SIGTERM)


def start_service_thread(
    name: str, target: Callable[[], None], on_death: Callable[[], None] = ask_to_end
) -> threading.Thread:
    """Start a thread whose death must end the process.

    Python ends a thread that raises with some lines on stderr, or none, and the others go on: the
    mount would hang as soon as it needs that thread.

    Args:
        name: For the log, and for debuggers.
        target: Its work. It returns when it is no longer needed.
        on_death: Called in the thread when `target` raises.
    """

    def run() -> None:
        try:
            target()
        except BaseException:  # also SystemExit, on which Python says nothing at all
            log.critical("%s died: this is a bug in aisfs, please report it", name, exc_info=True)
            on_death()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
