"""What the folders of shards are called."""

from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.views.merged import folder_names
from tests.support.for_each import for_each


@for_each(
    "keys, names",
    [
        (["a/x-0.tar", "x-1.tar"], ["x-0", "x-1"]),
        (["train/0.tar", "val/0.tar", "val/1.tar"], ["train~0", "val~0", "1"]),
        (["a/d/0.tar", "b/d/0.tar"], ["a~d~0", "b~d~0"]),
        (["0.tar", "d/0.tar"], ["b~0", "d~0"]),
    ],
)
def test_names(keys: list[str], names: list[str]):
    assert folder_names([("b", key) for key in keys]) == [name.encode() for name in names]


def test_shards_of_two_buckets():
    assert folder_names([("a", "0.tar"), ("b", "0.tar")]) == [b"a~0", b"b~0"]


KEYS = st.text("ab~/", min_size=1, max_size=5).map(lambda text: f"{text}x.tar")


@given(st.lists(st.tuples(st.sampled_from("ab"), KEYS), max_size=8, unique=True))
def test_no_two_names_are_equal(shards: list[tuple[str, str]]):
    names = folder_names(shards)
    assert len(set(names)) == len(shards)
    assert not any(b"/" in name for name in names)


def test_long_names_are_cut_at_the_front():
    long = "x" * 300
    names = folder_names([("b", f"{long}/a.tar"), ("b", f"{long}y/a.tar"), ("b", "c/d/a.tar")])
    assert all(len(name) <= 255 for name in names)
    assert len(set(names)) == 3
