"""`aisfs rm`."""

from functools import partial

import click

from aisfs.cli.exits import Exit, warn
from aisfs.cli.guide.documented import Documented
from aisfs.cli.options import (
    index_bucket_option,
    io_timeout_option,
    jobs_option,
    store_options,
    without_unset,
)
from aisfs.cli.running import run
from aisfs.redaction import escaped
from aisfs.system import logs


@click.command(cls=Documented)
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option("-r", "--recursive", is_flag=True, help="Remove all that is in directories, too.")
@click.option("-n", "--dry-run", is_flag=True, help="Only print what would be removed.")
@index_bucket_option
@jobs_option("Objects removed at once.")
@store_options
@io_timeout_option
def rm(
    sources: tuple[str, ...], recursive: bool, dry_run: bool, jobs: int, **settings: object
) -> int:
    """Remove objects, and the published indexes of shards among them.

    SOURCE is as for `aisfs ls`: objects by name, braces and globs; with --recursive also directories and buckets,
    which are emptied but stay. Nothing is removed before all of it was found.
    """
    from aisfs.app.buckets.removal import remove

    logs.configure("error", None, foreground=True)
    given = without_unset(settings)
    done = run(partial(remove, sources, given, recursive=recursive, jobs=jobs, dry_run=dry_run))
    if dry_run:
        for key in done.keys:
            click.echo(escaped(key))
    else:
        click.echo(f"removed {len(done.keys)} objects, {done.size} bytes")
    for reason, count in sorted(done.refused.items()):
        click.echo(warn("warning", f"{count} names stay: {reason}"), err=True)
    return Exit.FAILURE if done.refused else Exit.OK
