"""The supported archive formats, recognised by the object's name or first bytes."""

from enum import IntEnum

HEAD = 262 + 3
"""Bytes from the start of an object that `form_of_content` needs."""


class Form(IntEnum):
    """An archive format. Stored indexes contain the numbers: never reuse one."""

    TAR = 1
    ZIP = 2
    TAR_GZ = 3
    TAR_BZ2 = 4
    TAR_XZ = 5
    TAR_ZST = 6
    TAR_LZ4 = 7

    @property
    def compressed(self) -> bool:
        """Whether it is compressed as a whole, so that members are no ranges of the object."""
        return self not in (Form.TAR, Form.ZIP)

    @property
    def label(self) -> str:
        """What it is called in a message, such as `a tar.gz`."""
        return f"a {self.name.lower().replace('_', '.')}"


STORED = 0
DEFLATED = 8
BZIP2 = 12
LZMA = 14
METHODS = (STORED, DEFLATED, BZIP2, LZMA)
"""The compression methods of zips that are supported, by their numbers there."""

_SUFFIXES = {
    b".tar": Form.TAR,
    b".zip": Form.ZIP,
    b".tgz": Form.TAR_GZ,
    b".tar.gz": Form.TAR_GZ,
    b".tar.bz2": Form.TAR_BZ2,
    b".tar.xz": Form.TAR_XZ,
    b".tar.zst": Form.TAR_ZST,
    b".tar.lz4": Form.TAR_LZ4,
}
SUFFIXES = tuple(_SUFFIXES)

_MAGIC = [
    (0, b"PK\x03\x04", Form.ZIP),
    (0, b"PK\x05\x06", Form.ZIP),
    (0, b"\x1f\x8b", Form.TAR_GZ),
    (0, b"BZh", Form.TAR_BZ2),
    (0, b"\xfd7zXZ\x00", Form.TAR_XZ),
    (0, b"\x28\xb5\x2f\xfd", Form.TAR_ZST),
    (0, b"\x04\x22\x4d\x18", Form.TAR_LZ4),
    (0, b"\x02\x21\x4c\x18", Form.TAR_LZ4),  # legacy
    (257, b"ustar", Form.TAR),
]


def form_of_name(name: bytes) -> Form | None:
    """Return the format of a suffix; None when the name has none, or is only the suffix."""
    return _SUFFIXES.get(suffix_of(name))


def suffix_of(name: bytes) -> bytes:
    """Return the suffix of an archive format; empty when there is none."""
    if not name.endswith(SUFFIXES):
        return b""
    for suffix in SUFFIXES:
        if name.endswith(suffix) and name != suffix:
            return suffix
    return b""


def form_of_content(head: bytes) -> Form | None:
    """Return the format of an object, given its first `HEAD` bytes or all of it.

    A compressed file counts as a compressed tar: its content is known only after decompression.
    Tars older than POSIX have no magic number and are not recognised.
    """
    for offset, magic, form in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return form
    return None
