"""What other programs want to know of a shard, from its member index.

- DALI's `wds2idx` writes an index of each plain tar: a line of text for each sample, which names,
  for each component, its extension, the offset and size of its data, and its name.
- wids (webdataset's random access) wants the number of samples of each shard.

Both go through regular files in the order of the tar, and begin a sample where the key changes.
"""

import re
from collections.abc import Iterator
from itertools import groupby

from aisfs.core.archive.formats import Form
from aisfs.core.index.member_index import MemberIndex
from aisfs.errors import Unsupported

DALI_SUFFIX = ".idx"
"""Of the file beside a shard, in the place of the suffix of the shard."""
_DALI_VERSION = re.compile(rb"v1\.([12]) ")
_BLOCK = 512
_DIGITS_MAX = 20
"""Of numbers in a DALI index; longer ones lie outside of any tar."""
_BLANK = re.compile(rb"\s")
_WIDS_NAME = re.compile(rb"((?:.*/)?.*?)\..*", re.DOTALL)


def dali_index(index: MemberIndex) -> bytes:
    """Return the index of a plain tar as DALI's `wds2idx` writes it.

    Raises:
        Unsupported: DALI cannot read such a shard, or its index cannot hold a name.
    """
    if index.form is not Form.TAR:
        raise Unsupported("DALI reads plain tars only")
    samples = [list(parts) for _, parts in groupby(_dali_parts(index), key=lambda part: part[0])]
    if not samples:
        raise Unsupported("DALI refuses a shard without samples")
    lines = [b"v1.2 %d" % len(samples)]
    for parts in samples:
        for _, extension, _, _, name in parts:
            if not extension or _BLANK.search(name):
                raise Unsupported(f"DALI's index cannot hold the name {name!r}")
        lines.append(b" ".join(b"%b %d %d %b" % part[1:] for part in parts))
    return b"\n".join([*lines, b""])


def dali_headers(text: bytes, size: int) -> list[int]:
    """Return where a DALI index (v1.1 or v1.2) says that headers lie in a tar, in ascending order.

    It is a hint: whatever it says that cannot be is left out.

    Args:
        text: The index; it may be of another tar, or anything.
        size: Bytes of the tar.
    """
    first, *lines = text.split(b"\n")
    if (version := _DALI_VERSION.match(first)) is None:
        return []
    words = 3 if version[1] == b"1" else 4  # v1.1 does not name the files
    found = set[int]()
    for line in lines:
        for offset in line.split()[1::words]:
            if offset.isdigit() and len(offset) < _DIGITS_MAX:
                found.add(int(offset) - _BLOCK)
    return sorted(at for at in found if 0 <= at < size and not at % _BLOCK)


def _dali_parts(index: MemberIndex) -> Iterator[tuple[bytes, bytes, int, int, bytes]]:
    """Yield key, extension, offset, size and name of each component, split as `wds2idx` does."""
    for row, name in _files(index):
        # Without a dot this is -1, and `wds2idx` cuts the last byte off the key.
        dot = name.find(b".", name.rfind(b"/") + 1)
        key, extension = name[:dot], name[dot + 1 :]
        if key and not key.endswith(b"/"):
            yield key, extension, index.data_range(row).start, index.size(row), name


def wids_samples(index: MemberIndex) -> int:
    """Return how many samples wids finds in a tar.

    Raises:
        Unsupported: wids cannot read such a shard.
    """
    if index.form is Form.ZIP:
        raise Unsupported("webdataset reads no zips")
    keys = (_WIDS_NAME.fullmatch(name) for _, name in _files(index))
    return sum(1 for _ in groupby(match[1] for match in keys if match is not None))


def _files(index: MemberIndex) -> Iterator[tuple[int, bytes]]:
    """Yield row and name of the regular files, in the order of the tar."""
    names = index.names()
    rows = filter(index.plain, range(len(index)))
    for row in sorted(rows, key=lambda row: index.data_range(row).start):
        yield row, names[row]
