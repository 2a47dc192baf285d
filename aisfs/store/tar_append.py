"""Append a member to a tar in a file of ours; for the stores that are no AIStore."""

import io
import tarfile
import time
from typing import BinaryIO, Literal, cast

from aisfs.errors import ShardDamaged, Unsupported
from aisfs.store.port import Content

_PIECE = 1 << 20


def append_to_tar(file: BinaryIO, subject: str, member: str, content: Content) -> None:
    """Add a member behind the last one of the tar that `file` is; an empty file becomes one.

    On an error the file is of no more use.

    Raises:
        ShardDamaged: it is no tar.
        Unsupported: bytes that are not zeros lie behind its end, and would be lost.
    """
    header = tarfile.TarInfo(member)
    header.size, header.mode, header.mtime = content.size, 0o644, int(time.time())
    try:
        # Mode "a" takes any file with a bad first header for an empty tar.
        mode: Literal["a:", "w:"] = "a:" if file.seek(0, io.SEEK_END) else "w:"
        file.seek(0)
        if mode == "a:":
            tarfile.open(fileobj=file, mode="r:").close()
            file.seek(0)
        tar = tarfile.open(fileobj=file, mode=mode)  # noqa: SIM115 - closed below, if at all
    except tarfile.TarError as error:
        raise ShardDamaged(f"{subject}: not a tar: {error}") from error
    _check_behind(file, subject)
    with tar:
        tar.addfile(header, cast("BinaryIO", _Reader(content)))


def _check_behind(file: BinaryIO, subject: str) -> None:
    end = file.tell()
    while piece := file.read(_PIECE):
        if piece.count(0) < len(piece):
            raise Unsupported(f"{subject}: cannot append: other bytes follow the end of the tar")
    file.seek(end)


class _Reader:
    """A content as the file that tarfile reads from."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._at = 0

    def read(self, size: int) -> bytes:
        piece = bytearray(min(size, self._content.size - self._at))
        if piece:
            self._content.read_into(self._at, memoryview(piece))
        self._at += len(piece)
        return bytes(piece)
