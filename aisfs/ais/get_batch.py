"""GetBatch: many objects, or ranges of them, with one request, as a tar that is unpacked while it arrives.

A tar does not state versions. So of whole objects only those are requested whose checksum is known and
can be computed, and only bytes with that checksum are used. Ranges have no checksum: after they came, the
version of their objects is asked for, and if it is still the expected one, all bytes were of it.
Everything else is left to GETs, which find out what is wrong.

This module must not know: HTTP beyond a path, requests, errnos.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from aisfs.ais.client_port import Session
from aisfs.ais.protocol import requests
from aisfs.core.archive.tar import BLOCK, ZERO_BLOCK, padded, parse_header, parse_pax, text
from aisfs.core.checksums import hasher_of, is_known
from aisfs.errors import NotFound, ProtocolError, Unavailable
from aisfs.http.connections import ConnectionSet
from aisfs.model import Bucket, ObjectInfo

log = logging.getLogger(__name__)

ReadInto = Callable[[memoryview], int]
"""Fills a view with the next bytes, as far as there are any; returns how many."""
Wanted = Sequence[tuple[ObjectInfo, memoryview]]
"""Objects, each with room for all of it."""
WantedRanges = Sequence[tuple[ObjectInfo, int, memoryview]]
"""Ranges of objects: where each starts, and room for its bytes. None is empty."""

_MISSING = b"__404__/"
_META_MAX = 1 << 20
_SCRATCH = 1 << 16
"""Bytes read at once to be discarded: the zeros at the end, objects of an unexpected size."""


def get_batch(bucket: Bucket, keys: Sequence[str]) -> requests.Request:
    """Ask for whole objects of one bucket, in this order, with their keys as names."""
    return _request(bucket, [{"objname": key} for key in keys], "objects")


def get_ranges(bucket: Bucket, wanted: WantedRanges) -> requests.Request:
    """Ask for ranges of objects of one bucket, in this order, with the keys of the objects as names."""
    items: list[dict[str, str | int]] = [
        {"objname": info.key, "start": start, "length": len(buffer)}
        for info, start, buffer in wanted
    ]
    return _request(bucket, items, "ranges")


def _request(
    bucket: Bucket, items: Sequence[Mapping[str, str | int]], what: str
) -> requests.Request:
    body = requests.encode_json(
        {
            "mime": ".tar",
            "in": items,
            "coer": True,  # a missing object becomes a marked member and does not end the reply
            "onob": True,
            "strm": True,
        }
    )
    path = f"{requests.BATCHES}/{requests.quoted(bucket)}"
    subject = f"{len(items)} {what} of {bucket}"
    headers = {"Content-Type": requests.JSON}
    return requests.Request("GET", path, requests.bucket_query(bucket), subject, headers, body)


class Batches:
    """Reads many objects at once."""

    def __init__(self, session: Session, *, looks_at_originals: bool) -> None:
        """Send requests through `session`, but none about originals, at which a batch cannot look."""
        self._session = session
        self._looks_at_originals = looks_at_originals

    async def read(self, bucket: Bucket, wanted: Wanted) -> list[bool]:
        """Fill as many of the buffers as one request can; return which are filled."""
        able = [at for at, (info, _) in enumerate(wanted) if can_be_checked(info)]
        filled = [False] * len(wanted)
        if able and self._serves(bucket):
            chosen = [wanted[at] for at in able]
            request = get_batch(bucket, [info.key for info, _ in chosen])

            def work(connections: ConnectionSet) -> list[bool]:
                with self._session.transport.open(connections, request) as body:
                    return unpack(body.read_into, chosen, request.subject)

            found = await self._session.run(request.subject, work, bucket)
            for at, one in zip(able, found, strict=True):
                filled[at] = one
        return filled

    async def read_ranges(self, bucket: Bucket, wanted: WantedRanges) -> list[bool]:
        """Fill as many of the buffers as one request can; return which are filled."""
        able = [at for at, (info, _, _) in enumerate(wanted) if _survives_json(info.key)]
        filled = [False] * len(wanted)
        # Of an attached cluster the bytes may be of an old copy, and the version is that of the original.
        if not able or not self._serves(bucket) or bucket.is_attached:
            return filled
        chosen = [wanted[at] for at in able]
        request = get_ranges(bucket, chosen)

        def work(connections: ConnectionSet) -> int:
            with self._session.transport.open(connections, request) as body:
                return unpack_ranges(body.read_into, chosen, request.subject)

        came = await self._session.run(request.subject, work, bucket)
        asked = dict.fromkeys(info for info, _, _ in chosen[:came])
        current = {info: await self._is_current(bucket, info) for info in asked}
        for at, (info, _, _) in zip(able[:came], chosen, strict=False):
            filled[at] = current[info]
        return filled

    def _serves(self, bucket: Bucket) -> bool:
        return bucket.is_local or not self._looks_at_originals

    async def _is_current(self, bucket: Bucket, expected: ObjectInfo) -> bool:
        """Return whether an object is known to be still this version."""
        try:
            found = await self._session.head(bucket, expected.key)
        except NotFound:
            return False
        by_version = expected.version and found.version
        by_checksum = expected.checksum and found.checksum
        return bool(by_version or by_checksum) and expected.same_content(found)


def can_be_checked(info: ObjectInfo) -> bool:
    """Return whether an object's bytes can be told from those of any other version."""
    kind, _, value = info.checksum.partition(":")
    return bool(value) and is_known(kind) and _survives_json(info.key)


def _survives_json(key: str) -> bool:
    """Return whether the server finds this key in JSON, where one that is not UTF-8 is another one."""
    return not any("\ud800" <= c <= "\udfff" for c in key)


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


def unpack_ranges(read_into: ReadInto, wanted: WantedRanges, subject: str) -> int:
    """Read the ranges from a reply, which is a tar.

    Args:
        read_into: Reads the reply.
        wanted: The requested ranges, in this order.
        subject: What messages call the request.

    Returns:
        How many of the buffers were filled, from the first on, before something was missing.

    Raises:
        ProtocolError: it is not a tar, or has members that were not requested.
        Unavailable: it broke off before any range was complete.
    """
    members = _Members(read_into, subject)
    filled = 0
    try:
        for info, start, buffer in wanted:
            name, size = members.next()
            key = info.key.encode()
            if name == _MISSING + key:
                return filled  # the others are not worth unpacking: the object changed or is gone
            if name != key:
                raise ProtocolError(f"{subject}: {name!r} came instead of {key!r}")
            if size != len(buffer):
                # Servers before 5.0 send whole objects: stop before they come.
                asked = f"{len(buffer)} bytes from {start} on"
                raise ProtocolError(f"{subject}: {size} bytes came instead of {asked} of {key!r}")
            members.fill(buffer)
            members.skip(padded(size) - size)
            filled += 1
        members.end()
    except _Ended as error:  # so it does if one of the ranges reaches beyond its object
        log.debug("%s", error)
    except Unavailable as error:
        if not filled:
            raise
        log.debug("%s: only %d came: %s", subject, filled, error)
    return filled


def _is_content(info: ObjectInfo, data: memoryview) -> bool:
    kind, _, value = info.checksum.partition(":")
    hasher = hasher_of(kind)
    hasher.update(data)
    return hasher.hexdigest() == value.lower()


class _Ended(ProtocolError):
    """The tar ends before all that was asked for has come."""


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
            if block == ZERO_BLOCK:
                raise _Ended(f"{self._subject}: the answer is no tar of all that was asked for")
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
