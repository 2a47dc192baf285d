"""GetBatch: many whole objects with one request, as a tar that is unpacked while it arrives.

A tar does not state versions. So only objects whose checksum is known and can be computed are requested,
and only bytes with that checksum are used. Everything else is left to GETs, which find out what is wrong.

This module must not know: HTTP beyond a path, requests, errnos.
"""

import logging
from collections.abc import Callable, Sequence

from aisfs.ais.client_port import Session
from aisfs.ais.protocol import requests
from aisfs.ais.transport.connection_set import ConnectionSet
from aisfs.core.checksums import hasher_of, is_known
from aisfs.core.tar.header import BLOCK, padded, parse_header, parse_pax, text
from aisfs.errors import ProtocolError, Unavailable
from aisfs.model import Bucket, ObjectInfo

log = logging.getLogger(__name__)

ReadInto = Callable[[memoryview], int]
"""Fills a view with the next bytes, as far as there are any; returns how many."""
Wanted = Sequence[tuple[ObjectInfo, memoryview]]
"""Objects, each with room for all of it."""

_MISSING = b"__404__/"
_META_MAX = 1 << 20
_SCRATCH = 1 << 16
"""Bytes read at once to be discarded: the zeros at the end, objects of an unexpected size."""


def get_batch(bucket: Bucket, keys: Sequence[str]) -> requests.Request:
    """Ask for whole objects of one bucket, in this order, with their keys as names."""
    body = requests.encode_json(
        {
            "mime": ".tar",
            "in": [{"objname": key} for key in keys],
            "coer": True,  # a missing object becomes a marked member and does not end the reply
            "onob": True,
            "strm": True,
        }
    )
    path = f"{requests.BATCHES}/{requests.quoted(bucket)}"
    subject = f"{len(keys)} objects of {bucket}"
    headers = {"Content-Type": requests.JSON}
    return requests.Request("GET", path, requests.bucket_query(bucket), subject, headers, body)


class Batches:
    """Reads many objects at once."""

    def __init__(self, session: Session) -> None:
        """Send requests through `session`."""
        self._session = session

    async def read(self, bucket: Bucket, wanted: Wanted) -> list[bool]:
        """Fill as many of the buffers as one request can; return which are filled."""
        able = [at for at, (info, _) in enumerate(wanted) if can_be_checked(info)]
        filled = [False] * len(wanted)
        if able:
            chosen = [wanted[at] for at in able]
            request = get_batch(bucket, [info.key for info, _ in chosen])

            def work(connections: ConnectionSet) -> list[bool]:
                with self._session.transport.open(connections, request) as body:
                    return unpack(body.read_into, chosen, request.subject)

            found = await self._session.run(request.subject, work, bucket)
            for at, one in zip(able, found, strict=True):
                filled[at] = one
        return filled


def can_be_checked(info: ObjectInfo) -> bool:
    """Return whether an object's bytes can be told from those of any other version."""
    kind, _, value = info.checksum.partition(":")
    # A key that is not UTF-8 does not survive the server's JSON.
    return bool(value) and is_known(kind) and not any("\ud800" <= c <= "\udfff" for c in info.key)


def unpack(read_into: ReadInto, wanted: Wanted, subject: str) -> list[bool]:
    """Read the objects from a reply, which is a tar.

    Args:
        read_into: Reads the reply.
        wanted: The requested objects, in this order.
        subject: What messages call the request.

    Returns:
        Which buffers hold exactly the object; the others may hold anything.

    Raises:
        ProtocolError: it is not a tar, or has members that were not requested.
        Unavailable: it broke off before any object was complete.
    """
    filled = [False] * len(wanted)
    members = _Members(read_into, subject)
    try:
        for at, (info, buffer) in enumerate(wanted):
            name, size = members.next()
            key = info.key.encode()
            if name not in (key, _MISSING + key):
                raise ProtocolError(f"{subject}: {name!r} came instead of {key!r}")
            if name != key or size != info.size:
                members.skip(padded(size))
            else:
                members.fill(buffer)
                members.skip(padded(size) - size)
                filled[at] = _is_content(info, buffer)
        members.end()
    except Unavailable as error:
        if not any(filled):
            raise
        log.debug("%s: only %d came: %s", subject, sum(filled), error)
    return filled


def _is_content(info: ObjectInfo, data: memoryview) -> bool:
    kind, _, value = info.checksum.partition(":")
    hasher = hasher_of(kind)
    hasher.update(data)
    return hasher.hexdigest() == value.lower()


class _Members:
    """The members of a tar, as it arrives."""

    def __init__(self, read_into: ReadInto, subject: str) -> None:
        self._read_into = read_into
        self._subject = subject
        self._scratch = memoryview(bytearray(_SCRATCH))

    def next(self) -> tuple[bytes, int]:
        """Return name and size of the next member, whose content comes next."""
        path: bytes | None = None
        while True:
            block = self._scratch[:BLOCK]
            self.fill(block)
            header = parse_header(bytes(block))
            if header is None or header.size is None or header.size < 0:
                raise ProtocolError(f"{self._subject}: the answer is no tar")
            if header.kind in (b"0", b"\0"):
                return (header.name if path is None else path), header.size
            if header.kind not in (b"x", b"L") or header.size > _META_MAX:
                raise ProtocolError(f"{self._subject}: a tar with {header.kind!r} in it")
            payload = memoryview(bytearray(padded(header.size)))
            self.fill(payload)
            said = bytes(payload[: header.size])
            if header.kind == b"L":
                path = text(said)
            else:
                path = dict(parse_pax(said).pairs).get(b"path", path)

    def fill(self, view: memoryview) -> None:
        """Fill the view with the next bytes."""
        got = self._read_into(view)
        if got < len(view):
            raise Unavailable(f"{self._subject}: the connection ended within a member")

    def skip(self, length: int) -> None:
        """Discard the next bytes."""
        while length:
            piece = self._scratch[: min(length, len(self._scratch))]
            self.fill(piece)
            length -= len(piece)

    def end(self) -> None:
        """Read the zeros at the end, so that the connection can be used again."""
        self._read_into(self._scratch)
