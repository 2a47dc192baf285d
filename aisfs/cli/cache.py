"""`aisfs warm` and `aisfs cache`: fill the disk cache, look at it, clean it."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn
from rich.table import Table

from aisfs.app.warm import Summary, find_items, warm
from aisfs.cache.disk.block_cache import BlockCache, Statistics
from aisfs.cache.disk.directory import LAYOUT, CacheDirectory
from aisfs.cache.disk.verify import CheckReport
from aisfs.cache.index_cache import IndexCache
from aisfs.cli.exits import Exit
from aisfs.config import CacheSettings
from aisfs.errors import ConfigError, SourceMissing
from aisfs.process import logs

_MIB = 1 << 20


def status_table(statistics: Statistics) -> Table:
    """Lay out how full the cache is."""
    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(justify="right")
    limit = f"{statistics.limit / _MIB:.1f} MiB" if statistics.limit else "no daemon uses it"
    table.add_row("limit", limit)
    table.add_row("used", f"{statistics.used / _MIB:.1f} MiB")
    table.add_row("object versions", str(statistics.entries))
    table.add_row("segments", str(statistics.segments))
    return table


def verify_with_progress(blocks: BlockCache, console: Console) -> CheckReport:
    """Check the whole cache and show how far it is."""
    columns = (BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("verify")
        return blocks.check(lambda done, total: progress.update(task, completed=done, total=total))


@click.command("warm")
@click.argument(
    "paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path)
)
@click.option(
    "--index-only",
    is_flag=True,
    help="Only find the members of shards, and leave other objects alone.",
)
@click.option(
    "--jobs", type=click.IntRange(1, 64), default=4, show_default=True, help="Shards read at once."
)
def warm_up(paths: tuple[Path, ...], index_only: bool, jobs: int) -> int:
    """Fill the cache of a mount before training.

    Reads the shards and objects at or below each PATH once, through the mount.
    """
    items = find_items(paths, index_only=index_only)
    summary = warm(items, jobs=jobs, console=Console(stderr=True))
    click.echo(f"{summary.shards} shards, {summary.objects} objects, {summary.size} bytes read")
    if not summary.complete:
        click.echo(f"aisfs: {_shortfall(summary)}", err=True)
    for failure in summary.failures:
        click.echo(f"aisfs: {failure}", err=True)
    return Exit.FAILURE if summary.failures else Exit.OK


def _shortfall(summary: Summary) -> str:
    """Say how much of what was read is kept."""
    said = []
    if summary.kept < summary.size:
        said.append(f"{summary.kept} of {summary.size} bytes")
    if summary.indexes < summary.shards:
        said.append(f"{summary.indexes} of {summary.shards} indexes")
    return f"the disk cache keeps only {' and '.join(said)}; see --cache-size of the mount"


@click.group()
def cache() -> None:
    """Look at the disk cache, or clean it.

    Daemons may go on using it meanwhile.
    """


def _cache_dir_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--cache-dir", type=click.Path(path_type=Path), metavar="DIR", help="As for mount."
    )(command)


def _existing(cache_dir: Path | None) -> Path:
    """Return the cache directory.

    Raises:
        SourceMissing: there is none.
    """
    directory = CacheSettings.load({"cache_dir": cache_dir}).cache_dir
    try:
        if not (directory / LAYOUT).is_dir():
            raise SourceMissing(f"{directory}: there is no cache")
    except OSError as error:
        raise SourceMissing(f"{directory}: {error.strerror}") from None
    return directory


def _open_cache(cache_dir: Path | None) -> BlockCache:
    directory = _existing(cache_dir)
    logs.configure("warning", None, foreground=True)
    return BlockCache.open(directory, None)


@cache.command()
@_cache_dir_option
def status(cache_dir: Path | None) -> None:
    """Show how full the cache is."""
    with closing(_open_cache(cache_dir)) as blocks:
        Console().print(status_table(blocks.statistics()))


@cache.command()
@_cache_dir_option
def verify(cache_dir: Path | None) -> int:
    """Read everything in the cache and drop what is damaged.

    Exit code 1 if anything was, or could not be read.
    """
    with closing(_open_cache(cache_dir)) as blocks:
        report = verify_with_progress(blocks, Console(stderr=True))
    click.echo(f"{report.bytes} bytes are good, {report.damaged} segments were damaged and dropped")
    if report.unknown:
        click.echo(f"aisfs: {report.unknown} segments could not be read or dropped", err=True)
    return Exit.FAILURE if report.damaged or report.unknown else Exit.OK


@cache.command()
@_cache_dir_option
def clear(cache_dir: Path | None) -> None:
    """Remove everything from the cache."""
    directory = _existing(cache_dir)
    IndexCache(directory, 0).clear()  # first: the ledger may need the room
    try:
        with closing(_open_cache(cache_dir)) as blocks:
            blocks.clear()
    except ConfigError as error:
        if not _hopeless(error.__cause__):
            raise
        place = CacheDirectory(directory)
        with place.opening():
            place.remove()
            in_use = place.in_use()
        if in_use:
            click.echo(
                "aisfs: the books of the cache could not be written, so mounts that use it go on"
                " without a disk cache until they are mounted again",
                err=True,
            )


def _hopeless(cause: BaseException | None) -> bool:
    """Say whether the ledger cannot be used at all: no room, for example; not when it is busy."""
    if isinstance(cause, sqlite3.Error):
        return cause.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY
    return isinstance(cause, OSError)
