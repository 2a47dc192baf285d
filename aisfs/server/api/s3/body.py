"""Bodies of requests: `aws-chunked` is decoded, and every checksum that came with one is verified."""

import base64
import hashlib
import re
import zlib
from binascii import Error as Base64Error
from collections.abc import Callable, Iterator
from typing import Protocol

import anycrc
from crc32c import crc32c

from aisfs.server.api.s3.errors import S3Error
from aisfs.server.messages import Request, ShortBody

LONGEST_LINE = 4096
"""Bytes of a line between chunks: a size and a signature, or a checksum."""
_PREFIX = "x-amz-checksum-"
_HEX_SHA256 = re.compile(r"[0-9a-f]{64}")
_SIZE = re.compile(rb"[0-9a-fA-F]{1,16}")
_STREAMED = "STREAMING-"
NOT_CHECKSUMS = frozenset({"type", "mode", "algorithm"})
"""Headers that start like those of checksums."""


class Digest(Protocol):
    """A running checksum."""

    def update(self, data: bytes, /) -> object:
        """Add the next bytes."""

    def digest(self) -> bytes:
        """Return the checksum of everything so far."""
        ...


class _Crc:
    def __init__(self, step: Callable[[bytes, int], int], size: int = 4) -> None:
        self._step = step
        self._size = size
        self._value = 0

    def update(self, data: bytes, /) -> None:
        """Add the next bytes."""
        self._value = self._step(data, self._value)

    def digest(self) -> bytes:
        """Return the checksum of everything so far."""
        return self._value.to_bytes(self._size, "big")


_CRC64 = anycrc.Model("CRC64-NVME")
DIGESTS: dict[str, Callable[[], Digest]] = {
    "crc32": lambda: _Crc(zlib.crc32),
    "crc32c": lambda: _Crc(crc32c),
    "crc64nvme": lambda: _Crc(_CRC64.calc, 8),
    "sha1": lambda: hashlib.sha1(usedforsecurity=False),
    "sha256": hashlib.sha256,
}
"""The checksums of S3, by the end of their headers."""


class Body:
    """The body of one request."""

    def __init__(self, request: Request) -> None:
        """Read what the headers say of it.

        Raises:
            Failure: they contradict themselves, or name an unknown checksum.
        """
        self._request = request
        payload = request.header("x-amz-content-sha256")
        codings = [c.strip() for c in request.header("Content-Encoding").split(",")]
        self._is_chunked = payload.startswith(_STREAMED) or "aws-chunked" in codings
        self.length = _decoded_length(request) if self._is_chunked else _length(request)
        self.md5: Digest = hashlib.md5(usedforsecurity=False)
        self._expected: dict[str, bytes] = {}
        """What the checksums must be, by the header that says so."""
        self._digests: dict[str, Digest] = {"content-md5": self.md5}
        if text := request.header("Content-MD5"):
            self._expected["content-md5"] = _decode("Content-MD5", text, self.md5)
        if _HEX_SHA256.fullmatch(payload):
            self._digests["x-amz-content-sha256"] = hashlib.sha256()
            self._expected["x-amz-content-sha256"] = bytes.fromhex(payload)
        for name in _checksum_headers(request):
            self._expect(name, request.header(name))
        self._trailers = {name.strip().lower() for name in _trailers(request)}
        for name in self._trailers:
            self._expect(name, "")

    def _expect(self, header: str, value: str) -> None:
        kind = header.removeprefix(_PREFIX)
        if not header.startswith(_PREFIX) or kind not in DIGESTS:
            raise S3Error(400, "InvalidRequest", f"{header} is not a checksum that S3 has")
        digest = self._digests.setdefault(header, DIGESTS[kind]())
        if value:
            self._expected[header] = _decode(header, value, digest)

    @property
    def checksums(self) -> dict[str, str]:
        """The values of the headers `x-amz-checksum-…` that were sent and are right."""
        names = [name for name in self._expected if name.startswith(_PREFIX)]
        return {name: base64.b64encode(self._expected[name]).decode() for name in names}

    @property
    def is_checked(self) -> bool:
        """Whether the client sent any checksum of the content."""
        return bool(self._expected.keys() | self._trailers)

    def pieces(self) -> Iterator[bytes]:
        """Yield the content.

        Raises:
            ShortBody: the client stopped before the end.
            Failure: what arrived does not have a checksum that it should have.
        """
        got = 0
        for piece in self._decoded() if self._is_chunked else self._request.pieces():
            got += len(piece)
            for digest in self._digests.values():
                digest.update(piece)
            yield piece
        if self._is_chunked and got != self.length:
            text = f"the body has {got} bytes, not {self.length}"
            raise S3Error(400, "IncompleteBody", text)
        for name in self._trailers - self._expected.keys():
            raise S3Error(400, "MalformedTrailerError", f"the trailer lacks {name}")
        for name, expected in self._expected.items():
            if self._digests[name].digest() != expected:
                raise _wrong(name)

    def whole(self, limit: int) -> bytes:
        """Return the content.

        Raises:
            Failure: as `pieces` does, or since there is more than `limit`.
        """
        data = bytearray()
        for piece in self.pieces():
            data += piece
            if len(data) > limit:
                raise S3Error(400, "MaxMessageLengthExceeded", "the request is too large")
        return bytes(data)

    def _decoded(self) -> Iterator[bytes]:
        source = _Source(self._request.pieces())
        while size := _size(source.line()):
            yield from source.take(size)
            if source.line():
                raise _bad_chunk()
        while line := source.line(or_end=True):
            name, colon, value = line.decode("latin-1").partition(":")
            name = name.strip().lower()
            if not colon:
                raise _bad_chunk()
            if name in self._trailers:
                self._expect(name, value.strip())
        source.check_end()


