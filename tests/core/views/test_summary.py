"""The numbers of `aisfs inspect`."""

import statistics
from array import array
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.views.summary import LABELS_MAX, Summary, extension, holes, sizes_of
from aisfs.core.views.tree import MembersView
from tests.support.archives import make_tar
from tests.support.tars import END, entry, scan


def view_of(data: bytes) -> MembersView:
    return MembersView(scan(data))


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=50))
def test_sizes(values):
    sizes = sizes_of(array("Q", values))
    assert sizes.count == len(values)
    assert (sizes.min, sizes.max, sizes.total) == (min(values), max(values), sum(values))
    assert sizes.median == statistics.median_low(values)


KEYS = st.text("ab/", min_size=1, max_size=4).map(lambda key: key.strip("/") or "a")
EXTENSIONS = st.sampled_from(["jpg", "seg.png", "cls", "CLS"])


@given(
    st.lists(
        st.tuples(KEYS, EXTENSIONS, st.binary(max_size=5)), max_size=30, unique_by=lambda m: m[:2]
    )
)
def test_samples_and_components(members):
    tidy = [(key, ext, data) for key, ext, data in members if "//" not in key]
    data = make_tar({f"{key}.{ext}": data for key, ext, data in tidy})
    summary = Summary()
    rows = summary.add(view_of(data), len(data))
    assert summary.samples == len({key for key, _, _ in tidy})
    counts = {name.decode(): sizes.count for name, sizes in summary.components()}
    assert counts == Counter(ext for _, ext, _ in tidy)
    assert len(rows) == counts.get("cls", 0) + counts.get("CLS", 0)
    assert summary.members == len(tidy)
    assert summary.bytes == len(data)


def test_members_of_no_sample():
    for name in (b"README", b".hidden.jpg", b"dir/.DS_Store", b"dir.v1/plain"):
        assert extension(name) is None
    assert extension(b"dir.v1/a.b.c") == b"b.c"


def test_what_is_hidden_by_another_is_not_counted():
    data = entry(b"a.txt", b"1") + entry(b"a.txt", b"22") + entry(b"b.txt", b"3") + END
    both = Summary()
    both.add(view_of(data), 1)
    assert both.members == 2
    assert both.skipped == {"duplicate": 1}
    assert dict(both.components())[b"txt"].total == 3


def test_labels():
    summary = Summary()
    for label in (b"1\n", b"1", None, b"2"):
        summary.add_label(label)
    assert summary.labels == {b"1": 2, b"2": 1}
    assert summary.labels_left_out == 1
    for number in range(LABELS_MAX + 5):
        summary.add_label(b"x%d" % number)
    assert len(summary.labels) == LABELS_MAX


@given(st.sets(st.integers(0, 60), min_size=2), st.sampled_from(["", "dir/", "v2/a-"]))
def test_holes_are_the_numbers_between(there, before):
    names = [f"{before}x-{number:04}.tar.gz".encode() for number in there]
    missing = set(range(min(there), max(there))) - there
    expected = {f"{before}x-{number:04}.tar.gz".encode() for number in missing}
    assert set(holes(names)) == expected


def test_names_that_make_no_sequence():
    assert not list(holes([b"a-1.tar", b"b-3.tar", b"plain.tar", b"x"]))
    assert not list(holes([b"x-20240101.tar", b"x-20250101.tar"]))
    assert list(holes([b"x-0.tar", b"x-2.tar", b"y-0001.tar", b"y-0003.tar"])) == [
        b"x-1.tar",
        b"y-0002.tar",
    ]
