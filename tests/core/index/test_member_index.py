"""What an index shows and what it hides: names, links, and the memory a member takes."""

import gc
import tracemalloc

import pytest

from aisfs.core.index.builder import MemberIndexBuilder
from aisfs.core.index.columns import HiddenName, all_tidy, normalise
from aisfs.core.index.member_index import MemberIndex, MemberKind
from aisfs.core.views.tree import MembersView
from aisfs.model import ByteRange
from tests.support.for_each import for_each
from tests.support.tars import BLOCK, END, entry, pax, scan


def link(name: bytes, target: bytes) -> bytes:
    return entry(name, kind=b"2", target=target)


def hardlink(name: bytes, target: bytes) -> bytes:
    return entry(name, kind=b"1", target=target)


def named(index: MemberIndex) -> dict[bytes, int]:
    return {name: row for row, name in enumerate(index.names())}


# Names ---------------------------------------------------------------------------------------


@for_each(
    "stored, path",
    [
        (b"a", b"a"),
        (b"a/b.jpg", b"a/b.jpg"),
        (b"/abs/a", b"abs/a"),
        (b"///a", b"a"),
        (b"./d", b"d"),
        (b"././d", b"d"),
        (b"e//f", b"e/f"),
        (b"a/./b", b"a/b"),
        (b"a/../b", b"b"),
        (b"a/b/../../c", b"c"),
        (b"dir/", b"dir"),
        (b".hidden", b".hidden"),
        (b"..a", b"..a"),
        (b"a/...", b"a/..."),
        (b".", b""),
        (b"./", b""),
        (b"", b""),
        (b"a\n", b"a\n"),
        (b"..\n", b"..\n"),
    ],
)
def test_names_become_paths_inside(stored, path):
    assert normalise(stored) == path
    if all_tidy([stored]):
        assert path == stored


@for_each(
    "stored, reason",
    [
        (b"..", "climbs"),
        (b"../up", "climbs"),
        (b"a/../../c", "climbs"),
        (b"/..", "climbs"),
        (b"a/../../a", "climbs"),
        (b"a\0b", "bad name"),
        (b"/".join([b"x" * 200] * 21), "name too long"),
        (b"d/" * 129 + b"f", "too deep"),
    ],
)
def test_names_without_a_path_are_hidden_and_counted(stored, reason):
    with pytest.raises(HiddenName, match=reason):
        normalise(stored)
    assert b"\0" in stored or not all_tidy([stored])
    index = scan(pax({b"path": stored}) + entry(b"short", b"x") + entry(b"next", b"y") + END)
    assert index.names() == [b"next"]
    assert index.skipped == {reason: 1}


def test_long_components_keep_start_and_extension():
    stored = b"d/" + b"k" * 300 + b".image.jpg"
    path = normalise(stored)
    component = path.split(b"/")[1]
    assert len(component) <= 255
    assert component.startswith(b"k" * 200 + b"~")
    assert component.endswith(b".image.jpg")
    assert len(component) == 200 + 1 + 8 + len(b".image.jpg")
    assert normalise(stored) == path
    assert normalise(b"d/" + b"k" * 301 + b".image.jpg") != path


def test_long_component_with_a_long_sample_extension_keeps_the_last_part():
    assert normalise(b"a." + b"b" * 300 + b".jpg").endswith(b".jpg")
    assert len(normalise(b"a." + b"b" * 300)) == 209


def test_directories_of_a_shard_show_their_mode_and_root():
    index = scan(entry(b"./", kind=b"5", mtime=5) + entry(b"./a", b"x") + END)
    assert index.names() == [b"", b"a"]
    assert index.kind(0) == MemberKind.DIRECTORY
    assert index.mode(0) == 0o555
    assert not index.flat
    assert index.data_range(0) == ByteRange(512, 512)


# Hardlinks -----------------------------------------------------------------------------------


def test_hardlink_is_the_last_earlier_member_of_that_name():
    data = entry(b"f", b"old") + entry(b"f", b"newer") + hardlink(b"./h", b"/f")
    data += entry(b"f", b"newest!") + hardlink(b"h2", b"h") + END
    index = scan(data)
    assert index.names() == [b"f", b"f", b"h", b"f", b"h2"]
    assert [index.content_row(row) for row in range(5)] == [0, 1, 1, 3, 1]
    assert index.size(4) == 5
    assert index.data_range(4) == index.data_range(1)
    assert index.mtime_ns(4) == index.mtime_ns(1)
    assert index.span(4) == index.span(1)


