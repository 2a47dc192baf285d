"""The body of a request as it goes out, counted: who gives up must know whether all of it went."""

from collections.abc import Iterator

from aisfs.ais.transport.cancellable_sockets import CancellableSockets
from aisfs.errors import Unavailable


class BodyDelivered(Unavailable):
    """Nobody knows whether it was done: the whole body went out, but no answer came back."""


class CountedBody:
    """The pieces of a body, and how many bytes of it were handed out before the piece in hand."""

    def __init__(
        self, pieces: Iterator[memoryview], size: int, lifeline: CancellableSockets
    ) -> None:
        """Hand out `pieces` of `size` bytes in all; `lifeline` holds from the last one on."""
        self._pieces = pieces
        self.size = size
        self._lifeline = lifeline
        self.sent = 0

    def __iter__(self) -> Iterator[memoryview]:
        for piece in self._pieces:
            if self.sent + len(piece) == self.size:
                self._lifeline.hold()
            yield piece
            self.sent += len(piece)
