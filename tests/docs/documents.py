"""The project's documents, and what the tests take out of them."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
ARCHITECTURE = ROOT / "docs" / "ARCHITECTURE.md"
CONFIGURATION = ROOT / "docs" / "CONFIGURATION.md"
KUBERNETES = ROOT / "docs" / "KUBERNETES.md"
SEMANTICS = ROOT / "docs" / "SEMANTICS.md"
CELL_WORDS = 25
"""Most words in a cell of a table: details belong below it."""

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def all_documents() -> list[Path]:
    """Every Markdown file that people are meant to read."""
    return [
        *sorted(ROOT.glob("*.md")),
        *sorted(ROOT.glob("docs/**/*.md")),
        ROOT / "systemd/README.md",
    ]


def prose(document: Path) -> str:
    """The text without its fenced blocks."""
    return _FENCE.sub("", document.read_text())


def section(document: Path, heading: str) -> str:
    """The text below the one heading that contains these words, up to the next of its rank."""
    parts = re.split(r"^(#+) (.*)$", document.read_text(), flags=re.MULTILINE)
    ranks, titles, texts = parts[1::3], parts[2::3], parts[3::3]
    (at,) = (number for number, title in enumerate(titles) if heading in title)
    found = [texts[at]]
    for rank, text in zip(ranks[at + 1 :], texts[at + 1 :], strict=True):
        if len(rank) <= len(ranks[at]):
            break
        found.append(text)
    return "".join(found)


def rows(text: str) -> list[list[str]]:
    """The cells of all table rows in a text, without heads and rules."""
    lines = text.splitlines()
    found = []
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if not line.startswith("|") or _is_rule(line) or _is_rule(following):
            continue
        cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
        found.append([cell.replace("\\|", "|").strip() for cell in cells])
    return found


def _is_rule(line: str) -> bool:
    return bool(re.fullmatch(r"\|[-| ]+\|", line))
