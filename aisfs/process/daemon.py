"""Start a process in the background, and learn whether its start succeeded.

The parent waits at a pipe. The child writes one byte when it is ready and then closes the pipe; if
it ends before that, what it wrote is the reason, and its exit code the kind.
"""

import os
import sys
from collections.abc import Callable

_READY = b"\0"
_REASON_MAX = 65536

Ready = Callable[[], None]
Failed = Callable[[str, int], None]


def detach(work: Callable[[Ready, Failed], None]) -> tuple[int, str]:
    """Run `work(ready, failed)` in a child with a session of its own.

    Must be called before any thread or event loop exists, since it forks.

    Args:
        work: Calls `ready()` once it serves, or `failed(reason, exit_code)`.

    Returns:
        (0, "") once the child is ready, else its exit code and reason. Only in the parent; the
        child leaves the process when `work` returns.
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _run_child(work, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        report = pipe.read(_REASON_MAX)
    if report == _READY:
        return 0, ""
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), report.decode(errors="replace")


def _run_child(work: Callable[[Ready, Failed], None], writer: int) -> None:
    """Detach from the terminal and work; never returns."""
    code = 1
    try:
        os.setsid()
        os.chdir("/")  # else the current directory could not be unmounted
        null = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(null, standard)
        os.close(null)
        pipe = os.fdopen(writer, "wb", buffering=0)

        def report(message: bytes) -> None:
            if not pipe.closed:
                pipe.write(message)
                pipe.close()

        def failed(reason: str, exit_code: int) -> None:
            nonlocal code
            code = exit_code
            report(reason.encode(errors="replace")[:_REASON_MAX])

        code = 0
        work(lambda: report(_READY), failed)
    except BaseException:
        code = code or 1
        raise
    finally:
        os._exit(code)
