"""Decompression piece by piece, behind one interface for all codecs.

Each codec reads its input file itself, joins the parts of files that have several (gzip members, zstd
frames), skips zeros after the last one where its format has padding, and returns no more than the
requested size, however well the input is compressed.
"""

import bz2
import gzip
import importlib
import io
import lzma
import struct
import sys
import zlib
from collections.abc import Callable
from typing import BinaryIO, NamedTuple, Protocol, cast

from aisfs.core.names.listing import BZIP2, LZMA, Form
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


class Readable(Protocol):
    """A file that is read in order."""

    def read(self, size: int, /) -> bytes:
        """Read `size` bytes, fewer only at the end."""
        ...


class Decompressor(Protocol):
    """Decompresses one stream, as those of bz2 and lzma do."""

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""
        ...

    @property
    def needs_input(self) -> bool:
        """Whether nothing more comes without further input."""
        ...

    def decompress(self, data: bytes, /, max_length: int) -> bytes:
        """Take more input, and return what comes next."""
        ...


class StreamDecompressor(Decompressor, Protocol):
    """One that keeps what follows its stream."""

    @property
    def unused_data(self) -> bytes:
        """Input behind the end of the stream."""
        ...


class _Deflated:
    """A deflated stream without any header."""

    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)

    @property
    def eof(self) -> bool:
        return self._inflater.eof

    @property
    def needs_input(self) -> bool:
        return not self._inflater.unconsumed_tail

    def decompress(self, data: bytes, /, max_length: int) -> bytes:
        return self._inflater.decompress(self._inflater.unconsumed_tail + data, max_length)


class _ZipLzma:
    """An LZMA stream as zips have it: a version, the properties and their length in front."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._head = b""
        self._stream: lzma.LZMADecompressor | None = None

    @property
    def eof(self) -> bool:
        return self._stream is not None and self._stream.eof

    @property
    def needs_input(self) -> bool:
        return self._stream is None or self._stream.needs_input

    def decompress(self, data: bytes, /, max_length: int) -> bytes:
        if self._stream is None:
            self._head += data
            if len(self._head) < _ZIP_LZMA.size:
                return b""
            self._stream = self._open()
            data, self._head = self._head[_ZIP_LZMA.size :], b""
        return self._stream.decompress(data, max_length)

    def _open(self) -> lzma.LZMADecompressor:
        _, length, properties, dictionary = _ZIP_LZMA.unpack_from(self._head)
        if length != 5 or properties >= 9 * 5 * 5:
            raise ValueError("its LZMA properties are invalid")
        # What lies farther back than the start of the content is never referred to.
        window = max(min(dictionary, self._size), _LEAST_WINDOW)
        if window > MEMORY_MAX:
            raise ValueError(f"its LZMA dictionary takes {_NEEDS_MEMORY[1]}")
        rest, lc = divmod(properties, 9)
        pb, lp = divmod(rest, 5)
        one = {"id": lzma.FILTER_LZMA1, "dict_size": window, "lc": lc, "lp": lp, "pb": pb}
        return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[one])


def member_decompressor(method: int, size: int) -> Decompressor:
    """Return what decompresses a zip's member of `size` bytes, which is not just stored."""
    if method == BZIP2:
        return bz2.BZ2Decompressor()
    return _ZipLzma(size) if method == LZMA else _Deflated()


class Inflater:
    """A compressed member of a zip."""

    def __init__(self, file: io.RawIOBase, method: int, size: int, crc: int) -> None:
        """Read from `file`, and compare length and checksum at the end."""
        self._file = file
        self._crc = crc
        self._left = size
        self._sum = 0
        self._stream = member_decompressor(method, size)

    def read1(self, size: int, /) -> bytes:
        """Read some bytes, `size` at most; none at the end.

        Raises:
            ValueError: length or checksum differ from the stated ones.
            OSError, zlib.error, lzma.LZMAError: it cannot be decompressed.
        """
        while self._left:
            hungry = not self._stream.eof and self._stream.needs_input
            data = (self._file.read(_INPUT) or b"") if hungry else b""
            found = b""
            if not self._stream.eof:
                found = self._stream.decompress(data, min(size, self._left))
            if found:
                self._left -= len(found)
                self._sum = zlib.crc32(found, self._sum)
                if not self._left and self._sum != self._crc:  # before the last bytes are returned
                    raise ValueError("its content is not what its checksum says")
                return found
            if self._stream.eof or (hungry and not data):
                raise ValueError(f"it ends {self._left} bytes too soon")
        return b""


