"""How much memory may be filled with pages that were pushed.

Pushed pages are clean and the kernel may drop them, but they are charged to this daemon's control
group and push other pages out. So the room is a share of what the machine, and each group above
this process, has to spare; pages that can be dropped count as spare. Read at most once a second.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from aisfs.system.memory import MachineMemory

log = logging.getLogger(__name__)

FLOOR = 64 << 20
"""Bytes that stay free for others: below that nothing is pushed."""
SHARE = 4
"""A quarter of the rest at most: what is pushed shall still be there when its reader comes."""
SECONDS = 1.0


class PageCacheBudget:
    """Looks at the memory of the machine and of the control groups of this process."""

    def __init__(
        self, root: Path = Path("/"), *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Look below `root`, where /proc and /sys are."""
        self._memory = MachineMemory(root)
        self._clock = clock
        self._read_at = -SECONDS
        self._room = 0
        self._told = False

    def room(self) -> int:
        """Return the bytes of page cache that may be pushed and not yet be read; 0 when short."""
        now = self._clock()
        if now - self._read_at >= SECONDS:
            self._read_at = now
            self._room = max(self._available() - FLOOR, 0) // SHARE
        return self._room

    def _available(self) -> int:
        found = self._memory.available()
        if found is None:
            if not self._told:
                log.warning("nothing is pushed into the page cache: %s does not say how much memory"
                            " there is", self._memory.file)  # fmt: skip
            self._told = True
            return 0
        return found
