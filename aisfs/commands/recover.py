"""`aisfs recover`."""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from aisfs.commands.guide import Documented
from aisfs.commands.options import Exit, own_option, setting
from aisfs.errors import AisfsError, ConfigError, SourceMissing
from aisfs.redaction import escaped
from aisfs.system import logs

if TYPE_CHECKING:
    from aisfs.mount import recovery


@click.command(cls=Documented)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@own_option(
    "--upload",
    "Upload these files and forget them.",
    "refused if the object changed since it was opened",
)
@own_option("--drop", "Remove these files for good, or forget what is damaged.")
@own_option("--all", "Upload or drop all files.", name="everything")
@own_option("--force", "Upload even where the object has changed since.")
@setting("staging_dir")
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
    are not listed. Files that were closed with `--write-back` are uploaded without `--upload`, except where the object has changed since.
    """
    from aisfs.mount import recovery
    from aisfs.settings import WriteSettings

    if upload and drop:
        raise click.UsageError("--upload and --drop exclude each other")
    logs.configure("error", None, foreground=True)
    settings = WriteSettings.load({"staging_dir": staging_dir})
    directory = settings.staging_dir
    if not directory.is_dir() and not names:
        if staging_dir is not None:
            raise SourceMissing(f"--staging-dir {directory}: no such directory")
        return Exit.OK
    found, lost = recovery.find_unsent(directory, () if everything else names)
    if (upload or drop) and not names and not everything:
        raise ConfigError(f"--{'upload' if upload else 'drop'}: say which, or --all")
    if drop:
        return max(
            _finish(found, recovery.drop, "dropped"), _finish(lost, recovery.drop, "dropped")
        )
    code = Exit.OK
    if not force:
        found, code = _upload_waiting(found)
    if lost:  # the log, which is the terminal here, has said what
        code = Exit.FAILURE
    if not upload:
        for one in found:
            _print(one)
        return code
    work = partial(recovery.upload, settings=settings, force=force)
    return max(code, _finish(found, work, "uploaded"))


Kept = TypeVar("Kept", "recovery.UnsentFile", "recovery.LostPart")


def _finish(found: Sequence[Kept], work: Callable[[Kept], str], done: str) -> Exit:
    """Upload or drop files; return the exit code."""
    code = Exit.OK
    for one in found:
        name = escaped(one.name)
        try:
            warning = work(one)
        except AisfsError as error:
            code = Exit.FAILURE
            click.echo(f"aisfs: {name}: {error}", err=True)
            continue
        if warning:
            click.echo(f"aisfs: {warning}", err=True)
        click.echo(f"{name}: {done}")
    return code


def _upload_waiting(
    found: "list[recovery.UnsentFile]",
) -> "tuple[list[recovery.UnsentFile], Exit]":
    """Upload what was closed and waits; return what is left, and the exit code."""
    from aisfs.mount import recovery

    code = Exit.OK
    left = [one for one in found if not one.acknowledged]
    for one, error in recovery.upload_waiting([one for one in found if one.acknowledged]):
        if error is None:
            click.echo(f"{escaped(one.record.name)}: uploaded")
            continue
        left.append(one)
        code = Exit.FAILURE
        click.echo(f"aisfs: {escaped(one.record.name)}: {error}", err=True)
    return sorted(left, key=lambda one: one.mtime_ns), code


def _print(one: "recovery.UnsentFile") -> None:
    """Print two lines, whatever the width of the terminal."""
    when = datetime.fromtimestamp(one.mtime_ns / 1e9).astimezone().isoformat(" ", "seconds")
    click.echo(f"{one.id}  {one.size} bytes  {when}  {escaped(one.record.name)}")
    reason = one.record.reason or "the mount was killed before it was uploaded"
    click.echo(f"    {'closed, and not uploaded yet' if one.acknowledged else escaped(reason)}")
