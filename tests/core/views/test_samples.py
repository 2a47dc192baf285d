"""Which members belong together, by each rule, compared with what the tools themselves do."""

import io
import json
import tarfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.views.sample_views import samples_view
from aisfs.core.views.samples import SPLITS
from aisfs.core.views.spec import Component, ViewSpec
from aisfs.core.views.tree import MembersView
from aisfs.settings import KeyRule, View
from tests.mount.datasets import webdataset
from tests.support.for_each import for_each
from tests.support.tars import scan

VECTORS = json.loads(Path(__file__).with_name("wds_vectors.json").read_text())
COLUMNS = {
    KeyRule.WDS: "wds",
    KeyRule.LAST_DOT: "ais_wdskey",
    KeyRule.BASENAME: "ais_reader",
}


def index_of(*names: str, data: bytes = b"x") -> MemberIndex:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            if name.endswith("@"):
                info.name, info.type, info.linkname = name[:-1], tarfile.SYMTYPE, names[0]
                tar.addfile(info)
            else:
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return scan(buffer.getvalue())


def tree(view: MembersView) -> list[str]:
    return sorted(
        f"{view.path(number).decode()}/{child.name.decode()}".lstrip("/")
        for number in range(len(view))
        for child in view.directory(number)
        if child.directory is None
    )


@for_each("rule", KeyRule)
@for_each("name", VECTORS)
def test_every_rule_splits_as_its_tool(rule: KeyRule, name: str):
    said = VECTORS[name][COLUMNS[rule]]
    split = SPLITS[rule](name.encode())
    if isinstance(said, str):
        assert said.startswith("skip")
        # That webdataset skips metadata is a matter of what is shown, not of the key.
        assert split is None or said == "skip(meta)"
        return
    key, extension = said
    if rule is KeyRule.LAST_DOT:
        extension = extension.removeprefix(".")
    assert split is not None
    found = split[1].lower() if rule is KeyRule.WDS else split[1]  # webdataset folds case
    assert (split[0].decode(), found.decode()) == (key, extension)


@given(st.text("aB./_\n", min_size=1, max_size=12))
def test_keys_are_those_of_webdataset(name: str):
    key, extension = webdataset().tariterators.base_plus_ext(name)
    assert SPLITS[KeyRule.WDS](name.encode()) == (
        None if key is None else (key.encode(), extension.encode())
    )


@for_each(
    "rule, found",
    [
        (KeyRule.WDS, ["d/b/b.jpg", "d/b/b.seg.png", "README/README", "a/a.jpg"]),
        (KeyRule.LAST_DOT, ["d/b.seg/b.seg.png", "d/b/b.jpg", "README/README", "a/a.jpg"]),
        (KeyRule.BASENAME, ["README/README", "a/a.jpg", "b/b.jpg", "b/b.seg.png"]),
    ],
)
def test_each_sample_has_a_folder(rule: KeyRule, found: list[str]):
    index = index_of("a.jpg", "d/b.jpg", "d/b.seg.png", "README")
    view = samples_view(index, ViewSpec(View.SAMPLES, rule))
    assert tree(view) == sorted(found)


def test_what_is_no_sample_is_left_out_and_counted():
    names = ("a.jpg", ".hidden.jpg", "d/._a.jpg", "__meta__/x.json", "__index__.json", "l.jpg@")
    view = samples_view(index_of(*names), ViewSpec(View.SAMPLES))
    assert tree(view) == ["a/a.jpg"]
    assert view.skipped == {"hidden": 2, "metadata": 2, "link": 1}


def test_incomplete_samples_are_left_out_and_counted():
    index = index_of("a.image.JPG", "b.image.jpg", "a.cls", "c.cls", "b.txt")
    require = (Component((b"image.png", b"image.jpg")), Component((b"cls",)))
    view = samples_view(index, ViewSpec(View.SAMPLES, require=require))
    assert tree(view) == ["a/a.cls", "a/a.image.JPG"]
    assert view.skipped == {"incomplete sample": 2}


def test_parts_that_lie_apart_are_one_sample_and_the_last_of_a_name_wins():
    view = samples_view(index_of("a.jpg", "b.jpg", "a.cls", "a.jpg"), ViewSpec(View.SAMPLES))
    assert tree(view) == ["a/a.cls", "a/a.jpg", "b/b.jpg"]
    assert view.resolve(b"a/a.jpg").row == 3
    assert view.skipped == {"duplicate": 1}


def test_memory_of_a_view_of_samples_is_bounded():
    index = index_of(*(f"{n:06}.{ext}" for n in range(5000) for ext in ("cls", "jpg")))
    view = samples_view(index, ViewSpec(View.SAMPLES))
    names = sum(map(len, index.names()))
    assert view.nbytes + index.nbytes - names <= 80 * len(index)
