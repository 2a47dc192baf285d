"""An estimate of which members of a shard are in the kernel's page cache.

The kernel drops pages silently; only a READ of a member that should be cached shows it. Then most
likely everything of that age is gone, so the generation ends and all members count as absent. Each row
has one byte: whether the kernel knows the inode, whether the row was pushed and not read since, and
the generation in which it entered the page cache.
"""

from collections.abc import Sequence

_KNOWN = 1
_PUSHED = 2
_STEP = 4
"""One generation: the upper six bits of the byte count them; 0 is never."""
_WITHOUT_KNOWN = bytes(value for value in range(256) if not value & _KNOWN)
_WITH_KNOWN = bytes(value for value in range(256) if value & _KNOWN)
_WITH_PUSHED = bytes(value for value in range(256) if value & _PUSHED)
_LEARN = bytes(value | _KNOWN for value in range(256))
_PASS = bytes(value & ~_PUSHED for value in range(256))
_ONLY_KNOWN = bytes(value & _KNOWN for value in range(256))


class PageCacheMap:
    """The rows of one shard."""

    def __init__(self, rows: int) -> None:
        """Start with `rows` rows that are not cached."""
        self._state = bytearray(rows)
        self._age = _STEP

    def __len__(self) -> int:
        return len(self._state)

    # inodes ----------------------------------------------------------------------------------

    def know(self, rows: Sequence[int]) -> None:
        """Record that the kernel knows the inodes of these rows."""
        state = self._state
        if isinstance(rows, range) and rows.step == 1:
            state[rows.start : rows.stop] = state[rows.start : rows.stop].translate(_LEARN)
        else:
            for row in rows:
                state[row] |= _KNOWN

    def unknown(self, row: int) -> None:
        """Record that the kernel does not know the inode of a row."""
        self._state[row] &= ~_KNOWN

    def known(self) -> int:
        """Return how many rows have inodes that the kernel knows."""
        return len(self._state.translate(None, _WITHOUT_KNOWN))

    # pages -----------------------------------------------------------------------------------

    def there(self, row: int) -> bool:
        """Return whether the row should be in the page cache."""
        return self._state[row] >= self._age

    def absent(self, row: int) -> bool:
        """Return whether the row can be pushed and is probably not in the page cache."""
        state = self._state[row]
        return state < self._age and bool(state & _KNOWN)

    def all_absent(self, start: int, stop: int) -> bool:
        """Return whether `absent` holds for all rows of a range."""
        states = self._state[start:stop]
        return max(states) < self._age and not states.translate(None, _WITH_KNOWN)

    def read(self, row: int) -> bool:
        """Record a READ, which caches the row; return whether it had been pushed."""
        pushed = bool(self._state[row] & _PUSHED)
        self._state[row] = _KNOWN | self._age
        return pushed

    def pushed(self, row: int) -> None:
        """Record that a row was pushed."""
        self._state[row] = _KNOWN | _PUSHED | self._age

    def pushed_run(self, start: int, stop: int) -> bool:
        """Record that a range of rows was pushed; return False, without effect, if one was cached."""
        if max(self._state[start:stop]) >= self._age:
            return False
        self._state[start:stop] = bytes((_KNOWN | _PUSHED | self._age,)) * (stop - start)
        return True

    def take_pushed(self, start: int, stop: int) -> int:
        """Return how many rows of a range were pushed and not read; they count as read from now on."""
        rows = self._state[start:stop]
        pushed = len(rows) - len(rows.translate(None, _WITH_PUSHED))
        if pushed:
            self._state[start:stop] = rows.translate(_PASS)
        return pushed

    def end_generation(self) -> None:
        """Treat all rows as absent from the page cache."""
        if self._age + _STEP > 255:
            self._state = self._state.translate(_ONLY_KNOWN)
            self._age = 0
        self._age += _STEP
