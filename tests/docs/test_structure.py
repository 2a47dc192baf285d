"""The package stays easy to enter: a map that is true, no circle, and a room for each outside library."""

import ast
import re
from functools import cache
from pathlib import Path

from tests.docs.documents import ARCHITECTURE, ROOT

PACKAGE = ROOT / "aisfs"
ENTRANCES_MOST = 40
"""Modules that the map names: places to start reading, not a list of everything."""


@cache
def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }


@cache
def packages() -> set[str]:
    return {name for name, path in modules().items() if path.name == "__init__.py"} - {"aisfs"}


@cache
def imported(name: str) -> frozenset[str]:
    """Return the modules of the package that a module imports, when it is loaded or later."""
    found = set()
    for node in ast.walk(ast.parse(modules()[name].read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aisfs"):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules() else node.module)
    return frozenset(found - {name})


def code_map() -> str:
    return ARCHITECTURE.read_text().partition("## Code map\n")[2].partition("\n## ")[0]


def test_the_layers_of_the_map_hold():
    """import-linter checks the layers of pyproject.toml; the map gives them in the same order."""
    rooms = re.findall(r"^\| `(aisfs\.\w+)` \|", code_map(), re.MULTILINE)
    rank = {room: number for number, room in enumerate(rooms)}
    upwards = {
        (name, other)
        for name in modules()
        for other in imported(name)
        if name != "aisfs.__main__"
        and rank.get(_room(other), -1) > rank.get(_room(name), len(rooms))
    }
    assert not upwards


def test_no_modules_import_one_another():
    open_, done = [], set()

    def visit(name: str) -> None:
        assert name not in open_, " > ".join([*open_[open_.index(name) :], name])
        if name in done:
            return
        open_.append(name)
        for other in sorted(imported(name)):
            visit(other)
        open_.pop()
        done.add(name)

    for name in sorted(modules()):
        visit(name)


def test_the_map_of_packages_is_true():
    named = re.findall(r"^\| `(aisfs\.[\w.]+)` \|", code_map(), re.MULTILINE)
    assert len(named) == len(set(named)), "a package is named twice"
    tops = {name for name in modules() if name.count(".") == 1} - {"aisfs.__main__"}
    assert set(named) == packages() | tops
    starts = set(re.findall(r"`(\w+)`", "".join(_cells(2))))
    assert len(starts) <= ENTRANCES_MOST
    for room, cell in zip(named, _cells(2), strict=True):
        for start in re.findall(r"`(\w+)`", cell):
            assert f"{room}.{start}" in modules(), f"{room}.{start}"


def _room(name: str) -> str:
    return ".".join(name.split(".")[:2])


def _cells(column: int) -> list[str]:
    lines = [line for line in code_map().splitlines() if line.startswith("| `aisfs.")]
    return [line.strip("|").split("|")[column] for line in lines]
