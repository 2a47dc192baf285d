"""How much memory a mount may take if no option sets a limit."""

import logging
from typing import NamedTuple

from aisfs.settings import GIB, MEMORY_LEAST, MIB, CacheSettings
from aisfs.system.memory import MachineMemory

log = logging.getLogger(__name__)

MEMORY_MOST = 512 * MIB
"""Default memory for fetched bytes, eight readers with a window of 64 MiB each; as much for indexes:
six million members at 80 bytes each."""
PYTHON_ROOM = 128 * MIB
"""What the interpreter, its threads and requests under way take beside them."""
SHARED_ROOM = 32 * MIB
"""The same of one of several daemons that were forked from one process, and share its modules."""
FETCHED_SHARE, INDEX_SHARE = 2, 4
"""One part in so many of the rest; the last quarter is the kernel's, for pages of cache files and sockets."""


class MemoryLimits(NamedTuple):
    """Bytes that a mount may take, and why."""

    fetched: int
    """For parts of objects."""
    indexes: int
    """For member indexes that are not in use."""
    why: str
    """Why a default is lower than usual; empty if it is not."""

    def tell(self) -> None:
        """Log it, if a default is lower than usual."""
        if self.why:
            fetched, indexes = self.fetched // MIB, self.indexes // MIB
            text = "fetched bytes take up to %d MiB of memory, and indexes %d MiB, as %s (--memory-limit)"
            log.info(text, fetched, indexes, self.why)


def memory_limits(
    cache: CacheSettings, memory: MachineMemory | None = None, sharers: int = 1
) -> MemoryLimits:
    """Return how much memory may be taken; defaults are lower where there is little, or `sharers` share it."""
    there = (memory or MachineMemory()).limit()
    spare = INDEX_SHARE * GIB
    if there is not None:
        rooms = PYTHON_ROOM if sharers == 1 else sharers * SHARED_ROOM
        spare = max(there.size - rooms, 0) // sharers
    fetched = max(min(MEMORY_MOST, spare // FETCHED_SHARE), MEMORY_LEAST)
    indexes = max(min(MEMORY_MOST, spare // INDEX_SHARE), MEMORY_LEAST)
    given, why = cache.memory_limit, ""
    if given is None and there is not None and fetched < MEMORY_MOST:
        has = "the machine" if there.group is None else f"the control group {there.group}"
        why = f"{has} has {there.size // MIB} MiB"
        why += f" for {sharers} mounts" if sharers > 1 else ""
    return MemoryLimits(int(given or fetched), indexes, why)
