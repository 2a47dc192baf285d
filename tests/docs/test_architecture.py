"""What the page about the architecture names is there."""

import re

from tests.docs.documents import ARCHITECTURE, ROOT, rows, section
from tests.support.for_each import for_each

CONTRIBUTING = ROOT / "CONTRIBUTING.md"


def modules() -> set[str]:
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / "aisfs").rglob("*.py")
    }


def test_every_name_with_dots_in_the_text_exists():
    known = modules()
    for name in re.findall(r"`(aisfs(?:\.\w+)+)`", ARCHITECTURE.read_text()):
        assert name in known or name.rpartition(".")[0] in known, name


@for_each("number", range(1, 11))
def test_every_invariant_is_stated_once(number: int):
    found = [row for row in rows(section(ARCHITECTURE, "Invariants")) if row[0] == f"I{number}"]
    assert len(found) == 1


def test_paths_that_the_table_of_changes_names_exist():
    table = section(CONTRIBUTING, "Where does my change go?")
    for path in re.findall(r"`((?:aisfs|tests)/[\w./]*)`", table):
        assert (ROOT / path).exists(), path
