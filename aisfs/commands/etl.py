"""`aisfs etl`."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Console
from rich.table import Table

from aisfs.commands.guide import Documented, complete_source
from aisfs.commands.options import Exit, own_option, print_parts, run, setting
from aisfs.commands.sort import INTERRUPTED
from aisfs.redaction import escaped, shown
from aisfs.system import logs
from aisfs.work.display import counted

if TYPE_CHECKING:
    from aisfs.work.etl import Change

_json = own_option("--json", "Print JSON.", "for scripts", name="as_json")


@click.group("etl")
def group() -> None:
    """List, define and stop ETLs of the cluster, and transform objects by them."""
    logs.configure("error", None, foreground=True)


@group.command("list", cls=Documented)
@setting("endpoint")
@_json
def list_(endpoint: str | None, as_json: bool) -> None:
    """List all ETLs, and whether they run."""
    from aisfs.work import etl

    found = run(partial(etl.ask, endpoint, lambda etls: etls.all()))
    if as_json:
        click.echo(json.dumps([msgspec.to_builtins(each) for each in found], indent=2))
        return
    if not found:
        click.echo("no ETLs")
        return
    table = Table(box=None, pad_edge=False)
    for title in ("name", "stage", "objects", "job"):
        table.add_column(title, no_wrap=True)
    for each in found:
        table.add_row(*map(shown, (each.name, each.stage, f"{each.objects:,}", each.job)))
    print_parts(table)


@group.command(cls=Documented)
@click.argument("name")
@setting("endpoint")
@_json
def show(name: str, endpoint: str | None, as_json: bool) -> None:
    """Show how an ETL is defined, and which objects it could not transform."""
    from aisfs.work import etl

    found = run(partial(etl.ask, endpoint, lambda etls: etl.show(etls, name)))
    definition = found.details.definition if found.details else {}
    errors = (found.details and found.details.errors) or []
    if as_json:
        whole = {"errors": msgspec.to_builtins(errors), "definition": definition}
        click.echo(json.dumps(msgspec.to_builtins(found.etl) | whole, indent=2))
        return
    click.echo(f"{name}: {escaped(found.etl.stage)}, {counted(found.etl.objects, 'object')}")
    if definition:
        click.echo(shown(json.dumps(definition, indent=2)))
    for error in errors:
        click.echo(escaped(shown(f"{error.name}: {error.text.strip()} (HTTP {error.status})")))


@group.command("logs", cls=Documented)
@click.argument("name")
@setting("endpoint")
def logs_(name: str, endpoint: str | None) -> None:
    """Print what the transformers of a running ETL have logged."""
    from aisfs.work import etl

    for log in run(partial(etl.ask, endpoint, lambda etls: etls.logs(name))):
        for line in log.content.decode("utf-8", "replace").splitlines():
            click.echo(escaped(shown(f"{log.target}: {line}")))


@group.command(cls=Documented)
@click.argument("file", type=click.Path(path_type=Path))
@setting("endpoint")
def init(file: Path, endpoint: str | None) -> None:
    """Define ETLs by a file of YAML or JSON, and wait until they run.

    FILE is what `ais etl init` takes: name, runtime with image, command and env, communication, timeouts.
    """
    from aisfs.work import etl

    for definition in etl.read_definitions(file):
        _do(endpoint, partial(etl.define, definition))
        click.echo(f"{shown(definition['name'])} runs")


@group.command(cls=Documented)
@click.argument("name")
@setting("endpoint")
def start(name: str, endpoint: str | None) -> None:
    """Start a stopped ETL again, and wait until it runs."""
    _do(endpoint, lambda etls: etls.start(name))
    click.echo(f"{name} runs")


@group.command(cls=Documented)
@click.argument("name")
@setting("endpoint")
def stop(name: str, endpoint: str | None) -> None:
    """Stop an ETL; its definition stays."""
    _do(endpoint, lambda etls: etls.stop(name))
    click.echo(f"{name} is stopped")


@group.command(cls=Documented)
@click.argument("name")
@setting("endpoint")
def delete(name: str, endpoint: str | None) -> None:
    """Stop an ETL, and forget its definition."""
    _do(endpoint, lambda etls: etls.delete(name))
    click.echo(f"{name} is deleted")


def _do(endpoint: str | None, change: "Change") -> None:
    from aisfs.work import etl

    run(partial(etl.ask, endpoint, change))


@group.command("run", cls=Documented)
@click.argument("name")
@click.argument("source", shell_complete=complete_source)
@click.argument("target")
@own_option("--args TEXT", "Arguments for the ETL, often JSON.", "for a single object only")
@setting("endpoint")
def run_(name: str, source: str, target: str, args: str | None, endpoint: str | None) -> int:
    """Transform objects in the cluster, and store the results.

    SOURCE is an object, or a bucket or a prefix that ends in `/`; then TARGET is another bucket, or what names of
    results begin with, before those of their sources. Results replace what has their name. Ctrl-C stops the
    job; what it has written stays.
    """
    from aisfs.work import etl

    plan = etl.plan_run(name, source, target, args or "")
    ended = run(partial(etl.transform, plan, endpoint, Console(stderr=True)))
    if ended is None:
        click.echo(f"transformed to {escaped(f'{plan.target}/{plan.to}')}")
        return Exit.OK
    done = f"{counted(ended.job.done, 'object')} transformed to {escaped(target)}"
    if ended.stopped:
        click.echo(f"aisfs: job {ended.job.id} is stopped; {done}, and stay", err=True)
        return INTERRUPTED
    click.echo(done)
    return Exit.OK
