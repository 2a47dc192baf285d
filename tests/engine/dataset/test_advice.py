"""What is said of a view that leaves out most: one line, with what would help."""

from collections.abc import Mapping

from aisfs.core.views.spec import parse_view
from aisfs.engine.dataset.merger import Found, advise, loses_most
from aisfs.settings import ViewSettings
from tests.core.views.test_samples import index_of
from tests.support.for_each import for_each


def said(options: Mapping[str, object], shown: int, exclusions: Mapping[str, int], *names: str) -> str:  # fmt: skip
    spec = parse_view(ViewSettings.load({"view": "class", **options}))
    found = Found()
    found.add(index_of(*names), spec)
    return advise(spec, shown, exclusions, found)


PETS = ("d/a.cls", "d/a.image.webp", "d/a.mask.webp")
NOTHING = "--view class shows nothing: "


@for_each(
    "options, shown, exclusions, names, line",
    [
        ({}, 0, {"no image": 760}, PETS, NOTHING + "760 samples have no jpg, jpeg or png; parts are "
         "cls, image.webp, mask.webp; try --image image.webp or --image mask.webp"),
        ({"image": "webp"}, 1, {"ambiguous image": 2}, PETS, "--view class shows 1 of 3 samples: 2 "
         "samples have several parts that end in webp; parts are cls, image.webp, mask.webp; try "
         "--image image.webp or --image mask.webp or --image all"),
        ({"image": "all"}, 0, {"no image": 2}, ("a.txt",), NOTHING + "2 samples have no picture; parts "
         "are txt"),
        ({}, 0, {"no label": 1}, ("a.jpg", "a.outputs.txt"), NOTHING + "1 sample has no cls; parts are "
         "jpg, outputs.txt; try --label outputs.txt"),
        ({"label": "txt"}, 0, {"no label": 1}, PETS, NOTHING + "1 sample has no txt; parts are cls, "
         "image.webp, mask.webp; try --label cls or --label dir"),
        ({}, 0, {"no label": 2}, ("a.jpg", "a.json"), NOTHING + "2 samples have no cls; parts are jpg, "
         "json; try --label json:PATH"),
        ({"label": "dir"}, 0, {"no label": 2}, ("a.jpg",), NOTHING + "2 samples have no directory; a "
         "key is a; try --label csv:FILE"),
        ({}, 0, {"no label": 2}, ("a.jpg", "cat/b.jpg"), NOTHING + "2 samples have no cls; parts are jpg; "
         "try --label dir"),
        ({"label": "re:x"}, 0, {"no label": 2}, ("a.jpg",), NOTHING + "2 samples have no match of "
         "re:x in the key; a key is a"),
        ({"label": "csv:t"}, 0, {"no label": 2}, ("a.jpg",), NOTHING + "2 samples have no row in "
         "csv:t; a key is a"),
        ({"label": "json:a.b"}, 0, {"bad label": 2}, ("a.json",), NOTHING + "2 samples have no text or "
         "integer at json:a.b"),
        ({}, 0, {"bad label": 2, "no image": 1, "hidden": 9}, PETS, NOTHING + "2 samples have a label "
         "that is blank or cannot be the name of a directory; also left out: 1 no image"),
        ({}, 0, {"no class name": 2}, PETS, NOTHING + "2 samples have a label without a line in "
         "--classes"),
        ({"require": "jpg,a;b"}, 0, {"incomplete sample": 2}, PETS, NOTHING + "2 samples have not all "
         "parts of --require jpg,a;b; parts are cls, image.webp, mask.webp"),
        ({}, 0, {"hidden": 2}, (), NOTHING + "left out are 2 hidden"),
        ({}, 0, {}, (), NOTHING + "its shards have no members"),
        ({"view": "flat"}, 1, {"link": 1000}, PETS, "--view flat shows 1 of 1,001 files: 1,000 symbolic "
         "links"),
        ({}, 0, {"no image": 2}, ("README",), NOTHING + "2 samples have no jpg, jpeg or png; names have "
         "no extension"),
        ({}, 0, {"no image": 2}, [f"a.{n}" for n in range(9)], NOTHING + "2 samples have no jpg, jpeg "
         "or png; parts are 0, 1, 2, 3, 4, 5, 6, 7, …"),
    ],
)  # fmt: skip
def test_what_is_said(options, shown: int, exclusions, names, line: str):
    assert said(options, shown, exclusions, *names) == line


def test_when_it_is_said():
    assert loses_most(0, {})
    assert loses_most(1, {"no image": 1, "no label": 1})
    assert not loses_most(2, {"no image": 1, "no label": 1})
    assert not loses_most(1, {"hidden": 5, "metadata": 5, "duplicate": 5})
