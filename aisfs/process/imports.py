"""Import modules faster: importing is most of the work of a short command."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Import in this block without garbage collection: imports make no garbage.

    Collection takes an eighth of their time. Later collections skip what was imported, which would
    stop all threads for 40 ms now and then.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
