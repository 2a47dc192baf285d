"""Builds archives of every form with the libraries people use."""

import bz2
import gzip
import io
import lzma
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from unittest.mock import patch

import lz4.block
import lz4.frame
from backports import zstd

COMPRESSIONS: Mapping[str, Callable[[bytes], bytes]] = {
    "tar": bytes,
    "tgz": lambda data: gzip.compress(data, 1),
    "tar.gz": lambda data: gzip.compress(data, 1),
    "tar.bz2": lambda data: bz2.compress(data, 1),
    "tar.xz": lambda data: lzma.compress(data, preset=0),
    "tar.zst": lambda data: zstd.compress(data, 1),
    "tar.lz4": lambda data: lz4.frame.compress(data, content_checksum=True),
}
SUFFIXES = (*COMPRESSIONS, "zip")


def lz4_legacy(data: bytes, block: int = 8 << 20) -> bytes:
    """A frame as `lz4 -l` writes it, whose blocks have 8 MiB each."""
    pieces = [data[at : at + block] for at in range(0, len(data), block)]
    packed = [lz4.block.compress(piece, store_size=False) for piece in pieces]
    return b"\x02\x21\x4c\x18" + b"".join(len(p).to_bytes(4, "little") + p for p in packed)


def text(size: int, seed: int | str = 0) -> bytes:
    """Bytes that compress some five times and are the same in every run."""
    source = random.Random(f"{seed}/{size}")
    words = [source.randbytes(8).hex().encode() for _ in range(64)]
    return b" ".join(source.choices(words, k=size // 17 + 1))[:size].ljust(size)


def make_tar(
    members: Mapping[str, bytes] | Iterable[tuple[str, bytes]],
    form: int = tarfile.PAX_FORMAT,
    *,
    mtime: float = 1_700_000_000.5,
    mode: int = 0o644,
) -> bytes:
    """Pack members, of which several may have one name if they come as pairs."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, data in members.items() if isinstance(members, Mapping) else members:
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = len(data), mtime, mode
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


class _QuickLzma(zipfile.LZMACompressor):  # type: ignore[name-defined, misc]  # typeshed lacks it
    """zipfile has no level for lzma, and takes 20 s for 30 MB by the usual one."""

    def _init(self) -> bytes:
        filters = {"id": lzma.FILTER_LZMA1, "preset": 0, "dict_size": 1 << 18}
        self._comp = lzma.LZMACompressor(lzma.FORMAT_RAW, filters=[filters])
        return struct.pack("<BBHBI", 9, 4, 5, 0x5D, 1 << 18)  # lc=3, lp=0, pb=2 and the dictionary


def make_zip(members: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with (
        patch.object(zipfile, "LZMACompressor", _QuickLzma),
        zipfile.ZipFile(buffer, "w", method, compresslevel=1) as file,
    ):
        for name, data in members.items():
            file.writestr(zipfile.ZipInfo(name, (2023, 11, 14, 22, 13, 20)), data, method)
    return buffer.getvalue()


def make(suffix: str, members: Mapping[str, bytes]) -> bytes:
    """Build an archive of the form that has this suffix."""
    if suffix == "zip":
        return make_zip(members)
    return COMPRESSIONS[suffix](make_tar(members))


def xz_with_dictionary(data: bytes, dictionary: int) -> bytes:
    """As `xz --lzma2=dict=…` writes it, but that the header only says so: it takes no memory here."""
    raw = bytearray(lzma.compress(data, preset=0))
    header = 12  # behind that of the stream: one block, of which the last property is its size
    assert raw[header + 2 : header + 4] == b"\x21\x01"
    half = dictionary.bit_length() - 12  # in steps of 2^n and 3 * 2^(n-1), from 4 KiB on
    raw[header + 4] = 40 if dictionary == 2**32 - 1 else 2 * half - 2
    length = 4 * (raw[header] + 1)
    stop = header + length
    raw[stop - 4 : stop] = zlib.crc32(raw[header : stop - 4]).to_bytes(4, "little")
    return bytes(raw)
