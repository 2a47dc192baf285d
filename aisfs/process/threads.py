"""The threads that serve a mount as long as it lives, and the mark of what any thread may call."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import TypeVar

log = logging.getLogger(__name__)

FunctionT = TypeVar("FunctionT", bound=Callable[..., object])


def any_thread(function: FunctionT) -> FunctionT:
    """Mark what any thread may call; of a class all that is public.

    What has no mark belongs to the trio thread, or to the thread that its class or module names. In
    engine/, filesystem/ and fuse/ what is marked waits for nothing but a lock held for an instant.
    """
    return function


def ask_to_end() -> None:
    """Have this process end as if it had been told to: a mount is unmounted."""
    os.kill(os.getpid(), signal.SIGTERM)


def start_service_thread(
    name: str, target: Callable[[], None], on_death: Callable[[], None] = ask_to_end
) -> threading.Thread:
    """Start a thread without which nothing here should go on.

    Python ends a thread on an exception with a few lines on stderr, or none, and all others go on:
    the mount would hang in whatever the thread was there for.

    Args:
        name: For the log, and for debuggers.
        target: What it does. It returns when its work is done.
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
