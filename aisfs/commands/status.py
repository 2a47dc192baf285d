"""`aisfs status`, `aisfs top`, `aisfs refresh`, `aisfs flush`, `aisfs upgrade`: look at mounts, and send them requests."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import click

from aisfs.commands.guide import Documented
from aisfs.commands.options import (
    Exit,
    complete_directory,
    fail,
    output,
    own_option,
    print_parts,
    warn,
)
from aisfs.errors import AisfsError, MountError
from aisfs.redaction import escaped
from aisfs.work.display import counted, duration_text, size_text
from aisfs.work.mounts import (
    BROKEN,
    Asker,
    MountReport,
    MountState,
    State,
    find_mounts,
    own_mounts,
    read_report,
)
from aisfs.work.mounts import flush as flush_mount
from aisfs.work.mounts import refresh as refresh_mount
from aisfs.work.mounts import upgrade as upgrade_mount

if TYPE_CHECKING:  # refresh, flush and upgrade print no tables
    from rich.console import RenderableType
    from rich.table import Table

EVERY_SECONDS = 2.0
"""Between two looks, as of top(1) and watch(1)."""
LOOK_SECONDS = 1.0
"""How long `aisfs top` waits for a mount, once: until it answers, the others are shown without it."""
WIDE = 140
"""Columns of a terminal that has room for all of the list of mounts."""
_COLUMNS = {
    "mountpoint": False,
    "source": False,
    "state": False,
    "served/s": False,
    "fetched/s": False,
    "sent/s": True,
    "requests/s": False,
    "pid": True,
    "uptime": True,
    "version": True,
    "access": True,
}
"""Those of the list, and whether a narrow terminal goes without it."""
_WINDOWS = {"last_10_seconds": "last 10 s", "last_minute": "last minute"}
_INTERVAL = click.FloatRange(min=0.1)


class _Status(Documented):
    """A command whose option `--watch` may go without its value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = []
        for word, following in zip_longest(args, args[1:], fillvalue=""):
            bare = word == "--watch" and not following.replace(".", "", 1).isdigit()
            given.append(f"--watch={EVERY_SECONDS}" if bare else word)
        return super().parse_args(ctx, given)


_mountpoint = click.argument(
    "mountpoint", metavar="[MNT|@NAME]", required=False, shell_complete=complete_directory
)


@click.command(cls=_Status)
@_mountpoint
@own_option("--json", "Print one JSON object instead of a table.", "for scripts", name="as_json")
@own_option(
    "--watch [S]",
    "Show it again every S seconds [2], until Ctrl-C, as `aisfs top` does.",
    type=_INTERVAL,
)
@own_option(
    "--fastpath-stats",
    "Also show which threads answered the kernel, and what became of pushed members.",
    "see [SEMANTICS](SEMANTICS.md#pushed-members)",
)
@click.option("--lane-stats", is_flag=True, hidden=True)
def status(
    mountpoint: str | None,
    as_json: bool,
    watch: float | None,
    fastpath_stats: bool,
    lane_stats: bool,
) -> int:
    """List the mounts of this machine, or show the state of the mount at MNT.

    Without MNT: where each mount is, of what, whether it answers and is busy, its rates over the last
    ten seconds, process, uptime and version. With MNT: what it has done, its cache, rates, cluster, and
    last warnings.
    """
    if watch is not None:
        if as_json:
            raise click.UsageError("--watch: not with --json; call it again instead")
        _watch(mountpoint, watch)
    if mountpoint is None:
        with Asker() as asker:
            mounts = find_mounts(asker)
        if as_json:
            found = [{**asdict(mount), "busy": mount.busy} for mount in mounts]
            click.echo(json.dumps({"mounts": found}, ensure_ascii=False))
        else:
            _print_lines(_listed(mounts))
        return Exit.MOUNTPOINT if any(mount.state in BROKEN for mount in mounts) else Exit.OK
    from aisfs.commands.config import mountpoint_of

    # Not a click.Path, which would stat it: the daemon may hang.
    report = read_report(mountpoint_of(mountpoint), fastpath=fastpath_stats or lane_stats)
    if as_json:
        click.echo(json.dumps({**report.found, "warnings": report.warnings}, ensure_ascii=False))
    else:
        _print_lines(_reported(report))
    return Exit.OK


