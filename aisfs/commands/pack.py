"""`aisfs pack` and `aisfs unpack`."""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from aisfs.choices import KeyRule
from aisfs.commands.guide import Documented, complete_source
from aisfs.commands.options import (
    SOURCES,
    STORE,
    Command,
    Exit,
    jobs_option,
    own_option,
    run,
    setting,
    settings,
    size_value,
    taken,
    without_unset,
)
from aisfs.redaction import escaped
from aisfs.system import logs
from aisfs.work.display import counted

if TYPE_CHECKING:
    from aisfs.work.pack import Packed, PackPlan

_MOST_LINES = 20
"""Most lines about single files: there may be millions of files."""


def _common_options(command: Command) -> Command:
    command = jobs_option("Shards packed or unpacked at once.")(command)
    command = settings(*STORE, "io_timeout")(command)
    return own_option("--dry-run", "Only print which shards are meant.")(command)


@click.command(cls=Documented)
@click.argument(
    "sources", metavar="SOURCE...", nargs=-1, required=True, shell_complete=complete_source
)
@click.argument("shards", metavar="SHARDS")
@own_option(
    "--max-count N",
    "Most samples in a shard.",
    "as webdataset's ShardWriter",
    type=click.IntRange(1),
    default=100_000,
)
@own_option(
    "--max-size SIZE",
    "Most bytes in a shard, unless a single sample is larger.",
    "about webdataset's",
    default="3GiB",
    callback=size_value,
)
@own_option(
    "--shuffle SEED",
    "Shuffle the samples; the same seed gives the same order.",
    "without it, by name",
    type=int,
)
@own_option(
    "--class-to EXT", "There is a directory for each class: add a member KEY.EXT with its number."
)
@own_option(
    "--key-rule",
    "Which part of a file's name is the key of its sample, as for aisfs mount [wds, and an error if it would merge samples].",
    "see below",
    type=click.Choice([rule.value for rule in KeyRule]),
)
@setting(
    "include",
    "Only files that match GLOB; repeatable",
    why="by their path below `SOURCE`",
)
@setting("exclude", "No files that match GLOB; repeatable")
@own_option(
    "--hidden",
    "Pack names that start with a dot, too.",
    "off, since no view and no webdataset reader shows them",
)
@own_option(
    "--replace",
    "Remove older shards of these names, and their indexes, once the new ones are there.",
    "off, since they cannot be had back",
)
@own_option(
    "--no-index",
    "Do not publish the indexes of the shards.",
    "an index takes some KB and spares every mount a scan ([SEMANTICS](SEMANTICS.md#published-indexes))",
)
@setting("index_bucket", why="in a directory and without AIStore, indexes lie beside the shards")
@_common_options
def pack(
    sources: tuple[str, ...],
    shards: str,
    key_rule: str | None,
    jobs: int,
    dry_run: bool,
    **given: object,
) -> int:
    """Pack files into tar shards.

    SOURCE is a local directory, or objects of a cluster as aisfs ls takes them: a bucket, a directory in
    it, keys by name, braces and globs, or a list of them. Files are named in the shards by their path below
    the directory or bucket; objects by name, braces and globs by their whole key. SHARDS names them, in a bucket or a directory: 'ais://BUCKET/train-{000000..}.tar'. Shards that
    exist with the same bytes are skipped, so after an error just run it again. Other shards of these
    names are reported, and removed only with --replace. Names that start with a dot, and what other programs
    leave behind (Thumbs.db, __MACOSX), are left out and counted. The index of each shard is published, so mounts need not scan
    it: on AIStore in a bucket of its own, elsewhere beside the shards in .aisfs-index, where programs that
    read the whole bucket or directory find it (--no-index publishes none).
    """
    from aisfs.work import pack as packing

    logs.configure("warning", None, foreground=True)
    given["key_rule"] = KeyRule(key_rule) if key_rule else None
    options = taken(packing.PackOptions, given)
    given = without_unset(given)
    plan = run(partial(packing.plan_pack, sources, shards, given, options))
    _print_all(plan.tree.left_out, "left out: ")
    if dry_run:
        _print_layouts(plan)
    else:
        _print_packed(plan, run(partial(packing.pack, plan, given, jobs, Console(stderr=True))))
    _print_all(plan.notes, "")
    _print_classes(plan)
    return Exit.FAILURE if plan.tree.left_out else Exit.OK


