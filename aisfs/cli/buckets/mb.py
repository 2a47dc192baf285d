"""`aisfs mb`."""

from functools import partial

import click

from aisfs.cli.exits import Exit
from aisfs.cli.guide.documented import Documented
from aisfs.cli.options import endpoint_option, io_timeout_option, proxy_option
from aisfs.cli.running import run
from aisfs.system import logs


@click.command(cls=Documented)
@click.argument("buckets", metavar="BUCKET...", nargs=-1, required=True)
@click.option("-p", "--exist-ok", is_flag=True, help="Accept buckets that exist already.")
@endpoint_option
@proxy_option
@io_timeout_option
def mb(buckets: tuple[str, ...], exist_ok: bool, **settings: object) -> int:
    """Make empty buckets.

    BUCKET is ais://NAME. It gets the properties that the cluster gives to new buckets.
    """
    from aisfs.app.buckets.creation import make_buckets

    logs.configure("error", None, foreground=True)
    for made in run(partial(make_buckets, buckets, settings, may_exist=exist_ok)):
        click.echo(f"created {made}")
    return Exit.OK