@click.command(cls=Documented)
@_mountpoint
@own_option(
    "--interval S",
    "Seconds between two looks.",
    "as of `watch`",
    type=_INTERVAL,
    default=EVERY_SECONDS,
)
def top(mountpoint: str | None, interval: float) -> None:
    """Show all mounts of this machine, or the one at MNT, again and again until Ctrl-C.

    Without a terminal, lines are printed instead of a screen.
    """
    _watch(mountpoint, interval)


def _watch(mountpoint: str | None, interval: float) -> None:
    """Show it until Ctrl-C, which raises click.Abort."""
    from rich.console import Group
    from rich.live import Live

    from aisfs.commands.config import mountpoint_of

    shown = False

    def look(asker: Asker) -> "list[RenderableType]":
        if mountpoint is None:
            return _listed(find_mounts(asker, LOOK_SECONDS))
        try:
            return _reported(read_report(mountpoint_of(mountpoint)))
        except MountError as error:
            if not shown:
                raise
            return [str(error)]  # it may come back

    pause, console = Event(), output()
    try:
        with Asker() as asker:
            if not console.is_terminal:
                while True:
                    _print_lines(look(asker))
                    shown = True
                    pause.wait(interval)
            first = look(asker)
            shown = True
            # Drawn when something is known, by this thread alone: mounts are asked by forking.
            with Live(Group(*first), console=console, screen=True, auto_refresh=False) as live:
                while True:
                    pause.wait(interval)
                    live.update(Group(*look(asker)), refresh=True)
    except KeyboardInterrupt:
        raise click.Abort from None


def _print_lines(parts: "Sequence[RenderableType]") -> None:
    print_parts(*parts)
    sys.stdout.flush()


def _listed(mounts: Sequence[MountState]) -> "list[RenderableType]":
    if not mounts:
        return ["no mount of aisfs on this machine"]
    from rich.table import Table

    wide = output().width >= WIDE
    laid = Table(box=None, header_style="bold", pad_edge=False)
    for heading, needs_room in _COLUMNS.items():
        if wide or not needs_room:
            is_name, is_number = heading in ("mountpoint", "source"), "/s" in heading
            laid.add_column(
                heading,
                overflow="fold",
                no_wrap=not is_name,
                justify="right" if is_number else "left",
            )
    for mount in mounts:
        cells = zip(_COLUMNS.values(), _row(mount), strict=True)
        laid.add_row(*(cell for needs_room, cell in cells if wide or not needs_room))
    broken = [mount for mount in mounts if mount.state in BROKEN]
    return [laid, *(f"{escaped(each.mountpoint)}: {_cure(each)}" for each in broken)]


def _row(mount: MountState) -> tuple[str, ...]:
    rates, uptime = mount.lately, mount.uptime_seconds

    def rate(name: str) -> str:
        return size_text(rates[name]) if name in rates else "-"

    return (
        escaped(mount.mountpoint),
        escaped(mount.source),
        "busy" if mount.state is State.SERVING and mount.busy else str(mount.state),
        rate("served_bytes"),
        rate("fetched_bytes"),
        rate("sent_bytes"),
        f"{rates['operations']:,.1f}" if rates else "-",
        "-" if mount.pid is None else str(mount.pid),
        "-" if uptime is None else duration_text(uptime),
        mount.version or "-",
        "read-write" if mount.writable else "read-only",
    )


def _cure(mount: MountState) -> str:
    if mount.state is State.DEAD:
        return f"its daemon has died; clear it with: aisfs umount {mount.mountpoint}"
    if mount.state is State.STOPPED:
        return f"its daemon is stopped; continue it with: kill -CONT {mount.pid}"
    if mount.state is State.RESTARTING:
        return (
            "its daemon has died, and another one cannot go on yet: its log says why; to detach it: "
            f"aisfs umount --lazy {mount.mountpoint}"
        )
    return f"its daemon does not answer; if it hangs, detach it with: aisfs umount --lazy {mount.mountpoint}"


def _reported(report: MountReport) -> "list[RenderableType]":
    parts: list[RenderableType] = [table(report.found)]
    for each in report.warnings:
        times = f" ({each['count']} times)" if each["count"] != 1 else ""
        parts.append(f"{each['time']} {each['level']}: {each['text']}{times}")
    return parts


