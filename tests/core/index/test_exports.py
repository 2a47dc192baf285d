"""What other programs want to know of shards, against their own rules and the standard library."""

import io
import itertools
import re
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.archive.tar_scanner import TarScanner
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.published import dali_index, wids_samples
from aisfs.core.names.listing import Form
from aisfs.errors import Unsupported
from tests.support.for_each import for_each
from tests.support.tars import END, entry, pax

LONG = "deep/" * 40 + "x"
TREE = {
    "a.jpg": b"x" * 700,
    "a.cls": b"1",
    "a.seg.png": b"",
    "b.jpg": b"y" * 512,
    "a.txt": b"again",
    "dir/c.jpg": b"z",
    "dir.v1/c.jpg": b"z",
    f"{LONG}.jpg": b"long",
    f"{LONG}.cls": b"7",
    "\u00fcmlaut.jpg": b"u",
}


def packed(members: dict[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        folder = tarfile.TarInfo("dir")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, data in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
        link = tarfile.TarInfo("link.jpg")
        link.type, link.linkname = tarfile.LNKTYPE, "a.jpg"
        tar.addfile(link)
    return file.getvalue()


def scanned(data: bytes, form: Form = Form.TAR) -> MemberIndex:
    scanner = TarScanner(len(data))
    scanner.feed(data)
    return scanner.finish(form)


def files(data: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [member for member in tar if member.isreg()]


def dali_by_tarfile(data: bytes) -> bytes:
    """The index as wds2idx computes it, from the offsets that tarfile says."""
    samples: list[list[str]] = []
    last = None
    for member in files(data):
        dot = member.name.find(".", member.name.rfind("/") + 1)
        key, extension = member.name[:dot], member.name[dot + 1 :]
        if not key or key.endswith("/"):
            continue
        if key != last:
            samples.append([])
        last = key
        samples[-1].append(f"{extension} {member.offset_data} {member.size} {member.name}")
    lines = [f"v1.2 {len(samples)}", *(" ".join(sample) for sample in samples)]
    return "".join(f"{line}\n" for line in lines).encode()


def wids_by_tarfile(data: bytes) -> int:
    """The number of samples as wids counts them."""
    names = [member.name for member in files(data) if "." in member.name]
    keys = [re.match(r"^((?:.*/)?.*?)(\..*)$", name)[1] for name in names]
    return sum(1 for _ in itertools.groupby(keys))


@for_each("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_shard(form: int):
    data = packed(TREE, form)
    index = scanned(data)
    assert dali_index(index) == dali_by_tarfile(data)
    assert dali_index(index).startswith(b"v1.2 7\njpg 1024 700 a.jpg cls ")
    assert wids_samples(index) == wids_by_tarfile(data) == 7


NAMES = st.lists(
    st.from_regex(r"([a-c.]{1,3}/)?[a-c_]{0,2}(\.[a-d]{1,3}){0,2}", fullmatch=True).filter(
        lambda name: name and not {"", ".", ".."} & set(name.split("/")) and name[-1] != "."
    ),
    min_size=1,
    max_size=12,
    unique=True,
)


@given(NAMES)
def test_any_names(names: list[str]):
    # A name that is a directory of another would be a link or a clash, and is no matter here.
    tree = {
        name: name.encode() for name in names if not any(o.startswith(f"{name}/") for o in names)
    }
    tree["z.jpg"] = b"z"
    data = packed(tree)
    index = scanned(data)
    assert dali_index(index) == dali_by_tarfile(data)
    assert wids_samples(index) == wids_by_tarfile(data)


@for_each(
    "data, form, reason",
    [
        (packed(TREE), Form.TAR_GZ, "plain tars only"),
        (packed({"a b.jpg": b""}), Form.TAR, "cannot hold the name 'a b.jpg'"),
        (packed({"a.": b""}), Form.TAR, "cannot hold the name 'a.'"),
        (packed({"a\nb.jpg": b""}), Form.TAR, "cannot hold the name"),
        (END, Form.TAR, "without samples"),
        (packed({".hidden": b""}), Form.TAR, "without samples"),
    ],
)
def test_what_dali_cannot_read_is_named(data: bytes, form: Form, reason: str):
    with pytest.raises(Unsupported, match=re.escape(reason)):
        dali_index(scanned(data, form))


def test_what_is_not_stored_as_it_is_read_is_left_out():
    sparse = pax(
        {b"GNU.sparse.map": b"0,1", b"GNU.sparse.size": b"5", b"GNU.sparse.name": b"a.bin"}
    )
    data = entry(b"a.jpg", b"x") + sparse + entry(b"s", b"x") + entry(b"a.cls", b"1") + END
    lines = dali_index(scanned(data)).splitlines()
    assert lines == [b"v1.2 1", b"jpg 512 1 a.jpg cls 3584 1 a.cls"]


def test_wids_reads_no_zips():
    with pytest.raises(Unsupported, match="zip"):
        wids_samples(scanned(packed(TREE), Form.ZIP))
