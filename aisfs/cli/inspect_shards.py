"""`aisfs inspect`: looks at shards and tells what is in them, as tables or as JSON."""

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
import trio
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table

from aisfs.cli.exits import Exit, exit_code
from aisfs.config import CacheSettings, ClusterSettings, TreeSettings
from aisfs.core.namespace.sources import DatasetSource, Source, parse_source, parse_sources
from aisfs.core.views.summary import Sizes, shown
from aisfs.process import logs

if TYPE_CHECKING:
    from aisfs.app.inspection import Report

TOP = 10
LINES_MAX = 20
"""Lines of a table of damage or holes; JSON has all of them."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@click.command("inspect")
@click.argument("source", metavar="SOURCE")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option(
    "--jobs", type=click.IntRange(1, 64), default=4, show_default=True, help="Shards read at once."
)
@click.option(
    "--labels",
    type=click.IntRange(0),
    default=TOP,
    show_default=True,
    metavar="N",
    help="The N most frequent labels are printed; 0 reads none.",
)
@click.option("--endpoint", metavar="URL", help="As for mount.")
@click.option("--ignore-zeros", is_flag=True, default=None, help="As for mount.")
@click.option("--recursive", is_flag=True, default=None, help="As for mount.")
@click.option("--magic", is_flag=True, default=None, help="As for mount.")
@click.option("--cache-dir", type=click.Path(path_type=Path), metavar="DIR", help="As for mount.")
@click.option("--cache-size", metavar="SIZE", help="As for mount.")
@click.option("--io-timeout", type=float, metavar="S", help="As for mount.")
def inspect(
    source: str,
    as_json: bool,
    jobs: int,
    labels: int,
    endpoint: str | None,
    ignore_zeros: bool | None,
    recursive: bool | None,
    magic: bool | None,
    cache_dir: Path | None,
    cache_size: str | None,
    io_timeout: float | None,
) -> int:
    """Tell what is in the shards of SOURCE without mounting them.

    SOURCE is ais://BUCKET, ais://BUCKET/PREFIX/, ais://BUCKET/SHARD, a local directory or a file;
    braces and globs name several shards, as for mount.
    Exit code 9 when something is damaged.
    """
    from aisfs.app import inspection
    from aisfs.app.plan import SourcePlan, is_local

    logs.configure("error", None, foreground=True)
    place, only = inspection.split_source(_parse(source))
    cluster = ClusterSettings.load({"endpoint": endpoint, "io_timeout": io_timeout})
    if not is_local(place):
        cluster.require_endpoint()
    plan = SourcePlan(
        source=place,
        cluster=cluster,
        tree=TreeSettings.load(
            {"ignore_zeros": ignore_zeros, "recursive": recursive, "magic": magic}
        ),
        cache=CacheSettings.load({"cache_dir": cache_dir, "cache_size": cache_size}),
    )
    with _Bar(Console(stderr=True)) as bar:

        async def look() -> "Report":
            return await inspection.inspect(plan, only, jobs=jobs, labels=labels > 0, progress=bar)

        report = _run(look)
    if as_json:
        click.echo(to_json(source, report))
    else:
        print_tables(report, Console(), labels)
    return _exit(report)


def _parse(text: str) -> Source:
    """Read SOURCE; one shard or directory is looked for as such, whatever its name."""
    source = parse_sources([text], is_directory=os.path.isdir)
    if isinstance(source, DatasetSource):
        patterns = source.words[0].patterns
        if len(patterns) > 1 or not patterns[0].one:
            return source
    return parse_source(text)


def _run(look: Callable[[], Awaitable["Report"]]) -> "Report":
    """Run it, and end without a traceback on Ctrl-C, which trio gives in groups."""
    interrupted = False
    try:
        return trio.run(look)
    except* KeyboardInterrupt:
        interrupted = True
    assert interrupted, "nothing else is swallowed"
    raise click.Abort


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
    """Spell a report; docs/CONFIGURATION.md says what its fields mean."""
    summary = report.summary
    found = {
        "source": source,
        "shards": summary.shards,
        "bytes": summary.bytes,
        "forms": summary.forms,
        "members": summary.members,
        "samples": summary.samples,
        "components": {shown(name): sizes for name, sizes in summary.components()},
        "labels": {shown(label): count for label, count in summary.labels.most_common()},
        "labels_left_out": summary.labels_left_out,
        "skipped": summary.skipped,
        "loose_objects": report.loose_objects,
        "holes": report.holes,
        "damage": report.damage,
        "failures": {shard: str(error) for shard, error in report.failures.items()},
    }
    return msgspec.json.format(msgspec.json.encode(found, order="sorted"), indent=2).decode()


# Tables --------------------------------------------------------------------------------------


def print_tables(report: "Report", console: Console, labels: int) -> None:
    """Print a report for people."""
    summary = report.summary
    console.print(_totals(report))
    components = summary.components()
    if components:
        console.print(_components(components))
    if labels and summary.labels:
        table = _table("label", "samples", title=f"{len(summary.labels)} labels")
        for label, count in summary.labels.most_common(labels):
            table.add_row(_safe(shown(label)), str(count))
        if len(summary.labels) > labels:
            rest = sum(summary.labels.values()) - sum(
                count for _, count in summary.labels.most_common(labels)
            )
            table.add_row(f"({len(summary.labels) - labels} more)", str(rest))
        console.print(table)
    _print_lines(console, "missing between others", report.holes)
    damaged = [
        f"{shard}: {text}" for shard, texts in sorted(report.damage.items()) for text in texts
    ]
    _print_lines(console, "damage", damaged)
    failures = [str(error) for _, error in sorted(report.failures.items())]
    _print_lines(console, "not readable", failures)


def _totals(report: "Report") -> Table:
    summary = report.summary
    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column()
    forms = ", ".join(f"{count} {form}" for form, count in sorted(summary.forms.items()))
    table.add_row("shards", f"{summary.shards} ({forms})" if forms else "0")
    table.add_row("size", _size(summary.bytes))
    table.add_row("samples", str(summary.samples))
    table.add_row("members", str(summary.members))
    rows: Mapping[str, int] = {
        "other objects": report.loose_objects,
        "labels left out": summary.labels_left_out,
        **{f"left out: {why}": count for why, count in sorted(summary.skipped.items())},
    }
    for name, count in rows.items():
        if count:
            table.add_row(name, str(count))
    return table


def _components(components: list[tuple[bytes, Sizes]]) -> Table:
    table = _table("component", "count", "min", "median", "max", "total")
    for name, sizes in components:
        numbers = [_size(n) for n in (sizes.min, sizes.median, sizes.max, sizes.total)]
        table.add_row(_safe(shown(name)) or "(no sample)", str(sizes.count), *numbers)
    return table


def _table(first: str, *others: str, title: str | None = None) -> Table:
    table = Table(box=None, title=title, title_justify="left", title_style="bold")
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right")
    return table


def _print_lines(console: Console, title: str, lines: list[str]) -> None:
    if lines:
        console.print(f"{title}: {len(lines)}", style="bold")
        for line in lines[:LINES_MAX]:
            console.print(f"  {_safe(line)}", soft_wrap=True, highlight=False)
        if len(lines) > LINES_MAX:
            console.print(f"  and {len(lines) - LINES_MAX} more; --json has all of them")


def _safe(text: str) -> str:
    """Spell text so that it neither commands the terminal nor is taken for markup."""
    return escape("".join(c if c.isprintable() else repr(c)[1:-1] for c in text))


def _size(size: int) -> str:
    """Spell a number of bytes with three or four digits."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{size} B" if not unit else f"{value:.1f} {_UNITS[unit]}"
