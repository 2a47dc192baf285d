"""Builds tars block by block, so that tests can have what no writer would make.

`entry` gives one header with its data; join entries with `+`, end them with `END`.
"""

import io
import struct
import tarfile
from collections.abc import Iterable
from typing import Any, NamedTuple

from aisfs.core.archive.tar_scanner import TarScanner
from aisfs.core.index.member_index import MemberIndex

BLOCK = 512
END = bytes(2 * BLOCK)

USTAR = b"ustar\x0000"
GNU = b"ustar  \x00"
V7 = bytes(8)


def scan(data: bytes, piece: int = 0, size: int | None = None, **options: Any) -> MemberIndex:
    """Index a tar that is fed in pieces, or at once."""
    scanner = TarScanner(len(data) if size is None else size, **options)
    for start in range(0, len(data), piece or len(data) or 1):
        scanner.feed(data[start : start + (piece or len(data))])
    return scanner.finish()


def octal(value: int, width: int) -> bytes:
    return b"%0*o\0" % (width - 1, value)


def base256(value: int, width: int) -> bytes:
    return b"\x80" + value.to_bytes(width - 1, "big")


def pad(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def header(
    name: bytes,
    *,
    size: int | bytes = 0,
    kind: bytes = b"0",
    mode: int = 0o644,
    mtime: int | bytes = 1_700_000_000,
    target: bytes = b"",
    magic: bytes = USTAR,
    prefix: bytes = b"",
    signed: bool = False,
    rest: bytes | None = None,
) -> bytes:
    """One header block with a right checksum; bytes for a number go in as they are."""
    block = struct.pack(
        "100s8s8s8s12s12s8s1s100s8s32s32s8s8s167s",
        name,
        octal(mode, 8),
        octal(1000, 8),
        octal(1000, 8),
        size if isinstance(size, bytes) else octal(size, 12),
        mtime if isinstance(mtime, bytes) else octal(mtime, 12),
        b" " * 8,
        kind,
        target,
        magic,
        b"user",
        b"group",
        b"",
        b"",
        prefix if rest is None else b"",
    )
    if rest is not None:
        block = block[: BLOCK - len(rest)] + rest
    return with_checksum(block, signed=signed)


def with_checksum(block: bytes, *, signed: bool = False) -> bytes:
    blank = block[:148] + b" " * 8 + block[156:]
    total = sum(struct.unpack("512b", blank)) if signed else sum(blank)
    return block[:148] + b"%06o\0 " % total + block[156:]


def sparse_header(name, pairs, stored, real, *, extended=False) -> bytes:
    rest = b"".join(octal(offset, 12) + octal(length, 12) for offset, length in pairs)
    rest = rest.ljust(96, b"\0") + bytes([extended]) + octal(real, 12)
    return header(name, size=stored, kind=b"S", magic=GNU, rest=rest.ljust(BLOCK - 386, b"\0"))


def entry(name: bytes, data: bytes = b"", **fields) -> bytes:
    fields.setdefault("size", len(data))
    return header(name, **fields) + pad(data)


def records(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    out = b""
    for key, value in pairs:
        length = len(key) + len(value) + 3
        while len(str(length)) + len(key) + len(value) + 3 != length:
            length = len(str(length)) + len(key) + len(value) + 3
        out += b"%d %b=%b\n" % (length, key, value)
    return out


def pax(pairs: dict[bytes, bytes] | list[tuple[bytes, bytes]], kind: bytes = b"x") -> bytes:
    payload = records(pairs.items() if isinstance(pairs, dict) else pairs)
    return entry(b"././@PaxHeader", payload, kind=kind, mtime=0)


def long_name(name: bytes, kind: bytes = b"L") -> bytes:
    return entry(b"././@LongLink", name + b"\0", kind=kind, magic=GNU)


def shard(names: Iterable[str], *, pax_times: bool = True, data: bytes = b"x") -> bytes:
    """A tar as webdataset's writer makes it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for at, name in enumerate(names):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mode = 0o444
            info.uname = info.gname = "bigdata"
            info.mtime = 1_700_000_000 + (at * 0.1234567 if pax_times else at)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


class InstantAnswers(NamedTuple):
    """What tarfile says of a regular member."""

    name: bytes
    offset: int
    size: int
    content: bytes


def known(tar_bytes: bytes, **options) -> list[InstantAnswers]:
    """All regular members as the standard library sees them."""
    with tarfile.open(fileobj=io.BytesIO(tar_bytes), mode="r:", **options) as tar:
        return [
            InstantAnswers(
                info.name.encode(errors="surrogateescape"),
                info.offset_data,
                info.size,
                tar.extractfile(info).read(),
            )
            for info in tar
            if info.isreg()
        ]
