"""What a run leaves: JSON lines, a table in Markdown, and the page in docs/."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from bench import reclaim
from bench.engine import Row, number_text
from bench.goals import Goal
from bench.server import REPOSITORY
from bench.settings import Settings

GOALS = "### Goals"
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
PAGE = REPOSITORY / "docs" / "PERFORMANCE.md"
INTRODUCTION = """# Performance

`make bench` ran real readers side by side, in one run, against one server. `python -m bench --write-docs` writes the part
between the markers, and draws the charts; do not edit it. `python -m bench.charts` draws them again from the tables.

How to read it:

- **Compare inside a table, not across machines.** Absolute values belong to the machine named below. The *ratio* is what carries
  over: the median, over the rounds, of the ratio to the first reader of the same case (the baseline).
- **Rounds are interleaved** (A B C A B C …), so a busy minute affects all readers. The spread is the middle
  half of the rounds (quartiles), followed by the least and the greatest; *n* is the number of rounds. If two spreads
  overlap, this run does not show a difference.
- **cold**: a fresh mount with an empty cache directory, an empty page cache and a fresh process. What the *server* sends is
  in the server's memory; otherwise every row would measure this machine's disk. Only "the same files
  extracted" come from disk. The time includes listing directories or buckets and building
  indexes. It excludes mounting and late imports: each reader first reads two other samples.
- **warm**: the second epoch in the same process. **remount**: a fresh mount on the cache directory that the first epochs
  filled, with an empty page cache, so everything comes from the disk cache.
- **listed** (modelled link): the shards were listed before the time starts. In all other cases the time includes listing.
- **0 workers** is a plain loop in one process. **2 workers** is torch's DataLoader with two. Workers only count the bytes of
  their batches. Nothing is sent between processes or decoded, so the rows measure reading.
- Readers of single objects need one request each, so they read fewer samples. Rates per sample make them comparable.
- *Over S3*: other mounts know no tar, so they are read in both ways that their users have: samples that are objects, as files, and shards, by
  webdataset. Each way has a goal, which names the better of them.
- *of the data fetched*: the page cache drops each file after it was read, as it does when data exceed memory. The
  daemon's disk cache and memory are limited together, since what it keeps in memory is a cache, too. A value below what
  these caches can explain is rejected as invalid.
- *GETs* and *MB* are the requests and bytes of one epoch, as the server counted them.
- *rounds spoiled*: the kernel counted pages that it had reclaimed although memory was not short (see "reclaimed without need") and
  that were read again, or another program emptied the page cache. Such a row says less than it should.
- A *shaped link* is a real one, to a server in a network namespace: the kernel limits its rate, and delays its packets if it can. *of the
  link* is the share of that rate at which pictures arrive. Reader, daemon and server have the processors in common: when these are
  busy with them, they are the limit, not the link.
- *A model by mmap*: each process maps the file and copies all tensors; at random, each in an order of its own. The reader's copies take
  the same processors as daemon and server, so the rows say something only of a machine that does nothing else.
- The modelled link adds a delay to each request (also to redirects) and one bandwidth for all replies together. Its TCP window does not
  grow, so real long lines are slower for all readers.
- *not measured* is followed by the reason. Goals come from the design; missed goals are shown.
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
        f"{machine['load']:.1f} before the run. Page cache: {run['page_cache']}; reclaimed without "
        f"need by: {machine['reclaim']}.\n\n{known}.\n"
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
    spent = any("reader_s_gb" in row.counted for row in rows)
    head = "| Case | Reader | State | Median | Unit | Quartiles (least to greatest) | n | Ratio | "
    lines = [f"{head}GETs | MB |", "|---|---|---|--:|---|---|--:|--:|--:|--:|"]
    if spent:
        lines = [
            f"{lines[0]} Processor s/GB: reader, daemon, server | Processors busy (with these) |",
            f"{lines[1]}---|--:|",
        ]
    cells = [_spent(row) if spent else "" for row in rows]
    return "\n".join([*lines, *map("".join, zip(map(_line, rows), cells, strict=True))]) + "\n"


def _spent(row: Row) -> str:
    counted = row.document()["counted"]
    parts = [counted.get(f"{who}_s_gb") for who in ("reader", "daemon", "server")]
    busy = ""
    if "busy" in counted:
        busy = f"{100 * counted['busy']:.0f} % ({100 * counted['busy_ours']:.0f} %)"
    return f" {', '.join(map(number_text, parts))} | {busy} |"


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
    for remark in filter(None, (row.note, reclaim.verdict(row.counted))):
        spread += f"; {_cell(remark)}"
    ratio = f"{row.ratio:.3g}" if row.ratio is not None and row.ratio < 100 else ""
    ratio = ratio or (f"{row.ratio:,.0f}" if row.ratio is not None else "")
    counted = row.document()["counted"]
    gets = f"{counted['get']:,.0f}" if "get" in counted else ""
    sent = number_text(counted["get_bytes"] / 1e6) if "get_bytes" in counted else ""
    median = number_text(row.median)
    return f"{start} {median} | {row.unit} | {spread} | {len(row.values)} | {ratio} | {gets} | {sent} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")[:200]


def between_markers(page: Path) -> str:
    """Return what the latest run has written into the page."""
    return page.read_text().partition(BEGIN)[2].partition(END)[0].strip()


def with_groups_of(new: str, old: str) -> str:
    """Return the tables of an earlier run with those groups and goals replaced that a later one has measured.

    Each group says below its title when it was measured, if that was not the run which measured all of them.
    """
    about, *groups = _sections(new)
    before, *others = _sections(old)
    sections = {each.partition("\n")[0]: each for each in others}
    for each in groups:
        title, _, rest = each.partition("\n")
        if title == GOALS:
            sections[title] = _with_goals_of(each, sections.get(title, each))
        else:
            sections[title] = f"{title}\n\n{about.strip().partition(chr(10))[0]}\n{rest}"
    return "".join([before, *sections.values()])


def _sections(text: str) -> list[str]:
    return re.split(r"^(?=### )", text.strip() + "\n\n", flags=re.M)


def _with_goals_of(new: str, old: str) -> str:
    lines = {line.split("|")[1]: line for line in old.splitlines() if line.startswith("|")}
    lines |= {line.split("|")[1]: line for line in new.splitlines() if line.startswith("|")}
    return "\n".join([GOALS, "", *lines.values(), "", ""])


def write_docs(page: Path, text: str) -> None:
    """Put the text between the markers of the page; a new page explains how to read it."""
    old = page.read_text() if page.exists() else INTRODUCTION
    if BEGIN not in old or END not in old:
        old = f"{old.rstrip()}\n\n{BEGIN}\n{END}\n"
    before, _, rest = old.partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{text.strip()}\n\n{END}{after}")
