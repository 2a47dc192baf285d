"""The bucket `ais://pets` that the examples of SEMANTICS show."""

import gzip
import io
import tarfile
import zipfile

from tests.mount.content import payload, put

BUCKET = "pets"
MOUNTED_ON = "/mnt/pets"
MTIME = 1_700_000_000
OVERWRITTEN = "taken.tar.d/real.txt"
"""Its version is 2, that of the other objects 1."""
CUT = 2000
"""Bytes that are missing at the end of b.bin."""


def fill_bucket(endpoint: str) -> None:
    """Put the objects into the bucket, which exists."""
    put(endpoint, BUCKET, OVERWRITTEN, b"the first version")
    for key, data in _objects().items():
        put(endpoint, BUCKET, key, data)


def _objects() -> dict[str, bytes]:
    return {
        "readme.txt": b"hello\n",
        "train/0001.jpg": bytes(1000),
        "train/0002.jpg": bytes(2000),
        "train/deep/x.bin": bytes(3000),
        "samples.tar": _samples(),
        "samples.tgz": gzip.compress(_samples()),
        "samples.zip": _zipped(_samples()),
        "odd.tar": _odd(),
        "cut.tar": _cut(),
        "taken.tar": _samples(),
        OVERWRITTEN: b"a real object\n",
    }


def _add(tar: tarfile.TarFile, name: str, data: bytes = b"", **fields: object) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime = len(data), MTIME
    for field, value in fields.items():
        setattr(info, field, value)
    tar.addfile(info, io.BytesIO(data))


def _samples() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for key, label in (("0001", b"3\n"), ("0002", b"7\n")):
            _add(tar, f"{key}.cls", label)
            _add(tar, f"{key}.image.jpg", b"\xff\xd8\xff" + bytes(700))
    return buffer.getvalue()


def _zipped(tar_bytes: bytes) -> bytes:
    buffer = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(tar_bytes)) as tar,
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file,
    ):
        for member in tar:
            file.writestr(member.name, tar.extractfile(member).read())
    return buffer.getvalue()


def _odd() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, "./dir//a.txt", b"member a\n")
        _add(tar, "../climbs.txt", b"never seen")
        _add(tar, "twice", b"the first\n")
        _add(tar, "foo", b"a file\n")
        _add(tar, "foo/bar", b"below\n")
        _add(tar, "hard", type=tarfile.LNKTYPE, linkname="dir/a.txt")
        _add(tar, "hard-broken", type=tarfile.LNKTYPE, linkname="nowhere")
        _add(tar, "link", type=tarfile.SYMTYPE, linkname="dir/a.txt")
        _add(tar, "link-out", type=tarfile.SYMTYPE, linkname="/etc/passwd")
        _add(tar, "null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)
        _add(tar, "twice", b"the last\n")
    return buffer.getvalue()


def _cut() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        _add(tar, "a.txt", b"before the damage\n")
        end = tar.offset + tarfile.BLOCKSIZE
        _add(tar, "b.bin", payload(5000))
    return buffer.getvalue()[: end + 5000 - CUT]
