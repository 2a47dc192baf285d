"""The manual pages in docs/man, and the scripts for shells in docs/completions.

`python -m tests.docs.manual` writes them anew; test_manual.py fails while the pages differ. They are
made from what `--help` is made from, and from docs/CONFIGURATION.md.
"""

import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from aisfs import __version__
from aisfs.commands.guide import EXAMPLES, SHELLS, grouped, script
from aisfs.commands.main import cli
from aisfs.commands.options import Exit
from aisfs.settings.values import Group
from tests.docs.documents import CONFIGURATION, ROOT, rows, section
from tests.docs.tables import member_docstrings

MAN = ROOT / "docs" / "man"
COMPLETIONS = ROOT / "docs" / "completions"
COMPLETION_FILES = {"bash": "aisfs", "zsh": "_aisfs", "fish": "aisfs.fish"}
"""What each shell wants the file to be called."""
FOR_ADMINISTRATORS = frozenset({"mount", "umount"})
"""Commands of section 8; all others are in section 1."""

_INLINE = re.compile(r"`([^`]+)`|\[([^\]]*)\]\([^)]*\)|\*\*([^*]+)\*\*|(?<!\w)\*([^*\s][^*]*)\*")
_REFERENCE = re.compile(r" \(\[[^\]]*\]\([^)]*\)\)")
"""A link in parentheses: a page of the manual cannot be clicked."""
_FILES = (
    ("~/.config/aisfs/config.toml", "The user's configuration; see --config."),
    ("~/.cache/aisfs", "The disk cache; see --cache-dir."),
    ("~/.local/state/aisfs/staging", "Files until they are uploaded; see --staging-dir."),
    ("~/.config/ais/cli/auth.token", "The token that `ais auth login` writes."),
)


# Text to roff -------------------------------------------------------------------------------------


