"""`aisfs serve`: a directory as a small AIStore."""

from pathlib import Path

import click

from aisfs.commands.guide import Documented
from aisfs.commands.options import LOGS, own_option, settings, start_logging


@click.command(cls=Documented)
@click.argument("directory", type=click.Path(path_type=Path))
@own_option(
    "--host ADDRESS",
    "Address to listen on.",
    "loopback, since it knows no users",
    default="127.0.0.1",
)
@own_option(
    "--port N",
    "Port, or 0 for a free one; the URL is printed.",
    "as AIStore's local playground",
    type=click.IntRange(0, 65535),
    default=8080,
)
@own_option(
    "--traps",
    "Lose and hide data where a real AIStore would, to test clients against that.",
    "imitates AIStore 5.0 ([below](#the-traps-of-the-small-aistore)); never for data you want to keep",
)
@own_option(
    "--etl NAME=COMMAND",
    "Transform objects by this command, as the ETL NAME; repeatable.",
    "without any, the server has no ETLs ([below](#transformers))",
    name="etls",
    multiple=True,
)
@own_option(
    "--allow-host NAME",
    "Also accept requests to this host name, besides addresses and localhost; repeatable.",
    name="allow_hosts",
    multiple=True,
)
@settings(*LOGS)
def serve(
    directory: Path,
    host: str,
    port: int,
    allow_hosts: tuple[str, ...],
    traps: bool,
    etls: tuple[str, ...],
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

    run_server(
        directory,
        host=host,
        port=port,
        allow_hosts=allow_hosts,
        ready=ready,
        traps=traps,
        etls=etls,
    )