@for_each(
    "name, target",
    [
        (b"h", b"missing"),
        (b"h", b"later"),
        (b"h", b"h"),
        (b"f", b"f"),
        (b"h", b"../f"),
        (b"h", b"d"),
        (b"h", b""),
    ],
)
def test_hardlinks_to_nothing_or_themselves_are_hidden(name, target):
    data = entry(b"f", b"x") + entry(b"d/", kind=b"5") + hardlink(name, target)
    index = scan(data + entry(b"later", b"y") + END)
    assert index.names() == [b"f", b"d", b"later"]
    assert index.skipped == {"bad link": 1}
    assert index.data_range(2) == ByteRange(5 * BLOCK, 5 * BLOCK + 1)


def test_hardlink_to_a_symlink_is_a_symlink():
    index = scan(entry(b"f", b"x") + link(b"s", b"f") + hardlink(b"h", b"s") + END)
    assert index.kind(2) == MemberKind.SYMLINK
    assert index.link_target(2) == b"f"
    index = scan(entry(b"f", b"x") + link(b"s", b"/f") + hardlink(b"h", b"s") + END)
    assert index.names() == [b"f"]
    assert index.skipped == {"bad link": 2}


def test_rows_stay_together_when_links_before_them_vanish():
    data = hardlink(b"bad", b"x") + entry(b"f", b"ff") + link(b"s", b"f") + link(b"t", b"/")
    data += hardlink(b"h", b"f") + entry(b"g", b"ggg") + END
    index = scan(data)
    assert index.names() == [b"f", b"s", b"h", b"g"]
    assert index.content_row(2) == 0
    assert index.link_target(1) == b"f"
    found = index.read_range(3, 0, 10)
    assert data[found.start : found.stop] == b"ggg"
    assert index.skipped == {"bad link": 2}


# Symlinks ------------------------------------------------------------------------------------

TREE = entry(b"f", b"x") + entry(b"d/e/g", b"y") + entry(b"empty/", kind=b"5")


@for_each(
    "name, target",
    [
        (b"s", b"f"),
        (b"s", b"./d//e/./g"),
        (b"s", b"d/../f"),
        (b"d/s", b"../f"),
        (b"d/e/s", b"../../d/e/g"),
        (b"s", b"d"),
        (b"s", b"empty/"),
        (b"s", b"d/./"),
        (b"d/e/s", b"../../empty"),
    ],
)
def test_symlinks_inside_the_shard_are_shown(name, target):
    index = scan(TREE + link(name, target) + END)
    row = named(index)[name]
    assert index.kind(row) == MemberKind.SYMLINK
    assert index.link_target(row) == target
    assert index.size(row) == len(target)
    assert index.mode(row) == 0o555
    assert not index.skipped


@for_each(
    "name, target",
    [
        (b"s", b"/etc/passwd"),
        (b"s", b"/f"),
        (b"s", b"../f"),
        (b"d/s", b"../../f"),
        (b"d/s", b"../../shard/f"),
        (b"s", b"missing"),
        (b"s", b"f/x"),
        (b"s", b"f/"),
        (b"s", b"d/e/g/."),
        (b"s", b"missing/../f"),
        (b"s", b"s"),
        (b"s", b""),
        (b"s", b"."),
        (b"d/s", b".."),
        (b"d/e/s", b"../../d"),
    ],
)
def test_symlinks_that_leave_dangle_or_go_round_are_hidden(name, target):
    index = scan(TREE + link(name, target) + END)
    assert name not in named(index)
    assert index.skipped == {"bad link": 1}


def test_symlinks_over_others():
    chain = b"".join(link(b"s%02d" % at, b"s%02d" % (at + 1)) for at in range(30))
    index = scan(TREE + chain + link(b"s30", b"d/e") + link(b"t", b"s00/g") + END)
    assert len(index) == 3 + 32
    index = scan(TREE + chain + link(b"s30", b"/etc") + link(b"t", b"s00/g") + END)
    assert len(index) == 3
    assert index.skipped == {"bad link": 32}


