"""lz4 files: frames, and the legacy frames of `lz4 -l`, which the package lz4 cannot read.

A legacy frame is a magic number and blocks, each with its compressed length in front. It has no end mark:
another frame or the end of the file ends it.
"""

import io

import lz4.block
import lz4.frame

from aisfs.core.archive.decompression import Streams

LEGACY = b"\x02\x21\x4c\x18"
_FRAME = b"\x04\x22\x4d\x18"
_SKIPPABLE = b"\x2a\x4d\x18"
"""The end of the magic number of frames that are skipped; the half byte in front may be any."""
_BLOCK = 8 << 20
"""Most content of a legacy block; all but the last one of a frame have as much."""
_MOST_STORED = _BLOCK + _BLOCK // 255 + 16
"""Most bytes that a block of that takes if it cannot be compressed; lz4's own bound."""


class Lz4File:
    """A file that is decompressed as it is read."""

    def __init__(self, file: io.BufferedReader) -> None:
        """Read from `file`."""
        self._file = file
        self._left = memoryview(b"")
        """Content of the current legacy block."""
        self._frames: Streams | None = None
        """Reads everything from the first frame on that is no legacy frame."""
        self._started = False

    def read1(self, size: int, /) -> bytes:
        """Read some bytes, `size` at most; none at the end.

        Raises:
            EOFError: it is cut off.
            RuntimeError: it is damaged.
        """
        if self._frames is None and not self._left:
            self._next()
        if self._frames is not None:
            return self._frames.read1(size)
        found, self._left = bytes(self._left[:size]), self._left[size:]
        return found

    def _next(self) -> None:
        """Decompress the next legacy block, if there is one; other frames are left to the package."""
        while word := self._file.read(len(LEGACY)):
            if word != LEGACY and (not self._started or _is_magic(word)):
                self._frames = Streams(_Again(word, self._file), lz4.frame.LZ4FrameDecompressor)
                return
            if self._started and word != LEGACY:
                self._left = memoryview(self._block(word))
                return
            self._started = True

    def _block(self, word: bytes) -> bytes:
        length = int.from_bytes(word, "little")
        if not 0 < length <= _MOST_STORED:
            raise RuntimeError(f"a legacy block of {length} bytes")
        stored = self._file.read(length)
        if len(word) + len(stored) < len(LEGACY) + length:
            raise EOFError("it ends within a legacy block")
        content: bytes = lz4.block.decompress(stored, uncompressed_size=_BLOCK)
        return content


class _Again:
    """A file whose first bytes were read before."""

    def __init__(self, start: bytes, file: io.BufferedReader) -> None:
        self._start = start
        self._file = file

    def read(self, size: int, /) -> bytes:
        """Read `size` bytes, fewer only at the end; at least as many as were read before."""
        start, self._start = self._start, b""
        return start + self._file.read(size - len(start))


def _is_magic(word: bytes) -> bool:
    return word == _FRAME or (word[1:] == _SKIPPABLE and word[0] >> 4 == 5)
