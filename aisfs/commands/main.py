"""The command line: arguments in, an exit code out, and one line for each error."""

import pkgutil
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem

from aisfs import __version__
from aisfs.commands.guide import Documented
from aisfs.commands.options import Exit, complete_directory, exit_code, fail, own_option, warn
from aisfs.errors import AisfsError

_HELPERS = ("mount.aisfs", "mount.fuse.aisfs")
"""What mount(8) calls the helper for the types aisfs and fuse.aisfs."""
_EXTRAS = {"gunicorn": "serve", "re2": "serve", "grpc": "csi", "google": "csi"}
"""Packages that a whole command needs, and the extra that has them. Stores and codecs name their own."""


def main() -> None:
    """Run the command line, or the helper of mount(8) if it was called by that name, and exit."""
    called = Path(sys.argv[0]).name
    if called in _HELPERS:
        from aisfs.commands.mount import mount_helper, mount_status

        sys.exit(mount_status(run_command(mount_helper, called)))
    sys.exit(run_command(cli, "aisfs"))


def run_command(command: click.Command, name: str) -> int:
    """Run a command with the arguments of the process; return the exit code."""
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
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        needs = f"this needs {error.name}; in a clone of aisfs: pip install '.[{_EXTRAS[package]}]'"
        code = fail(needs, Exit.USAGE)
    except OSError as error:  # a directory that may not be entered, for example
        code = fail(f"{error.filename or 'the system'}: {error.strerror}", Exit.FAILURE)
    return int(code)


class _Command(NamedTuple):
    """A command: what it does, in a line, and the module and name of its definition."""

    summary: str
    place: str


COMMANDS = {
    "Look": {
        "ls": _Command("List buckets, directories and objects.", "commands.buckets:ls"),
        "inspect": _Command("Show what shards contain.", "commands.inspect_shards:inspect"),
        "status": _Command("List the mounts, or show one of them.", "commands.status:status"),
        "top": _Command("Watch the rates of mounts.", "commands.status:top"),
    },
    "Mount": {
        "mount": _Command("Mount buckets, shards or directories.", "commands.mount:mount"),
        "umount": _Command("Unmount.", "commands.main:umount"),
        "refresh": _Command("Show what is in the cluster now.", "commands.status:refresh"),
        "flush": _Command("Wait until what was written is uploaded.", "commands.status:flush"),
        "upgrade": _Command(
            "Let the installed version go on with mounts.", "commands.status:upgrade"
        ),
        "plan": _Command("Say in which order files will be read.", "commands.plan:plan"),
        "warm": _Command("Fill the disk cache before training.", "commands.cache:warm_up"),
    },
    "Shards": {
        "pack": _Command("Pack files into shards.", "commands.pack:pack"),
        "unpack": _Command("Write the members of shards as files.", "commands.pack:unpack"),
        "index": _Command("Publish indexes of shards, or check them.", "commands.index:index"),
        "sort": _Command("Have the cluster sort or shuffle shards.", "commands.sort:sort"),
    },
    "Cluster": {
        "mb": _Command("Make buckets.", "commands.buckets:mb"),
        "rm": _Command("Remove objects.", "commands.buckets:rm"),
        "jobs": _Command("List, watch and stop jobs of the cluster.", "commands.jobs:jobs"),
        "etl": _Command("List ETLs, and transform objects by them.", "commands.etl:group"),
        "serve": _Command("Serve a directory as a small AIStore.", "commands.serve:serve"),
        "csi": _Command("Serve volumes of Kubernetes.", "csi.node:csi"),
    },
    "Care": {
        "doctor": _Command("Say what is wrong, and how to fix it.", "commands.doctor:doctor"),
        "recover": _Command(
            "List and upload files that never arrived.", "commands.recover:recover"
        ),
        "cache": _Command("Look at the disk cache, check it, clear it.", "commands.cache:cache"),
        "config": _Command("Show where options come from.", "commands.config:group"),
        "completion": _Command("Make a shell complete commands.", "commands.guide:completion"),
    },
}
"""All commands, in the groups of `--help`. A new command gets a line here."""
_OF_AIS = {
    "rb": "aisfs rm -r empties a bucket; ais bucket rm, of AIStore's CLI, removes it.",
}
"""Commands that other programs have: what to use instead."""
_BY_NAME = {name: command for group in COMMANDS.values() for name, command in group.items()}


