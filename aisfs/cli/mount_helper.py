"""`mount.aisfs`: what mount(8) runs for `mount -t aisfs` and for lines of `/etc/fstab`.

The helper is a link to the program, so it finds the program wherever that is installed.
"""

from typing import Any

import click

from aisfs.cli.exits import Exit
from aisfs.cli.mount import mount

_EVERY_BUCKET = "aisfs"
"""The first field of a line cannot be empty. It is the name that such a mount has, by which
`mount -a` finds that it is there already."""
_WRONG_CALL, _MOUNT_FAILED = 1, 32
"""Exit codes, as mount(8) has them."""


@click.command(name="mount.aisfs", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source")
@click.argument("mountpoint", metavar="MNT")
@click.option("-o", "options", multiple=True, metavar="OPT[,OPT]", help="Mount options.")
@click.option("-s", "sloppy", is_flag=True, help="Ignore options that are unknown.")
@click.option("-f", "fake", is_flag=True, help="Check everything, but do not mount.")
@click.option("-v", is_flag=True, expose_value=False, help="Ignored.")
@click.option("-n", is_flag=True, expose_value=False, help="Ignored.")
@click.option("-t", metavar="TYPE", expose_value=False, help="Ignored.")
def mount_helper(
    source: str, mountpoint: str, options: tuple[str, ...], sloppy: bool, fake: bool
) -> Any:  # noqa: ANN401
    """Mount SOURCE on MNT for mount(8); see aisfs-mount(8). The SOURCE `aisfs` is every bucket."""
    arguments = [word for option in options for word in ("-o", option)]
    arguments += ["--sloppy"] * sloppy + ["--fake"] * fake
    sources = [] if source == _EVERY_BUCKET else [source]
    return mount.main(
        [*arguments, "--", *sources, mountpoint], prog_name="aisfs mount", standalone_mode=False
    )


def mount_status(code: int) -> int:
    """Return the exit code of mount(8) for one of ours."""
    if code == Exit.OK:
        return 0
    return _WRONG_CALL if code == Exit.USAGE else _MOUNT_FAILED
