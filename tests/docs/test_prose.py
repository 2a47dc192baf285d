"""Tables of the documents that strangers read stay readable."""

import pytest

from tests.docs.documents import (
    ARCHITECTURE,
    CELL_WORDS,
    CONFIGURATION,
    README,
    ROOT,
    SEMANTICS,
    prose,
    rows,
)

PAGES = [
    README,
    ARCHITECTURE,
    CONFIGURATION,
    SEMANTICS,
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "GLOSSARY.md",
    ROOT / "docs" / "TROUBLESHOOTING.md",
    ROOT / "docs" / "MONITORING.md",
    ROOT / "docs" / "COMPARISON.md",
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_cells_are_short(page):
    long = [cell for row in rows(prose(page)) for cell in row if len(cell.split()) > CELL_WORDS]
    assert not long, "put the details below the table"
