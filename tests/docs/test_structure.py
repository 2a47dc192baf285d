"""The package stays easy to enter: few packages and imports between them, flat classes."""

import ast
import importlib
import inspect
from functools import cache
from pathlib import Path

from tests.docs.documents import ROOT

PACKAGE = ROOT / "aisfs"
TOP_MOST, ARROWS_MOST = 22, 87
"""Packages and modules at the top, and pairs of them of which one imports the other."""
CHAIN_MOST = 3
OPTIONAL = {
    "aisfs.torch",
    "aisfs.server.tokens",
    "aisfs.server.worker",
    "aisfs.csi.csi_pb2",
    "aisfs.csi.controller",
    "aisfs.csi.services",
}
"""They import what is an extra, or patch what they run in."""


@cache
def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }


def imported(path: Path) -> set[str]:
    """Return the modules of the package that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aisfs"):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in modules() else node.module)
    return found


def top(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def test_packages_and_imports_at_the_top_are_few():
    arrows = {
        (top(name), top(other))
        for name, path in modules().items()
        for other in imported(path)
        if top(name) != top(other)
    }
    rooms = {room for arrow in arrows for room in arrow}
    assert len(rooms) <= TOP_MOST, sorted(rooms)
    assert len(arrows) <= ARROWS_MOST, sorted(arrows)


def test_no_class_is_deep():
    for name in sorted(set(modules()) - OPTIONAL - {"aisfs.__main__"}):
        for found in vars(importlib.import_module(name)).values():
            if inspect.isclass(found) and found.__module__ == name:
                ours = [base for base in found.__mro__ if base.__module__.startswith("aisfs.")]
                assert len(ours) <= CHAIN_MOST, [base.__name__ for base in ours]
