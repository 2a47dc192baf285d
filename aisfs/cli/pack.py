"""`aisfs pack` and `aisfs unpack`: what is typed, and what is said about it."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import trio
from rich.console import Console

from aisfs.cli.exits import Exit
from aisfs.config import ClusterSettings, parse_size
from aisfs.core.namespace.sources import BucketSource, parse_source
from aisfs.core.synthetic.packing import (
    KEY_RULES,
    File,
    Layout,
    Sample,
    ShardNames,
    samples_of,
    shards_of,
    shuffled,
    with_classes,
)
from aisfs.errors import AccessDenied, ConfigError, SourceMissing
from aisfs.model import Bucket
from aisfs.process import logs

if TYPE_CHECKING:
    from aisfs.store.port import WritableStore

_MOST_LINES = 20
"""Lines about single files; there may be millions."""


def _size(context: click.Context, option: click.Parameter, text: str) -> int:
    try:
        return parse_size(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a size such as 1GiB") from None


def _common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--endpoint", metavar="URL", help="AIStore proxy; default: AIS_ENDPOINT."),
        click.option(
            "--jobs",
            type=click.IntRange(1, 64),
            default=4,
            show_default=True,
            help="Shards under way at once.",
        ),
        click.option("--dry-run", is_flag=True, help="Only say what would be done."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("tree", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("shards", metavar="SHARDS")
@click.option(
    "--max-count",
    type=click.IntRange(1),
    default=100_000,
    show_default=True,
    help="Samples in a shard at most.",
)
@click.option(
    "--max-size",
    metavar="SIZE",
    default="3GiB",
    show_default=True,
    callback=_size,
    help="Bytes of a shard at most.",
)
@click.option("--shuffle", type=int, metavar="SEED", help="Shuffle the samples.")
@click.option(
    "--class-to",
    metavar="EXT",
    help="DIR has a directory for each class: add a member KEY.EXT with its number.",
)
@click.option(
    "--key-rule",
    type=click.Choice(list(KEY_RULES)),
    default="wds",
    show_default=True,
    help="Which files are one sample, by their names.",
)
@_common_options
def pack(
    tree: Path,
    shards: str,
    max_count: int,
    max_size: int,
    shuffle: int | None,
    class_to: str | None,
    key_rule: str,
    **common: Any,  # noqa: ANN401 - the common options
) -> int:
    """Pack the files below DIR into tar shards.

    SHARDS names them, in a bucket or a directory: 'ais://BUCKET/train-{000000..}.tar'. Shards that
    are there with these very bytes are left as they are: run it again after an error. Others that an
    earlier run has left are named, not removed.
    """
    from aisfs.app.pack import Packer, find_files

    logs.configure("warning", None, foreground=True)
    place, names = _parse_shards(shards)
    files, odd = find_files(tree)
    if isinstance(place, Path):
        files = _but_own(files, os.path.relpath(place, tree.resolve()), names)
    if not files:
        raise SourceMissing(f"{tree}: no files")
    samples = _samples(files, key_rule, class_to, shuffle)
    layouts = shards_of(samples, max_count, max_size)
    _say(odd, "left out: ")
    ended = Exit.FAILURE if odd else Exit.OK
    if common["dry_run"]:
        _show(layouts, place, names)
        return ended

    if isinstance(place, Path):
        _make(place)

    async def run() -> None:
        async with _opened(place, common["endpoint"]) as (store, bucket):
            packer = Packer(tree, store, bucket, names)
            packed = await packer.pack(layouts, common["jobs"], Console(stderr=True))
        click.echo(
            f"{len(samples)} samples: {packed.written} shards written, "
            f"{packed.kept} were there, {packed.size} bytes"
        )
        _say([f"{bucket}/{key}" for key in packed.others], "not of this tree, but of these names: ")

    trio.run(run)
    return ended


@click.command()
@click.argument("shards", metavar="SHARDS")
@click.argument("tree", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--class-to", metavar="EXT", help="Leave out the members KEY.EXT that `aisfs pack` added."
)
@_common_options
def unpack(shards: str, tree: Path, class_to: str | None, **common: Any) -> int:  # noqa: ANN401
    """Write the members of shards as files below DIR.

    SHARDS is as for `aisfs pack`; {N..} takes all there are. Exit code 1 when something was left out,
    9 when a shard is damaged.
    """
    from aisfs.app.unpack import Unpacker

    logs.configure("warning", None, foreground=True)
    place, names = _parse_shards(shards)
    skipped: list[str] = []
    damaged: list[str] = []
    if isinstance(place, Path) and not place.is_dir():
        raise SourceMissing(f"{place}: no such directory")
    if not common["dry_run"]:
        _make(tree)

    async def run() -> None:
        async with _opened(place, common["endpoint"]) as (store, bucket):
            without = _extension(class_to) if class_to else b""
            unpacker = Unpacker(store, bucket, names, tree, without)
            found = await unpacker.find()
            if common["dry_run"]:
                for info in found:
                    click.echo(f"{bucket}/{info.key}: {info.size} bytes")
                return
            done = await unpacker.unpack(found, common["jobs"], Console(stderr=True))
        skipped.extend(done.skipped)
        damaged.extend(done.damaged)
        click.echo(f"{done.files} files of {done.shards} shards")

    trio.run(run)
    _say(skipped, "left out: ")
    _say(damaged, "damaged: ")
    return Exit.DAMAGED if damaged else Exit.FAILURE if skipped else Exit.OK


def _samples(
    files: list[File], key_rule: str, class_to: str | None, shuffle: int | None
) -> list[Sample]:
    """Put the files together as the options want it."""
    samples = samples_of(files, KEY_RULES[key_rule])
    if class_to:
        samples = with_classes(samples, _extension(class_to))
    return samples if shuffle is None else shuffled(samples, shuffle)


def _but_own(files: list[File], folder: str, names: ShardNames) -> list[File]:
    """Leave out the shards themselves, should they lie in the tree that is packed."""
    start = "" if folder == "." else f"{folder}/"
    paths = map(os.fsdecode, (file.name for file in files))
    return [
        file
        for file, path in zip(files, paths, strict=True)
        if not path.startswith(start) or names.index(path[len(start) :]) is None
    ]


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{directory}: {error.strerror}") from error


def _extension(text: str) -> bytes:
    if not text.strip(".") or "/" in text:
        raise ConfigError(f"--class-to {text}: an extension such as cls")
    return text.lstrip(".").encode(errors="surrogateescape")


def _parse_shards(text: str) -> tuple[Bucket | Path, ShardNames]:
    """Tell the place, a bucket or a directory, from the names in it."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        path = Path(text)
        return path.parent.absolute(), ShardNames.parse(path.name)
    name, _, key = rest.partition("/")
    source = parse_source(f"{scheme}://{name}")
    if not isinstance(source, BucketSource) or not key:
        raise ConfigError(f"{text}: write {scheme}://BUCKET/NAME-{{000000..}}.tar")
    return source.bucket, ShardNames.parse(key)


