"""`aisfs warm` and `aisfs cache`: fill the disk cache, look at it, clean it."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn
from rich.table import Table

from aisfs.commands.guide import Documented, complete_source
from aisfs.commands.options import (
    STORE,
    Exit,
    jobs_option,
    own_option,
    print_parts,
    run,
    setting,
    settings,
    without_unset,
)
from aisfs.redaction import escaped
from aisfs.system import logs
from aisfs.work.display import counted, size_text

if TYPE_CHECKING:
    from aisfs.work.warm import Summary


@click.command("warm", cls=Documented)
@click.argument("words", nargs=-1, metavar="PATH|SOURCE...", shell_complete=complete_source)
@own_option(
    "--index-only",
    "Only find the members of shards; skip other objects.",
    "shards without an index are scanned, and the bytes read are cached if there is room",
)
@own_option(
    "--plan FILE",
    "Read what FILE names, in its order, until the cache is full.",
    "FILE as for `aisfs plan`",
)
@jobs_option("Shards and objects read at once; each is several requests.")
@setting("files_from")
@setting("endpoint", why="this and the following options are for a `SOURCE` only")
@settings(*STORE[1:], "etl", "etl_args", "transform", "cache_dir", "cache_size", "io_timeout")
def warm_up(
    words: tuple[str, ...], index_only: bool, plan: str | None, jobs: int, **settings: object
) -> int:
    """Fill the disk cache before training.

    Reads the shards and objects at or below each PATH once, through the mount. A SOURCE, such as
    ais://BUCKET/PREFIX/ or 'ais://BUCKET/train-{000..}.tar', needs no mount: the next mount with the
    same --cache-dir finds its data there, or with --etl or --transform, the results.
    """
    from aisfs.work.warm import (
        Room,
        Summary,
        find_items,
        parse_words,
        planned_items,
        warm,
        warm_place,
    )

    given = without_unset(settings)
    paths, places = parse_words(words, given)
    if places:
        logs.configure("error", None, foreground=True)
    elif option := next((name for name in given if name != "files_from"), None):
        name = option.replace("_", "-")
        raise click.UsageError(f"--{name} is for a SOURCE; the mount of a PATH has its own")
    console, summary = Console(stderr=True), Summary()
    if plan is not None:
        if places or len(paths) != 1:
            raise click.UsageError(
                "--plan: give one PATH, the directory in a mount that FILE is of"
            )
        if index_only:
            raise click.UsageError("--plan: not with --index-only")
        items, room = planned_items(paths[0], plan, summary), Room(paths[0])
    else:
        items, room = find_items(paths, index_only=index_only), None
    if items:
        warm(items, summary, jobs=jobs, console=console, room=room)
    for place in places:
        work = partial(warm_place, place, given, summary, index_only=index_only, jobs=jobs)
        run(partial(work, console=console))
    return _print_summary(summary)


def _print_summary(summary: "Summary") -> int:
    shards, objects = counted(summary.shards, "shard"), counted(summary.objects, "object")
    click.echo(f"{shards}, {objects}, {summary.size} bytes read")
    said = [_shortfall(summary)] if not summary.complete else []
    if summary.left:
        said.append(f"the disk cache takes no more: {counted(summary.left, 'file')} not read")
    if summary.missing:
        said.append(f"{counted(summary.missing, 'name')} left out: there is no such file or sample")
    for each in (*said, *(escaped(str(failure)) for failure in summary.failures)):
        click.echo(f"aisfs: {each}", err=True)
    return Exit.FAILURE if summary.failures else Exit.OK


def _shortfall(summary: "Summary") -> str:
    said = []
    if summary.kept < summary.size:
        said.append(f"{summary.kept} of {summary.size} bytes")
    if summary.indexes < summary.shards:
        said.append(f"{summary.indexes} of {summary.shards} indexes")
    return f"the disk cache keeps only {' and '.join(said)}; see --cache-size"


@click.group()
def cache() -> None:
    """Inspect or clean the disk cache.

    Mounts may go on using it meanwhile.
    """
    logs.configure("warning", None, foreground=True)


@cache.command(cls=Documented)
@setting("cache_dir")
def status(cache_dir: Path | None) -> None:
    """Show how full the cache is."""
    from aisfs.work import cache as caches

    with caches.existing_cache(cache_dir) as blocks:
        statistics = blocks.statistics()
    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(justify="right")
    limit = f"{size_text(statistics.limit)}" if statistics.limit else "no mount uses it"
    table.add_row("limit", limit)
    table.add_row("used", size_text(statistics.used))
    table.add_row("object versions", str(statistics.entries))
    table.add_row("segments", str(statistics.segments))
    print_parts(table)


@cache.command(cls=Documented)
@setting("cache_dir")
def verify(cache_dir: Path | None) -> int:
    """Read everything in the cache and drop what is damaged.

    The exit code is 1 if anything was damaged or could not be read.
    """
    from aisfs.work import cache as caches

    columns = (BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with (
        caches.existing_cache(cache_dir) as blocks,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        task = progress.add_task("verify")
        report = blocks.check(
            lambda done, total: progress.update(task, completed=done, total=total)
        )
    click.echo(f"{report.bytes} bytes are good, {report.damaged} segments were damaged and dropped")
    if report.unknown:
        click.echo(f"aisfs: {report.unknown} segments could not be read or dropped", err=True)
    return Exit.FAILURE if report.damaged or report.unknown else Exit.OK


@cache.command(cls=Documented)
@setting("cache_dir")
def clear(cache_dir: Path | None) -> None:
    """Remove everything from the cache."""
    from aisfs.work import cache as caches

    if not caches.clear(cache_dir):
        click.echo(
            "aisfs: the ledger of the cache could not be written, so mounts that use it go on"
            " without a disk cache until they are mounted again",
            err=True,
        )
