"""Reads bytes of exactly one version of a file from where it lies on the web.

Everything here blocks; must not know trio.
"""

from aisfs.errors import NoRanges, Stale, Unavailable
from aisfs.http.connections import ConnectionSet
from aisfs.model import ObjectInfo
from aisfs.store.port import Arrived, Sink
from aisfs.store.web.client import WebClient, WebReply
from aisfs.store.web.validators import check_range, check_version, check_whole, conditions

_PIECE = 1 << 20
"""Bytes given to a sink at once; as the client of AIStore does."""
_WHOLE_MOST = 4 << 20
"""Bytes of a file that is read whole for any range of it, where the server knows no ranges: about what is
read ahead of a reader anyway."""


def read_range(
    client: WebClient,
    connections: ConnectionSet,
    url: str,
    subject: str,
    expected: ObjectInfo,
    start: int,
    buffer: memoryview,
    arrived: Arrived | None = None,
) -> None:
    """Fill `buffer` with the bytes from `start` on.

    Args:
        client: Sends the request.
        connections: The connections to use.
        url: Where the file is.
        subject: The start of messages.
        expected: The version; without one, only the size is compared.
        start: Where to begin.
        buffer: To be filled; lies within the file.
        arrived: As the port has it.

    Raises:
        NoRanges: the server sends the file only whole, and it is not small.
        AisfsError: as the port has it.
    """
    stop = start + len(buffer)
    headers = {"Range": f"bytes={start}-{stop - 1}", **conditions(expected)}
    with client.open(connections, "GET", url, subject, headers) as reply:
        if reply.head.status == 206:
            check_version(subject, expected, reply.head)
            check_range(subject, expected, start, stop, reply.head)
            _fill(subject, reply, buffer, arrived)
            return
        check_whole(subject, expected, reply.head)
        if len(buffer) == expected.size:
            _fill(subject, reply, buffer)
            _check_end(subject, expected, reply)
            return
        if expected.size > _WHOLE_MOST:
            raise NoRanges(f"{subject}: the server sends files only whole")
        content = memoryview(bytearray(expected.size))
        _fill(subject, reply, content)
        _check_end(subject, expected, reply)
        buffer[:] = content[start:stop]


def stream(
    client: WebClient,
    connections: ConnectionSet,
    url: str,
    subject: str,
    expected: ObjectInfo,
    sink: Sink,
) -> None:
    """Send the whole file to `sink`; arguments and errors as for `read_range`."""
    with client.open(
        connections, "GET", url, subject, conditions(expected), accepted=(200,)
    ) as reply:
        check_whole(subject, expected, reply.head)
        piece = memoryview(bytearray(min(_PIECE, expected.size + 1)))
        done = 0
        while got := reply.read_into(piece[: expected.size - done + 1]):
            done += got
            if done > expected.size:
                raise Stale(f"{subject}: longer than its {expected.size} bytes")
            sink(piece[:got])
    if done < expected.size:
        raise _cut_short(subject, done, expected.size)


def _fill(
    subject: str, reply: WebReply, buffer: memoryview, arrived: Arrived | None = None
) -> None:
    got = reply.read_into(buffer, arrived)
    if got < len(buffer):
        raise _cut_short(subject, got, len(buffer))


def _check_end(subject: str, expected: ObjectInfo, reply: WebReply) -> None:
    if reply.read_into(memoryview(bytearray(1))):
        raise Stale(f"{subject}: longer than its {expected.size} bytes")


def _cut_short(subject: str, got: int, wanted: int) -> Unavailable:
    return Unavailable(f"{subject}: the connection ended after {got} of {wanted} bytes")