@asynccontextmanager
async def _opened(
    place: Bucket | Path, endpoint: str | None
) -> AsyncIterator[tuple["WritableStore", Bucket]]:
    # requests alone takes longer to load than --help may.
    from aisfs.ais.client import AISClient
    from aisfs.app.services import check_source
    from aisfs.store.local.store import LocalStore
    from aisfs.store.retry import RetryingStore

    if isinstance(place, Path):
        local = LocalStore(place)
        yield local, local.bucket
        return
    settings = ClusterSettings.load({"endpoint": endpoint})
    client = AISClient(settings)
    try:
        with suppress(AccessDenied):  # who may write need not be allowed to list
            await check_source(client, BucketSource(place, ""))
        yield RetryingStore(client, deadline=settings.io_timeout), place
    finally:
        await client.aclose()


def _show(layouts: list[Layout], place: Bucket | Path, names: ShardNames) -> None:
    for index, layout in enumerate(layouts):
        click.echo(
            f"{place}/{names.name(index)}: {layout.samples} samples, "
            f"{len(layout.files)} files, {layout.size} bytes"
        )


def _say(lines: list[str], before: str) -> None:
    for line in lines[:_MOST_LINES]:
        click.echo(f"aisfs: {before}{line}", err=True)
    if len(lines) > _MOST_LINES:
        click.echo(f"aisfs: {before}{len(lines) - _MOST_LINES} more", err=True)
