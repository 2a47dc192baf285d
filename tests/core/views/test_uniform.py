"""Shards whose samples are alike are chosen at once, with the result of the general rules."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.archive.tar_scanner import TarScanner
from aisfs.core.views import sample_views
from aisfs.core.views.sample_views import LabelScan, labelled_samples
from aisfs.core.views.samples import Samples
from aisfs.core.views.spec import Component, ViewSpec
from aisfs.core.views.tree import uniform_samples
from aisfs.settings import View
from tests.support.tars import entry

KEYS = st.text(st.sampled_from("ab0_"), min_size=1, max_size=3)
PLACES = st.sampled_from(["", "", "", "d/", "d.e/", "./"])
EXTENSIONS = st.sampled_from(["jpg", "cls", "JPG", "png", "json", "a.jpg", "", "x.cls", "jpeg"])


@st.composite
def names(draw) -> list[str]:
    """Names of samples that are alike, but perhaps for one."""
    components = draw(st.lists(EXTENSIONS, min_size=1, max_size=4))
    keys = draw(st.lists(st.tuples(PLACES, KEYS), min_size=1, max_size=5))
    made = [
        f"{place}{key}.{extension}" if extension else f"{place}{key}"
        for place, key in keys
        for extension in components
    ]
    change = draw(st.sampled_from(["none", "none", "drop", "double", "odd"]))
    at = draw(st.integers(0, len(made) - 1))
    if change == "drop":
        del made[at]
    elif change == "double":
        made.insert(at, made[draw(st.integers(0, len(made) - 1))])
    elif change == "odd":
        made.insert(at, draw(st.sampled_from([".x.jpg", "__m__/a.jpg", "n", "q.jpg", "d/r.cls"])))
    return made


def scanned(members: list[str], spec: ViewSpec):
    content = b"".join(
        entry(name.encode(), b"%d" % (number % 3)) for number, name in enumerate(members)
    ) + bytes(1024)
    scanner = TarScanner(len(content))
    labels = LabelScan(spec.label, scanner.rows)
    scanner.feed(memoryview(content))
    labels.feed(0, memoryview(content))
    index = scanner.finish()
    return index, labels.finish(index)


@given(names(), st.sampled_from([b"jpg", b"png", b"cls"]))
def test_the_same_rows_and_labels_as_by_the_general_rules(members, image):
    spec = ViewSpec(View.CLASS, image=Component((image, b"jpeg")))
    index, column = scanned(members, spec)
    quick = labelled_samples(index, spec, column, None)
    slow = _by_general_rules(index, spec, column)
    assert _rows_of(quick) == _rows_of(slow)
    assert quick.skipped == slow.skipped


@given(names())
def test_the_same_samples_as_by_the_general_rules(members):
    index, _ = scanned(members, ViewSpec(View.CLASS))
    alike = uniform_samples(index)
    if alike is None:
        return
    samples = Samples(index, ViewSpec().rule, ())
    expected = [(part.row, part.key, part.extension.lower()) for part in samples]
    step = len(alike.extensions)
    assert expected == [
        (number * step + at, key, extension)
        for number, key in enumerate(alike.keys)
        for at, extension in enumerate(alike.extensions)
    ]
    assert samples.skipped == Counter()


def test_usual_shards_are_chosen_at_once():
    members = [f"{n:06}.{extension}" for n in range(50) for extension in ("cls", "jpg")]
    index, _ = scanned(members, ViewSpec(View.CLASS))
    alike = uniform_samples(index)
    assert alike is not None
    assert alike.extensions == [b"cls", b"jpg"]
    assert alike.rows_of(1) == range(1, 100, 2)


def _by_general_rules(index, spec, column):
    quick = sample_views.uniform_samples
    sample_views.uniform_samples = lambda _: None
    try:
        return labelled_samples(index, spec, column, None)
    finally:
        sample_views.uniform_samples = quick


def _rows_of(found):
    return [(row, found.table[at]) for row, at in zip(found.rows, found.ids, strict=True)]