class _Commands(click.Group):
    """Commands in modules that are imported when they run: neither help nor completion waits for these."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_BY_NAME)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _BY_NAME:
            return None
        command = pkgutil.resolve_name(f"aisfs.{_BY_NAME[cmd_name].place}")
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line for each command, in groups."""
        widest = max(map(len, _BY_NAME))
        for title, commands in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(f"{n:<{widest}}", each.summary) for n, each in commands.items()]
                )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands whose name begins so."""
        return [
            CompletionItem(name, help=command.summary)
            for name, command in sorted(_BY_NAME.items())
            if name.startswith(incomplete)
        ] + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Treat `aisfs SOURCE MNT -o …` as a mount: mount.fuse3 calls it so for a line of fstab.

        A mistyped command is an error that names the one that was meant. `aisfs help COMMAND` is `aisfs COMMAND --help`.
        """
        if args[0] == "help":
            if not args[1:]:
                click.echo(ctx.get_help())
                ctx.exit()
            args = [*args[1:], "--help"]
        if "/" in args[0] or args[0].startswith("@"):
            return "mount", self.get_command(ctx, "mount"), args
        if args[0] in _OF_AIS:
            ctx.fail(f"No such command {args[0]!r}. {_OF_AIS[args[0]]}")
        if args[0] not in _BY_NAME and (near := get_close_matches(args[0], _BY_NAME, 1)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="aisfs", message="%(prog)s %(version)s")
def cli() -> None:
    """Mount AIStore: buckets are directories, tar shards are folders of samples."""


@click.command(cls=Documented)
@click.argument("mountpoint", metavar="MNT|@NAME", shell_complete=complete_directory)
@own_option(
    "-z, --lazy",
    "Detach now, even if it is busy.",
    "off, since a program that uses it would not know",
)
def umount(mountpoint: str, lazy: bool) -> None:
    """Unmount the mount at MNT, or that of a profile, and wait until its daemon has ended.

    Files that were closed with `--write-back` and wait are uploaded first. If that fails, the mount still ends,
    and the next mount of the same source uploads the rest.
    If the daemon was killed, they cannot be uploaded first: the command says how many wait.
    """
    # Not a click.Path, which would stat it: the daemon may hang.
    from aisfs.commands.config import mountpoint_of
    from aisfs.work import mounts as umounts

    uploaded = umounts.umount(
        mountpoint_of(mountpoint),
        lazy=lazy,
        tell=lambda text: click.echo(warn("note", text), err=True),
    )
    if not uploaded:
        _tell_what_waits()


def _tell_what_waits() -> None:
    """Print how many files daemons that were killed have left."""
    from aisfs.mount.recovery import find_unsent
    from aisfs.settings import WriteSettings
    from aisfs.system import logs
    from aisfs.work.display import counted

    directory = WriteSettings.load({}).staging_dir
    if not directory.is_dir():
        return
    logs.configure("error", None, foreground=True)
    try:
        found, _ = find_unsent(directory, ())
    except AisfsError as error:  # it is unmounted all the same
        click.echo(warn("warning", str(error)), err=True)
        return
    closed = sum(one.acknowledged for one in found)
    if closed:
        text = f"{counted(closed, 'file')} closed with --write-back and not uploaded yet: "
        text += "the next writable mount of the same source, or `aisfs recover`, uploads"
        click.echo(warn("warning", f"{text} {'it' if closed == 1 else 'them'}"), err=True)
    if others := len(found) - closed:
        text = f"{counted(others, 'file')} written and not uploaded: `aisfs recover` lists"
        click.echo(warn("warning", f"{text} {'it' if others == 1 else 'them'}"), err=True)
