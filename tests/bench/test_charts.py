"""The charts: drawn from the tables, with aisfs marked, and those of docs/ are those of the page."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import charts, report

HEAD = "### Epochs over 1 KB samples\n\n| Case | Reader | State | Median | Unit | … |\n|---|---|---|--:|---|---|\n"
TABLE = """\
| 0 workers | one GET per object (requests) (baseline) | cold | 425 | samples/s | 422 to 429 (418 to 432) | 2 | 1 | | |
| 0 workers | files of the mount (X.tar.d) | cold | 36,858 | samples/s | 35,818 to 37,898 (34,779 to 38,938) | 2 | 86.8 | | |
| 0 workers | files of the mount (X.tar.d) | warm | 102,003 | samples/s | 100,368 to 103,637 (98,734 to 105,272) | 2 | 218 | | |
| 2 workers | webdataset over HTTP | cold | - | samples/s | not measured: it is missing | 0 | | | |
"""


def drawn(folder: Path, name: str) -> list[tuple[str, str, str]]:
    """Tag, class and text of what a chart has, in its order."""
    tree = ElementTree.parse(folder / f"{name}.svg")
    return [
        (each.tag.rpartition("}")[2], each.get("class", ""), each.text or "")
        for each in tree.iter()
    ]


def test_what_was_measured_is_drawn_and_aisfs_is_marked(tmp_path: Path) -> None:
    shown = charts.write(HEAD + TABLE, tmp_path)
    assert [path.stem for path in sorted(tmp_path.iterdir())] == ["rates", "samples"]
    assert all(f"]({charts.FOLDER}/{name}.svg)" in line
               for name, line in zip(("rates", "samples"), shown, strict=True))  # fmt: skip
    parts = drawn(tmp_path, "samples")
    texts = {text: kind for tag, kind, text in parts if tag == "text"}
    assert texts["aisfs: files in X.tar.d"] == texts["102,003"] == "label ours"
    assert texts["one GET per object"] == texts["425"] == "label other"
    assert "one process" in texts
    assert "two worker processes" not in texts, "nothing of it was measured"
    legend = ["ours-0", "ours-1", "other-0", "other-1"]
    bars = [kind for tag, kind, _ in parts if tag == "rect" and kind != "page"]
    assert bars == [*legend, "ours-0", "ours-1", "other-0"]


def test_bars_are_as_long_as_their_numbers_and_stay_on_the_page(tmp_path: Path) -> None:
    charts.write(HEAD + TABLE, tmp_path)
    tree = ElementTree.parse(tmp_path / "samples.svg")
    rects = [each for each in tree.iter() if each.get("class") in {"ours-0", "ours-1"}][2:]
    cold, warm = (float(each.get("width", "")) for each in rects)
    assert warm / cold == pytest.approx(102_003 / 36_858, rel=0.01)
    ends = [float(each.get("x", "")) + float(each.get("width", "")) for each in rects]
    assert max(ends) < charts.WIDTH - 50, "the number behind it needs room"


def test_charts_of_the_page_are_up_to_date(tmp_path: Path) -> None:
    text = report.between_markers(report.PAGE)
    shown = charts.write(text, tmp_path)
    assert shown == [line for line in text.splitlines() if line.startswith("![")]
    for path in tmp_path.iterdir():
        kept = report.PAGE.parent / charts.FOLDER / path.name
        assert kept.read_text() == path.read_text(), "python -m bench.charts draws them again"


def test_a_run_writes_tables_and_charts_into_the_page(tmp_path: Path) -> None:
    page = tmp_path / "PAGE.md"
    page.write_text(f"before\n\n{report.BEGIN}\n\n![old](images/old.svg)\n\n{report.END}\nafter\n")
    charts.write_page(HEAD + TABLE, page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old.svg" not in text
    assert text.index("images/samples.svg") < text.index("| 425 |")
    assert (tmp_path / "images" / "samples.svg").exists()


def test_groups_measured_later_replace_their_tables_and_goals():
    def page(day: int, groups: dict[str, str], goals: dict[str, str]) -> str:
        lines = [f"Measured on day {day}.", "", "A machine.", "", "### Goals", ""]
        lines += ["| Goal | wanted |", "|---|---|", *(f"| {k} | {v} |" for k, v in goals.items())]
        for title, table in groups.items():
            lines += ["", f"### {title}", "", table]
        return "\n".join(lines)

    old = page(1, {"A": "| a1 |", "B": "| b1 |"}, {"x": "1", "y": "1"})
    found = report.with_groups_of(page(2, {"B": "| b2 |", "C": "| c2 |"}, {"y": "2"}), old)
    assert found.startswith("Measured on day 1.\n\nA machine.\n")
    assert "| x | 1 |\n| y | 2 |" in found
    assert "### A\n\n| a1 |\n" in found
    assert "### B\n\nMeasured on day 2.\n\n| b2 |\n" in found
    assert "### C\n\nMeasured on day 2.\n\n| c2 |\n" in found
    assert "b1" not in found
    again = report.with_groups_of(page(3, {"B": "| b3 |"}, {"y": "3"}), found)
    assert again.count("day 2") == 1
    assert "### B\n\nMeasured on day 3.\n\n| b3 |\n" in again
