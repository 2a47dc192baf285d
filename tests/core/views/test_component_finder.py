"""Which part of a sample `--image` and `--require` mean, against a plain reading of the rule."""

from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.views.sample_views import (
    NO_IMAGE,
    NO_LABEL,
    UNCLEAR_IMAGE,
    class_namer,
    label_column,
    labelled_samples,
)
from aisfs.core.views.samples import (
    AMBIGUOUS,
    INCOMPLETE,
    MISSING,
    ComponentFinder,
    Samples,
    has_component,
)
from aisfs.core.views.spec import Component, ViewSpec, parse_view
from aisfs.core.views.summary import Summary
from aisfs.settings import ViewSettings
from tests.core.views.test_samples import MembersView, index_of
from tests.support.for_each import for_each

EXTENSIONS = st.sampled_from(["jpg", "JPG", "a.jpg", "A.Jpg", "b.jpg", "png", "m.png", "xjpg", "jpg.cls"])  # fmt: skip
COMPONENTS = st.lists(st.sampled_from([b"jpg", b"png", b"a.jpg"]), min_size=1, unique=True)


def meant(component: Component, extensions: list[str]) -> int:
    """The place of the part, as the documentation has it."""
    said = [extension.lower() for extension in extensions]
    wanted = [extension.decode() for extension in component.extensions]
    for extension in wanted:
        if extension in said:
            return max(at for at, each in enumerate(said) if each == extension)
    for extension in wanted:
        parts = {each for each in said if each.endswith(f".{extension}")}
        if parts:
            last = max(at for at, each in enumerate(said) if each in parts)
            return last if len(parts) == 1 else AMBIGUOUS
    return MISSING


@given(COMPONENTS, st.lists(EXTENSIONS, min_size=1, max_size=6))
def test_the_part_that_is_meant(extensions: list[bytes], names: list[str]):
    component = Component(tuple(extensions))
    finder = ComponentFinder(component)
    for row, name in enumerate(names):
        finder.offer(b"k", row, name.encode())
    assert list(finder) == [(b"k", meant(component, names))]
    has = meant(component, names) >= 0
    assert has_component(component, [name.encode() for name in names]) == has
    index = index_of(*(f"k.{name}" for name in names))
    samples = Samples(index, ViewSpec().rule, (component,))
    assert (len(list(samples)), samples.skipped[INCOMPLETE]) == ((len(names), 0) if has else (0, 1))


def test_all_pictures_of_a_class_view():
    names = ["a.cls", "a.left.jpg", "a.right.JPG", "a.png", "a.txt", "b.cls", "b.txt", "c.jpg"]
    index = index_of(*names)
    spec = parse_view(ViewSettings.load({"view": "class", "image": "all"}))
    found = labelled_samples(index, spec, label_column([(0, b"7"), (5, b"8")]), None)
    shown = [index.name(row).decode() for row in found.rows]
    assert shown == ["a.left.jpg", "a.right.JPG", "a.png"]
    assert dict(found.skipped) == {NO_IMAGE: 1, NO_LABEL: 1}
    assert [class_namer(spec)(b"d/" + name.encode()) for name in shown] == [
        name.encode() for name in shown
    ]


@for_each(
    "names, shown, reason",
    [
        (["a.cls", "a.image.jpg", "a.trimap.png"], "a.image.jpg", None),
        (["a.cls", "a.image.jpg", "a.png"], "a.png", None),
        (["a.cls", "a.left.jpg", "a.right.jpg"], None, UNCLEAR_IMAGE),
        (["a.cls", "a.left.jpg", "a.right.jpg", "a.jpeg"], "a.jpeg", None),
        (["a.cls", "a.txt"], None, NO_IMAGE),
    ],
)
def test_the_picture_of_a_class_view(names: list[str], shown: str | None, reason: str | None):
    index = index_of(*names)
    found = labelled_samples(index, ViewSpec(), label_column([(0, b"7")]), None)
    assert [index.name(row).decode() for row in found.rows] == ([shown] if shown else [])
    assert dict(found.skipped) == ({reason: 1} if reason else {})
    summary = Summary()
    summary.add(MembersView(index), index.object_size)
    assert (summary.samples, summary.images) == (1, len(found.rows))