def test_symlink_loops_and_endless_chains_are_refused():
    loop = link(b"a", b"b") + link(b"b", b"c/x") + link(b"c", b"a")
    chain = b"".join(link(b"s%02d" % at, b"s%02d" % (at + 1)) for at in range(45))
    index = scan(TREE + loop + chain + link(b"s45", b"f") + END)
    assert {b"a", b"b", b"c", b"s00", b"s04"}.isdisjoint(named(index))
    assert b"s10" in named(index)


def test_directories_linked_crosswise_lose_one_link():
    index = scan(entry(b"a/f", b"x") + entry(b"b/f", b"y") + link(b"a/to_b", b"../b")
                 + link(b"b/to_a", b"../a") + END)  # fmt: skip
    assert b"a/to_b" in named(index)
    assert b"b/to_a" not in named(index)


def test_number_of_directory_links_is_bounded():
    links = b"".join(link(b"l/%04d" % at, b"../d") for at in range(300))
    index = scan(TREE + links + END)
    assert index.skipped == {"bad link": 300 - 128}


def test_hostile_number_of_long_chains_is_refused_in_bounded_work():
    chain = b"".join(link(b"s%02d" % at, b"s%02d" % (at + 1)) for at in range(38))
    long = b"x/../" * 700
    many = b"".join(
        pax({b"linkpath": long + b"s00"}) + link(b"t%05d" % at, b"") for at in range(4000)
    )
    index = scan(entry(b"x/f", b"") + chain + link(b"s38", b"x/f") + many + END)
    assert b"s00" in named(index)
    assert index.skipped["bad link"] > 1000


def test_symlink_to_a_directory_of_links_that_vanish_vanishes_too():
    index = scan(link(b"only/bad", b"/etc") + link(b"s", b"only") + link(b"t", b"s") + END)
    assert len(index) == 0
    index = scan(TREE + link(b"only/good", b"../f") + link(b"s", b"only") + END)
    assert b"s" in named(index)


def test_chains_of_vanishing_directories_end():
    links = b"".join(link(b"d%02d/x" % at, b"../d%02d" % (at + 1)) for at in range(30))
    index = scan(links + link(b"d30/x", b"/") + END)
    assert len(index) == 0


def test_symlink_that_a_later_member_replaces():
    index = scan(link(b"a", b"f") + entry(b"a", b"real") + entry(b"f", b"x") + END)
    assert index.kind(named(index)[b"a"]) == MemberKind.FILE


# The columns ---------------------------------------------------------------------------------


def test_read_range_is_cut_at_the_end_of_the_member():
    index = scan(entry(b"a", b"0123456789") + END)
    assert index.read_range(0, 2, 3) == ByteRange(514, 517)
    assert index.read_range(0, 8, 100) == ByteRange(520, 522)
    assert len(index.read_range(0, 100, 5)) == 0


def test_bulk_rows_with_untidy_names_go_one_by_one():
    builder = MemberIndexBuilder(10_000)
    builder.extend([b"a", b"../b", b"c/", b"d"], [512] * 4, [1] * 4, [0] * 4, [7] * 4, bytes(4))
    index = builder.build()
    assert index.names() == [b"a", b"c", b"d"]
    assert index.kind(1) == MemberKind.DIRECTORY
    assert index.skipped == {"climbs": 1}


@for_each("backwards", [False, True])
def test_memory_per_member(backwards):
    """At most 80 bytes per member, the structure for finding names included."""
    count = 100_000
    numbers = range(count, 0, -1) if backwards else range(count)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        builder = MemberIndexBuilder(1 << 40)
        for start in range(0, count, 1000):
            names = [b"sample_%06d.image.jpg" % number for number in numbers[start : start + 1000]]
            places = range(start * 2048, (start + 1000) * 2048, 2048)
            many = [1] * 1000
            builder.extend(names, places, many, many, [1_700_000_000 * 10**9] * 1000, bytes(1000))
        index = builder.build()
        view = MembersView(index)
        assert view.directory(0).find(b"sample_000777.image.jpg") is not None
        del builder, names, places, many
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(index) == count
    assert used / count <= 80
    assert used == pytest.approx(index.nbytes + view.nbytes, rel=0.15)


def test_weight_counts_what_is_rare():
    plain = scan(entry(b"a") + entry(b"b") + END)
    linked = scan(entry(b"a") + link(b"b", b"a") + END)
    assert linked.nbytes > plain.nbytes
