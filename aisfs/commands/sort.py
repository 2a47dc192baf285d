"""`aisfs sort`."""

from functools import partial
from typing import TYPE_CHECKING

import click
from rich.console import Console

from aisfs.commands.guide import Documented, complete_source
from aisfs.commands.options import (
    SOURCES,
    Exit,
    own_option,
    run,
    settings,
    size_value,
    without_unset,
)
from aisfs.system import logs
from aisfs.work.display import counted

if TYPE_CHECKING:
    from aisfs.work.jobs import Ended

INTERRUPTED = 130
"""What a shell reports after Ctrl-C."""
_RANDOM = "random"


class _Sort(Documented):
    """Takes `--shuffle` with a seed or without one, whatever follows it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; what follows `--shuffle` is the seed if it is a number."""
        words = []
        for at, word in enumerate(args):
            seed = args[at + 1] if at + 1 < len(args) else ""
            is_bare = word == "--shuffle" and not seed.lstrip("-").isdecimal()
            words.append(f"--shuffle={_RANDOM}" if is_bare else word)
        return super().parse_args(ctx, words)


def _seed(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    if text not in (None, _RANDOM) and not text.isdecimal():
        raise click.BadParameter(f"{text!r} is not a seed: a number that is not negative")
    return text


@click.command(cls=_Sort)
@click.argument("sources", metavar="SOURCE...", nargs=-1, shell_complete=complete_source)
@click.argument("target", metavar="TARGET")
@own_option(
    "--shuffle [SEED]",
    "Shuffle the samples instead of sorting them; with a SEED, the cluster repeats its choice where it can.",
    "without a seed, another order each time",
    callback=_seed,
)
@own_option(
    "--by",
    "Sort by the name of a sample, by md5 of the name, or by the content of one member.",
    "see `--key`",
    type=click.Choice(["name", "md5", "content"]),
    default="name",
)
@own_option("--decreasing", "Sort from the last to the first.")
@own_option(
    "--key EXT",
    "With --by content: the extension of the member that has the key, such as cls.",
    "each sample must have it",
)
@own_option(
    "--key-type",
    "How keys are compared.",
    "a number must stand alone, without a line break",
    type=click.Choice(["string", "int", "float"]),
    default="string",
)
@own_option(
    "--shard-size SIZE",
    "Bytes of samples that make a shard full [the mean of the sources].",
    callback=size_value,
)
@own_option("--detach", "Print the id of the job, and do not wait for its end.")
@own_option("--dry-run", "Only print what would be done.")
@settings(*SOURCES, "endpoint")
def sort(
    sources: tuple[str, ...],
    target: str,
    shuffle: str | None,
    by: str,
    decreasing: bool,
    key: str | None,
    key_type: str,
    shard_size: int | None,
    detach: bool,
    dry_run: bool,
    endpoint: str | None,
    **settings: object,
) -> int:
    """Make a sorted or shuffled copy of shards, in the cluster.

    The cluster does the work with dSort: SOURCE is shards of one bucket, TARGET the names of new
    shards with a range, in any bucket. Nothing is overwritten. Ctrl-C stops the job; the shards it has
    written stay.
    """
    from aisfs.work import sort as sorting

    logs.configure("error", None, foreground=True)
    order = sorting.Order(
        by=by,
        shuffled=shuffle is not None,
        seed=int(shuffle) if shuffle not in (None, _RANDOM) else None,
        decreasing=decreasing,
        extension=key or "",
        key_type=key_type,
    )
    given = without_unset(settings)
    plan = sorting.plan_sort(sources, target, given, order=order, shard_size=shard_size)
    if dry_run:
        for line in run(partial(sorting.describe, plan, endpoint)):
            click.echo(line)
        return Exit.OK
    ended = run(partial(sorting.sort, plan, endpoint, Console(stderr=True), detach=detach))
    return _print_end(ended, target, detach=detach)


def _print_end(ended: "Ended", target: str, *, detach: bool) -> int:
    job = ended.job
    if detach:
        click.echo(job.id)
        return Exit.OK
    if ended.stopped:
        state = "is stopped" if job.over else "may still be running"
        click.echo(
            f"aisfs: job {job.id} {state}; what it has written stays ({counted(job.created, 'shard')}): {target}",
            err=True,
        )
        return INTERRUPTED
    click.echo(
        f"{counted(job.counts['shards'], 'shard')} with {counted(job.counts['records'], 'member')} sorted into "
        f"{job.created}: {target}"
    )
    return Exit.OK
