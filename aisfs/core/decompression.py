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

from aisfs.core.forms import Form
from aisfs.errors import AisfsError, Unsupported


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


_CODECS: dict[Form, Callable[[BinaryIO], Codec]] = {
    Form.TAR_GZ: _gzip,
    Form.TAR_BZ2: bz2.BZ2File,
    Form.TAR_XZ: lzma.LZMAFile,
    Form.TAR_ZST: _zstd,
    Form.TAR_LZ4: _lz4,
}
