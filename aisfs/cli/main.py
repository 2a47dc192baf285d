"""The command line: arguments in, an exit code out, and one line for each error."""

import pkgutil
import sys
from pathlib import Path

import click

from aisfs import __version__
from aisfs.cli.exits import Exit, exit_code, fail
from aisfs.cli.guide.documented import Documented
from aisfs.cli.mount import mount
from aisfs.cli.mount_helper import HELPERS, mount_helper, mount_status
from aisfs.cli.options import complete_directory, log_options, start_logging
from aisfs.config import LogSettings
from aisfs.errors import AisfsError


def main() -> None:
    """Run the command line, or the helper of mount(8) if it was called by that name, and exit."""
    called = Path(sys.argv[0]).name
    helps = called in HELPERS
    command, name = (mount_helper, called) if helps else (cli, "aisfs")
    try:
        code = command.main(prog_name=name, standalone_mode=False) or Exit.OK
    except click.Abort:
        code = 130  # what a shell reports after Ctrl-C
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        code = Exit.USAGE
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "aisfs"
        code = fail(f"{error.format_message()} (see {path} --help)", Exit.USAGE)
    except AisfsError as error:
        code = fail(str(error), exit_code(error))
    except OSError as error:  # a directory that may not be entered, for example
        code = fail(f"{error.filename or 'the system'}: {error.strerror}", Exit.FAILURE)
    sys.exit(mount_status(code) if helps else int(code))


_ELSEWHERE = {
    "cache": "aisfs.cli.cache:cache",
    "config": "aisfs.cli.configuring.show:group",
    "csi": "aisfs.cli.csi.node:csi",
    "completion": "aisfs.cli.guide.completion:completion",
    "flush": "aisfs.cli.watching.flush:flush",
    "index": "aisfs.cli.index:index",
    "doctor": "aisfs.cli.watching.doctor:doctor",
    "inspect": "aisfs.cli.inspect_shards:inspect",
    "jobs": "aisfs.cli.jobs.overview:jobs",
    "ls": "aisfs.cli.buckets.ls:ls",
    "mb": "aisfs.cli.buckets.mb:mb",
    "pack": "aisfs.cli.pack:pack",
    "refresh": "aisfs.cli.watching.refresh:refresh",
    "recover": "aisfs.cli.recover:recover",
    "rm": "aisfs.cli.buckets.rm:rm",
    "sort": "aisfs.cli.jobs.sort:sort",
    "status": "aisfs.cli.watching.status:status",
    "top": "aisfs.cli.watching.status:top",
    "unpack": "aisfs.cli.pack:unpack",
    "warm": "aisfs.cli.cache:warm_up",
}
"""The table of commands: the name of each, and where it is. A new command gets a line here."""


class _Commands(click.Group):
    """Commands, some of which are in modules that are imported when they are needed.

    Most processes are mounts, and half of the time to start one goes into importing modules.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        command = pkgutil.resolve_name(_ELSEWHERE[cmd_name])
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Treat `aisfs SOURCE MNT -o …` as a mount: mount.fuse3 calls it so for a line of fstab."""
        if "/" in args[0] or args[0].startswith("@"):
            return mount.name, mount, args
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="aisfs", message="%(prog)s %(version)s")
def cli() -> None:
    """Mount AIStore: buckets are directories, tar shards are folders of samples."""


cli.add_command(mount)


@cli.command(cls=Documented)
@click.argument("mountpoint", metavar="MNT", shell_complete=complete_directory)
@click.option("-z", "--lazy", is_flag=True, help="Detach now, even if it is busy.")
def umount(mountpoint: str, lazy: bool) -> None:
    """Unmount the mount at MNT.

    What was closed with `--write-back` and waits is uploaded first. If that fails, the mount ends all the same,
    and the next one of its source uploads the rest.
    """
    # Not a click.Path, which would stat it: the daemon may hang.
    from aisfs.app import umount as umounts

    umounts.umount(Path(mountpoint), lazy=lazy)


@cli.command(cls=Documented)
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
@log_options
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
    start_logging(LogSettings.load(log_settings), foreground=True)
    from aisfs.app.serve import serve as run_server

    def ready(actual: int) -> None:
        click.echo(f"http://{f'[{host}]' if ':' in host else host}:{actual}")

    run_server(directory, host=host, port=port, allow_hosts=allow_hosts, ready=ready, traps=traps)
