"""Loading modules, which is most of what a short command does."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Import in this block, without a search for garbage: imports make none.

    The search takes an eighth of their time. What was loaded is not searched later either, which
    would hold up all threads for 40 ms now and then.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
