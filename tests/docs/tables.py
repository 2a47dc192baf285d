"""The tables of docs/SEMANTICS.md that are made from the code.

`python -m tests.docs.tables` writes them anew; test_tables.py fails while they differ.
"""

import ast
import errno
import inspect
import logging
import re
from collections.abc import Callable
from itertools import pairwise

from aisfs.commands.options import EXITS, Exit
from aisfs.filesystem.errnos import ERRNOS
from tests.docs.documents import SEMANTICS

_BLOCK = r"(<!-- {name}: [^\n]*-->\n).*?(<!-- end -->)"


def errno_table() -> str:
    names = errno.errorcode | {errno.EOPNOTSUPP: "EOPNOTSUPP"}  # Linux has two names for one number
    lines = ["| errno | Error | What it means | Logged as |", "|---|---|---|---|"]
    for cls, (number, level) in sorted(
        ERRNOS.items(), key=lambda row: (names[row[1][0]], row[0].__name__)
    ):
        meaning = " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
        name = logging.getLevelName(level).lower()
        lines.append(f"| {names[number]} | `{cls.__name__}` | {meaning} | {name} |")
    return "\n".join(lines) + "\n"


def exit_table() -> str:
    errors: dict[Exit, list[str]] = {}
    for cls, code in EXITS:
        errors.setdefault(code, []).append(f"`{cls.__name__}`")
    meanings = member_docstrings(Exit)
    lines = ["| Code | Name | What it means | Errors |", "|---|---|---|---|"]
    for code in Exit:
        meaning = meanings.get(code.name, "It worked.")
        lines.append(
            f"| {int(code)} | {code.name} | {meaning} | {', '.join(errors.get(code, []))} |"
        )
    return "\n".join(line.replace("|  |", "| |") for line in lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {"errnos": errno_table, "exits": exit_table}


def with_tables(text: str) -> str:
    """The document with every table as the code has it now."""
    for name, make in TABLES.items():
        block = re.compile(_BLOCK.format(name=name), re.DOTALL)
        assert len(block.findall(text)) == 1, f"one place for the table {name}"
        text = block.sub(lambda match, make=make: f"{match[1]}\n{make()}\n{match[2]}", text)
    return text


def member_docstrings(cls: type) -> dict[str, str]:
    """The string below each member; Python itself does not keep these."""
    body = ast.parse(inspect.getsource(cls)).body[0].body
    found = {}
    for statement, following in pairwise(body):
        match statement, following:
            case ast.Assign([ast.Name(name)]), ast.Expr(ast.Constant(str(text))):
                found[name] = " ".join(text.split())
    return found


if __name__ == "__main__":
    SEMANTICS.write_text(with_tables(SEMANTICS.read_text()))
