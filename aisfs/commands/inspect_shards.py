"""`aisfs inspect`: what is in shards, as tables or as JSON."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from aisfs.commands.guide import Documented, complete_source
from aisfs.commands.options import (
    SOURCES,
    STORE,
    Exit,
    exit_code,
    jobs_option,
    own_option,
    print_parts,
    run,
    setting,
    settings,
    with_switched_off,
    without_unset,
)
from aisfs.redaction import escaped
from aisfs.system import logs
from aisfs.work.display import counted, size_text

if TYPE_CHECKING:
    from aisfs.work.inspection import Report

TOP = 10
LINES_MAX = 20
"""Lines of a table of damage or holes; JSON has all of them."""


@click.command("inspect", cls=Documented)
@click.argument("sources", metavar="SOURCE...", nargs=-1, shell_complete=complete_source)
@own_option("--json", "Print JSON instead of tables.", name="as_json")
@jobs_option("Shards read at once; each is several requests.")
@own_option(
    "--labels N",
    "Print the N most frequent labels; 0 reads none.",
    "then of a zip only its directory is read",
    type=click.IntRange(0),
    default=TOP,
)
@settings(*SOURCES, *STORE, "ignore_zeros", "encoding")
@setting("recursive", why="an inner tar counts as a member besides its own members")
@setting(
    "magic",
    "Recognize archives by content, not by name",
    why="only objects named like a shard are inspected",
)
@settings(
    "etl",
    "etl_args",
    "transform",
    "scan",
    "index_bucket",
    "published_index",
    "cache_dir",
    "cache_size",
    "io_timeout",
)
def inspect(
    sources: tuple[str, ...],
    as_json: bool,
    jobs: int,
    labels: int,
    **settings: object,
) -> int:
    """Show what is in the shards of SOURCE without mounting them.

    SOURCE is as for `aisfs mount`: a bucket, a prefix or a directory (all shards at and below it),
    shards by name, braces and globs, or a list of them. The exit code is 9 if a shard is damaged.
    """
    from aisfs.mount.setup import inspection_setup
    from aisfs.work import inspection

    logs.configure("error", None, foreground=True)
    setup, only = inspection_setup(sources, with_switched_off(without_unset(settings)))
    with _Bar(Console(stderr=True)) as bar:

        async def look() -> "Report":
            return await inspection.inspect(setup, only, jobs=jobs, labels=labels > 0, progress=bar)

        report = run(look)
    if as_json:
        click.echo(to_json(" ".join(sources) or str(setup.source), report))
    else:
        print_tables(report, labels)
    return _exit(report)


def _exit(report: "Report") -> Exit:
    failure = report.first_failure
    if failure is not None:
        return exit_code(failure)
    return Exit.DAMAGED if report.damage else Exit.OK


class _Bar(Progress):
    """A progress bar on a terminal, nothing elsewhere."""

    def __init__(self, console: Console) -> None:
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        super().__init__(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._task = self.add_task("shards", total=None)

    def found(self, shards: int) -> None:
        self.update(self._task, total=shards)

    def done(self) -> None:
        self.advance(self._task)


# JSON ----------------------------------------------------------------------------------------


def to_json(source: str, report: "Report") -> str:
    """Return a report as JSON; docs/CONFIGURATION.md explains its fields."""
    summary = report.summary
    found = {
        "source": source,
        "shards": summary.shards,
        "bytes": summary.bytes,
        "forms": summary.forms,
        "members": summary.members,
        "samples": summary.samples,
        "images": summary.images,
        "components": dict(report.components()),
        "labels": dict(report.labels()),
        "labels_left_out": summary.labels_left_out,
        "skipped": summary.skipped,
        "loose_objects": report.loose_objects,
        "holes": report.holes,
        "damage": report.damage,
        "indexes": report.indexes,
        "scans": msgspec.to_builtins(report.scans),
        "failures": {shard: str(error) for shard, error in report.failures.items()},
    }
    return msgspec.json.format(msgspec.json.encode(found, order="sorted"), indent=2).decode()


# Tables --------------------------------------------------------------------------------------


def print_tables(report: "Report", labels: int) -> None:
    """Print a report for people."""
    parts: list[RenderableType] = [_totals(report)]
    if report.components():
        parts.append(_components(report))
    found = report.labels()
    if labels and found:
        table = _table("label", "samples", title=f"{len(found)} labels")
        for label, count in found[:labels]:
            table.add_row(escaped(label), str(count))
        if len(found) > labels:
            rest = sum(count for _, count in found[labels:])
            table.add_row(f"({len(found) - labels} more)", str(rest))
        parts.append(table)
    damaged = [
        f"{shard}: {text}" for shard, texts in sorted(report.damage.items()) for text in texts
    ]
    failures = [str(error) for _, error in sorted(report.failures.items())]
    parts += _lines("missing between others", report.holes)
    parts += _lines("damage", damaged)
    parts += _lines("not readable", failures)
    print_parts(*parts)


def _totals(report: "Report") -> Table:
    summary = report.summary
    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column()
    forms = ", ".join(f"{count} {form}" for form, count in sorted(summary.forms.items()))
    table.add_row("shards", f"{summary.shards} ({forms})" if forms else "0")
    table.add_row("size", size_text(summary.bytes))
    table.add_row("samples", str(summary.samples))
    table.add_row("with an image", str(summary.images))
    table.add_row("members", str(summary.members))
    rows: Mapping[str, int] = {
        "other objects": report.loose_objects,
        "labels left out": summary.labels_left_out,
        **{f"left out: {escaped(why)}": count for why, count in _most(summary.skipped)},
    }
    for name, count in rows.items():
        if count:
            table.add_row(name, str(count))
    for name, text in _scans(report):
        table.add_row(name, text)
    return table


def _scans(report: "Report") -> Iterator[tuple[str, str]]:
    """Yield how shards were read, and why so."""
    scans = report.scans
    if report.indexes:
        yield "indexes", ", ".join(f"{n} {origin}" for origin, n in sorted(report.indexes.items()))
    if scans.streamed:
        yield "streamed", counted(scans.streamed, "shard")
    if scans.walked:
        share = f"{size_text(scans.walked_read)} of {size_text(scans.walked_size)}"
        yield "headers read", f"{counted(scans.walked, 'shard')}, {share}"
    if scans.walked and scans.latency is not None and scans.rate is not None:
        link = f"{1000 * scans.latency:.1f} ms a request, {size_text(int(scans.rate))}/s"
        yield "skipped", f"data of more than {size_text(scans.even)} ({link})"


def _components(report: "Report") -> Table:
    table = _table("component", "count", "min", "median", "max", "total")
    found = report.components()
    for name, sizes in found[:LINES_MAX]:
        numbers = [size_text(n) for n in (sizes.min, sizes.median, sizes.max, sizes.total)]
        table.add_row(escaped(name) or "(no sample)", str(sizes.count), *numbers)
    if len(found) > LINES_MAX:
        rest = sum(sizes.count for _, sizes in found[LINES_MAX:])
        table.add_row(f"({len(found) - LINES_MAX} more)", str(rest))
    return table


def _most(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the largest of counts, by name, and all others together."""
    largest = sorted(counts, key=lambda name: counts[name], reverse=True)
    rest = sum(counts[name] for name in largest[LINES_MAX:])
    return [
        *((name, counts[name]) for name in sorted(largest[:LINES_MAX])),
        ("other reasons", rest),
    ]


def _table(first: str, *others: str, title: str | None = None) -> Table:
    table = Table(box=None, title=title, title_justify="left", title_style="bold")
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right")
    return table


def _lines(title: str, lines: list[str]) -> list[RenderableType]:
    if not lines:
        return []
    more = len(lines) - LINES_MAX
    return [
        Text(f"{title}: {len(lines)}", style="bold"),
        *(f"  {escaped(line)}" for line in lines[:LINES_MAX]),
        *([f"  and {more} more; --json has all of them"] if more > 0 else []),
    ]
