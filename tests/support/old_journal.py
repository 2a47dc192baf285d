"""Frames as journals had them before December 2026: without a second block, and without marks to go on from."""

import struct
import zlib
from collections.abc import Sequence


def old_frame(
    serial: int, mtime_ns: int, ended: Sequence[int], record: bytes = b"", content: bytes = b""
) -> bytes:
    head = struct.pack(
        "<4sIQqIII", b"aisJ", 0, serial, mtime_ns, len(ended), len(record), len(content)
    )
    body = head[8:] + struct.pack(f"<{len(ended)}Q", *ended) + record + content
    return b"aisJ" + zlib.crc32(body).to_bytes(4, "little") + body
