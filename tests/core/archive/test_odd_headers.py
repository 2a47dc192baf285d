"""Headers that say something twice, or nonsense: what GNU tar makes of them, and Python where it agrees."""

import io
import os
import subprocess
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aisfs.core.archive.tar import sparse_segments
from aisfs.core.index.member_index import MemberIndex
from tests.support.for_each import for_each
from tests.support.publishing import every_scan_is_published  # noqa: F401 - for all tests
from tests.support.tars import END, entry, header, long_name, pad, pax, scan

MTIME = 1_700_000_000
"""The time in the headers that `entry` makes."""


def by_gnu_tar(data: bytes, folder: Path) -> tuple[list[tuple[str, int, int]], str]:
    """Names, sizes and times that GNU tar lists, and its complaints."""
    (folder / "x.tar").write_bytes(data)
    listed = subprocess.run(
        ["tar", "--utc", "--full-time", "--numeric-owner", "-tvf", folder / "x.tar"],
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
        check=False,
    )
    found = []
    for line in listed.stdout.splitlines():
        _, _, size, date, time, name = line.split()
        moment = datetime.fromisoformat(f"{date}T{time}").replace(tzinfo=UTC)
        found.append((name, int(size), int(moment.timestamp())))
    return found, listed.stderr


def by_python(data: bytes) -> list[tuple[str, int, int]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [(member.name, member.size, int(member.mtime)) for member in tar]


def by_scan(index: MemberIndex) -> list[tuple[str, int, int]]:
    return [
        (index.name(row).decode(), index.size(row), index.mtime_ns(row) // 10**9)
        for row in range(len(index))
    ]


TWICE = {
    "long names": long_name(b"first") + long_name(b"last"),
    "pax headers": pax({b"path": b"first"}) + pax({b"path": b"last"}),
    "the first one says more": pax({b"path": b"first", b"mtime": b"5"}) + pax({b"path": b"last"}),
    "the last one says something else": pax({b"path": b"lost"}) + pax({b"mtime": b"5"}),
    "the last one is empty": pax({b"path": b"lost", b"size": b"0"}) + pax({}),
    "a global one between": pax({b"path": b"p"}) + pax({b"mtime": b"5"}, b"g"),
    "a long name, then pax": long_name(b"long") + pax({b"path": b"pax"}),
    "pax, then a long name": pax({b"path": b"pax"}) + long_name(b"long"),
    "pax with another record between": long_name(b"lost") + pax({b"mtime": b"5"}) + long_name(b"l"),
}


@pytest.mark.parametrize("headers", TWICE.values(), ids=TWICE.keys())
def test_of_headers_before_one_member_the_last_of_its_kind_counts(
    tmp_path: Path, headers: bytes
) -> None:
    data = headers + entry(b"plain", b"hello") + entry(b"after", b"x") + END
    index = scan(data)
    expected, complaints = by_gnu_tar(data, tmp_path)
    assert by_scan(index) == expected
    assert [index.span(row).start for row in range(2)] == [0, len(headers) + 1024]
    assert (complaints, index.warnings) == ("", ())


def test_of_two_long_targets_the_last_one_counts() -> None:
    for headers in (
        long_name(b"none", b"K") + long_name(b"there", b"K"),
        long_name(b"none", b"K") + pax({b"linkpath": b"there"}),
        pax({b"linkpath": b"there"}) + long_name(b"none", b"K"),
    ):
        data = entry(b"there", b"x") + headers + entry(b"link", kind=b"2", target=b"nor") + END
        assert b"link" in {scan(data).name(row) for row in range(len(scan(data)))}


def test_the_map_of_a_sparse_member_is_that_of_the_last_header() -> None:
    """And so is its size: a scan and a read must not take different ones."""

    def sparse(size: bytes, where: bytes) -> bytes:
        return pax(
            {
                b"GNU.sparse.size": size,
                b"GNU.sparse.numblocks": b"1",
                b"GNU.sparse.map": where + b",5",
            }
        )

    data = sparse(b"900", b"300") + sparse(b"2000", b"1000") + entry(b"s", b"hello") + END
    index = scan(data)
    assert (index.size(0), index.sparse(0)) == (2000, True)
    span = index.span(0)
    segments = sparse_segments(data[span.start : span.stop], 2000)
    assert segments is not None
    assert [(part.offset, part.length) for part in segments] == [(1000, 5)]


# Numbers and times ------------------------------------------------------------------------------


@pytest.mark.parametrize("zeros", [1, 16, 20, 1000])
def test_a_pax_size_may_have_zeros_in_front(tmp_path: Path, zeros: int) -> None:
    size = b"0" * zeros + b"5"
    data = pax({b"size": size}) + header(b"a", size=0) + pad(b"hello") + entry(b"b", b"x") + END
    index = scan(data)
    assert by_scan(index) == by_python(data) == by_gnu_tar(data, tmp_path)[0]
    assert by_scan(index) == [("a", 5, MTIME), ("b", 1, MTIME)]
    assert not index.warnings


@for_each("size", [b"0" * 30 + b"9" * 21, b"9" * 21, b"", b"-5", b"5x"])
def test_other_sizes_are_no_numbers(size: bytes) -> None:
    data = pax({b"size": size}) + entry(b"a", b"hello") + END
    index = scan(data)
    assert (len(index), bool(index.warnings)) == ((1, False) if not size else (0, True))


MALFORMED = [b"nonsense", b"9" * 40, b"-", b".", b"1_0", b"nan", b"inf", b"1e300"]


@for_each("time", [*MALFORMED, b"x" * 17])
@for_each("count", [1, 3])
def test_a_malformed_pax_mtime_leaves_that_of_the_header(time: bytes, count: int) -> None:
    """In the first member, and in those that are read in a run."""
    one = pax({b"mtime": time}) + entry(b"a", b"x")
    index = scan(one * count + entry(b"b", b"x", mtime=7) + END)
    assert [t for _, _, t in by_scan(index)] == [MTIME] * count + [7]
    assert index.warnings == tuple(
        f"the pax header at byte {at * len(one)} has a malformed mtime, which does not count"
        for at in range(count)
    )


@pytest.mark.parametrize(
    "headers",
    [
        pax({b"mtime": b"nonsense"}),
        pax({b"mtime": b"9" * 40}),
        pax({b"mtime": b"nonsense", b"path": b"long"}),
        pax({b"mtime": b"nonsense"}, b"g"),
        pax({b"mtime": b"5"}, b"g") + pax({b"mtime": b"nonsense"}),
        pax({b"mtime": b"5"}) + pax({b"mtime": b"nonsense"}),
    ],
)
def test_what_else_is_said_counts_as_in_gnu_tar(tmp_path: Path, headers: bytes) -> None:
    data = headers + entry(b"plain", b"hello") + END
    index = scan(data)
    expected, complaints = by_gnu_tar(data, tmp_path)
    assert by_scan(index) == expected
    assert "mtime" in complaints
    assert len(index.warnings) == 1


def test_of_repeated_records_in_one_header_a_malformed_time_does_not_count(tmp_path: Path) -> None:
    data = pax([(b"mtime", b"5"), (b"mtime", b"nonsense")]) + entry(b"a", b"x") + END
    assert by_scan(scan(data)) == by_gnu_tar(data, tmp_path)[0] == [("a", 1, 5)]
