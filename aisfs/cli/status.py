"""`aisfs status MNT`."""

import json
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from aisfs.app.status import fastpath_summary, read_counters, summary

_MIB = 1 << 20


def table(found: dict[str, object]) -> Table:
    """Return a table of a summary, a section after the other."""
    laid = Table(show_header=False, box=None)
    laid.add_column(style="bold", no_wrap=True)
    laid.add_column(overflow="fold")
    laid.add_column(justify="right", overflow="fold")
    for title, values in found.items():
        assert isinstance(values, dict), "a summary is made of sections"
        shown = title.replace("_", " ")
        for name, value in values.items():
            laid.add_row(shown, *_words(name, value))
            shown = ""
        if not values:
            laid.add_row(shown, "none", "")
    return laid


def _words(name: str, value: object) -> tuple[str, str]:
    if isinstance(value, dict):  # an upload
        sent, size = value["sent_bytes"], value["size_bytes"]
        of = "of a file still being written" if size is None else f"of {size / _MIB:,.1f} MiB"
        return name, f"{sent / _MIB:,.1f} MiB {of}"
    if name.endswith("bytes") and isinstance(value, int):
        return name.removesuffix("_bytes"), f"{value / _MIB:,.1f} MiB"
    return name.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value) or "none"


@click.command()
@click.argument("mountpoint", metavar="MNT", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option(
    "--fastpath-stats",
    is_flag=True,
    help="Also show which threads answered the kernel, and what was pushed into its page cache.",
)
@click.option("--lane-stats", is_flag=True, hidden=True)
def status(mountpoint: Path, as_json: bool, fastpath_stats: bool, lane_stats: bool) -> None:
    """Show what the mount at MNT has done so far."""
    counters = read_counters(mountpoint)
    found = summary(counters) | (fastpath_summary(counters) if fastpath_stats or lane_stats else {})
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
    else:
        Console(markup=False, emoji=False, highlight=False).print(table(found))
