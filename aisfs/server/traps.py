"""What a real AIStore does that destroys data or hides names, and a kind server spares its clients.

Seen on AIStore 5.0. The handlers ask the object that a server was made with: `Kindness` for a
person's laptop, `Traps` for clients that have to be safe on a real cluster.
"""

from urllib.parse import quote

_PATH = "/$&+,:;=@~"
"""What Go leaves as it is in the path of a redirect, besides letters, digits and `-._`."""


class Kindness:
    """A server that does what its clients mean."""

    loses_repeated_parts = False
    """A part number that comes twice in one upload takes the part with it, and nobody is told."""

    def location(self, path: bytes) -> str:
        """Give the path of a redirect for the path of a request, decoded; `%2B` comes back as `+`."""
        return quote(path, safe=_PATH)


class Traps(Kindness):
    """A server that bites as the real one does."""

    loses_repeated_parts = True

    def location(self, path: bytes) -> str:
        """Give the path of a redirect; one with line breaks goes out raw, and they become spaces."""
        if b"\n" not in path and b"\r" not in path:
            return super().location(path)
        printable = "".join(map(chr, range(0x20, 0x7F)))
        return quote(path.replace(b"\n", b" ").replace(b"\r", b" "), safe=printable)
