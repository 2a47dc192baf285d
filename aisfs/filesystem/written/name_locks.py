"""Names that are being changed, which takes the store a while, and who has to wait for that.

The kernel keeps the changes of one directory apart. But while a name goes it opens the file, and
while a directory is renamed it does all it likes further down. A request that relies on such a name
waits here until it is decided what the name stands for; else what is written meanwhile would go where it is
deleted in the next moment.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field

import trio

from aisfs.filesystem.nodes import DirectoryNode, Node, ObjectNode
from aisfs.model import Bucket
from aisfs.system.locks import Lock

Names = frozenset[tuple[Bucket, str]]
"""Keys, and prefixes with their slash for all that is below."""


@dataclass(eq=False, slots=True)
class NameChange:
    """A change that is under way, or content that needs its name for a while."""

    names: Names
    gone: set[int] = field(default_factory=set)
    """Inodes that have no name any more."""
    over: trio.Event = field(default_factory=trio.Event)

    def covers(self, bucket: Bucket, name: str) -> bool:
        """Return whether it changes where this key, or all below this prefix, is."""
        return any(b == bucket and _is_within(name, own) for b, own in self.names)

    def meets(self, names: Names) -> bool:
        """Return whether it is about any of these, or about something below or above."""
        return any(
            b == bucket and (_is_within(name, own) or _is_within(own, name))
            for bucket, name in names
            for b, own in self.names
        )


class NameChanges:
    """The changes of names of one mount. Only for the trio thread, but for `of`."""

    def __init__(self, lock: Lock | None = None) -> None:
        """Begin with none; `lock` is held while one is added, where other threads look at them."""
        self._lock = lock or nullcontext()
        self._changes: set[NameChange] = set()
        self._uses: set[NameChange] = set()

    def of(self, node: Node) -> NameChange | None:
        """Return a change that decides where a file or directory is. The dispatcher holds the lock."""
        if not self._changes:
            return None
        match node:
            case ObjectNode(bucket, info):
                name = info.key
            case DirectoryNode(bucket, name):
                pass
            case _:
                return None
        changes = self._changes.copy()
        return next((change for change in changes if change.covers(bucket, name)), None)

    @asynccontextmanager
    async def changing(self, names: Callable[[], Names]) -> AsyncIterator[NameChange]:
        """Keep others from relying on names; begins when none does, and asks then which."""
        async with self._apart(names, self._changes, (self._changes, self._uses)) as change:
            yield change

    @asynccontextmanager
    async def using(self, names: Callable[[], Names]) -> AsyncIterator[None]:
        """Keep names from being changed."""
        async with self._apart(names, self._uses, (self._changes,)):
            yield

    @asynccontextmanager
    async def _apart(
        self,
        names: Callable[[], Names],
        own: set[NameChange],
        others: tuple[set[NameChange], ...],
    ) -> AsyncIterator[NameChange]:
        while True:
            wanted = names()
            met = next((one for some in others for one in some if one.meets(wanted)), None)
            if met is None:
                break
            await met.over.wait()
        change = NameChange(wanted)
        with self._lock:
            own.add(change)
        try:
            yield change
        finally:
            own.discard(change)
            change.over.set()


def _is_within(name: str, other: str) -> bool:
    return name == other or (other.endswith("/") and name.startswith(other))
