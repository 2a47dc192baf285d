"""The body of a request as it goes out, counted: after a failure it matters whether all of it went."""

from collections.abc import Iterator

from aisfs.connections.cancellable_sockets import CancellableSockets
from aisfs.errors import Unavailable


class BodyDelivered(Unavailable):
    """It is unknown whether it was done: the whole body went out, but no answer came back."""


class CountedBody:
    """The pieces of a body, and how many bytes of it were handed out before the piece in hand."""

    def __init__(
        self, pieces: Iterator[memoryview], size: int, sockets: CancellableSockets
    ) -> None:
        """Hand out `pieces` of `size` bytes in all; `sockets` hold from the last one on."""
        self._pieces = pieces
        self.size = size
        self._sockets = sockets
        self.sent = 0

    def __iter__(self) -> Iterator[memoryview]:
        for piece in self._pieces:
            if self.sent + len(piece) == self.size:
                self._sockets.hold()
            yield piece
            self.sent += len(piece)
