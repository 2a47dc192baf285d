"""What a run leaves: JSON lines, a table in Markdown, and the page in docs/."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from bench.engine import Row, number_text
from bench.goals import Goal
from bench.settings import Settings

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
PLOT = "performance.png"
INTRODUCTION = """# Performance

What `make bench` measured: real readers side by side, in one run, against one server. The part between the markers is
written by `python -m bench --write-docs`; do not edit it.

How to read it:

- **Compare inside a table, not across machines.** Every value belongs to the machine named below it. What travels is the
  ratio: *ratio* is the median of the ratios of single rounds to the first reader of the same case, which is marked.
- **Rounds are interleaved** (A B C A B C …), so a busy minute of the machine meets all readers. The spread is the middle
  half of the rounds (quartiles) and, behind it, the least and the greatest; *n* is the number of rounds. Where two spreads
  overlap, the difference is not shown by this run.
- **cold**: a fresh mount with an empty cache directory, the page cache dropped, a fresh process. What the *server* sends is
  in the server's memory: otherwise the disk of this machine would be measured, the same for all. Only "the same files
  extracted" come from the disk then. Mounting itself is not in the time; listing the directories or the bucket is, and so
  are indexes that have to be built. What Python imports late is not: each reader reads two other samples first.
- **warm**: the second epoch in the same process. **remount**: a fresh mount on the cache directory the first epochs have
  filled, the page cache dropped: everything comes from the disk cache.
- **listed** (modelled link): the shards were listed before the time starts. Elsewhere, and in *cold*, it is inside.
- **0 workers** is a plain loop in one process, **2 workers** the DataLoader of torch with two. Workers count the bytes of
  their batches, nothing is sent between processes and nothing is decoded: it is reading that is measured.
- Objects that cost a request each are fewer than the samples in shards; rates per sample make them comparable.
- *of the data fetched*: the page cache forgets each file after it was read, as it does when data exceed memory, and the
  daemon's disk cache and memory are bounded together, since what it keeps in memory is a cache as well. A value below what
  these caches can explain is refused as invalid.
- *GETs* and *MB* are what the server was asked for in one epoch, by its own count.
- The modelled link adds a delay to each request, redirects included, and one bandwidth for all replies together. It has
  no growing TCP window: real long lines are slower for everyone.
- *not measured* says why. Goals come from the design; a missed one is shown as missed.
"""


def write_lines(path: Path, documents: Iterable[dict[str, Any]]) -> None:
    """Append JSON lines."""
    with path.open("a") as file:
        for document in documents:
            file.write(json.dumps(document) + "\n")


def run_document(
    about: dict[str, Any], settings: Settings, endpoint: str, can_drop: bool
) -> dict[str, Any]:
    """Give the first line: what all rows of the run have in common."""
    return {
        "kind": "run",
        **about,
        "settings": asdict(settings),
        "endpoint": endpoint,
        "page_cache": "dropped" if can_drop else "only known files dropped",
    }


def markdown(
    run: dict[str, Any], titles: dict[str, str], rows: Sequence[Row], goals: Sequence[Goal]
) -> str:
    """Give the tables."""
    parts = [_about(run)]
    if goals:
        parts.append(_goals(goals))
    for group, members in groupby(rows, key=lambda row: row.group):
        parts.append(f"## {titles.get(group, group)}\n\n{_table(list(members))}")
    return "\n".join(parts)


def _about(run: dict[str, Any]) -> str:
    machine, versions, settings = run["machine"], run["versions"], run["settings"]
    known = ", ".join(f"{name} {text}" for name, text in versions.items() if text)
    return (
        f"Measured {run['time']} at {run['git']}, size `{settings['size']}`, endpoint "
        f"{run['endpoint']}.\n\n"
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, kernel "
        f"{machine['kernel']}, {machine['system']}, {machine['file_system']}, load "
        f"{machine['load']:.1f} before the run. Page cache: {run['page_cache']}.\n\n{known}.\n"
    )


def _goals(goals: Sequence[Goal]) -> str:
    lines = ["## Goals\n", "| Goal | wanted | measured | |", "|---|---|---|---|"]
    for goal in goals:
        sign = "≥" if goal.at_least else "≤"
        wanted, measured = f"{goal.wanted:,.3g}", f"{goal.measured:,.3g}"
        lines.append(
            f"| {goal.text} | {sign} {wanted} | {measured} | "
            f"{'reached' if goal.reached else 'missed'} |"
        )
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Row]) -> str:
    lines = [
        "| Case | Reader | State | Median | Unit | Quartiles (least to greatest) | n | Ratio | "
        "GETs | MB |",
        "|---|---|---|--:|---|---|--:|--:|--:|--:|",
    ]
    return "\n".join([*lines, *map(_line, rows)]) + "\n"


def _line(row: Row) -> str:
    name = f"{row.name} (baseline)" if row.baseline else row.name
    start = f"| {row.case} | {name} | {row.state} |"
    if not row.values:
        return f"{start} - | {row.unit} | not measured: {_cell(row.reason)} | 0 | | | |"
    spread = f"({number_text(min(row.values))} to {number_text(max(row.values))})"
    if row.quartiles:
        spread = f"{number_text(row.quartiles[0])} to {number_text(row.quartiles[1])} {spread}"
    if row.reason:
        spread += f"; then not measured: {_cell(row.reason)}"
    ratio = f"{row.ratio:.3g}" if row.ratio is not None and row.ratio < 100 else ""
    ratio = ratio or (f"{row.ratio:,.0f}" if row.ratio is not None else "")
    counted = row.document()["counted"]
    gets = f"{counted['get']:,.0f}" if "get" in counted else ""
    sent = number_text(counted["get_bytes"] / 1e6) if "get_bytes" in counted else ""
    median = number_text(row.median)
    return f"{start} {median} | {row.unit} | {spread} | {len(row.values)} | {ratio} | {gets} | {sent} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")[:200]


def write_docs(page: Path, text: str) -> None:
    """Put the text between the markers of the page; a new page explains how to read it."""
    old = page.read_text() if page.exists() else INTRODUCTION
    if BEGIN not in old or END not in old:
        old = f"{old.rstrip()}\n\n{BEGIN}\n{END}\n"
    before, _, rest = old.partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{text.strip()}\n\n{END}{after}")
