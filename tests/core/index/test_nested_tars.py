"""Tars inside tars: found as tarfile finds them one by one, and nothing that is in them gets out."""

import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aisfs.core.archive.tar_scanner import TarScanner
from aisfs.core.index.builder import MAX_FOLDER, MAX_NESTING
from aisfs.core.index.member_index import MemberIndex, MemberKind
from aisfs.errors import ShardDamaged
from tests.core.archive.test_scanner import content, everything
from tests.support.for_each import for_each
from tests.support.publishing import every_scan_is_published  # noqa: F401 - for all tests
from tests.support.tars import END, GNU, V7, entry, pax


def scan(data: bytes, piece: int = 0, nesting: int = MAX_NESTING, **options) -> MemberIndex:
    scanner = TarScanner(len(data), nesting=nesting, **options)
    for start in range(0, len(data), piece or len(data) or 1):
        scanner.feed(data[start : start + (piece or len(data))])
    return scanner.finish()


def hop(data: bytes, length: int) -> tuple[MemberIndex, int]:
    """Scan with as few bytes as possible, `length` at once; also gives the number of requests."""
    scanner = TarScanner(len(data), nesting=MAX_NESTING)
    requests = 0
    while (start := scanner.needed) < len(data):
        scanner.seek(start)
        scanner.feed(memoryview(data)[start : start + length])
        requests += 1
    return scanner.finish(), requests


def files(data: bytes, index: MemberIndex) -> list[tuple[bytes, bytes]]:
    return [
        (index.name(row), content(data, index, row))
        for row in range(len(index))
        if index.kind(row) is MemberKind.FILE
    ]


def folders(index: MemberIndex) -> list[bytes]:
    return [index.name(row) for row in index.rows_of(MemberKind.DIRECTORY)]


# As tarfile ----------------------------------------------------------------------------------

FORMATS = st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
NAMES = st.sampled_from(["a.jpg", "b.cls", "dir/c", "e" * 90, "long/" + "n" * 120, "x.tar.gz"])
TARS = st.sampled_from(["in.tar", "dir/other.tar", "t" * 97 + ".tar", "long/" + "m" * 130 + ".tar"])