def escaped(text: str) -> str:
    """Text that roff prints as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\[aq]")
    text = text.replace("`", "\\[ga]").replace("^", "\\[ha]").replace("~", "\\[ti]")
    text = "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in text)
    return f"\\&{text}" if text.startswith(".") else text


def inline(markdown: str) -> str:
    """A run of text: code is bold, emphasis italic, and of links only the words stay."""
    text = _REFERENCE.sub("", " ".join(markdown.replace("\\|", "|").split()))
    done, at = [], 0
    for match in _INLINE.finditer(text):
        done.append(escaped(text[at : match.start()]))
        code, link, bold, italic = match.groups()
        if link is not None:
            done.append(inline(link))
        else:
            done.append(
                f"\\fI{escaped(italic)}\\fP" if italic else f"\\fB{escaped(code or bold)}\\fP"
            )
        at = match.end()
    done.append(escaped(text[at:]))
    line = "".join(done)
    return line if line[:1] not in (".", "'") else f"\\&{line}"


def blocks(markdown: str) -> Iterator[str]:
    """Paragraphs, lists and literal blocks; tables have places of their own."""
    for block in re.split(r"\n\s*\n", markdown.strip("\n")):
        if block.startswith(("|", "<!--")) or not block.strip():
            continue
        if block.startswith("    "):
            lines = [escaped(line.removeprefix("    ")) for line in block.splitlines()]
            yield "\n".join([".PP", ".RS 4", ".nf", *lines, ".fi", ".RE"])
        elif block.startswith("#"):
            yield f".SS {inline(block.lstrip('# '))}"
        elif block.startswith("- "):
            for item in re.split(r"\n(?=- )", block):
                yield f".IP \\(bu 2\n{inline(item.removeprefix('- '))}"
        else:
            yield f".PP\n{inline(block)}"


def entries(items: Iterable[tuple[str, str]]) -> list[str]:
    """A list of terms, each with what it means."""
    return [f".TP\n{term}\n{text}" for term, text in items]


# Parts of a page ----------------------------------------------------------------------------------


def leaves(name: str, command: click.Command) -> dict[str, click.Command]:
    if not isinstance(command, click.Group):
        return {name: command}
    context = click.Context(command)
    inner = {sub: command.get_command(context, sub) for sub in command.list_commands(context)}
    return {f"{name} {sub}": found for sub, found in inner.items() if found is not None}


def synopsis(name: str, command: click.Command) -> str:
    pieces = command.collect_usage_pieces(click.Context(command))
    words = [f"\\fI{escaped(piece)}\\fP" for piece in pieces]
    return f".PP\n\\fBaisfs {escaped(name)}\\fP {' '.join(words)}"


def description(command: click.Command) -> list[str]:
    return list(blocks(re.sub(r"\n[ \t]+", "\n", (command.help or "").strip())))


def options(name: str, command: click.Command) -> list[str]:
    told = {
        re.match(r"`(--?[\w-]+)", row[0])[1]: row
        for row in rows(section(CONFIGURATION, f"aisfs {name}"))
        if row[0].startswith("`-")
    }
    groups = grouped(o for o in command.params if isinstance(o, click.Option) and not o.hidden)
    found = []
    for group, members in groups.items():
        if len(groups) > 1:
            found.append(f".SS {group if group is not Group.OTHER or found else 'Options'}")
        for option in members:
            key = next((opt for opt in option.opts if opt in told), option.opts[0])
            term, default, text = told[key][:3]
            sentence = f"{text[:1].upper()}{text[1:]}."
            if default != "none":  # else the text says what is done without it
                sentence += f" Default: {default}."
            found += entries([(inline(term), inline(sentence))])
    return found


def examples(name: str) -> list[str]:
    return [
        f".PP\n{inline(what)}\n.PP\n.RS 4\n.nf\n{escaped(line)}\n.fi\n.RE"
        for line, what in EXAMPLES.get(name, ())
    ]


def environment() -> list[str]:
    text = section(CONFIGURATION, "Environment")
    variables = [(inline(row[0]), f"{inline(row[2]).rstrip('.')}.") for row in rows(text)]
    return [*entries(variables), *blocks(text)]


def exits() -> list[str]:
    meanings = member_docstrings(Exit)
    return entries(
        (f"\\fB{int(code)}\\fP", inline(meanings.get(code.name, "It worked."))) for code in Exit
    )


def manual_section(name: str) -> int:
    return 8 if name in FOR_ADMINISTRATORS else 1


def see_also(own: str, names: Iterable[str]) -> list[str]:
    pages = [f"\\fBaisfs\\-{escaped(n)}\\fP({manual_section(n)})" for n in names if n != own]
    others = ["\\fBaisfs\\fP(1)"] if own else []
    system = ["\\fBfusermount3\\fP(1)", "\\fBmount\\fP(8)"]
    return [".PP\n" + ",\n".join([*others, *pages, *system])]


def page(title: str, number: int, summary: str, parts: dict[str, list[str]]) -> str:
    lines = [
        '.\\" Made by python -m tests.docs.manual: do not edit.',
        f'.TH "{escaped(title.upper())}" "{number}" "" "aisfs {__version__}" "aisfs"',
        ".nh",
        ".ad l",
        ".SH NAME",
        f"{escaped(title)} \\- {inline(summary)}",
    ]
    for heading, content in parts.items():
        if content:
            lines += [f".SH {heading}", *content]
    return "\n".join(lines) + "\n"


# Pages --------------------------------------------------------------------------------------------


def commands() -> dict[str, click.Command]:
    context = click.Context(cli)
    found = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    return {name: command for name, command in found.items() if command and not command.hidden}


def overview() -> str:
    described = [
        (f"\\fBaisfs\\-{escaped(n)}\\fP({manual_section(n)})", inline(c.get_short_help_str(200)))
        for n, c in commands().items()
    ]
    parts = {
        "SYNOPSIS": [".PP\n\\fBaisfs\\fP \\fICOMMAND\\fP [\\fIARGUMENTS\\fP]"],
        "DESCRIPTION": [*description(cli), *blocks("`aisfs COMMAND --help` shows its options.")],
        "COMMANDS": entries(described),
        "EXAMPLES": examples("mount"),
        "ENVIRONMENT": environment(),
        "FILES": entries((f"\\fI{escaped(path)}\\fP", inline(text)) for path, text in _FILES),
        "EXIT STATUS": exits(),
        "SEE ALSO": see_also("", commands()),
    }
    return page("aisfs", 1, "mount AIStore buckets, and tar shards as folders of samples", parts)


def command_page(name: str, command: click.Command) -> str:
    found = leaves(name, command)
    text = section(CONFIGURATION, f"aisfs {next(iter(found))}")
    many = len(found) > 1
    described, opts, shown = [] if not many else description(command), [], []
    for leaf, inner in found.items():
        described += [f".SS aisfs {escaped(leaf)}"] * many + description(inner)
        own = options(leaf, inner)
        opts += [f".SS aisfs {escaped(leaf)}"] * (many and bool(own)) + own
        shown += examples(leaf)
    names = {parameter.name for inner in found.values() for parameter in inner.params}
    sized = any("SIZE" in row[0] for row in rows(text))
    parts = {
        "SYNOPSIS": [synopsis(leaf, inner) for leaf, inner in found.items()],
        "DESCRIPTION": described,
        "OPTIONS": opts,
        "NOTES": list(blocks(text)),
        "SIZES": list(blocks(section(CONFIGURATION, "Sizes"))) if sized else [],
        "EXAMPLES": shown,
        "ENVIRONMENT": environment() if "endpoint" in names else [],
        "EXIT STATUS": exits(),
        "SEE ALSO": see_also(name, ["mount", "umount"]),
    }
    summary = command.get_short_help_str(200).rstrip(".")
    return page(f"aisfs-{name}", manual_section(name), summary[:1].lower() + summary[1:], parts)


def pages() -> dict[Path, str]:
    """Every page by the file it belongs in."""
    found = {MAN / "man1" / "aisfs.1": overview()}
    for name, command in commands().items():
        number = manual_section(name)
        file = MAN / f"man{number}" / f"aisfs-{name}.{number}"
        found[file] = command_page(name, command)
    return found


def write() -> None:
    """Write all pages and scripts; a page whose command is gone goes, too."""
    shutil.rmtree(MAN, ignore_errors=True)
    for file, text in pages().items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for shell in SHELLS:
        file = COMPLETIONS / shell / COMPLETION_FILES[shell]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(script(shell, cli).strip() + "\n")


if __name__ == "__main__":
    write()
