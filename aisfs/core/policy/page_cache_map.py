"""Which members of a shard are in the kernel's page cache, as far as one can know.

The kernel drops pages without a word, and shows it only by a READ of what should be there. Then
most likely everything of that age is gone, so the generation ends and nothing is believed to be
there any more. One byte a row: whether the kernel knows the inode, whether the row was pushed and
not read since, and the generation in which it came into the page cache.
"""

from collections.abc import Sequence

_KNOWN = 1
_PUSHED = 2
_STEP = 4
"""One generation: the upper six bits of the byte count them; 0 is never."""
_WITHOUT_KNOWN = bytes(value for value in range(256) if not value & _KNOWN)
_WITH_PUSHED = bytes(value for value in range(256) if value & _PUSHED)
_LEARN = bytes(value | _KNOWN for value in range(256))
_PASS = bytes(value & ~_PUSHED for value in range(256))
_ONLY_KNOWN = bytes(value & _KNOWN for value in range(256))


class PageCacheMap:
    """The rows of one shard."""

    def __init__(self, rows: int) -> None:
        """Know nothing of so many rows."""
        self._state = bytearray(rows)
        self._age = _STEP

    def __len__(self) -> int:
        return len(self._state)

    # inodes ----------------------------------------------------------------------------------

    def know(self, rows: Sequence[int]) -> None:
        """The kernel knows the inodes of these rows now."""
        state = self._state
        if isinstance(rows, range) and rows.step == 1:
            state[rows.start : rows.stop] = state[rows.start : rows.stop].translate(_LEARN)
        else:
            for row in rows:
                state[row] |= _KNOWN

    def unknown(self, row: int) -> None:
        """The kernel says that it does not know the inode."""
        self._state[row] &= ~_KNOWN

    def known(self) -> int:
        """Count the rows whose inodes the kernel knows."""
        return len(self._state.translate(None, _WITHOUT_KNOWN))

    # pages -----------------------------------------------------------------------------------

    def there(self, row: int) -> bool:
        """Say whether the row should be in the page cache."""
        return self._state[row] >= self._age

    def absent(self, row: int) -> bool:
        """Say whether the row can be pushed, and is not in the page cache for all one knows."""
        state = self._state[row]
        return state < self._age and bool(state & _KNOWN)

    def read(self, row: int) -> bool:
        """A READ brings the row into the page cache; returns whether a push had done that before."""
        pushed = bool(self._state[row] & _PUSHED)
        self._state[row] = _KNOWN | self._age
        return pushed

    def pushed(self, row: int) -> None:
        """The row was pushed."""
        self._state[row] = _KNOWN | _PUSHED | self._age

    def pushed_run(self, start: int, stop: int) -> bool:
        """Take all rows of a range for pushed, unless one of them is there already: says whether."""
        if max(self._state[start:stop]) >= self._age:
            return False
        self._state[start:stop] = bytes((_KNOWN | _PUSHED | self._age,)) * (stop - start)
        return True

    def take_pushed(self, start: int, stop: int) -> int:
        """Count the rows in a range that were pushed and not read; from now on they count as read."""
        rows = self._state[start:stop]
        pushed = len(rows) - len(rows.translate(None, _WITH_PUSHED))
        if pushed:
            self._state[start:stop] = rows.translate(_PASS)
        return pushed

    def end_generation(self) -> None:
        """Believe no row to be in the page cache any more."""
        if self._age + _STEP > 255:
            self._state = self._state.translate(_ONLY_KNOWN)
            self._age = 0
        self._age += _STEP
