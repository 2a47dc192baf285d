"""Directory listings: complete, without clashes, with offsets that outlive a change."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.names.listing import ListingBuilder, Refusal
from aisfs.model import ObjectInfo, Page


def page(*keys, directories=()):
    return Page([ObjectInfo(key, len(key)) for key in keys], list(directories), "")


def listing_of(prefix, pages, previous=None, wanted=None):
    builder = ListingBuilder(prefix, wanted)
    for each in pages:
        builder.add(each)
    return builder.finish(previous)


def names(listing, offset=0):
    return [name for _, name, _ in listing.after(offset)]


def test_objects_and_directories_of_all_pages():
    listing = listing_of("a/", [page("a/x", directories=["a/d/"]), page("a/y")])
    assert set(names(listing)) == {b"x", b"y", b"d"}
    assert listing[b"x"] == ObjectInfo("a/x", 3)
    assert listing[b"d"] is None


def test_directory_hides_the_object_of_its_name_and_counts_it():
    listing = listing_of("", [page("p", directories=["p/"])])
    assert listing[b"p"] is None
    assert listing.refused == {Refusal.HIDDEN_BY_DIRECTORY: 1}


def test_names_that_cannot_be_are_counted():
    listing = listing_of("", [page("ok", "a" * 256, "a\0", "x/")])
    assert names(listing) == [b"ok"]
    assert listing.refused == {Refusal.TOO_LONG: 1, Refusal.NUL: 1, Refusal.EMPTY_COMPONENT: 1}


def test_components_that_no_path_has_get_names():
    listing = listing_of("", [page("ok", "..", "aisfs-dot", directories=["/", "./"])])
    assert sorted(names(listing)) == [
        *(b"aisfs-aisfs-dot", b"aisfs-dot", b"aisfs-dotdot", b"aisfs-empty", b"ok")
    ]
    assert not listing.refused


def test_what_the_store_cannot_be_asked_for_is_counted():
    builder = ListingBuilder("d/")
    builder.add(Page([], [], "", unusable=["d//", "d/./", "d/.."]))
    assert builder.finish().refused == {Refusal.EMPTY_COMPONENT: 1, Refusal.DOTS: 2}


def test_marker_object_of_the_directory_itself_is_no_entry():
    listing = listing_of("a/", [page("a/", "a/x")])
    assert names(listing) == [b"x"]
    assert not listing.refused


PARTS = st.sampled_from(
    [
        "",
        ".",
        "..",
        "aisfs-dot",
        "aisfs-dots",
        "a",
        "b",
        "c/",
        "/",
        "x\0y",
        "\udcff",
        "é",
        "n" * 255,
        "n" * 256,
    ]
)


@given(st.lists(st.lists(PARTS.map("d/".__add__)), min_size=1), st.sampled_from(["", "d/"]))
def test_names_taken_all_at_once_are_those_taken_one_by_one(pages, prefix):
    at_once = listing_of(prefix, [page(*keys) for keys in pages])
    one_by_one = listing_of(prefix, [page(*keys) for keys in pages], wanted=lambda _: True)
    assert list(at_once.after(0)) == list(one_by_one.after(0))
    assert at_once.refused == one_by_one.refused


def test_objects_are_given_up_to_a_directory_or_a_name_that_is_not_wanted():
    listing = listing_of("", [page("a", "b", "c", directories=["d/"])])
    places, found, objects = listing.objects_after(1, 10)
    assert (list(places), found) == ([2, 3], [b"b", b"c"])
    assert objects == [listing[b"b"], listing[b"c"]]
    assert listing.objects_after(1, 1)[1] == [b"b"]
    assert listing.objects_after(0, 10, lambda name: name != b"b")[1] == [b"a"]
    assert listing.objects_after(3, 10)[1] == []


@given(st.lists(st.sets(st.sampled_from("abcdefgh")), min_size=1, max_size=6), st.data())
def test_reader_sees_each_lasting_name_once_however_the_directory_changes(generations, data):
    """One reader goes on behind its last offset while the directory is listed anew again and again."""
    previous = None
    offset = 0
    seen = Counter()
    for keys in generations:
        previous = listing_of("", [page(*sorted(keys))], previous)
        for taken, (place, name, _) in enumerate(list(previous.after(offset))):
            if taken >= data.draw(st.integers(0, 4)):
                break
            seen[name] += 1
            offset = place
    assert previous is not None
    for _, name, _ in previous.after(offset):
        seen[name] += 1
    for letter in set.intersection(*generations):
        assert seen[letter.encode()] == 1
