"""`aisfs jobs`."""

import json
from functools import partial
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from aisfs.commands.guide import Documented
from aisfs.commands.options import Exit, own_option, print_parts, run, setting
from aisfs.redaction import shown
from aisfs.system import logs


@click.command(cls=Documented)
@setting("endpoint")
@own_option("--all", "Show jobs of all kinds.", "those that aisfs never starts, too", name="every")
@own_option(
    "--watch ID",
    "Show the progress of one job until it ends.",
    "the exit code is 1 if it failed or was stopped; Ctrl-C ends only the watching",
)
@own_option(
    "--cancel ID",
    "Have the cluster stop a job.",
    "the exit code is 1 if it has ended already or is unknown",
)
@own_option("--json", "Print JSON.", "for scripts", name="as_json")
def jobs(
    endpoint: str | None, every: bool, watch: str | None, cancel: str | None, as_json: bool
) -> int:
    """List, watch and stop jobs of the cluster.

    Without --all, it lists sorts and the indexing of shards. After --watch, the exit code is 1 if the
    job was stopped or failed.
    """
    from aisfs.work import jobs as cluster_jobs

    logs.configure("warning", None, foreground=True)
    if len([given for given in (watch, cancel, every or None) if given]) > 1:
        raise click.UsageError("give one of --all, --watch and --cancel")
    if cancel:
        run(partial(cluster_jobs.cancel_job, endpoint, cancel))
        click.echo(f"the cluster was asked to stop job {cancel}")
        return Exit.OK
    if watch:
        job = run(partial(cluster_jobs.watch_job, endpoint, watch, Console(stderr=True)))
        _print([cluster_jobs.as_json(job)] if as_json else None, [cluster_jobs.row_of(job)])
        return Exit.FAILURE if job.failed else Exit.OK

    found = run(partial(cluster_jobs.list_jobs, endpoint, every=every))
    rows = [cluster_jobs.as_json(job) for job in found] if as_json else None
    _print(rows, [cluster_jobs.row_of(job) for job in found])
    return Exit.OK


def _print(as_json: list[dict[str, Any]] | None, rows: list[Any]) -> None:
    if as_json is not None:
        click.echo(json.dumps(as_json, indent=2))
        return
    if not rows:
        click.echo("no jobs")
        return
    table = Table(box=None, pad_edge=False)
    for title in ("job", "kind", "state", "progress", "started", "bucket"):
        # An id is to be copied, so it is never cut.
        table.add_column(title, no_wrap=title in ("job", "state", "kind"), overflow="fold")
    for row in rows:
        cells = (row.id, row.kind, row.state, row.progress, row.started, row.what)
        table.add_row(*map(shown, cells))
    print_parts(table)
    for row in rows:
        if row.note:
            click.echo(shown(f"{row.id}: {row.note}"))
