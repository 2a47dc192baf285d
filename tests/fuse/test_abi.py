"""The kernel's messages byte for byte, so that a slip in a layout fails here and not in a mount.

Requests were read from /dev/fuse of Linux 6.18 (ABI 7.45). WRITE, replies and notifications were
compared with the structs of linux/fuse.h by hand.
"""

import stat
import struct

from aisfs.filesystem.nodes import Attr, FileRun
from aisfs.fuse import abi
from aisfs.fuse.abi import FilePacker
from tests.support.for_each import for_each

FILE = Attr(1 << 63 | 5, stat.S_IFREG | 0o444, 1025, 1_700_000_000_123_456_789, 1000, 100)
DIRECTORY = Attr(1, stat.S_IFDIR | 0o555, 131072, -1, 0, 0, 1.5)


def message(text: str) -> memoryview:
    return memoryview(bytearray.fromhex(text))


def header(request: memoryview) -> tuple[int, ...]:
    return abi.HEADER.unpack_from(request)


# Requests -----------------------------------------------------------------------------------------

INIT = message(
    "680000001a00000002000000000000000000000000000000000000000000000000000000000000000700"
    "00002d00000000000200fbffff73fd050000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000"
)
LOOKUP = message(
    "2d000000010000001c000000000000000100000000000000000000000000000084410000000000006e6f706500"
)
READ = message(
    "500000000f00000018000000000000000200000000000000000000000000000083410000000000000000"
    "0000000000000000000000000000001000000000000000000000000000000080000000000000"
)
WRITE = message(
    "540000001000000018000000000000000200000000000000000000000000000083410000000000000300"
    "000000000000070000000500000004000000000000000000000000000000000000000000000064617461"
)
READDIRPLUS = message(
    "500000002c0000000e000000000000000100000000000000000000000000000082410000000000000000"
    "0000000000000000000000000000000002000000000000000000000000000088010000000000"
)
GETXATTR = message(
    "410000001600000006000000000000000100000000000000000000000000000082410000000000"
    "00ff0000000000000073656375726974792e73656c696e757800"
)
FORGET = message(
    "30000000020000002200000000000000020000000000000000000000000000000000000000000000"
    "0100000000000000"
)
INTERRUPT = message(
    "30000000240000002100000000000000000000000000000000000000000000000000000000000000"
    "2000000000000000"
)
BATCH_FORGET = message(
    "500000002a0000002300000000000000000000000000000000000000000000000000000000000000"
    "020000000000000002000000000000000100000000000000050000000000008007000000000000"
    "00"
)


def test_bodies():
    assert abi.name_of(LOOKUP) == b"nope"
    assert abi.xattr_name(GETXATTR) == b"security.selinux"
    assert abi.forgotten(FORGET) == 1
    assert list(abi.batch_forgotten(BATCH_FORGET)) == [(2, 1), (1 << 63 | 5, 7)]
    assert abi.interrupted(INTERRUPT) == 0x20
    assert abi.READ.unpack_from(READ, abi.BODY)[:3] == (0, 0, 4096)


def test_a_write_and_its_answer():
    offset, data = abi.written(WRITE)
    assert (offset, bytes(data)) == (5 << 32 | 7, b"data")
    assert abi.write_reply(9, 4) == struct.pack("=IiQII", 24, 0, 9, 4, 0)


def test_a_directory_is_read_by_its_inode():
    changed = message(READDIRPLUS.hex())
    abi.set_handle(changed, 1, 4096)
    assert abi.READ.unpack_from(changed, abi.BODY)[:3] == (1, 0, 4096)
    same = [at for at in range(len(changed)) if changed[at] == READDIRPLUS[at]]
    assert set(range(len(changed))) - set(same) == {40, 57, 58}
    abi.set_handle(changed, 1, 1 << 20)
    assert abi.READ.unpack_from(changed, abi.BODY)[2] == 4096, "never more than was asked for"


# Replies ------------------------------------------------------------------------------------------


def test_attributes():
    assert abi.attr_reply(4, DIRECTORY).hex() == (
        "7800000000000000040000000000000001000000000000000065cd1d00000000010000000000000000000200"
        "000000000000000000000000ffffffffffffffffffffffffffffffffffffffffffffffffffc99a3bffc99a3b"
        "ffc99a3b6d410000010000000000000000000000000000000000020000000000"
    )


FILES = [
    (0o444, 0, 0, b"a.jpg"), (0o555, -5, 512, b"b.jpg"), (0o400, 1 << 60, 1 << 40, b"long.name.jpg"),
    (0o444, 10**18 + 1, 1, b"8 bytes."), (0o444, 10**18 + 2, 513, b"x" * 255), (0o555, 3, 9, b"c"),
]  # fmt: skip


@for_each("size", [0, 159, 160, 319, 320, 488, 10_000])
def test_files_are_packed_alike_in_both_ways(size: int):
    files = FileRun(
        range(1 << 63, (1 << 63) + len(FILES)),
        [length for _, _, length, _ in FILES],
        [mtime_ns for _, mtime_ns, _, _ in FILES],
        [stat.S_IFREG | mode for mode, _, _, _ in FILES],
        [name for _, _, _, name in FILES],
    )
    fitting, room = [], size
    for place, (mode, mtime_ns, length, name) in enumerate(FILES):
        attr = Attr(1 << 63 | place, stat.S_IFREG | mode, length, mtime_ns, 1000, 100)
        one = abi.direntplus(attr, name, 7 + place + 1, 60.25)
        room -= len(one)
        if room < 0:
            break
        fitting.append(one)
    following = range(8, 8 + len(FILES))
    packed, count = FilePacker(1000, 100, 60.25).pack(files, following, size)
    assert (bytes(packed), count) == (b"".join(fitting), len(fitting))


# Notifications ------------------------------------------------------------------------------------


def test_notifications():
    assert abi.store_header(2, 4096, 1000).hex() == (
        "1004000004000000000000000000000002000000000000000010000000000000e803000000000000"
    )
    room = bytearray(b"." * 40 + b"first" + b"." * 50 + b"second")
    stored = map(bytes, abi.store_messages(room, [(1 << 63, 40, 5), (3, 95, 6)]))
    assert list(stored) == [
        abi.store_header(1 << 63, 0, 5) + b"first",
        abi.store_header(3, 0, 6) + b"second",
    ]
    assert abi.inval_entry(1, b"x.tar").hex() == (
        "2600000003000000000000000000000001000000000000000500000000000000782e74617200"
    )
    assert abi.inval_inode(2).hex() == (
        "28000000020000000000000000000000020000000000000000000000000000000000000000000000"
    )


def test_a_directory_in_itself_counts_no_lookup():
    entry = abi.dot_entry(77)
    assert len(entry) % 8 == 0
    assert list(abi.listed_nodeids(memoryview(abi.data_header(1, len(entry)) + entry))) == []
    *_, ino, offset, length, kind = abi.DIRENTPLUS.unpack_from(entry)
    assert (ino, offset, length, kind << 12) == (77, 1, 1, stat.S_IFDIR)
    assert entry[abi.DIRENTPLUS.size :] == b".".ljust(8, b"\0")
