"""`aisfs index`: published indexes of shards."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from aisfs.commands.guide import Documented, complete_source
from aisfs.commands.options import (
    SOURCES,
    STORE,
    Exit,
    exit_code,
    jobs_option,
    own_option,
    run,
    setting,
    settings,
    taken,
    without_unset,
)
from aisfs.redaction import escaped
from aisfs.system import logs
from aisfs.work.display import counted
from aisfs.work.progress import transfer_columns

if TYPE_CHECKING:
    from aisfs.work.publishing import IndexOptions, Report


_SERVER_OPTIONS = ("endpoint", "files_from", "include", "exclude")
_MOVE_OPTIONS = ("index_bucket", "io_timeout", *_SERVER_OPTIONS)
_ETL_OPTIONS = (
    "etl",
    "etl_args",
    "index_bucket",
    "cache_dir",
    "cache_size",
    "io_timeout",
    *_SERVER_OPTIONS,
)
_ETL_JOBS = 8
"""Objects transformed at once, as by a mount."""
_MOST_LINES = 20
"""Lines about single shards, unless --check asks for all of them."""


@click.command("index", cls=Documented)
@click.argument("sources", nargs=-1, metavar="SOURCE...", shell_complete=complete_source)
@own_option(
    "--publish",
    "Publish an index of each shard that has no current one: on AIStore in the bucket of indexes,"
    " elsewhere beside the shard.",
)
@own_option(
    "--publish-to DIR",
    "Store them below DIR on this machine, to be copied beside the shards: for web servers and Hugging Face.",
    "see below",
    type=click.Path(path_type=Path),
)
@own_option(
    "--move",
    "Move the indexes that lie beside shards on AIStore into the bucket of indexes.",
    "see below",
)
@own_option("--check", "Print the shards whose index is missing, stale or damaged; change nothing.")
@own_option(
    "--server",
    "Have AIStore build its own indexes, on all targets at once; with --check, only check them.",
    "plain tars only; see below",
)
@own_option(
    "--write-idx FORMAT[=PATH]",
    "Also write what other programs read, beside the shards or to PATH: wids (a list) or dali (an index of each); repeatable.",
    "see below",
    multiple=True,
)
@own_option(
    "--label FROM",
    "Publish these labels with the members: cls where shards have it, or an extension, or json:PATH; repeatable.",
    name="labels",
    multiple=True,
)
@own_option("--force", "Also build and publish what is current.")
@own_option("--dry-run", "Only print what would be published and written, and why.")
@jobs_option("Shards indexed at once; each is several requests.")
@setting(
    "etl",
    "Publish the sizes of what these ETLs of AIStore make of all objects of SOURCE, which transforms them",
    why="see below",
)
@setting("etl_args")
@settings(*SOURCES, *STORE)
@setting("index_bucket", why="made if it is missing; `''` publishes beside the shards")
@setting("ignore_zeros", why="mounts use the index only with the same options")
@setting("encoding")
@setting("recursive", why="not with `--write-idx`")
@setting(
    "magic",
    "Recognize archives by content, not by name",
    why="only objects named like a shard are indexed",
)
@setting("cache_dir", why="keeps indexes and decompressed tars, no other content")
@settings("cache_size", "io_timeout")
def index(
    sources: tuple[str, ...],
    move: bool,
    server: bool,
    jobs: int,
    **given: object,
) -> int:
    """Publish the indexes of shards, so that no mount has to scan the shards.

    On AIStore they go into a bucket of their own. Elsewhere they lie beside the shards, in .aisfs-index/NAME.idx:
    mounts do not list them, but other programs that read the whole bucket or directory do, and may take them for
    data. Leave them out there, as in rclone's --exclude '.aisfs-index/**'.

    SOURCE is as for `aisfs mount`: a bucket, a prefix or a directory (all shards at and below it),
    shards by braces and globs, or a list of them. Shards with a current index are skipped, so after
    an error just run it again. With --etl, a bucket or a prefix stands for all objects. The exit code is 1 if something was left out or, with --check, is not
    current, and 9 if a shard is damaged.
    """
    from aisfs.work import publishing
    from aisfs.work.publishing import IndexOptions, index_setup

    logs.configure("error", None, foreground=True)
    options = taken(IndexOptions, given)
    given = without_unset(given)
    check, dry_run = options.check, options.dry_run
    builds = bool(options.publish_to or options.write_idx or options.labels or options.force)
    others = options.publish or builds
    if server:
        _take_only("--server", "--check", _SERVER_OPTIONS, others or move or dry_run, given)
        return _index_on_server(sources, given, jobs, check=check)
    if move:
        _take_only("--move", "--dry-run", _MOVE_OPTIONS, others or check, given)
        return _move(sources, given, jobs, dry_run=dry_run)
    if given.keys() & {"etl", "etl_args"}:
        others = builds or dry_run or (check and options.publish)
        _take_only("--etl", "--check or --publish", _ETL_OPTIONS, others, given)
        return _publish_sizes(sources, given, jobs, check=check)
    setup = index_setup(sources, options, given)
    with _Bar(Console(stderr=True)) as bar:
        report = run(partial(publishing.index_shards, setup, jobs=jobs, progress=bar))
    _print_report(report, setup.options)
    return _exit(report, check=check)


def _print_report(report: "Report", options: "IndexOptions") -> None:
    check, dry_run, publish = options.check, options.dry_run, options.publish
    for name, reason in sorted(report.wanting.items()):
        if check or (dry_run and publish):
            click.echo(_line(f"{name}: {reason}"))
    for place in report.written:
        if dry_run:
            click.echo(_line(f"would write {place}"))
    _complain(report)
    click.echo(_summary(report, check=check, dry_run=dry_run, publish=publish))
    if report.beside:
        lie = "lies" if report.beside == 1 else "lie"
        click.echo(
            f"aisfs: {counted(report.beside, 'index')} {lie} beside their shards, where other programs take them for data:"
            " aisfs index --move SOURCE",
            err=True,
        )


def _take_only(
    option: str, also: str, settings: tuple[str, ...], others: bool, given: dict[str, object]
) -> None:
    """Refuse options that mean nothing along with `option`."""
    if others or given.keys() - set(settings):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in settings[:-1])
        last = settings[-1].replace("_", "-")
        raise click.UsageError(f"{option} takes only {also}, --jobs, {names} and --{last}")


def _index_on_server(
    sources: tuple[str, ...], settings: dict[str, object], jobs: int, *, check: bool
) -> int:
    """Have the cluster build its own indexes, and print which shards still have none."""
    from aisfs.work.jobs import build_shard_indexes

    endpoint = settings.pop("endpoint", None)
    coverage = run(
        partial(
            build_shard_indexes,
            sources,
            settings,
            str(endpoint) if endpoint is not None else None,
            Console(stderr=True),
            jobs=jobs,
            build=not check,
        )
    )
    lines = [f"{name}: missing" for name in coverage.without]
    lines += [f"{name}: of an earlier version" for name in coverage.stale]
    lines += [f"{name}: never used, since the shard has no checksum" for name in coverage.unbound]
    most = len(lines) if check else _MOST_LINES
    for line in sorted(lines)[:most]:
        click.echo(_line(line))
    if len(lines) > most:
        click.echo(f"{len(lines) - most} more: --server --check prints all")
    for error in coverage.errors:
        click.echo(f"aisfs: {escaped(error)}", err=True)
    done = f"{coverage.current} of AIStore's indexes are current"
    click.echo(f"{counted(coverage.shards, 'shard')}: {done}, {len(lines)} are not")
    if coverage.interrupted:
        raise click.Abort
    return Exit.OK if coverage.complete else Exit.FAILURE


def _publish_sizes(
    sources: tuple[str, ...], settings: dict[str, object], jobs: int, *, check: bool
) -> int:
    """Publish the sizes of what ETLs make, or print which are not published."""
    from aisfs.work.etl_sizes import publish_sizes

    if not settings.get("etl"):
        raise click.UsageError("--etl-args needs --etl")
    if click.get_current_context().get_parameter_source("jobs") is ParameterSource.DEFAULT:
        jobs = _ETL_JOBS
    with _Bar(Console(stderr=True), "objects") as bar:
        work = partial(publish_sizes, sources, settings, check=check, jobs=jobs, progress=bar)
        report = run(work)
    for name in sorted(report.wanting) if check else ():
        click.echo(_line(name))
    for _, reason in sorted(report.failures.items()):
        click.echo(f"aisfs: {escaped(reason)}", err=True)
    found = counted(report.objects, "object")
    if check:
        are = "is" if report.current == 1 else "are"
        now = f"{counted(report.current, 'size')} {are} current"
        click.echo(f"{found}: {now}, {len(report.wanting)} are not")
        return Exit.FAILURE if report.wanting else Exit.OK
    done = f"{counted(report.published, 'size')} published, {report.current} were current"
    click.echo(f"{found}: {done}")
    return Exit.FAILURE if report.failures else Exit.OK


def _move(
    sources: tuple[str, ...], settings: dict[str, object], jobs: int, *, dry_run: bool
) -> int:
    """Move the indexes that lie beside shards, and print what was moved."""
    from aisfs.work.moving_indexes import move_indexes

    moved = run(partial(move_indexes, sources, settings, jobs=jobs, dry_run=dry_run))
    if dry_run:
        for name in sorted(moved.moved):
            click.echo(_line(f"would move {name}"))
    for name, reason in sorted(moved.left.items()):
        click.echo(f"aisfs: {_line(f'{name}: left there: {reason}')}", err=True)
    done = "would be moved" if dry_run else "moved"
    there = f"; it had {moved.dropped} of them" if moved.dropped else ""
    click.echo(f"{counted(len(moved.moved), 'index')} {done} to {moved.bucket}{there}")
    return Exit.FAILURE if moved.left else Exit.OK


def _line(text: str) -> str:
    """Return what names keys, which others chose, as one line for any terminal."""
    return escaped(text)


class _Bar(Progress):
    """A progress bar on a terminal, nothing elsewhere."""

    def __init__(self, console: Console, what: str = "shards") -> None:
        columns = (
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            *transfer_columns(),
            TimeRemainingColumn(),
        )
        super().__init__(*columns, console=console, disable=not console.is_terminal)
        self._what = what
        self._shards = self._done = 0
        self._task = self.add_task("", total=None, count="")

    def found(self, shards: int, size: int) -> None:
        self._shards = shards
        self.update(self._task, total=size, count=f"0/{shards} {self._what}")

    def done(self, size: int) -> None:
        self._done += 1
        count = f"{self._done}/{self._shards} {self._what}"
        self.update(self._task, advance=size, count=count)


def _complain(report: "Report") -> None:
    """Print on stderr what was not done, and why."""
    lines = [f"{what}: missing" for what in report.missing]
    for name, reasons in sorted(report.left_out.items()):
        lines += [f"{name}: left out: {reason}" for reason in reasons]
    for name, reasons in sorted(report.damage.items()):
        lines += [f"{name}: damaged: {reason}" for reason in reasons]
    lines += [str(error) for _, error in sorted(report.failures.items())]
    for line in lines:
        click.echo(f"aisfs: {escaped(line)}", err=True)


def _summary(report: "Report", *, check: bool, dry_run: bool, publish: bool) -> str:
    wanting, found = len(report.wanting), counted(report.shards, "shard")
    if check:
        are = "is" if report.current == 1 else "are"
        return f"{found}: {counted(report.current, 'index')} {are} current, {wanting} are not"
    if dry_run:
        done = [f"{counted(wanting, 'index')} would be published"] if publish else []
    else:
        done = [f"{counted(report.published, 'index')} published"] if publish else []
    if publish:
        done.append(f"{report.current} were current")
    if report.written and not dry_run:
        done.append(f"{counted(len(report.written), 'file')} written for other programs")
    return f"{found}: {', '.join(done)}" if done else found


def _exit(report: "Report", *, check: bool) -> Exit:
    if report.failures:
        return exit_code(report.failures[min(report.failures)])
    if report.left_out or (check and report.wanting):
        return Exit.FAILURE
    return Exit.DAMAGED if report.damage else Exit.OK
