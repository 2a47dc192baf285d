"""Which member of a sample a component means.

Exact extensions win, in the order of the component. If a sample has none of them, `jpg` also means the
part `image.jpg`: one that ends in `.jpg`, if the sample has exactly one such part.
"""

from collections.abc import Iterable, Iterator

from aisfs.core.views.spec import Component

MISSING = -1
AMBIGUOUS = -2
"""Stand for the row of a sample that has no such part, or several and none of them exactly."""


class ComponentFinder:
    """Finds the part in all samples of a shard, offered member by member in any order."""

    def __init__(self, component: Component) -> None:
        """Look for `component`."""
        self._component = component
        self._exact = len(component.extensions)
        self._ranks: dict[bytes, tuple[int, bytes]] = {}
        """By extension, since a shard has few: its rank, and its form in lower case."""
        self._found: dict[bytes, tuple[int, int, bytes]] = {}
        """By key: rank, row and extension of the best part so far."""

    def offer(self, key: bytes, row: int, extension: bytes) -> None:
        """Look at one member of the sample `key`. Of members with one name the last wins."""
        rank, lowered = self._ranks.get(extension) or self._learn(extension)
        known = self._found.get(key)
        if known is None or rank < known[0]:
            self._found[key] = (rank, MISSING if rank == 2 * self._exact else row, lowered)
        elif rank == known[0] < 2 * self._exact and known[1] != AMBIGUOUS:
            clash = rank >= self._exact and lowered != known[2]
            self._found[key] = (rank, AMBIGUOUS if clash else row, lowered)

    def choose(self, members: Iterable[tuple[int, bytes]]) -> int:
        """Return the row, `MISSING` or `AMBIGUOUS`, of one sample with all its rows and extensions.

        Nothing is remembered of it, nor of what was offered before.
        """
        self._found.clear()
        for row, extension in members:
            self.offer(b"", row, extension)
        return next((row for _, row in self), MISSING)

    def _learn(self, extension: bytes) -> tuple[int, bytes]:
        found = self._component.loose_rank(extension)
        learnt = (2 * self._exact if found is None else found, extension.lower())
        self._ranks[extension] = learnt
        return learnt

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        """Return the key of each sample that was offered, and the row, `MISSING` or `AMBIGUOUS`."""
        return ((key, row) for key, (_, row, _) in self._found.items())


class EveryPart:
    """Finds all parts of a component, exact or not, in all samples of a shard."""

    def __init__(self, component: Component) -> None:
        """Look for `component`."""
        self._component = component
        self._found: dict[bytes, dict[bytes, int]] = {}
        """By key: the row of each part, by its extension in lower case."""

    def offer(self, key: bytes, row: int, extension: bytes) -> None:
        """Look at one member of the sample `key`. Of members with one name the last wins."""
        parts = self._found.setdefault(key, {})
        if self._component.loose_rank(extension) is not None:
            parts[extension.lower()] = row

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        """Return the key of each sample and the row of a part, once for each part, or `MISSING`."""
        for key, parts in self._found.items():
            yield from ((key, row) for row in parts.values() or (MISSING,))


def has_component(component: Component, extensions: Iterable[bytes]) -> bool:
    """Return whether a sample with these extensions has the part."""
    finder = ComponentFinder(component)
    for extension in extensions:
        finder.offer(b"", 0, extension)
    return any(row >= 0 for _, row in finder)