class Streams:
    """The streams or frames of a file in turn, and zeros behind them.

    The file classes of lzma and zstd take zeros for damage; that of lzma cannot limit memory.
    """

    def __init__(
        self, file: Readable, make: Callable[[], StreamDecompressor], *, padding: int = 0
    ) -> None:
        """Read from `file`.

        Args:
            file: Where the first stream begins.
            make: Returns a decompressor of one stream.
            padding: Zeros may be between streams, so many at a time; 0 for only behind the last.
        """
        self._file = file
        self._make = make
        self._padding = padding
        self._stream = make()

    def read1(self, size: int, /) -> bytes:
        """Read some bytes, `size` at most; none at the end.

        Raises:
            EOFError: it is cut off.
            Exception: as the decompressor does, if it is damaged.
        """
        while True:
            data = b""
            if self._stream.eof:
                data = self._skip_zeros(self._stream.unused_data)
                if not data:
                    return b""
                self._stream = self._make()
            elif self._stream.needs_input:
                data = self._file.read(_INPUT)
                if not data:
                    raise EOFError("it ends before its last stream does")
            found = self._stream.decompress(data, size)
            if found:
                return found

    def _skip_zeros(self, data: bytes) -> bytes:
        """Return bytes of the next stream; none if there is none."""
        zeros = 0
        while data := data or self._file.read(_INPUT):
            rest = data.lstrip(b"\0")
            zeros += len(data) - len(rest)
            if rest:
                if zeros and not (self._padding and zeros % self._padding == 0):
                    raise ValueError(f"something else than a stream follows {zeros} zeros")
                return rest
            data = b""
        return b""


MEMORY_MAX = 128 << 20
"""Memory one codec may take: twice the need of `xz -9`, and zstd's default limit. A file states
how much it needs, up to 4 GiB, and several are read at once."""
_NEEDS_MEMORY = ("Memory usage limit exceeded", "too much memory")
"""Parts of the error texts of lzma and zstd, whose error classes do not say what is wrong."""
_INPUT = 64 * 1024
_ZIP_LZMA = struct.Struct("<HHBI")
_LEAST_WINDOW = 4096


_ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"


def _optional(name: str, extra: str) -> Callable[[], object]:
    """Return what imports and returns something of a package that may be missing."""
    module, _, wanted = name.rpartition(".")

    def load() -> object:
        try:
            return getattr(importlib.import_module(module), wanted)
        except ImportError:
            raise Unsupported(
                f"this form needs a package; in a clone of aisfs: pip install '.[{extra}]'"
            ) from None

    return load


_zstd = _optional(f"{_ZSTD}.ZstdDecompressor", "zstd")
_lz4 = _optional("aisfs.core.archive.lz4_frames.Lz4File", "lz4")


def _unxz(file: io.BufferedReader) -> Codec:
    # xz pads in units of four bytes, also between streams.
    return Streams(file, lambda: lzma.LZMADecompressor(memlimit=MEMORY_MAX), padding=4)


_CODECS: dict[Form, Callable[[io.BufferedReader], Codec]] = {
    Form.TAR_GZ: lambda file: gzip.GzipFile(fileobj=file, mode="rb"),
    Form.TAR_BZ2: bz2.BZ2File,
    Form.TAR_XZ: _unxz,
    Form.TAR_ZST: lambda file: Streams(file, cast("Callable[[], StreamDecompressor]", _zstd())),
    Form.TAR_LZ4: lambda file: cast("Callable[[BinaryIO], Codec]", _lz4())(file),
}
