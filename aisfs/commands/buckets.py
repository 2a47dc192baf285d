"""`aisfs ls`, `aisfs mb`, `aisfs rm`: buckets and objects without a mount."""

import json
import os
import sys
from collections import Counter
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from aisfs.commands.guide import Documented, complete_source
from aisfs.commands.options import (
    STORE,
    Exit,
    exit_code,
    fail,
    jobs_option,
    own_option,
    run,
    setting,
    settings,
    warn,
    without_unset,
)
from aisfs.errors import AisfsError
from aisfs.redaction import escaped
from aisfs.system import logs
from aisfs.work.display import counted

if TYPE_CHECKING:
    from aisfs.work.buckets import Entry


BROKEN_PIPE = 141
"""What a shell reports of a program that SIGPIPE ended, such as one before `| head`."""
_NS = 1_000_000_000
_SHORT = {"directory": "dir"}


@click.command(cls=Documented)
@click.argument("sources", metavar="[SOURCE…]", nargs=-1, shell_complete=complete_source)
@own_option(
    "-l, --long",
    "Show size in bytes, local time, and kind: bucket, dir, shard or object.",
    "AIStore keeps no times of change ([which are shown](SEMANTICS.md#5-attributes))",
)
@own_option(
    "-R, --recursive",
    "List the objects at any depth, and no directories.",
    "each directory is a request",
)
@own_option(
    "--json",
    "Print JSON, an entry a line.",
    "`name`, `kind`, and of an object `size`, `mtime`, `version` and `checksum`",
    name="as_json",
)
@settings("files_from", *STORE, "io_timeout")
def ls(
    sources: tuple[str, ...],
    long: bool,
    recursive: bool,
    as_json: bool,
    files_from: str | None,
    **settings: object,
) -> int:
    """List buckets, or what is in SOURCE, without mounting it.

    Without SOURCE, it lists all buckets. SOURCE is a bucket, a directory of one, an object or a local
    directory; braces, globs and lists of shards stand for the keys they match. ais:// stands for the
    buckets of that provider. AIStore keeps no time of change for its own buckets: -l shows when the bucket was
    made, plus a second for each version.
    """
    logs.configure("error", None, foreground=True)
    printer: _Printer = _Json() if as_json else _Text(long=long, headings=len(sources) > 1)
    try:
        return _list_all(sources, files_from, settings, printer, recursive=recursive)
    except BrokenPipeError:
        # Python would complain when it flushes stdout at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _list_all(
    sources: tuple[str, ...],
    files_from: str | None,
    settings: dict[str, object],
    printer: "_Printer",
    *,
    recursive: bool,
) -> int:
    from aisfs.work.buckets import find_listed, find_place, list_place

    refused: Counter[str] = Counter()
    count = 0

    async def work(source: str | None) -> None:
        nonlocal count
        place = (
            find_place(source, settings) if files_from is None else find_listed(sources, files_from)
        )
        found = list_place(place, settings, refused, recursive=recursive)
        async with aclosing(found):
            async for batch in found:
                count += len(batch)
                printer.show(batch)

    code: int = Exit.OK
    for source in (files_from,) if files_from is not None else sources or (None,):
        printer.begin(source)
        try:
            run(partial(work, source))
        except AisfsError as error:
            failed = fail(str(error), exit_code(error))
            code = code or failed
    printer.end()
    if not sources and files_from is None and not count and code == Exit.OK:
        click.echo(warn("note", "no buckets: `aisfs mb ais://NAME` makes one"), err=True)
    for reason, names in sorted(refused.items()):
        are = "is" if names == 1 else "are"
        click.echo(
            warn("warning", f"{counted(names, 'name')} {are} not listed, as in a mount: {reason}"),
            err=True,
        )
    return code


class _Printer:
    """Prints entries as they come."""

    def begin(self, source: str | None) -> None:
        """Begin with the entries of a SOURCE."""

    def show(self, batch: "list[Entry]") -> None:
        """Print some of them."""
        raise NotImplementedError

    def end(self) -> None:
        """Print what follows the last entry."""


