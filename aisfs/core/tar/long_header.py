"""Headers that are too long to be held: what a scan needs of them is read in passing, the rest is skipped.

GNU tar writes the names of a whole directory into one record (`-H pax -g`), and extended attributes may
have megabytes. Memory taken is that of one piece and of the few records that a scan knows.
"""

from aisfs.core.tar.header import decimal, text
from aisfs.core.tar.member import OWN_KEYS

PIECE = 16 << 10
"""Bytes looked at at once: the beginning of a record with all of its value that counts."""
_VALUE_MAX = 8 << 10
"""Bytes of a value that are kept: longer names and targets are not shown, however they end."""
_LENGTH_MAX = 12
_NEWLINE = 0x0A


class LongHeader:
    """One such header while it is read."""

    def __init__(self, role: bytes, header_at: int, start: int, size: int) -> None:
        """Begin at the first byte behind the header's block.

        Args:
            role: What it describes, as in the scanner.
            header_at: Where its block is.
            start: Where its payload is.
            size: Length of the payload.
        """
        self.role = role
        self.header_at = header_at
        self.found: dict[bytes, bytes] = {}
        """The records that a scan knows, each cut; of a long name the name, under the role."""
        self.intact = True
        """False when reading had to stop before the end."""
        self._stop = start + size

    def wanted(self, at: int) -> int:
        """Return how many bytes are needed at once from a place in the payload on; 0 at its end."""
        return min(PIECE, self._stop - at) if at < self._stop else 0

    def read(self, data: bytes, at: int) -> int:
        """Read bytes that are stored at `at`; return the place of the next ones that count."""
        if self.role in (b"path", b"linkpath"):
            self.found[self.role] = text(data[:PIECE])
            return self._stop
        position, stop = 0, self._stop - at
        while position < min(stop, len(data)):
            have, least = min(len(data), stop) - position, min(PIECE, stop - position)
            if not data[position]:  # as in `parse_pax`
                return self._stop
            space = data.find(b" ", position, position + min(_LENGTH_MAX, have))
            length = (decimal(data[position:space]) or 0) if space > 0 else 0
            equals = data.find(b"=", space, position + min(length, have)) if length else -1
            key = data[space + 1 : equals] if equals > 0 else b""
            value_stop = min(position + length - 1, equals + 1 + _VALUE_MAX)
            if not (have >= length > 0 or (key and key not in OWN_KEYS)) and have < least:
                break  # it goes on in the next piece
            sound = 0 < length <= stop - position and (equals > 0 or length > PIECE)
            if not sound or (have >= length and data[position + length - 1] != _NEWLINE):
                self.intact = False
                return self._stop
            if equals > 0:
                self._take(key, data[equals + 1 : value_stop])
            position += length
        return at + position

    def _take(self, key: bytes, value: bytes) -> None:
        # An empty record takes back what global headers say; a member's own says nothing then.
        if key in OWN_KEYS and (value or self.role == b"global"):
            whole = key != b"GNU.sparse.map" or len(value) < _VALUE_MAX
            self.found[key] = value if whole else value.rpartition(b",")[0]
