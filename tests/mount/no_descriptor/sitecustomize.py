"""Makes the libfuse of a process one from before 3.3, which does not serve a descriptor it is given.

Python imports this at its start when the directory is in PYTHONPATH.
"""

from typing import Any

import pyfuse3

_init = pyfuse3.init


def _refuse_descriptors(operations: Any, mountpoint: str, options: Any = frozenset()) -> None:
    if mountpoint.startswith("/dev/fd/"):
        raise RuntimeError("fuse_session_mount() failed")
    _init(operations, mountpoint, options)


pyfuse3.init = _refuse_descriptors
