"""`aisfs recover`."""

from datetime import datetime
from pathlib import Path

import click

from aisfs.app import recover as recovery
from aisfs.cli.exits import Exit
from aisfs.cli.guide.documented import Documented
from aisfs.cli.options import staging_dir_option
from aisfs.config import WriteSettings
from aisfs.errors import AisfsError, ConfigError, SourceMissing
from aisfs.process import logs


@click.command(cls=Documented)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--upload", is_flag=True, help="Upload these files and forget them.")
@click.option("--drop", is_flag=True, help="Remove these files for good.")
@click.option("--all", "everything", is_flag=True, help="Upload or drop all files.")
@click.option(
    "--force", is_flag=True, help="Upload over an object that was changed by somebody else since."
)
@staging_dir_option
def recover(
    names: tuple[str, ...],
    upload: bool,
    drop: bool,
    everything: bool,
    force: bool,
    staging_dir: Path | None,
) -> int:
    """List, upload or drop files that were written but never reached the store.

    NAME is an id or an object, as the list shows them. Files that a running mount is still writing
    are not listed.
    """
    if upload and drop:
        raise click.UsageError("--upload and --drop exclude each other")
    logs.configure("error", None, foreground=True)
    settings = WriteSettings.load({"staging_dir": staging_dir})
    directory = settings.staging_dir
    if not directory.is_dir() and not names:
        if staging_dir is not None:
            raise SourceMissing(f"--staging-dir {directory}: no such directory")
        return Exit.OK
    found = recovery.find_unsent(directory, () if everything else names)
    if not upload and not drop:
        for one in found:
            _print(one)
        return Exit.OK
    if not names and not everything:
        raise ConfigError(f"--{'upload' if upload else 'drop'}: say which, or --all")
    code = Exit.OK
    for one in found:
        try:
            warning = recovery.upload(one, settings, force=force) if upload else recovery.drop(one)
        except AisfsError as error:
            code = Exit.FAILURE
            click.echo(f"aisfs: {one.record.name}: {error}", err=True)
            continue
        if warning:
            click.echo(f"aisfs: {warning}", err=True)
        click.echo(f"{one.record.name}: {'uploaded' if upload else 'dropped'}")
    return code


def _print(one: recovery.UnsentFile) -> None:
    """Print two lines, whatever the width of the terminal."""
    when = datetime.fromtimestamp(one.mtime_ns / 1e9).astimezone().isoformat(" ", "seconds")
    click.echo(f"{one.id}  {one.size} bytes  {when}  {one.record.name}")
    click.echo(f"    {one.record.reason or 'the mount was killed before it was uploaded'}")
