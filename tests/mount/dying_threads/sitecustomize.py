"""Throws into a thread of this process once a file says into which: what a bug anywhere in it does.

Python imports this at its start when the directory is in PYTHONPATH.
"""

import ctypes
import os
import threading
import time
from pathlib import Path


class Bug(BaseException):
    """Caught by nobody who goes on after any `Exception`."""


def _throw_when_told() -> None:
    told = Path(os.environ["THROW_INTO"])
    while not told.exists():
        time.sleep(0.05)
    name = told.read_text()
    (victim,) = (thread.ident for thread in threading.enumerate() if thread.name == name)
    assert victim is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(victim), ctypes.py_object(Bug))
    told.unlink()


if "THROW_INTO" in os.environ:
    threading.Thread(target=_throw_when_told, daemon=True).start()