def _print_layouts(plan: "PackPlan") -> None:
    for index, layout in enumerate(plan.layouts):
        name = escaped(f"{plan.place}/{plan.names.name(index)}")
        counts = f"{counted(layout.samples, 'sample')}, {counted(len(layout.files), 'file')}"
        click.echo(f"{name}: {counts}, {layout.size} bytes")


def _print_packed(plan: "PackPlan", packed: "Packed") -> None:
    removed = f", {packed.removed} older ones removed" if packed.removed else ""
    click.echo(
        f"{counted(plan.samples, 'sample')}: {counted(packed.written, 'shard')} written, "
        f"{packed.kept} were there, {packed.size} bytes{removed}: "
        + escaped(f"{plan.place}/{plan.names}")
    )
    _print_all(packed.unindexed, "no index published: ")
    if packed.others:
        _print_all([_remaining(packed.others, str(plan.names))], "")


def _remaining(others: list[str], names: str) -> str:
    """Return the line about shards of an earlier, longer run."""
    last = f" to {others[-1]}" if others[1:] else ""
    return (
        f"older shards of these names remain: {len(others)}, {others[0]}{last}. Whatever reads {names} reads their"
        " samples, too; --replace removes them, and so does `aisfs rm`"
    )


def _print_classes(plan: "PackPlan") -> None:
    """Print the number of each class."""
    if plan.classes is None:
        return
    names = plan.classes.names
    for number, name in enumerate(names[:_MOST_LINES]):
        click.echo(f"class {number}: {escaped(os.fsdecode(name))}")
    stored = f"{plan.place}/{plan.classes.key}"
    if plan.classes.key:
        more = f"{len(names) - _MOST_LINES} more, and " if names[_MOST_LINES:] else ""
        click.echo(f"{more}all names are in {escaped(stored)}, where --view class finds them")
    else:
        _print_all(["a name with a line break or blanks at an end: classes.txt is not written"], "")


@click.command(cls=Documented)
@click.argument("sources", metavar="SOURCE...", nargs=-1, shell_complete=complete_source)
@click.argument("tree", metavar="DIR", type=click.Path(path_type=Path))
@own_option("--class-to EXT", "Leave out the members KEY.EXT that `aisfs pack` added.")
@settings(*SOURCES)
@_common_options
def unpack(
    sources: tuple[str, ...],
    tree: Path,
    class_to: str | None,
    jobs: int,
    dry_run: bool,
    **settings: object,
) -> int:
    """Write the members of shards as files below DIR.

    SOURCE is as for `aisfs mount`: a bucket, a prefix or a directory (all shards at and below it),
    shards by name, braces and globs, or a list of them. The exit code is 1 if something was left out,
    9 if a shard is damaged.
    """
    from aisfs.work import unpack as unpacking

    logs.configure("warning", None, foreground=True)
    given = without_unset(settings)
    if dry_run:
        for name, size in run(partial(unpacking.find_shards, sources, given)):
            click.echo(f"{escaped(name)}: {size} bytes")
        return Exit.OK
    console = Console(stderr=True)
    done = run(partial(unpacking.unpack, sources, tree, class_to, given, jobs, console))
    click.echo(f"{counted(done.files, 'file')} of {counted(done.shards, 'shard')}")
    for noted, before in ((done.skipped, "left out: "), (done.damaged, "damaged: ")):
        _print_all(noted.first, before, noted.count)
    if done.damaged.count:
        return Exit.DAMAGED
    return Exit.FAILURE if done.skipped.count else Exit.OK


def _print_all(lines: list[str], before: str, count: int = 0) -> None:
    """Print the first lines; `count` if there are more of them than are here."""
    for line in lines[:_MOST_LINES]:
        click.echo(f"aisfs: {before}{escaped(line)}", err=True)
    more = max(len(lines), count) - min(len(lines), _MOST_LINES)
    if more:
        click.echo(f"aisfs: {before}{more} more", err=True)
