"""Archives that are legal and rare: the rows of reference/webdataset.md 3.1 seen from outside."""

import io
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.content import fill, payload
from tests.support.mounts import Mount, mounted

pytestmark = pytest.mark.mount

Row = tuple[str, bytes] | tuple[str, bytes, dict[str, object]]


def archive(*rows: Row, format: int = tarfile.USTAR_FORMAT, **options: object) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format, **options) as tar:
        for name, data, *fields in rows:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for field, value in (fields[0] if fields else {}).items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(data) if data else None)
    return buffer.getvalue()


def signed_checksum() -> bytes:
    """As old Sun tars: the sum is over signed bytes, which differs for names beyond ASCII."""
    data = bytearray(archive(("caf\u00e9-\u00fc.txt", b"signed"), encoding="latin-1"))
    header = bytes(data[:148]) + b" " * 8 + bytes(data[156:512])
    total = sum(byte - 256 if byte > 127 else byte for byte in header)
    data[148:156] = b"%06o\0 " % total
    return bytes(data)


def base256_size() -> bytes:
    data = bytearray(archive(("big.bin", payload(3000)), ("next.txt", b"next")))
    data[124:136] = b"\x80" + (3000).to_bytes(11, "big")
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    return bytes(data)


TOO_LONG = "n" * 300 + ".jpg"
SHARDS = {
    "global.tar": archive(
        ("a.txt", b"a"), format=tarfile.PAX_FORMAT, pax_headers={"comment": "0123456789"}
    ),
    "signed.tar": signed_checksum(),
    "base256.tar": base256_size(),
    "contiguous.tar": archive(("c.txt", b"cont", {"type": tarfile.CONTTYPE}), ("d.txt", b"d")),
    "vendor.tar": archive(("v.bin", payload(600), {"type": b"Z"}), ("after.txt", b"after")),
    "fifo.tar": archive(("pipe", b"", {"type": tarfile.FIFOTYPE}), ("a.txt", b"a")),
    "both.tar": archive(("foo", b"file"), ("foo/bar.txt", b"below")),
    "duplicates.tar": archive(("a.txt", b"first"), ("b.txt", b"b"), ("a.txt", b"the last one")),
    "long.tar": archive((TOO_LONG, b"long"), ("a.txt", b"a"), format=tarfile.PAX_FORMAT),
    "latin.tar": archive(("caf\u00e9.txt", b"latin"), encoding="latin-1"),
    "newline.tar": archive(("new\nline.txt", b"line"), ("back\\slash.txt", b"slash")),
    "old-directory.tar": archive(("dir/", b"", {"type": tarfile.AREGTYPE}), ("dir/a.txt", b"a")),
    "hard-size.tar": archive(
        ("a.txt", b"data"), ("b.txt", b"", {"type": tarfile.LNKTYPE, "linkname": "a.txt", "size": 4}),
        ("c.txt", b"c"),
    ),
    "before-target.tar": archive(
        ("early.txt", b"", {"type": tarfile.SYMTYPE, "linkname": "late.txt"}), ("late.txt", b"late")
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def mount(fastpath: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    source = fill(tmp_path_factory.mktemp("odd") / "b", SHARDS)
    place = tmp_path_factory.mktemp("mnt").resolve()
    with mounted(str(source), place, deadline=300, expected_log=[r"[a-z0-9-]+\.tar"]) as mount:
        yield mount


def contents(folder: Path) -> dict[bytes, bytes]:
    return {
        os.fsencode(entry.name): Path(entry.path).read_bytes()
        for entry in os.scandir(folder)
        if entry.is_file()
    }


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("global.tar", {b"a.txt": b"a"}),
        ("signed.tar", {b"caf\xe9-\xfc.txt": b"signed"}),
        ("base256.tar", {b"big.bin": payload(3000), b"next.txt": b"next"}),
        ("contiguous.tar", {b"c.txt": b"cont", b"d.txt": b"d"}),
        ("vendor.tar", {b"after.txt": b"after"}),
        ("fifo.tar", {b"a.txt": b"a"}),
        ("duplicates.tar", {b"a.txt": b"the last one", b"b.txt": b"b"}),
        ("latin.tar", {b"caf\xe9.txt": b"latin"}),
        ("newline.tar", {b"new\nline.txt": b"line", b"back\\slash.txt": b"slash"}),
        ("hard-size.tar", {b"a.txt": b"data", b"b.txt": b"data", b"c.txt": b"c"}),
        ("before-target.tar", {b"early.txt": b"late", b"late.txt": b"late"}),
    ],
)
def test_members(name: str, wanted: dict[bytes, bytes], mount: Mount):
    assert contents(mount.path / f"{name}.d") == wanted


def test_a_file_and_a_directory_of_one_name(mount: Mount):
    folder = mount.path / "both.tar.d"
    assert sorted(os.listdir(folder)) == ["foo", "foo~file"]
    assert (folder / "foo" / "bar.txt").read_bytes() == b"below"
    assert (folder / "foo~file").read_bytes() == b"file"


def test_a_directory_marked_by_its_slash(mount: Mount):
    folder = mount.path / "old-directory.tar.d"
    assert os.listdir(folder) == ["dir"]
    assert (folder / "dir" / "a.txt").read_bytes() == b"a"


def test_a_component_beyond_255_bytes_is_shortened_and_keeps_its_extension(mount: Mount):
    folder = mount.path / "long.tar.d"
    (name,) = set(os.listdir(folder)) - {"a.txt"}
    assert re.fullmatch(r"n{200}~[0-9a-f]{8}\.jpg", name)
    assert (folder / name).read_bytes() == b"long"
