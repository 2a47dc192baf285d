"""Decompression piece by piece, alike for all codecs.

Each codec reads its input file itself, joins the parts of files that have several (gzip members, zstd
frames), skips zeros after the last one where its format has padding, and returns no more than the
requested size, however well the input is compressed.
"""

import bz2
import gzip
import importlib
import io
import lzma
import sys
import zlib
from collections.abc import Callable
from typing import BinaryIO, NamedTuple, Protocol, cast

from aisfs.core.archive.formats import Form
from aisfs.errors import AisfsError, ArchiveTooLarge, Unsupported


class Codec(Protocol):
    """A file that is decompressed as it is read."""

    def read1(self, size: int, /) -> bytes:
        """Read some bytes, `size` at most; none at the end."""
        ...


class Piece(NamedTuple):
    """Decompressed bytes in the caller's buffer."""

    length: int
    """Less than the buffer only at the end."""
    damage: str = ""
    """Why the file cannot be read past these bytes."""


def open_codec(form: Form, file: io.RawIOBase) -> Codec:
    """Open a compressed file.

    Raises:
        Unsupported: the package that can read the form is not installed.
    """
    # Some codecs take a short read for the end of the file, and networks return short reads anywhere.
    return _CODECS[form](io.BufferedReader(file, _INPUT))


def read_piece(codec: Codec, buffer: memoryview) -> Piece:
    """Fill a buffer, up to the end of the file.

    Raises:
        ArchiveTooLarge: the codec would need more memory than `MEMORY_MAX`.
        AisfsError: the file below cannot be read.
    """
    length = 0
    try:
        while length < len(buffer):
            data = codec.read1(len(buffer) - length)
            if not data:
                break
            buffer[length : length + len(data)] = data
            length += len(data)
    except AisfsError:
        raise
    except Exception as error:  # noqa: BLE001 - each codec has its own, of no common class
        if any(said in str(error) for said in _NEEDS_MEMORY):
            raise ArchiveTooLarge(
                f"it takes more than {MEMORY_MAX >> 20} MiB of memory to decompress:"
                " compress it again with a smaller dictionary or window, as `xz -9` does"
            ) from None
        return Piece(length, str(error) or type(error).__name__)
    return Piece(length)


class Inflater:
    """A deflated stream of `size` bytes without any header, as members of zips are stored."""

    def __init__(self, file: io.RawIOBase, size: int, crc: int) -> None:
        """Read from `file`, and compare length and checksum at the end."""
        self._file = file
        self._crc = crc
        self._left = size
        self._sum = 0
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        self._data = b""

    def read1(self, size: int, /) -> bytes:
        """Read some bytes, `size` at most; none at the end.

        Raises:
            ValueError: length or checksum differ from the stated ones.
            zlib.error: it cannot be inflated.
        """
        while self._left:
            data = self._data or self._file.read(_INPUT) or b""
            found = self._inflater.decompress(data, min(size, self._left))
            self._data = self._inflater.unconsumed_tail
            if found:
                self._left -= len(found)
                self._sum = zlib.crc32(found, self._sum)
                if not self._left and self._sum != self._crc:  # before the last bytes are returned
                    raise ValueError("its content is not what its checksum says")
                return found
            if not data or self._inflater.eof:
                raise ValueError(f"it ends {self._left} bytes too soon")
        return b""


class _Unxz:
    """The streams of an xz file in turn, like `lzma.LZMAFile`, which cannot limit memory."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self._stream = self._next()

    def _next(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(memlimit=MEMORY_MAX)

    def read1(self, size: int, /) -> bytes:
        """Read some bytes, `size` at most; none at the end.

        Raises:
            EOFError: it is cut off.
            lzma.LZMAError: it is damaged, or needs more memory than `MEMORY_MAX`.
        """
        while True:
            data = b""
            if self._stream.eof:
                data = self._stream.unused_data or self._file.read1(_INPUT)
                if not data:
                    return b""
                self._stream = self._next()
            elif self._stream.needs_input:
                data = self._file.read1(_INPUT)
                if not data:
                    raise EOFError("it ends before its last stream does")
            found = self._stream.decompress(data, size)
            if found:
                return found


MEMORY_MAX = 128 << 20
"""Memory one codec may take: twice the need of `xz -9`, and zstd's default limit. A file states
how much it needs, up to 4 GiB, and several are read at once."""
_NEEDS_MEMORY = ("Memory usage limit exceeded", "too much memory")
"""Parts of the error texts of lzma and zstd, whose error classes do not tell."""
_INPUT = 64 * 1024


def _optional(name: str, extra: str) -> Callable[[BinaryIO], Codec]:
    module, _, codec = name.rpartition(".")

    def open_optional(file: BinaryIO) -> Codec:
        try:
            return cast("Codec", getattr(importlib.import_module(module), codec)(file))
        except ImportError:
            raise Unsupported(
                f"this form needs a package; in a clone of aisfs: pip install '.[{extra}]'"
            ) from None

    return open_optional


_ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"

_CODECS: dict[Form, Callable[[io.BufferedReader], Codec]] = {
    Form.TAR_GZ: lambda file: gzip.GzipFile(fileobj=file, mode="rb"),
    Form.TAR_BZ2: bz2.BZ2File,
    Form.TAR_XZ: _Unxz,
    Form.TAR_ZST: _optional(f"{_ZSTD}.ZstdFile", "zstd"),
    Form.TAR_LZ4: _optional("aisfs.core.archive.lz4_frames.Lz4File", "lz4"),
}