@st.composite
def nested(draw, depth: int = 3) -> bytes:
    """A tar with tars in it, as Python writes it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=draw(FORMATS)) as tar:
        names = draw(st.lists(st.one_of(NAMES, TARS), max_size=5, unique=True))
        for name in names:
            if name.endswith(".tar") and depth and draw(st.booleans()):
                data = draw(nested(depth - 1))
            else:
                data = draw(st.sampled_from([b"", b"few", b"x" * 512, b"\xff" * 700]))
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mtime = draw(st.sampled_from([0, 1_700_000_000, 1_700_000_000.25]))
            try:
                tar.addfile(info, io.BytesIO(data))
            except ValueError:  # no name for ustar
                continue
    end = buffer.getvalue()
    return end if draw(st.booleans()) else end[: tar.offset] + END  # with and without a record


def expected(data: bytes, prefix: bytes = b"") -> list[tuple[bytes, bytes]]:
    found = []
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        for info in tar:
            file = tar.extractfile(info)
            assert file is not None
            name, data = prefix + info.name.encode(), file.read()
            found.append((name, data))
            if name.endswith(b".tar") and data and data[257:262] in (b"ustar", bytes(5)):
                found += expected(data, name + b".d/")
    return found


@given(nested())
@settings(max_examples=150, deadline=None)
def test_members_of_inner_tars_are_those_of_tarfile_applied_again_and_again(data):
    index = scan(data)
    assert files(data, index) == expected(data)
    assert not index.warnings
    assert not index.skipped


@given(nested(), st.integers(1, 3000), st.integers(512, 4000))
@settings(max_examples=100, deadline=None)
def test_the_way_the_bytes_come_makes_no_difference(data, piece, length):
    whole = everything(scan(data))
    assert everything(scan(data, piece)) == whole
    assert everything(hop(data, length)[0]) == whole


@given(nested(), st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 255)), max_size=4))
@settings(max_examples=200, deadline=None)
def test_damage_never_raises_and_no_member_is_read_from_behind_its_tar(data, damage):
    broken = bytearray(data)
    for at, value in damage:
        broken[at % max(len(broken), 1)] = value
    data = bytes(broken[: len(broken) - len(damage) * 300])
    index = scan(data)
    assert everything(scan(data, 700)) == everything(index)
    ends = []
    for row in range(len(index)):
        while ends and not index.name(row).startswith(ends[-1][0]):
            ends.pop()
        if index.kind(row) is MemberKind.FILE:
            end = ends[-1][1] if ends else len(data)
            try:
                assert index.read_range(row, 0, index.size(row)).stop <= end
            except ShardDamaged:
                assert index.truncated(row)
            if index.opened(row):
                stop = min(index.data_range(row).stop, end)
                ends.append((index.name(row) + b".d", stop))


SOUP_NAMES = [
    b"a",
    b"t.tar",
    b"t.tar.d",
    b"t.tar.d/a",
    b"t.tar.d/t.tar",
    b"d/t.tar",
    b"../a",
    b"./",
]
LEAVES = st.one_of(
    st.builds(entry, st.sampled_from(SOUP_NAMES), st.sampled_from([b"", b"x" * 600])),
    st.builds(
        lambda name, kind, target: entry(name, kind=kind, target=target),
        st.sampled_from(SOUP_NAMES),
        st.sampled_from([b"1", b"2", b"5"]),
        st.sampled_from([b"a", b"t.tar", b"t.tar.d/a", b"../a", b"t.tar.d", b"."]),
    ),
)
SOUP = st.recursive(
    st.lists(LEAVES, max_size=6).map(b"".join),
    lambda tars: st.lists(
        st.one_of(LEAVES, st.builds(entry, st.sampled_from(SOUP_NAMES[1:6]), tars)), max_size=6
    ).map(b"".join),
    max_leaves=6,
)


@given(SOUP, st.integers(1, 2000))
@settings(max_examples=200, deadline=None)
def test_the_folder_of_an_opened_tar_has_its_members_and_nothing_else(data, piece):
    index = scan(data)
    assert everything(scan(data, piece)) == everything(index)
    names = index.names()
    folders = {}
    for row in index.opened_tars():
        assert names[row + 1] == names[row] + b".d"
        assert index.opened(row + 1)
        assert names[row + 1] not in folders
        folders[names[row + 1]] = index.data_range(row)
    for row, name in enumerate(names):
        around = [where for folder, where in folders.items() if name.startswith(folder + b"/")]
        data_range = index.data_range(index.content_row(row))
        assert all(w.start < data_range.start <= data_range.stop <= w.stop for w in around)
        assert (name in folders) == (index.opened(row) and index.kind(row) is MemberKind.DIRECTORY)


def test_without_the_option_they_are_files():
    data = entry(b"in.tar", entry(b"a", b"A") + END) + END
    assert scan(data, nesting=0).names() == [b"in.tar"]


# What is opened ------------------------------------------------------------------------------


def test_what_is_called_a_tar_and_is_none_is_a_file_like_any_other():
    parts = [
        entry(b"text.tar", b"no tar at all" * 100),
        entry(b"short.tar", b"x" * 100),
        entry(b"empty.tar", b""),
        entry(b"gz.tar", b"\x1f\x8b" + b"x" * 700),
        entry(b".tar", entry(b"a", b"A") + END),
        entry(b"upper.TAR", entry(b"a", b"A") + END),
        entry(b"other.jpg", entry(b"a", b"A") + END),
        entry(b"x.tar.gz", entry(b"a", b"A") + END),
    ]
    index = scan(b"".join(parts) + END)
    assert len(index) == len(parts)
    assert not index.warnings
    assert not any(map(index.opened, range(len(index))))


@for_each("magic", [V7, GNU])
def test_old_tars_are_opened_too(magic):
    data = entry(b"in.tar", entry(b"a", b"A", magic=magic) + END) + END
    assert scan(data).names() == [b"in.tar", b"in.tar.d", b"in.tar.d/a"]


def test_a_tar_without_members_is_an_empty_folder():
    index = scan(entry(b"in.tar", END, mtime=7) + entry(b"after", b"x") + END)
    assert index.names() == [b"in.tar", b"in.tar.d", b"after"]
    assert index.mtime_ns(1) == 7 * 10**9
    assert [index.opened(row) for row in range(3)] == [True, True, False]


def test_depth_is_limited():
    data = entry(b"leaf", b"x") + END
    for _ in range(MAX_NESTING + 3):
        data = entry(b"t.tar", data) + END
    index = scan(data)
    deepest = max(index.names(), key=len)
    assert deepest == b"t.tar.d/" * MAX_NESTING + b"t.tar"
    assert not index.opened(index.names().index(deepest))
    assert scan(data, nesting=1).names() == [b"t.tar", b"t.tar.d", b"t.tar.d/t.tar"]


def test_folders_with_names_too_long_are_not_opened():
    inner = entry(b"a", b"A") + END
    base = b"n" * 250 + b".tar"
    assert scan(pax({b"path": base}) + entry(b"x", inner) + END).names() == [base]
    path = b"d/" * (MAX_FOLDER // 2) + b"in.tar"
    index = scan(pax({b"path": path}) + entry(b"x", inner) + END)
    assert not any(map(index.opened, range(len(index))))
    fits = b"d/" * 60 + b"in.tar"
    assert len(scan(pax({b"path": fits}) + entry(b"x", inner) + END)) == 3


def test_paths_are_limited_as_a_whole():
    deep = pax({b"path": b"e/" * 100 + b"f"}) + entry(b"x", b"1")
    long = pax({b"path": b"/".join([b"g" * 200] * 19 + [b"h" * 250])}) + entry(b"x", b"1")
    inner = deep + long + entry(b"fits", b"1") + END
    data = pax({b"path": b"d/" * 50 + b"i" * 200 + b".tar"}) + entry(b"x", inner) + END
    index = scan(data)
    assert len(index) == 3
    assert index.name(2).endswith(b".tar.d/fits")
    assert index.skipped == {"too deep": 1, "name too long": 1}


def test_a_hard_link_to_an_opened_tar_is_a_file():
    data = entry(b"in.tar", entry(b"a", b"A") + END)
    index = scan(data + entry(b"also.tar", kind=b"1", target=b"in.tar") + END)
    assert index.names() == [b"in.tar", b"in.tar.d", b"in.tar.d/a", b"also.tar"]
    assert index.content_row(3) == 0
    assert not index.opened(3)
    assert list(index.opened_tars()) == [0]


def test_joined_inner_tars_are_read_on_with_ignore_zeros():
    inner = entry(b"a", b"A") + END + entry(b"b", b"B") + END
    data = entry(b"in.tar", inner) + entry(b"after", b"x") + END
    assert scan(data).names() == [b"in.tar", b"in.tar.d", b"in.tar.d/a", b"after"]
    assert scan(data).warnings[0].startswith("in 'in.tar': the archive ends at byte 1536")
    index = scan(data, ignore_zeros=True)
    assert index.names() == [b"in.tar", b"in.tar.d", b"in.tar.d/a", b"in.tar.d/b", b"after"]
    assert not index.warnings


def test_headers_of_one_tar_say_nothing_of_members_of_another():
    inner = pax({b"mtime": b"7"}, b"g") + entry(b"a", b"A", mtime=1) + END
    data = entry(b"in.tar", inner) + entry(b"after", b"x", mtime=2) + END
    index = scan(data)
    assert [index.mtime_ns(row) // 10**9 for row in (2, 3)] == [7, 2]


# Requests ------------------------------------------------------------------------------------


def test_members_of_inner_tars_are_hopped_over():
    large = b"x" * 1_000_000
    inner = entry(b"a", large) + entry(b"b", large) + END
    data = b"".join(entry(b"%d.tar" % at, inner) for at in range(3)) + END
    index, requests = hop(data, 4096)
    assert len(files(data, index)) == 9
    assert requests <= 3 * 3 + 1  # where the tar begins there is its first header too


def test_zeros_behind_an_inner_tar_are_not_read():
    data = entry(b"in.tar", entry(b"a", b"A") + bytes(1 << 20)) + entry(b"z", b"Z") + END
    _, requests = hop(data, 4096)
    assert requests < 25


# Names that meet -----------------------------------------------------------------------------

INNER = entry(b"a", b"A") + END


@for_each("name", [b"in.tar.d", b"in.tar.d/", b"in.tar.d/b", b"in.tar.d/c/d"])
@for_each("first", [False, True])
def test_a_member_with_the_name_of_the_folder_wins(name, first):
    real = entry(name, b"", kind=b"5") if name.endswith(b"/") else entry(name, b"real")
    tar = entry(b"in.tar", INNER)
    index = scan((real + tar if first else tar + real) + END)
    assert sorted(index.names()) == [b"in.tar", name.removesuffix(b"/")]
    assert not any(map(index.opened, range(len(index))))
    assert index.skipped == {"clash": 1}


def test_names_that_only_begin_like_the_folder_are_no_clash():
    index = scan(
        entry(b"in.tar", INNER) + entry(b"in.tar.data", b"") + entry(b"x.tar.d", b"") + END
    )
    assert index.skipped == {}
    assert b"in.tar.d/a" in index.names()


def test_of_two_tars_with_one_name_the_last_is_opened():
    inner = entry(b"b", b"B") + entry(b"l", kind=b"2", target=b"b") + END
    data = entry(b"in.tar", inner) + entry(b"in.tar", INNER) + END
    index = scan(data)
    assert index.names() == [b"in.tar", b"in.tar", b"in.tar.d", b"in.tar.d/a"]
    assert [index.opened(row) for row in range(4)] == [False, True, True, False]
    assert index.skipped == {"duplicate": 2}


def test_a_tar_that_is_replaced_is_not_opened():
    index = scan(entry(b"in.tar", INNER) + entry(b"in.tar", b"text") + END)
    assert index.names() == [b"in.tar", b"in.tar"]
    assert index.skipped == {"duplicate": 1}


def test_what_is_lost_takes_all_that_is_in_it_along():
    middle = entry(b"deep.tar", INNER) + entry(b"s", b"S", kind=b"S") + END
    data = entry(b"in.tar", middle) + entry(b"in.tar.d/deep.tar", INNER) + END
    index = scan(data)
    assert b"in.tar.d/deep.tar.d/a" in index.names()
    assert len(index) == 4
    assert index.skipped == {"clash": 3}


# Hostile names and links ---------------------------------------------------------------------


def test_names_in_an_inner_tar_do_not_leave_its_folder():
    names = [b"../up", b"x/../../up", b"/etc/passwd", b"./here", b"..", b"a\x00b", b"in.tar.d/x"]
    inner = b"".join(pax({b"path": name}) + entry(b"x", b"!") for name in names) + END
    index = scan(entry(b"dir/in.tar", inner) + entry(b"up", b"mine") + END)
    assert index.names() == [
        b"dir/in.tar",
        b"dir/in.tar.d",
        b"dir/in.tar.d/etc/passwd",
        b"dir/in.tar.d/here",
        b"dir/in.tar.d/in.tar.d/x",
        b"up",
    ]
    assert index.skipped == {"climbs": 3, "bad name": 1}


def test_the_root_of_an_inner_tar_is_its_folder():
    inner = entry(b"./", kind=b"5", mtime=9) + entry(b"./a", b"A") + END
    index = scan(entry(b"in.tar", inner, mtime=7) + END)
    assert index.names() == [b"in.tar", b"in.tar.d", b"in.tar.d/a"]
    assert index.mtime_ns(1) == 7 * 10**9


def test_links_lead_to_members_of_their_own_tar():
    inner = b"".join(
        [
            entry(b"d/a", b"inner"),
            entry(b"hard", kind=b"1", target=b"d/a"),
            entry(b"hard-up", kind=b"1", target=b"../a"),
            entry(b"hard-out", kind=b"1", target=b"a"),
            entry(b"soft", kind=b"2", target=b"d/a"),
            entry(b"soft-up", kind=b"2", target=b"../a"),
            entry(b"soft-around", kind=b"2", target=b"../in.tar.d/d/a"),
            entry(b"soft-out", kind=b"2", target=b"a"),
            entry(b"d/parent", kind=b"2", target=b".."),
            END,
        ]
    )
    outer = b"".join(
        [
            entry(b"a", b"outer"),
            entry(b"in.tar", inner),
            entry(b"into", kind=b"2", target=b"in.tar.d/d/a"),
            entry(b"hard-into", kind=b"1", target=b"in.tar.d/d/a"),
            entry(b"tar", kind=b"2", target=b"in.tar"),
            entry(b"own", kind=b"1", target=b"a"),
            END,
        ]
    )
    index = scan(outer)
    links = {
        index.name(row): (index.link_target(row), index.name(index.content_row(row)))
        for row in range(len(index))
        if index.kind(row) in (MemberKind.SYMLINK, MemberKind.HARDLINK)
    }
    assert links == {
        b"in.tar.d/hard": (b"", b"in.tar.d/d/a"),
        b"in.tar.d/soft": (b"d/a", b"in.tar.d/soft"),
        b"tar": (b"in.tar", b"tar"),
        b"own": (b"", b"a"),
    }
    assert index.skipped == {"bad link": 8}


# Damage --------------------------------------------------------------------------------------


def test_damage_in_an_inner_tar_ends_only_that():
    inner = entry(b"a", b"A") + b"\x01" * 512 + entry(b"b", b"B") + END
    data = entry(b"in.tar", inner) + entry(b"after", b"x") + END
    index = scan(data)
    assert [name for name, _ in files(data, index)] == [b"in.tar", b"in.tar.d/a", b"after"]
    assert index.warnings == (
        "in 'in.tar': damaged header at byte 1536: nothing from there on is shown",
    )


def test_an_inner_tar_that_begins_with_damage_is_an_empty_folder():
    inner = b"!" + entry(b"a", b"A")[1:] + END
    index = scan(entry(b"in.tar", inner) + entry(b"after", b"x") + END)
    assert index.names() == [b"in.tar", b"in.tar.d", b"after"]
    assert index.warnings == ("in 'in.tar': not a tar: it does not start with a tar header",)


def test_a_member_cut_off_in_an_inner_tar_does_not_go_on_in_the_outer_one():
    inner = entry(b"a", b"A") + entry(b"cut", b"c" * 5000)[:1512]
    data = entry(b"in.tar", inner) + entry(b"secret", b"s" * 6000) + END
    index = scan(data)
    row = index.names().index(b"in.tar.d/cut")
    assert index.truncated(row)
    assert index.size(row) == 5000
    found = index.read_range(row, 0, 1000)
    assert data[found.start : found.stop] == b"c" * 1000
    with pytest.raises(
        ShardDamaged, match=r"^member '[^']+' has data .* its tar ends at byte 3048"
    ):
        index.read_range(row, 0, 1001)
    assert "in 'in.tar': truncated: the data of 'cut'" in index.warnings[0]
    assert content(data, index, 0) == inner


def test_a_member_cut_off_before_its_first_byte_has_no_bytes():
    inner = entry(b"cut", b"c" * 5000)[:512]
    index = scan(entry(b"in.tar", inner) + entry(b"secret", b"s" * 6000) + END)
    with pytest.raises(ShardDamaged):
        index.read_range(2, 0, 1)


def test_a_shard_cut_off_in_an_inner_tar_shows_what_lies_before():
    inner = entry(b"a", b"A") + entry(b"b", b"b" * 3000) + END
    data = (entry(b"in.tar", inner) + END)[:3000]
    index = scan(data)
    assert index.names() == [b"in.tar", b"in.tar.d", b"in.tar.d/a", b"in.tar.d/b"]
    assert [index.truncated(row) for row in range(4)] == [True, False, False, True]
    assert len(index.warnings) == 2


def test_a_compressed_shard_that_ends_early_is_cut_in_all_its_tars():
    inner = entry(b"a", b"A") + entry(b"b", b"b" * 3000) + END
    data = (entry(b"in.tar", entry(b"deep.tar", inner) + END) + END)[:3000]
    scanner = TarScanner(1 << 40, nesting=MAX_NESTING)
    scanner.feed(data)
    scanner.end_at(len(data), "the stream is cut off")
    index = scanner.finish()
    cut = [index.name(row) for row in range(len(index)) if index.truncated(row)]
    assert cut == [b"in.tar", b"in.tar.d/deep.tar", b"in.tar.d/deep.tar.d/b"]
    assert index.warnings[0] == "the stream is cut off"
    with pytest.raises(ShardDamaged, match="3000"):
        index.read_range(index.names().index(b"in.tar"), 0, len(inner))


def test_a_shard_cut_off_in_the_first_block_of_an_inner_tar():
    data = entry(b"in.tar", INNER)[:800]
    for piece in (0, 100):
        index = scan(data, piece)
        assert index.names() == [b"in.tar"]
        assert len(index.warnings) == 1
