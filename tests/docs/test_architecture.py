"""The code map names every module, and only modules that exist."""

import re

import pytest

from tests.docs.documents import ARCHITECTURE, ROOT, rows, section

CONTRIBUTING = ROOT / "CONTRIBUTING.md"


def modules() -> list[str]:
    package = ROOT / "aisfs"
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted(package.rglob("*.py"))
        if path.name != "__init__.py"
    ]


def mapped_modules() -> list[str]:
    """The modules of the code map: each heading names a package, each row a module of it."""
    found, package = [], ""
    text = ARCHITECTURE.read_text().partition("## Code map\n")[2].partition("\n## ")[0]
    for line in text.splitlines():
        if heading := re.match(r"### ([\w.]+):", line):
            package = heading[1]
        elif row := re.match(r"\| `(\w+)` \|", line):
            found.append(f"{package}.{row[1]}")
    return found


def test_the_code_map_is_the_package():
    named = mapped_modules()
    assert len(named) == len(set(named)), "a module is named twice"
    assert set(named) == set(modules())


def test_every_name_with_dots_in_the_text_exists():
    known = {*modules(), *(package_name(path) for path in (ROOT / "aisfs").rglob("__init__.py"))}
    for name in re.findall(r"`(aisfs(?:\.\w+)+)`", ARCHITECTURE.read_text()):
        assert name in known or name.rpartition(".")[0] in known, name


def package_name(init: object) -> str:
    return ".".join(init.parent.relative_to(ROOT).parts)


@pytest.mark.parametrize("number", range(1, 11))
def test_every_invariant_is_stated_once(number: int):
    found = [row for row in rows(section(ARCHITECTURE, "Invariants")) if row[0] == f"I{number}"]
    assert len(found) == 1


def test_paths_that_the_table_of_changes_names_exist():
    table = section(CONTRIBUTING, "Where does my change go?")
    for path in re.findall(r"`((?:aisfs|tests)/[\w./]*)`", table):
        assert (ROOT / path).exists(), path
