"""Tables of the documents that strangers read stay readable."""

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
from tests.support.for_each import for_each

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


@for_each("page", PAGES)
def test_cells_are_short(page):
    long = [cell for row in rows(prose(page)) for cell in row if len(cell.split()) > CELL_WORDS]
    assert not long, "put the details below the table"
