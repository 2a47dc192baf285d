"""One try of an upload: what is sent, and what is known of how far it is."""

from dataclasses import dataclass

import trio

from aisfs.store.cloud.clients import Client
from aisfs.store.port import Content, Progress

_SLOWEST = 100e3
"""Bytes a second that a line sends at least of one upload; obstore does not tell how much it has sent."""


@dataclass
class Sending:
    """One try of an upload, whose content is read in worker threads."""

    client: Client
    key: str
    content: Content
    subject: str
    progress: Progress | None
    marks: dict[str, str]
    handed: int = 0
    """Bytes that obstore was given."""
    confirmed: int = 0
    """Bytes that the cloud is known to have."""
    _since: float = 0.0
    """When the cloud last confirmed any."""

    def begin(self, handed: int) -> None:
        """Start to count."""
        self.handed, self.confirmed, self._since = handed, 0, trio.current_time()

    def confirm(self, size: int) -> None:
        """Note that the cloud has the first `size` bytes."""
        if size > self.confirmed:
            self.confirmed, self._since = size, trio.current_time()

    def sent_slowly(self) -> int | None:
        """Return how much the slowest line would have sent; None if that is all it was given."""
        sent = self.confirmed + int((trio.current_time() - self._since) * _SLOWEST)
        return sent if sent < self.handed else None

    async def tell(self, sent: int) -> None:
        """Tell how much was sent."""
        if self.progress is not None:
            await trio.to_thread.run_sync(self.progress, sent)

    async def read(self, start: int, size: int) -> bytearray:
        """Return a part of the content."""
        return await trio.to_thread.run_sync(_read, self.content, start, size)


def _read(content: Content, start: int, size: int) -> bytearray:
    data = bytearray(size)
    content.read_into(start, memoryview(data))
    return data
