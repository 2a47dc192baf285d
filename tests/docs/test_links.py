"""Links between documents lead somewhere; commands that documents name exist."""

import re
from pathlib import Path

from tests.docs.documents import README, ROOT, all_documents, prose

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_TARGET = re.compile(r"^([a-z][\w-]*):", re.MULTILINE)
_MAKE = re.compile(r"^ {4}(?:\S+=\S+ )*make ([a-z][a-z-]*)|`make ([a-z][a-z-]*)", re.MULTILINE)


def anchors(document: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a document."""
    titles = re.findall(r"^#+ (.*)$", prose(document), flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.replace(" ", "-") for title in plain}


def test_links_resolve():
    for document in all_documents():
        for link in _LINK.findall(prose(document)):
            if link.startswith("https://"):
                continue
            path, _, anchor = link.partition("#")
            target = (document.parent / path).resolve() if path else document
            assert target.exists(), (document, link)
            assert target.is_relative_to(ROOT), (document, link)
            if anchor:
                assert anchor in anchors(target), (document, link)


def test_make_commands_are_targets():
    targets = set(_TARGET.findall((ROOT / "Makefile").read_text()))
    for document in all_documents():
        named = {first or second for first, second in _MAKE.findall(document.read_text())}
        assert named <= targets, document
        if document == README:
            assert {"demo", "test"} <= named


def test_every_decision_is_in_the_list():
    folder = ROOT / "docs" / "adr"
    pages = {path.name for path in folder.glob("[0-9]*.md")}
    assert set(re.findall(r"\((\d{4}-[\w-]+\.md)\)", (folder / "README.md").read_text())) == pages
    numbers = sorted(name[:4] for name in pages)
    assert numbers == [f"{number:04}" for number in range(1, len(pages) + 1)]


def test_every_decision_has_its_parts():
    for page in (ROOT / "docs" / "adr").glob("[0-9]*.md"):
        text = page.read_text()
        assert text.startswith(f"# {page.name[:4]}: "), page.name
        for part in ("Context", "Decision", "Rejected", "Consequences"):
            assert f"\n## {part}\n" in text, (page.name, part)
