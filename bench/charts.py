"""The charts of docs/PERFORMANCE.md and README: SVG that follows the reader's light or dark scheme.

They are drawn from the tables of the page, so they show what it says; `python -m bench.charts` draws
them again. What the run has not measured is left out.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from bench import report
from bench.groups import GROUPS, epochs, latency, listing, models, shard

FOLDER = "images"
"""Beside the page."""
WIDTH = 860
"""Of a page of text; all sizes are pixels of it."""
_MARGIN, _HEAD, _TITLE, _BAR, _GAP, _FOOT = 22, 68, 26, 13, 10, 34
_CHARACTER, _BOLD = 7.6, 8.0
"""How wide a character of a label is: rather too wide, as fonts differ."""
_STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328 }
.title { font-size: 16px; font-weight: 600 } .panel { font-weight: 600 }
.label.ours { font-weight: 600; fill: #0550ae } .note { font-size: 12px; fill: #59636e }
.page { fill: #ffffff; stroke: #d1d9e0 } .range { stroke: #59636e }
.ours-0 { fill: #0969da } .ours-1 { fill: #8cc2ff } .other-0 { fill: #818b98 } .other-1 { fill: #d1d9e0 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .label.ours { fill: #79c0ff } .note { fill: #9198a1 }
.page { fill: #0d1117; stroke: #3d444d } .range { stroke: #c9d1d9 }
.ours-0 { fill: #388bfd } .ours-1 { fill: #1f4e8c } .other-0 { fill: #8b949e } .other-1 { fill: #3d444d }
}
"""


@dataclass(frozen=True)
class Panel:
    """The readers of one case, on one scale."""

    title: str
    group: str
    case: str
    """How the name of the case begins."""
    readers: tuple[tuple[str, str], ...]
    """The name in the table, and the label; one that begins with `aisfs` is marked."""
    states: tuple[str, ...] = ("cold", "warm")