def table(found: dict[str, object]) -> "Table":
    """Return a table of a summary, a section after the other."""
    from rich.table import Table

    laid = Table(show_header=False, box=None)
    laid.add_column(style="bold", no_wrap=True)
    laid.add_column(overflow="fold")
    laid.add_column(justify="right", overflow="fold")
    for title, values in found.items():
        if title == "dataset" and isinstance(values, dict):
            laid.add_row(title, "opened", "{opened_shards:,} of {shards:,} shards".format(**values))
            laid.add_row("", "files", f"{values['files']:,}")
            continue
        assert isinstance(values, dict), "a summary is made of sections"
        shown = title.replace("_", " ")
        for name, value in values.items():
            laid.add_row(shown, *_words(name, value))
            shown = ""
        if not values:
            laid.add_row(shown, "none", "")
    return laid


def _words(name: str, value: object) -> tuple[str, str]:
    special: dict[str, Callable[[], str]] = {
        "uptime_seconds": lambda: duration_text(float(str(value))),
        "hit_percent": lambda: "none asked for" if value is None else f"{value} %",
        "pid": lambda: str(value),
        "keeper": lambda: str(value),
        "writable": lambda: "read-write" if value else "read-only",
    }
    shorter = {"uptime_seconds": "uptime", "hit_percent": "hit ratio", "writable": "access"}
    if name in special:
        return shorter.get(name, name), special[name]()
    if isinstance(value, dict):
        return _WINDOWS.get(name, name), _rates(value) if name in _WINDOWS else _upload(value)
    if name.endswith("bytes") and isinstance(value, int):
        return name.removesuffix("_bytes"), size_text(value)
    return name.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value) or "none"


def _upload(value: dict[str, int | None]) -> str:
    sent, size = value["sent_bytes"] or 0, value["size_bytes"]
    of = "of a file still being written" if size is None else f"of {size_text(size)}"
    return f"{size_text(sent)} {of}"


def _rates(value: dict[str, float]) -> str:
    served, fetched = size_text(value["served_bytes"]), size_text(value["fetched_bytes"])
    sent = f"{size_text(value['sent_bytes'])}/s sent, " if value.get("sent_bytes") else ""
    return f"{served}/s served, {fetched}/s fetched, {sent}{value['operations']:,.1f} operations/s"


@click.command(cls=Documented)
@click.argument("mountpoint", metavar="MNT|@NAME", shell_complete=complete_directory)
@click.argument("paths", metavar="[PATH…]", nargs=-1)
def refresh(mountpoint: str, paths: tuple[str, ...]) -> None:
    """Make the mount at MNT show now what others have changed.

    Without PATH, the mount and the kernel forget all listings and versions; with PATH, those at and below it.
    A relative PATH begins at MNT. For a file, its whole directory is refreshed; for a dataset, its shards are
    looked for again.
    """
    from aisfs.commands.config import mountpoint_of

    # Not click.Paths, which would stat them: the daemon may hang.
    names = refresh_mount(mountpoint_of(mountpoint), [Path(path) for path in paths])
    click.echo(f"{counted(names, 'name')} will be looked up again")


@click.command(cls=Documented)
@click.argument("mountpoint", metavar="MNT|@NAME", shell_complete=complete_directory)
def flush(mountpoint: str) -> None:
    """Upload the files of the mount at MNT that are closed and wait for their upload.

    With `--write-back`, closed small files wait on the local disk. The command returns when all of them are in
    the store, and fails if some are not.
    """
    from aisfs.commands.config import mountpoint_of

    # Not a click.Path, which would stat it: the daemon may hang.
    files = flush_mount(mountpoint_of(mountpoint))
    click.echo(f"{counted(files, 'file')} uploaded")


@click.command(cls=Documented)
@click.argument("mountpoints", metavar="[MNT|@NAME…]", nargs=-1, shell_complete=complete_directory)
def upgrade(mountpoints: tuple[str, ...]) -> int:
    """Have mounts go on with the installed version and configuration of aisfs, while programs use them.

    Without MNT: all mounts of this user. A new daemon loads beside the old one and takes its place; programs wait for
    about as long as a request takes. If it cannot, the old one goes on, and the command says why: for example, SOURCE
    and --view cannot change.
    """
    from aisfs.commands.config import mountpoint_of

    def tell(text: str) -> None:
        click.echo(warn("note", text), err=True)

    code = 0
    # Not click.Paths, which would stat them: the daemon may hang.
    for mountpoint in [mountpoint_of(word) for word in mountpoints] or own_mounts():
        try:
            click.echo(f"{mountpoint}: {upgrade_mount(mountpoint, tell)}")
        except AisfsError as error:
            code = fail(str(error), Exit.FAILURE)
    return code
