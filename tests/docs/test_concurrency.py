"""docs/CONCURRENCY.md names every lock and every thread."""

import ast
import re
from functools import cache
from pathlib import Path

from aisfs.system.locks import Rank
from tests.docs.documents import ROOT, rows, section

CONCURRENCY = ROOT / "docs" / "CONCURRENCY.md"
PACKAGE = ROOT / "aisfs"
GUARDS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier"}


@cache
def _modules() -> dict[str, list[ast.AST]]:
    """Give all nodes of each module."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): [
            *ast.walk(ast.parse(path.read_text()))
        ]
        for path in PACKAGE.rglob("*.py")
    }


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _used(tree: list[ast.AST], owner: str) -> set[str]:
    """The attributes of a name that are used in a module."""
    return {
        node.attr
        for node in tree
        if isinstance(node, ast.Attribute) and _is_name(node.value, owner)
    }


def _named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_rank_is_there_in_its_order():
    table = rows(section(CONCURRENCY, "Locks of threads"))
    assert [_named(row[0]) for row in table] == [[rank.name] for rank in Rank]


IN_TRAINERS = "aisfs.torch.reading"
"""Runs in processes that train, not in a mount or a server."""


def test_every_lock_is_where_it_is_said_to_be():
    table = rows(section(CONCURRENCY, "Locks of threads"))
    named = {(_named(row[0])[0], _named(row[1])[0]) for row in table}
    used = {
        (rank, module)
        for module, tree in _modules().items()
        for rank in _used(tree, "Rank")
    }  # fmt: skip
    assert used == named


def test_what_is_taken_inside_has_a_higher_rank():
    for row in rows(section(CONCURRENCY, "Locks of threads")):
        for inner in _named(row[3]):
            assert Rank[inner] > Rank[_named(row[0])[0]], row


def test_every_lock_of_a_task_is_there():
    named = {_named(row[1])[0] for row in rows(section(CONCURRENCY, "Locks of tasks"))}
    used = {module for module, tree in _modules().items() if "Lock" in _used(tree, "trio")}
    assert used <= named
    assert all((ROOT / f"{name.replace('.', '/')}.py").exists() for name in named)


def test_every_lock_of_the_server_is_there():
    named = [name for row in rows(section(CONCURRENCY, "The server")) for name in _named(row[0])]
    used = {module for module, tree in _modules().items() if GUARDS & _used(tree, "threading")}
    assert used - {"aisfs.system.locks", IN_TRAINERS} == set(named)


def test_every_thread_is_there_and_started_in_one_place():
    named = {name for row in rows(section(CONCURRENCY, "Threads")) for name in _named(row[0])}
    started = set()
    for module, tree in _modules().items():
        if module == IN_TRAINERS:
            continue
        if not module.startswith("aisfs.server."):
            assert "Thread" not in _calls(tree, "threading") or module == "aisfs.system.threads"
        started |= {
            node.value
            for node in tree
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.fullmatch(r"aisfs ([a-z]+|drops pages)", node.value)
            and _starts_threads(tree)
        }
    assert started == named


def _calls(tree: list[ast.AST], owner: str) -> set[str]:
    return {
        node.func.attr
        for node in tree
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and _is_name(node.func.value, owner)
    }


def _starts_threads(tree: list[ast.AST]) -> bool:
    names = {ast.unparse(node.func) for node in tree if isinstance(node, ast.Call)}
    return bool(names & {"start_service_thread", "trio.lowlevel.start_thread_soon"})


def test_interleavings_are_numbered():
    text = section(CONCURRENCY, "Interleavings")
    numbers = [int(number) for number in re.findall(r"^(\d+)\. \*\*", text, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 39


def test_every_interleaving_names_a_test():
    known = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        known |= set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
    items = re.split(r"^\d+\. ", section(CONCURRENCY, "Interleavings"), flags=re.MULTILINE)[1:]
    for item in items:
        named = re.findall(r"`(test_\w+)`", item)
        assert named, item
        assert set(named) <= known, item


def test_what_is_named_in_code_exists():
    """Methods and classes in backticks are words of the package."""
    words = set()
    for path in PACKAGE.rglob("*.py"):
        words |= set(re.findall(r"\w+", Path(path).read_text()))
    for name in _named(section(CONCURRENCY, "Interleavings")):
        for word in re.findall(r"[A-Za-z_]\w+", name):
            assert word in words or word.startswith("test_"), name
