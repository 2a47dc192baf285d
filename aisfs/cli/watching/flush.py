"""`aisfs flush`."""

import click

from aisfs.app.watching.flush import flush as flush_mount
from aisfs.cli.guide.documented import Documented
from aisfs.cli.options import complete_directory


@click.command(cls=Documented)
@click.argument("mountpoint", metavar="MNT|@NAME", shell_complete=complete_directory)
def flush(mountpoint: str) -> None:
    """Upload what was closed in the mount at MNT and waits.

    With `--write-back`, small files wait on the local disk after they were closed. This returns when all of
    them are in the store, and fails if some are not.
    """
    from aisfs.cli.configuring.profiles import mountpoint_of

    # Not a click.Path, which would stat it: the daemon may hang.
    files = flush_mount(mountpoint_of(mountpoint))
    click.echo(f"{files:,} files uploaded")