@dataclass(frozen=True)
class Chart:
    """One picture."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    columns: int = 1
    states: tuple[str, ...] = ("first time (cold)", "again (warm)")
    """What the two shades of bars mean; empty where there is one."""


@dataclass(frozen=True)
class Bar:
    """A row of a table, as far as a chart needs it."""

    shade: int
    text: str
    median: float
    least: float
    most: float


Lines = list[tuple[str, list[Bar]]]
"""The label of each reader that was measured, and its bars."""

_EPOCHS = (
    (epochs.FILES, "aisfs: files in X.tar.d"),
    (epochs.WEB_MOUNT, "aisfs: webdataset on the mount"),
    (epochs.WEB, "webdataset over HTTP"),
    (epochs.SDK_SHARDS, "AISShardReader of the SDK"),
    (epochs.GET, "one GET per object"),
    (epochs.EXTRACTED, "the files extracted, local disk"),
)
_FEW = (
    (epochs.FILES, "aisfs"),
    (epochs.WEB, "webdataset"),
    (epochs.SDK_SHARDS, "AISShardReader"),
    (epochs.GET, "one GET each"),
    (epochs.EXTRACTED, "local files"),
)
_FILE = (
    (shard.READ, "aisfs: reads of 1 MiB"),
    (shard.CAT, "aisfs: cat"),
    (shard.CURL, "curl"),
    (shard.SDK, "object reader of the SDK"),
    (shard.LOCAL, "a copy on the local disk"),
)
_FAR = ((latency.READ, "aisfs"), (latency.CURL, "curl"), (latency.SDK, "SDK"))
_RANDOM = (
    (latency.FILES, "aisfs"),
    (latency.FILES_SMALL, "aisfs, cache of half"),
    (latency.GET, "one GET each"),
    (latency.SDK_RANDOM, "AISMapDataset"),
)
_NAMES = (
    (listing.SCANDIR, "aisfs: scandir and stat"),
    (listing.SDK, "listing of the SDK"),
    (listing.PAGES, "the server's pages, not decoded"),
)
_MODEL = (
    (models.CURL, "curl"),
    *(
        (models.BY_MMAP.format(order, processes), f"aisfs: {order}, {number}")
        for order in (models.IN_ORDER, models.AT_RANDOM)
        for processes, number in zip(models.PROCESSES, ("one process", "four"), strict=True)
    ),
)
_WORKERS = (("one process", "0 workers"), ("two worker processes", "2 workers"))
_DELAYS = ("1 ms", "20 ms", "100 ms")
CHARTS = (
    Chart("rates", "Samples a second, in one process", (
        Panel("samples of 1 KB", "small", "0 workers", _FEW),
        Panel("pictures of 110 KB", "images", "0 workers", _FEW),
    ), columns=2),
    Chart("samples", "Samples of 1 KB: samples a second",
          tuple(Panel(title, "small", case, _EPOCHS) for title, case in _WORKERS)),
    Chart("pictures", "Pictures of 110 KB: pictures a second",
          tuple(Panel(title, "images", case, _EPOCHS) for title, case in _WORKERS)),
    Chart("shard", "A shard as a file, over loopback: MB a second", (
        Panel("one reader", "shard", shard.ALONE, _FILE),
        Panel("eight readers of the same shard, together", "shard", shard.TOGETHER, _FILE),
    )),
    Chart("links", "Over a link of 1 Gbit/s, the first time (cold), by the delay of a request", (
        *(Panel(f"{delay}: a shard, MB/s", "latency", f"{delay}, ", _FAR, ("cold",)) for delay in _DELAYS),
        *(Panel(f"{delay}: shuffled pictures/s", "latency", f"{delay}, ", _RANDOM, ("cold",))
          for delay in _DELAYS),
    ), columns=3, states=()),
    Chart("models", "A model of safetensors by mmap, the first time (cold): MB a second",
          (Panel("2 Gbit/s, 10 ms", "models", "2 Gbit/s, 10 ms", _MODEL, ("cold",)),), states=()),
    Chart("listing", "Listing objects with their sizes: objects a second",
          tuple(Panel(f"{number} objects", "listing", f"{number} objects", _NAMES)
                for number in ("100,000", "1,000,000")), columns=2),
)  # fmt: skip


def write(text: str, folder: Path) -> list[str]:
    """Draw what the tables of a text allow; return the Markdown of each chart."""
    rows = list(_rows(text))
    shown = []
    for chart in CHARTS:
        panels = [(each.title, lines) for each in chart.panels if (lines := _lines(each, rows))]
        if panels:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{chart.name}.svg").write_text(_svg(chart, panels, _about(text)))
            shown.append(f"![{chart.title}]({FOLDER}/{chart.name}.svg)")
    return shown


def _rows(text: str) -> Iterator[tuple[str, str, str, str, Bar]]:
    """Return group, case, name and state of each row that has a value, and the value."""
    names = {group.title: group.name for group in GROUPS}
    group = ""
    for line in text.splitlines():
        if heading := re.match(r"##+ (.*)", line):
            group = names.get(heading[1], "")
        spread = re.search(r"\(([\d.,]+) to ([\d.,]+)\)", line)
        if group and spread and line.startswith("| "):
            case, name, state, median, *_ = (cell.strip() for cell in line.strip("| ").split(" | "))
            value, least, most = (
                float(number.replace(",", "")) for number in (median, spread[1], spread[2])
            )
            yield (
                group,
                case,
                name.removesuffix(" (baseline)"),
                state,
                Bar(0, median, value, least, most),
            )


def _lines(panel: Panel, rows: Sequence[tuple[str, str, str, str, Bar]]) -> Lines:
    lines = []
    for wanted, label in panel.readers:
        bars = [
            Bar(shade, bar.text, bar.median, bar.least, bar.most)
            for shade, state in enumerate(panel.states)
            for group, case, name, found, bar in rows
            if (group, name, found) == (panel.group, wanted, state) and case.startswith(panel.case)
        ]
        if bars:
            lines.append((label, bars))
    return lines


def _about(text: str) -> str:
    """Return where and when the numbers were measured."""
    parts = ["longer is better", "line: least to greatest"]
    if machine := re.search(r"^(.*?), (\d+) cores, ", text, re.MULTILINE):
        parts.append(f"{machine[1]}, {machine[2]} cores for reader, daemon and server")
    if day := re.search(r"^Measured (\d{4}-\d\d-\d\d)", text, re.MULTILINE):
        parts.append(day[1])
    return " · ".join(parts)


def _svg(chart: Chart, panels: Sequence[tuple[str, Lines]], about: str) -> str:
    width = (WIDTH - _MARGIN * (chart.columns + 1)) / chart.columns
    parts, top = [], float(_HEAD)
    for first in range(0, len(panels), chart.columns):
        row = panels[first : first + chart.columns]
        for column, (title, lines) in enumerate(row):
            left = _MARGIN + column * (width + _MARGIN)
            parts.append(_text(left, top + 12, title, "panel"))
            parts += _panel(left, top + _TITLE, width, lines)
        top += _TITLE + max(_height(lines) for _, lines in row) + _GAP
    height = top + _FOOT - _GAP
    page = f'<rect class="page" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1:g}" rx="6"/>'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
        f'width="{WIDTH}" height="{height:g}" role="img" aria-label="{escape(chart.title)}">',
        f"<style>{_STYLE}</style>",
        page,
        _text(_MARGIN, 27, chart.title, "title"),
        *_legend(chart.states),
    ]
    return "\n".join([*head, *parts, _text(_MARGIN, height - 13, about, "note"), "</svg>", ""])


def _legend(states: Sequence[str]) -> Iterator[str]:
    """Say what is blue, and what the shades are."""
    left = float(_MARGIN)
    for label in ("aisfs", "others"):
        who = _who(label)
        for shade in range(max(1, len(states))):
            yield _rect(f"{who}-{shade}", left, 40, _BAR, _BAR)
            left += _BAR + 3
        yield _text(left + 3, 51, label, f"label {who}")
        left += 3 + len(label) * _character(label) + 18
    if states:
        yield _text(left, 51, f"upper bar: {states[0]}, lower bar: {states[1]}", "note")


def _character(label: str) -> float:
    return _BOLD if _who(label) == "ours" else _CHARACTER


def _who(label: str) -> str:
    return "ours" if label.startswith("aisfs") else "other"


def _height(lines: Lines) -> float:
    return sum(len(bars) * _BAR + _GAP for _, bars in lines)


def _panel(left: float, top: float, width: float, lines: Lines) -> Iterator[str]:
    """Draw the readers below each other: label, bars, the range of the rounds, numbers."""
    start = left + max(len(label) * _character(label) for label, _ in lines) + 8
    room = (
        left + width - start - 8 - _CHARACTER * max(len(b.text) for _, bars in lines for b in bars)
    )
    scale = room / max(bar.most for _, bars in lines for bar in bars)
    for label, bars in lines:
        who = _who(label)
        middle = top + len(bars) * _BAR / 2
        yield _text(start - 8, middle + 4.5, label, f"label {who}", end=True)
        for bar in bars:
            yield _rect(f"{who}-{bar.shade}", start, top, max(1, bar.median * scale), _BAR - 1)
            ends = (start + bar.least * scale, start + bar.most * scale)
            at = top + (_BAR - 1) / 2
            yield f'<path class="range" d="M{ends[0]:.1f} {at:.1f}H{ends[1]:.1f}"/>'
            yield _text(ends[1] + 5, top + _BAR - 2, bar.text, f"label {who}")
            top += _BAR
        top += _GAP


def _rect(name: str, x: float, y: float, width: float, height: float) -> str:
    return (
        f'<rect class="{name}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
    )


def _text(x: float, y: float, text: str, name: str, *, end: bool = False) -> str:
    anchor = ' text-anchor="end"' if end else ""
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}"{anchor}>{escape(text)}</text>'


def write_page(text: str, page: Path = report.PAGE) -> None:
    """Put tables into the page, below the charts of them."""
    shown = write(text, page.parent / FOLDER)
    report.write_docs(page, "\n\n".join([*shown, text.strip()]))


def tables_of(page: Path) -> str:
    """Return the tables that the page has, without the charts."""
    lines = report.between_markers(page).splitlines()
    return "\n".join(line for line in lines if not line.startswith("!["))


def main() -> None:
    """Draw the charts of the page again."""
    write_page(tables_of(report.PAGE))


if __name__ == "__main__":
    main()
