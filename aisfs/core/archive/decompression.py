"""What a compressed file is, piece by piece: one way to read through all codecs.

The codecs read the file they are given by themselves, join the parts of files that have several
(gzip members, zstd frames), skip zeros after the last one where their format knows padding, and
give no more than what is asked for, however little input makes how much output.
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
    """A file that decompresses while it is read."""

    def read1(self, size: int, /) -> bytes:
        """Read some bytes, `size` at most; none at the end."""
        ...


class Piece(NamedTuple):
    """Some decompressed bytes, in the buffer that was given."""

    length: int
    """Less than the buffer only at the end."""
    damage: str = ""
    """What is wrong behind these bytes."""


def open_codec(form: Form, file: io.RawIOBase) -> Codec:
    """Open a compressed file.

    Raises:
        Unsupported: the package that can read the form is not installed.
    """
    # Some codecs take a short read, which a network gives at any place, for the end of the file.
    return _CODECS[form](io.BufferedReader(file, _INPUT))


def read_piece(codec: Codec, buffer: memoryview) -> Piece:
    """Fill a buffer, as far as there is something.

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
    """A deflated stream without any header, as members of zips are; of no more than `size` bytes."""

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
            ValueError: length or checksum are not as promised.
            zlib.error: it does not inflate.
        """
        while self._left:
            data = self._data or self._file.read(_INPUT) or b""
            found = self._inflater.decompress(data, min(size, self._left))
            self._data = self._inflater.unconsumed_tail
            if found:
                self._left -= len(found)
                self._sum = zlib.crc32(found, self._sum)
                if not self._left and self._sum != self._crc:  # nobody shall get its end then
                    raise ValueError("its content is not what its checksum says")
                return found
            if not data or self._inflater.eof:
                raise ValueError(f"it ends {self._left} bytes too soon")
        return b""


class _Unxz:
    """The streams of an xz file, one after the other; as `lzma.LZMAFile`, which has no limit."""

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
"""Memory one codec may take: twice what `xz -9` asks for, and the window zstd takes unasked. The
file says how much it needs, up to 4 GiB, and several are read at once."""
_NEEDS_MEMORY = ("Memory usage limit exceeded", "too much memory")
"""What lzma and zstd say then; their classes of errors do not tell."""
_INPUT = 64 * 1024


def _gzip(file: BinaryIO) -> Codec:
    return gzip.GzipFile(fileobj=file, mode="rb")


def _zstd(file: BinaryIO) -> Codec:
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    return cast("Codec", _optional(name, "zstd").ZstdFile(file))


def _lz4(file: BinaryIO) -> Codec:
    return cast("Codec", _optional("lz4.frame", "lz4").LZ4FrameFile(file))


def _optional(module: str, extra: str) -> "_Module":
    try:
        return cast("_Module", importlib.import_module(module))
    except ImportError:
        raise Unsupported(f"this form needs a package: pip install 'aisfs[{extra}]'") from None


class _Module(Protocol):
    ZstdFile: Callable[[BinaryIO], object]
    LZ4FrameFile: Callable[[BinaryIO], object]


_CODECS: dict[Form, Callable[[io.BufferedReader], Codec]] = {
    Form.TAR_GZ: _gzip,
    Form.TAR_BZ2: bz2.BZ2File,
    Form.TAR_XZ: _Unxz,
    Form.TAR_ZST: _zstd,
    Form.TAR_LZ4: _lz4,
}
