"""`aisfs refresh`."""

from pathlib import Path

import click

from aisfs.app.watching.refresh import refresh as refresh_mount
from aisfs.cli.guide.documented import Documented
from aisfs.cli.options import complete_directory


@click.command(cls=Documented)
@click.argument("mountpoint", metavar="MNT|@NAME", shell_complete=complete_directory)
@click.argument("paths", metavar="[PATH…]", nargs=-1)
def refresh(mountpoint: str, paths: tuple[str, ...]) -> None:
    """Make the mount at MNT show now what others have changed.

    It forgets listings and versions, and so does the kernel, in all of MNT or at and below each PATH. A
    relative PATH begins at MNT; of a file, all of its directory is refreshed. Of a dataset, the shards
    are found again.
    """
    from aisfs.cli.configuring.profiles import mountpoint_of

    # Not click.Paths, which would stat them: the daemon may hang.
    names = refresh_mount(mountpoint_of(mountpoint), [Path(path) for path in paths])
    click.echo(f"{names:,} names will be looked up again")
