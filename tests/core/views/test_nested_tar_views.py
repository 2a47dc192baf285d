"""Tars inside tars: how views show them, and what else knows of their rows."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from aisfs.core.index.member_index import MemberKind
from aisfs.core.policy.push import PushCounts, ShardPush
from aisfs.core.views.sample_views import flat_rows, samples_view
from aisfs.core.views.spec import ViewSpec
from aisfs.core.views.tree import MembersView, members_only
from aisfs.settings import KeyRule, Shards
from tests.core.index.test_nested_tars import INNER, SOUP, nested, scan
from tests.support.for_each import for_each
from tests.support.tars import END, entry

# Views ---------------------------------------------------------------------------------------


def listed(view: MembersView, number: int = 0) -> list[bytes]:
    """The paths of files and directories, as a walk finds them."""
    found = []
    for child in view.directory(number):
        found.append(child.name + (b"/" if child.directory is not None else b""))
        if child.directory is not None:
            found += [child.name + b"/" + below for below in listed(view, child.directory)]
    return found


def row_at(view: MembersView, path: bytes) -> int | None:
    child = view.resolve(path)
    assert child is not None
    assert child.directory is None
    return child.row


NESTED = b"".join(
    [
        entry(b"first", b"1"),
        entry(b"d/in.tar", entry(b"x/a", b"A") + entry(b"deep.tar", INNER) + END),
        entry(b"last", b"2"),
        END,
    ]
)
FILES = [b"first", b"d/", b"d/in.tar", b"last"]


def test_folders_are_found_and_not_listed_where_shards_are_files():
    view = MembersView(scan(NESTED))
    assert listed(view) == FILES
    assert [child.name for child in view.directory(0)] == [b"first", b"d", b"last"]
    folder = view.resolve(b"d/in.tar.d")
    assert folder is not None
    assert folder.name == b"in.tar.d"
    assert listed(view, folder.directory) == [b"x/", b"x/a", b"deep.tar"]
    assert view.directory(folder.directory).path == b"d/in.tar.d"
    assert row_at(view, b"d/in.tar.d/deep.tar.d/a") == len(view.index) - 2
    assert view.resolve(b"d/in.tar.raw") is None
    assert view.resolve(b"in.tar.d") is None


def test_folders_have_the_name_of_the_tar_where_shards_are_directories():
    view = MembersView(scan(NESTED), shards=Shards.DIR)
    assert listed(view) == [
        *(b"first", b"d/", b"d/in.tar/", b"d/in.tar/x/", b"d/in.tar/x/a"),
        *(b"d/in.tar/deep.tar/", b"d/in.tar/deep.tar/a", b"last"),
    ]
    row = row_at(view, b"d/in.tar.raw")
    assert view.index.name(row) == b"d/in.tar"
    assert view.index.name(row_at(view, b"d/in.tar/deep.tar.raw")) == b"d/in.tar.d/deep.tar"
    assert view.resolve(b"d/in.tar.d") is None


def test_both_are_listed_where_shards_are_both():
    view = MembersView(scan(NESTED), shards=Shards.BOTH)
    inner = [b"x/", b"x/a", b"deep.tar", b"deep.tar.d/", b"deep.tar.d/a"]
    below = [b"d/in.tar.d/" + name for name in inner]
    assert listed(view) == [b"first", b"d/", b"d/in.tar", b"d/in.tar.d/", *below, b"last"]


def test_datasets_show_members_alone():
    inner = [b"x/", b"x/a", b"deep.tar.d/", b"deep.tar.d/a"]
    below = [b"d/in.tar.d/" + name for name in inner]
    assert listed(members_only(scan(NESTED))) == [b"first", b"d/", b"d/in.tar.d/", *below, b"last"]
    assert listed(members_only(scan(NESTED, nesting=0))) == FILES


def test_samples_and_flat_show_members_alone_with_keys_of_the_whole_path():
    inner = entry(b"s/1.jpg", b"J") + entry(b"s/1.cls", b"3") + END
    index = scan(entry(b"in.tar", inner) + END)
    names = [index.name(row) for row in flat_rows(index, ViewSpec())[0]]
    assert names == [b"in.tar.d/s/1.jpg", b"in.tar.d/s/1.cls"]
    view = samples_view(index, ViewSpec(rule=KeyRule.WDS))
    below = [b"s/", b"s/1/", b"s/1/1.jpg", b"s/1/1.cls"]
    assert listed(view) == [b"in.tar.d/", *(b"in.tar.d/" + name for name in below)]


@for_each("shards", Shards)
def test_real_directories_keep_their_names(shards):
    data = [entry(b"in.tar", INNER), entry(b"in.tar/real", b"r"), entry(b"in.tar.raw", b"w"), END]
    view = MembersView(scan(b"".join(data)), shards=shards)
    assert view.index.name(row_at(view, b"in.tar/real")) == b"in.tar/real"
    assert view.index.name(row_at(view, b"in.tar~file")) == b"in.tar"
    assert view.index.name(row_at(view, b"in.tar.raw")) == b"in.tar.raw"
    assert view.index.name(row_at(view, b"in.tar.d/a")) == b"in.tar.d/a"


def test_a_real_member_has_the_name_of_the_bytes():
    data = entry(b"in.tar", INNER) + entry(b"in.tar.raw", b"w") + END
    view = MembersView(scan(data), shards=Shards.DIR)
    assert listed(view) == [b"in.tar/", b"in.tar/a", b"in.tar.raw"]
    assert view.index.name(row_at(view, b"in.tar.raw")) == b"in.tar.raw"


@given(nested(), st.sampled_from(Shards))
@settings(max_examples=100, deadline=None)
def test_every_member_is_found_under_its_name_and_listed_at_most_once(data, shards):
    view = MembersView(scan(data), shards=shards)
    index = view.index
    paths = listed(view)
    assert len(paths) == len(set(paths))
    for row in range(len(index)):
        if index.kind(row) is MemberKind.DIRECTORY:
            continue
        path = index.name(row)
        if shards is Shards.DIR:
            path = path.replace(b".tar.d/", b".tar/") + (b".raw" if index.opened(row) else b"")
        assert row_at(view, path) == row
        hidden = index.opened(row) if shards is Shards.DIR else b".tar.d/" in path
        assert (path in paths) == (not hidden or shards is Shards.BOTH)


@given(SOUP, st.sampled_from(Shards))
@settings(max_examples=100, deadline=None)
def test_names_that_meet_are_listed_once_and_can_be_looked_up(data, shards):
    index = scan(data)
    view = MembersView(index, shards=shards)
    for paths in (listed(view), listed(members_only(index))):
        assert len({path.rstrip(b"/") for path in paths}) == len(paths)
    for path in listed(view):
        child = view.resolve(path.rstrip(b"/"))
        assert child is not None
        assert (child.directory is not None) == path.endswith(b"/")


def test_what_is_in_a_tar_in_the_shard_is_known():
    view = MembersView(scan(NESTED))
    inside = {view.path(number): view.in_opened_tar(number) for number in range(len(view))}
    assert inside == {
        b"": False,
        b"d": False,
        b"d/in.tar.d": True,
        b"d/in.tar.d/x": True,
        b"d/in.tar.d/deep.tar.d": True,
    }


# What else knows of rows ---------------------------------------------------------------------


def test_only_what_has_bytes_of_its_own_is_pushed():
    index = scan(NESTED)
    push = ShardPush(index, PushCounts())
    push.listed(range(len(index)))
    while hand := push.next(1 << 30):
        assert not any(map(index.opened, hand))
        ranges = [index.data_range(row) for row in hand]
        assert all(a.stop <= b.start for a, b in pairwise(ranges))
        push.settle(len(hand))