class _Source:
    """Lines and blocks out of pieces."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def line(self, *, or_end: bool = False) -> bytes:
        """Return the next line without its end; with `or_end`, nothing at the end of the pieces."""
        while b"\r\n" not in self._rest:
            if len(self._rest) > LONGEST_LINE:
                raise _bad_chunk()
            piece = next(self._pieces, b"")
            if not piece:
                if or_end and not self._rest:
                    return b""
                raise ShortBody("the chunks have no end")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\r\n")
        return line

    def take(self, size: int) -> Iterator[bytes]:
        """Yield the next `size` bytes."""
        while size:
            piece = self._rest or next(self._pieces, b"")
            if not piece:
                raise ShortBody(f"{size} bytes of a chunk are missing")
            self._rest = piece[size:]
            yield piece[:size]
            size -= min(size, len(piece))

    def check_end(self) -> None:
        """Check that nothing follows."""
        if self._rest or next(self._pieces, b""):
            raise _bad_chunk()


def _size(line: bytes) -> int:
    text = line.partition(b";")[0].strip()
    if not _SIZE.fullmatch(text):
        raise _bad_chunk()
    return int(text, 16)


def _length(request: Request) -> int:
    known = "CONTENT_LENGTH" in request.environ or "HTTP_TRANSFER_ENCODING" in request.environ
    if request.method == "PUT" and not known:
        raise S3Error(411, "MissingContentLength", "the body has neither a length nor chunks")
    return request.length


def _decoded_length(request: Request) -> int:
    text = request.header("x-amz-decoded-content-length")
    if not text.isdecimal():
        raise S3Error(411, "MissingContentLength", "x-amz-decoded-content-length is missing")
    return int(text)


def _checksum_headers(request: Request) -> list[str]:
    start = "HTTP_" + _PREFIX.upper().replace("-", "_")
    names = [name.removeprefix(start).lower() for name in request.environ if name.startswith(start)]
    return [_PREFIX + name for name in names if name not in NOT_CHECKSUMS]


def _trailers(request: Request) -> list[str]:
    text = request.header("x-amz-trailer")
    return [name for name in text.split(",") if name.strip()]


def _decode(header: str, text: str, digest: Digest) -> bytes:
    try:
        value = base64.b64decode(text, validate=True)
    except (Base64Error, ValueError):
        value = b""
    if len(value) != len(digest.digest()):
        if header == "Content-MD5":
            raise S3Error(400, "InvalidDigest", "Content-MD5 is not the Base64 of an MD5")
        raise S3Error(400, "InvalidRequest", f"the value of {header} is invalid")
    return value


def _wrong(name: str) -> S3Error:
    if name == "x-amz-content-sha256":
        code, text = "XAmzContentSHA256Mismatch", "the payload does not have the SHA-256 given"
        return S3Error(400, code, text)
    return S3Error(400, "BadDigest", f"the content does not have the {name} given")


def _bad_chunk() -> S3Error:
    return S3Error(400, "InvalidChunkSizeError", "the aws-chunked body is malformed")
