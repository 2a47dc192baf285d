"""`aisfs plan`."""

import json

import click

from aisfs.commands.guide import Documented
from aisfs.commands.options import complete_directory, own_option, print_parts, warn
from aisfs.work.display import counted, size_text


@click.command(cls=Documented)
@click.argument("mountpoint", metavar="MNT|@NAME", shell_complete=complete_directory)
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(exists=True))
@own_option(
    "--name NAME",
    "Name of the plan: one for each group of readers.",
    "an order of a name that is there comes after what is left of it",
    default="",
)
@own_option("--drop", "End the plan, or without --name all plans.", "files are read as without")
@own_option("--json", "Print JSON.", "for scripts", name="as_json")
def plan(mountpoint: str, file: str | None, name: str, drop: bool, as_json: bool) -> None:
    """Say to the mount at MNT in which order its files will be read, so that it fetches just ahead of the readers.

    FILE has lines: paths, relative to MNT, or keys of samples, which stand for all their files. Or it is a permutation that
    numpy.save has written, of the pictures below MNT as torchvision's ImageFolder numbers them; or what a mount with --record
    has written. Readers need not begin at the start. Without FILE, it shows how far the readers of each plan are.
    """
    from aisfs.commands.config import mountpoint_of
    from aisfs.work import plan as work

    place = mountpoint_of(mountpoint)
    if drop and file:
        raise click.UsageError("--drop: not with FILE")
    if drop:
        click.echo(f"{counted(work.drop(place, name), 'plan')} ended")
    elif file:
        announced = work.announce(place, file, name)
        if announced.missing:
            count, first = len(announced.missing), announced.missing[0]
            text = f"{counted(count, 'line')} left out: there is no file or sample {first}"
            click.echo(warn("warning", text), err=True)
        click.echo(f"{counted(announced.files, 'file')} expected")
    else:
        found = [each for each in work.plans(place) if not name or each["name"] == name]
        if as_json:
            click.echo(json.dumps(found))
            return
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for title in ("plan", "files", "position", "read in order", "fetched ahead"):
            table.add_column(title, justify="left" if title == "plan" else "right")
        for each in found:
            numbers = (each["files"], each["position"], each["followed"])
            ahead = size_text(each["ahead_bytes"])
            table.add_row(each["name"], *(f"{number:,}" for number in numbers), ahead)
        if found:
            print_parts(table)
        else:
            click.echo("no plans")