class _Text(_Printer):
    """One line for each entry."""

    def __init__(self, *, long: bool, headings: bool) -> None:
        self._long = long
        self._headings = headings
        self._is_terminal = sys.stdout.isatty()
        self._source: str | None = None
        self._heading = ""
        self._some = False

    def begin(self, source: str | None) -> None:
        self._source = source
        self._heading = f"{source}:" if self._headings else ""

    def show(self, batch: "list[Entry]") -> None:
        lines = []
        if self._heading and any(each.path not in (each.url, self._source) for each in batch):
            lines += [""] * self._some + [self._safe(self._heading)]
            self._heading = ""
        self._some = True
        lines += [self._line(each) for each in batch]
        sys.stdout.buffer.write(b"".join(os.fsencode(line) + b"\n" for line in lines))
        sys.stdout.buffer.flush()

    def _line(self, entry: "Entry") -> str:
        name = self._safe(entry.path)
        if not self._long:
            return name
        info, kind = entry.info, entry.kind.value
        size = "-" if info is None else str(info.size)
        time = "-" if info is None or not info.mtime_ns else _local(info.mtime_ns)
        return f"{size:>14}  {time:<19}  {_SHORT.get(kind, kind):<6}  {name}"

    def _safe(self, text: str) -> str:
        """Return text that does not control the terminal, if there is one."""
        return escaped(text) if self._is_terminal else text


class _Json(_Printer):
    """An array with one entry a line, so that it can be read as it comes."""

    def __init__(self) -> None:
        self._before = "["

    def show(self, batch: "list[Entry]") -> None:
        parts = []
        for each in batch:
            parts += [self._before, "\n", json.dumps(_as_json(each))]
            self._before = ","
        sys.stdout.write("".join(parts))
        sys.stdout.flush()

    def end(self) -> None:
        sys.stdout.write("[]\n" if self._before == "[" else "\n]\n")
        sys.stdout.flush()


def _as_json(entry: "Entry") -> dict[str, Any]:
    row: dict[str, Any] = {"name": entry.url, "kind": entry.kind.value}
    if entry.info is not None:
        row["size"] = entry.info.size
        row["mtime"] = _utc(entry.info.mtime_ns) if entry.info.mtime_ns else None
        row["version"] = entry.info.version or None
        row["checksum"] = entry.info.checksum or None
    return row


def _local(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // _NS).strftime("%Y-%m-%d %H:%M:%S")


def _utc(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // _NS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@click.command(cls=Documented)
@click.argument("buckets", metavar="BUCKET...", nargs=-1, required=True)
@own_option(
    "-p, --exist-ok",
    "Accept buckets that exist already.",
    "off, since two users may have chosen the same name",
)
@settings("endpoint", "proxy", "io_timeout")
def mb(buckets: tuple[str, ...], exist_ok: bool, **settings: object) -> int:
    """Make empty buckets.

    BUCKET is ais://NAME. It gets the properties that the cluster gives to new buckets.
    """
    from aisfs.work.buckets import make_buckets

    logs.configure("error", None, foreground=True)
    for made in run(partial(make_buckets, buckets, settings, may_exist=exist_ok)):
        click.echo(f"created {made}")
    return Exit.OK


@click.command(cls=Documented)
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@own_option(
    "-r, --recursive",
    "Remove all objects at and below directories, too.",
    "off, since a slash too many is easily typed",
)
@own_option("-n, --dry-run", "Only print what would be removed.")
@setting("index_bucket", why="where the indexes are that are removed along")
@jobs_option("Objects removed at once.")
@settings(*STORE, "io_timeout")
def rm(
    sources: tuple[str, ...], recursive: bool, dry_run: bool, jobs: int, **settings: object
) -> int:
    """Remove objects, and the published indexes of shards among them.

    SOURCE is as for `aisfs ls`: objects by name, braces and globs; with --recursive also directories and buckets,
    which are emptied but stay. The command finds everything before it removes anything.
    """
    from aisfs.work.buckets import remove

    logs.configure("error", None, foreground=True)
    given = without_unset(settings)
    done = run(partial(remove, sources, given, recursive=recursive, jobs=jobs, dry_run=dry_run))
    if dry_run:
        for key in done.keys:
            click.echo(escaped(key))
    else:
        click.echo(f"removed {counted(len(done.keys), 'object')}, {done.size} bytes")
    for reason, count in sorted(done.refused.items()):
        click.echo(warn("warning", f"{counted(count, 'name')} not removed: {reason}"), err=True)
    return Exit.FAILURE if done.refused else Exit.OK
