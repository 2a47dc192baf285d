"""The tables of the documents that are made from the code.

`python -m tests.docs.tables` writes them anew; test_tables.py fails while they differ.
"""

import ast
import errno
import inspect
import logging
import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import click

from aisfs.commands.main import cli
from aisfs.commands.options import EXITS, Described, Exit
from aisfs.filesystem.errnos import ERRNOS
from aisfs.settings.values import KNOWN, Group, Option
from tests.docs.documents import CELL_WORDS, CONFIGURATION, KUBERNETES, SEMANTICS

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


# Options --------------------------------------------------------------------------------------------


def leaves(group: click.Group, before: str = "") -> dict[str, click.Command]:
    """All commands that do something, by the words that call them."""
    found: dict[str, click.Command] = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            found |= leaves(command, f"{before}{name} ")
        elif command is not None:
            found[before + name] = command
    return found


COMMANDS = leaves(cli)


def lowered(text: str) -> str:
    """A sentence as what follows a semicolon; `AIStore` and `X.tar` stay."""
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def seen(setting: Option[object]) -> str:
    file, _, place = setting.see.rpartition("#")
    if setting.see.endswith(".md"):
        return f" ([{setting.see.removesuffix('.md')}]({setting.see}))"
    if file == "CONFIGURATION.md":
        return f" ([below](#{place}))"
    return f" ([SEMANTICS](SEMANTICS.md#{place}))" if place else ""


def default_of(option: Described) -> str:
    if option.is_flag:
        return "off"
    in_help = re.search(r"\[([^]]*)\]\.$", option.help or "")
    found = str(option.default) if option.show_default else in_help[1] if in_help else ""
    if option.setting is not None:
        found = option.setting.shown_default
    return f"`{found}`" if re.fullmatch(r"[A-Za-z/][\w;/.-]*", found) else found or "none"


def term_of(option: Described) -> str:
    setting = option.setting
    context = click.Context(click.Command("aisfs"))
    metavar = "" if option.is_flag else option.make_metavar(context)
    if isinstance(option.type, click.Choice) and (setting is None or setting.bare is None):
        metavar = metavar.strip("[]")
    first, *others = sorted(option.opts, key=len, reverse=True)
    terms = [f"{first} {metavar}".strip().replace("|", "\\|"), *others]
    return ", ".join(f"`{term}`" for term in terms)


def text_of(command: str, option: Described) -> str:
    setting = option.setting
    if setting is not None and command == "mount":
        text = setting.summary + seen(setting)
        if setting.details and len(f"{text} {setting.details} {setting.why}".split()) <= CELL_WORDS:
            text = f"{setting.summary}: {setting.details}{seen(setting)}"
        return "; ".join(filter(None, (lowered(text), setting.why)))
    if setting is not None or (option.name == "config" and command != "mount"):
        text, why = option.summary or "as for `mount`", option.why if setting else ""
    else:
        text, why = re.sub(r"( \[[^]]*\])?\.$", "", option.help or ""), option.why
    return "; ".join(filter(None, (lowered(text), why)))


def options_table(name: str) -> str:
    lines = ["| Option | Default | What it does, and why the default |", "|---|---|---|"]
    lines += [
        f"| {term_of(option)} | {default_of(option)} | {text_of(name, option)} |"
        for option in COMMANDS[name].params
        if isinstance(option, Described) and not option.hidden
    ]
    return "\n".join(lines) + "\n"


def variables_table() -> str:
    lines = ["| Variable | Default | What it is |", "|---|---|---|"]
    for option in KNOWN.values():
        if option.variable:
            found = "" if option.variable in option.shown_default else option.shown_default
            default = "off" if not option.kind.metavar and option.default is False else found
            text = "; ".join(filter(None, (lowered(option.summary), option.why)))
            lines.append(f"| `{option.variable}` | {default or 'none'} | {text} |")
    return "\n".join(lines) + "\n"


def attributes_table() -> str:
    lines = ["| About | Attributes |", "|---|---|"]
    for group in Group:
        names = [n for n, option in KNOWN.items() if option.tenants and option.group is group]
        if names:
            words = ", ".join(f"`{name.replace('_', '-')}`" for name in names)
            lines.append(f"| {group[:1].lower()}{group[1:]} | {words} |")
    return "\n".join(lines) + "\n"


def has_table(name: str) -> bool:
    """Whether a command has options, and is not one of the `cache` commands, which share a table."""
    options = [o for o in COMMANDS[name].params if isinstance(o, click.Option)]
    return bool(options) and name not in ("cache verify", "cache clear")


TABLES: dict[Path, dict[str, Callable[[], str]]] = {
    SEMANTICS: {"errnos": errno_table, "exits": exit_table},
    CONFIGURATION: {
        **{f"options of {n}": partial(options_table, n) for n in COMMANDS if has_table(n)},
        "variables": variables_table,
    },
    KUBERNETES: {"attributes": attributes_table},
}


def with_tables(document: Path) -> str:
    """The document with every table as the code has it now."""
    text = document.read_text()
    for name, make in TABLES[document].items():
        block = re.compile(_BLOCK.format(name=re.escape(name)), re.DOTALL)
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
    for document in TABLES:
        document.write_text(with_tables(document))
