"""Work in forked processes: what it returns, and how it fails."""

import os
import signal
import subprocess
import sys

import pytest

from aisfs.errors import AisfsError
from aisfs.system.forks import in_child


def test_what_a_child_returns_and_raises():
    assert in_child(lambda: os.getppid()) == os.getpid()
    with pytest.raises(AisfsError, match="no such thing"):
        in_child(lambda: (_ for _ in ()).throw(AisfsError("no such thing")))


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_a_child_that_is_killed_is_an_error(size: int):
    """Also after it has written a part of its answer."""

    class Answer:
        def __reduce__(self) -> tuple[object, ...]:
            os.kill(os.getpid(), signal.SIGKILL)
            return (bytes, (size,))

    with pytest.raises(AisfsError, match="has ended"):
        in_child(Answer)


def test_a_lock_that_another_thread_holds_is_free_in_a_forked_process():
    code = """
import os, threading
from aisfs.engine.buffers import BufferPool
from aisfs.engine import parts
from aisfs.model import ByteRange
held = threading.Event()
def hold():
    parts._arrivals.acquire()
    held.set()
    threading.Event().wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if not child:
    parts.Part(ByteRange(0, 1), BufferPool(1 << 20)).finish(ValueError())
    os._exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "5\n"
