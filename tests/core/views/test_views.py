"""The directory tree of a shard against a dict of what it ought to be."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aisfs.core.index.builder import MemberIndexBuilder
from aisfs.core.index.member_index import MemberKind
from aisfs.core.views.tree import Directory, MembersView

FILE, DIRECTORY = MemberKind.FILE, MemberKind.DIRECTORY


def build(*names: bytes, mtimes: dict[bytes, int] | None = None) -> MembersView:
    """A view of members; names that end in a slash are directories."""
    builder = MemberIndexBuilder(1 << 30)
    for at, name in enumerate(names):
        kind = DIRECTORY if name.endswith(b"/") else FILE
        builder.add(name, 512 * at, 1, 1, (mtimes or {}).get(name, 0), kind)
    return MembersView(builder.build())


def tree(view: MembersView, number: int = 0) -> dict:
    """Nested dicts: directories to dicts, members to rows."""
    return {
        child.name: child.row if child.directory is None else tree(view, child.directory)
        for child in view.directory(number)
    }


def test_shard_of_its_root_only():
    view = build(b"./", mtimes={b"./": 5})
    assert tree(view) == {}
    assert view.directory(0).mtime_ns == 5


def test_directory_members_give_the_time_even_when_late():
    view = build(b"a/f", b"a/", b"a/", b"/", mtimes={b"a/": 7, b"/": 9})
    assert tree(view) == {b"a": {b"f": 0}}
    assert view.directory(0).mtime_ns == 9
    assert view.directory(1).mtime_ns == 7
    assert view.directory(0).find(b"a") == (b"a", 2, 1)
    assert not view.skipped


def test_order_is_that_of_first_appearance():
    view = build(b"z", b"d/2", b"a", b"d/1", b"d/0", b"c/x")
    assert [child.name for child in view.directory(0)] == [b"z", b"d", b"a", b"c"]
    assert [child.name for child in view.directory(1)] == [b"2", b"1", b"0"]
    assert [child.name for child in view.directory(1).children(2)] == [b"0"]


def test_name_that_cannot_be_made_longer_is_counted():
    name = b"n" * 254
    view = build(name, name + b"/x")
    assert tree(view) == {name: {b"x": 1}}
    assert view.skipped == {"clash": 1}


def test_what_is_hidden_is_counted_by_reason():
    view = build(b"../a", b"b", b"b", b"foo", b"foo/bar", b"foo~file")
    assert view.skipped == {"climbs": 1, "duplicate": 1, "clash": 1}
    assert tree(view) == {b"b": 1, b"foo": {b"bar": 3}, b"foo~file": 4}


# Against a model -----------------------------------------------------------------------------

COMPONENT = st.sampled_from([b"a", b"b", b"c.jpg", b"a~file", b"\xff", b"d"])
PATH = st.lists(COMPONENT, min_size=1, max_size=4).map(b"/".join)
NAME = st.tuples(PATH, st.sampled_from([b"", b"", b"/"])).map(b"".join)


def model(names: list[bytes]) -> dict[bytes, int | None]:
    """Every path there is, to its row; None for directories."""
    files = {name: row for row, name in enumerate(names) if not name.endswith(b"/")}
    paths: dict[bytes, int | None] = {}
    for name in names:
        parts = name.rstrip(b"/").split(b"/")
        whole = len(parts) if name.endswith(b"/") else len(parts) - 1
        for depth in range(1, whole + 1):
            paths[b"/".join(parts[:depth])] = None
    for name, row in files.items():
        if name not in paths:
            paths[name] = row
        elif name + b"~file" not in paths and name + b"~file" not in files:
            paths[name + b"~file"] = row
    return paths


def walk(view: MembersView, directory: Directory):
    for position, child in enumerate(directory):
        rows, names = directory.plain_files(position, 3)
        assert len(rows) == len(names) <= 3
        for at, (row, name) in enumerate(zip(rows, names, strict=True), start=position):
            assert directory.child(at) == (name, row, None)
        if not rows:
            assert child.directory is not None or child.name.endswith(b"~file")
        assert directory.child(position) == child
        assert directory.find(child.name) == child
        path = directory.path + b"/" + child.name if directory.path else child.name
        if child.directory is None:
            yield path, child.row
        else:
            below = view.directory(child.directory)
            assert below.path == path
            assert below.parent == directory.number
            yield path, None
            yield from walk(view, below)


@given(st.lists(NAME, max_size=30))
@example([])
@settings(max_examples=300, deadline=None)
def test_view_is_the_tree_of_the_model(names):
    view = build(*names)
    found = list(walk(view, view.directory(0)))
    assert len(found) == len(dict(found))
    assert dict(found) == model(names)
    shown = sum(row is not None for _, row in found)
    files = sum(not name.endswith(b"/") for name in names)
    assert shown + sum(view.skipped.values()) == files
    for path, row in found:
        child = view.resolve(path)
        assert child is not None
        assert (child.directory is None) == (row is not None)
        assert child.row == row or row is None
        assert view.resolve(path + b"/none") is None
    assert view.resolve(b"") == (b"", view.directory_row(0), 0)
    directory = view.directory(0)
    for position in (-1, len(directory)):
        with pytest.raises(IndexError):
            directory.child(position)


@given(st.lists(st.binary(min_size=1, max_size=4).filter(lambda n: not set(n) & set(b"/.\0"))))
@settings(deadline=None)
def test_find_in_a_flat_shard_of_any_order(names):
    view = build(*names)
    root = view.directory(0)
    last = {name: row for row, name in enumerate(names)}
    assert {child.name: child.row for child in root} == last
    for name, row in last.items():
        assert root.find(name) == (name, row, None)
        missing = root.find(name + b"!")
        assert (missing is None) == (name + b"!" not in last)


def test_members_in_absurdly_many_directories_are_left_out_and_counted(monkeypatch):
    monkeypatch.setattr("aisfs.core.views.tree.MAX_DIRECTORIES", 3)
    view = build(*(f"d{n}/file".encode() for n in range(10)), b"plain")
    assert set(tree(view)) == {b"d0", b"d1", b"d2"}
    assert view.skipped == {"too many directories": 8}
