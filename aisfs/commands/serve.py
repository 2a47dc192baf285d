"""`aisfs serve`: a directory as a small AIStore."""

from pathlib import Path

import click

from aisfs.commands.guide import Documented
from aisfs.commands.options import LOGS, settings, start_logging


@click.command(cls=Documented)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port; 0 picks a free one and prints it.",
)
@click.option(
    "--traps",
    is_flag=True,
    help="Lose and hide data where a real AIStore would, to test clients against that.",
)
@click.option(
    "--allow-host",
    "allow_hosts",
    metavar="NAME",
    multiple=True,
    help="Also accept requests to this host name, besides addresses and localhost; repeatable.",
)
@settings(*LOGS)
def serve(
    directory: Path,
    host: str,
    port: int,
    allow_hosts: tuple[str, ...],
    traps: bool,
    **log_settings: object,
) -> None:
    """Serve a directory as a small AIStore.

    Each folder is a bucket, objects are plain files. For demos, tests and a laptop without a
    cluster. It has no access control: keep it on loopback.
    """
    from aisfs.server.run import serve as run_server
    from aisfs.settings import LogSettings

    start_logging(LogSettings.load(log_settings), foreground=True)

    def ready(actual: int) -> None:
        click.echo(f"http://{f'[{host}]' if ':' in host else host}:{actual}")

    run_server(directory, host=host, port=port, allow_hosts=allow_hosts, ready=ready, traps=traps)
