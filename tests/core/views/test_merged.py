"""Members of many shards in common directories: every file is there once, under a name of its own."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.names.listing import NAME_MAX
from aisfs.core.views.merged import MergedView
from aisfs.core.views.sample_views import flat_name, flat_rows, place_flat
from aisfs.core.views.spec import Component, ViewSpec
from aisfs.settings import View
from tests.core.views.test_samples import index_of
from tests.support.for_each import for_each

FLAT = ViewSpec(View.FLAT)


def flat(*shards: MemberIndex, spec: ViewSpec = FLAT) -> MergedView:
    placed = []
    for number, index in enumerate(shards):
        rows, _ = flat_rows(index, spec)
        placed.append(place_flat(b"s%d" % number, index, rows))
    return MergedView(placed, flat_name)


def listing(view: MergedView) -> list[tuple[str, int, int]]:
    """All files with shard and row, in the order of a walk."""
    found, pending = [], [(0, b"")]
    while pending:
        number, path = pending.pop(0)
        for child in view.children(number):
            if child.directory is None:
                found.append(((path + child.name).decode(), child.shard, child.row))
            else:
                pending.append((child.directory, path + child.name + b"/"))
    return found


def test_files_come_in_the_order_of_shards_and_tars():
    view = flat(index_of("b.jpg", "a.jpg"), index_of("d/c.jpg", "0.jpg"))
    assert listing(view) == [("b.jpg", 0, 0), ("a.jpg", 0, 1), ("0.jpg", 1, 1), ("d/c.jpg", 1, 0)]


@for_each(
    "shards, names",
    [
        ([["a.jpg"], ["a.jpg"]], ["a.jpg", "a~s1.jpg"]),
        ([["a.jpg"], ["a.cls"]], ["a.jpg", "a.cls"]),
        ([["a.jpg", "a.cls"], ["a.jpg", "a.cls"]], ["a.jpg", "a.cls", "a~s1.jpg", "a~s1.cls"]),
        ([["a.jpg"], ["a.jpg", "a.cls"]], ["a.jpg", "a~s1.jpg", "a~s1.cls"]),
        ([["a.jpg", "a~s1.jpg"], ["a.jpg"]], ["a.jpg", "a~s1.jpg", "a~s1~2.jpg"]),
        ([["a.jpg", "b.jpg", "a.jpg"]], ["b.jpg", "a.jpg"]),
        ([["foo"], ["foo/bar"]], ["foo~file", "foo/bar"]),
        ([["d/a.jpg"], ["a.jpg"], ["d/a.jpg"]], ["a.jpg", "d/a.jpg", "d/a~s2.jpg"]),
        ([["README"], ["README"]], ["README", "README~s1"]),
    ],
)
def test_clashes(shards, names):
    assert [name for name, _, _ in listing(flat(*(index_of(*s) for s in shards)))] == names


def test_only_a_file_whose_new_name_would_be_too_long_is_left_out():
    longest = "a" * (NAME_MAX - len("~s1.jpg")) + ".jpg"
    view = flat(index_of(longest), index_of(longest))
    assert [len(name) for name, _, _ in listing(view)] == [len(longest), NAME_MAX]
    view = flat(index_of("a" + longest), index_of("a" + longest))
    assert listing(view) == [("a" + longest, 0, 0)]
    assert view.skipped["clash"] == 1


def test_incomplete_samples_are_left_out():
    spec = ViewSpec(View.FLAT, require=(Component((b"cls",)),))
    view = flat(index_of("a.jpg", "a.cls", "b.jpg"), spec=spec)
    assert [name for name, _, _ in listing(view)] == ["a.jpg", "a.cls"]


PATHS = st.sampled_from(
    ["a.x", "a.y", "a", "a/b.x", "b.x", "a~s1.x", "b/a.x", "c", "a/b", "b~file"]
)


@given(st.lists(st.lists(PATHS, max_size=6), max_size=4))
def test_every_file_has_one_name_by_which_it_is_found(shards: list[list[str]]):
    indexes = [index_of(*names) for names in shards]
    view = flat(*indexes)
    found = listing(view)
    paths = [path for path, _, _ in found]
    assert len(set(paths)) == len(paths)
    for path, shard, row in found:
        folder, _, name = path.rpartition("/")
        number = view.resolve(folder.encode())
        child = view.find(number, name.encode())
        assert (child.shard, child.row, child.directory) == (shard, row, None)
    last = {(at, name): row for at, names in enumerate(shards) for row, name in enumerate(names)}
    shown = {(shard, row) for _, shard, row in found}
    assert shown <= {(at, row) for (at, _), row in last.items()}, "the last of each shard wins"
    assert len(shown) == len(last) - view.skipped["clash"]
    assert view.find(0, b"nothing") is None
    assert view.resolve(b"nothing/at/all") is None


@given(st.lists(st.lists(PATHS, max_size=6), max_size=4))
def test_parts_of_two_samples_never_get_one_key(shards: list[list[str]]):
    """Where a name clashes the whole sample moves: its parts stay together."""
    view = flat(*(index_of(*names) for names in shards))
    by_name = {(shard, row): path for path, shard, row in listing(view)}
    for at, names in enumerate(shards):
        rows = {name: row for row, name in enumerate(names) if name in ("a.x", "a.y")}
        if len(rows) == 2:
            keys = {by_name[at, row].partition(".")[0] for row in rows.values()}
            assert len(keys) == 1


def test_what_touches_a_shard():
    view = flat(index_of("a.x", "d/a.x"), index_of("b.x"))
    assert list(view.touching(1)) == [b"d", b"b.x"]


def test_memory_is_twelve_bytes_a_file():
    index = index_of(*(f"{n:06}.jpg" for n in range(5000)))
    rows = array("I", range(5000))
    view = MergedView([place_flat(b"s", index, rows)], flat_name)
    assert view.nbytes <= 12 * 5000 + 1000
