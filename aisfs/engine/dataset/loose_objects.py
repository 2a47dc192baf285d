"""The objects below a directory, and those among them that are no shards."""

import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from aisfs.core.names.listing import child_prefix, is_shard_of_dataset
from aisfs.core.names.sources import DatasetSource
from aisfs.engine.dataset.exclusions import summarize
from aisfs.engine.listing.lister import Lister
from aisfs.errors import ConfigError, SourceMissing
from aisfs.model import Bucket, ObjectInfo
from aisfs.stores.posix_metadata import is_link

SHARD = "shard"
EXCLUDED = "excluded object"
LINK = "symbolic link"


@dataclass(frozen=True, slots=True)
class LooseObjects:
    """Objects of one bucket."""

    bucket: Bucket
    directory: str
    """The prefix they were looked for below."""
    objects: list[ObjectInfo]
    exclusions: Counter[str]
    """Why how many other objects are not among them."""


async def walk(
    lister: Lister, bucket: Bucket, directory: str, enters: Callable[[str], bool]
) -> AsyncIterator[tuple[str, ObjectInfo]]:
    """Yield all objects below a prefix, sorted, those of a directory before what lies below it.

    Args:
        lister: Knows directories.
        bucket: The bucket.
        directory: The prefix, empty or ending in `/`.
        enters: Says of a directory's path, `a/b/`, whether to look into it.

    Yields:
        The path below `directory`, and the object.
    """
    pending = [directory]
    while pending:
        prefix = pending.pop()
        listing = (await lister.directory(bucket, prefix)).value
        below: list[str] = []
        for _, name, info in sorted(listing.after(0), key=lambda entry: entry[1]):
            if info is not None:
                yield info.key[len(directory) :], info
            elif enters(child_prefix(prefix, name)[len(directory) :]):
                below.append(child_prefix(prefix, name))
        pending += reversed(below)


async def find_loose_objects(source: DatasetSource, lister: Lister) -> LooseObjects:
    """Find the objects of a source that are no shards.

    Raises:
        ConfigError: the source is not one bucket, prefix or directory.
        SourceMissing: there are none.
    """
    patterns = [pattern for word in source.words for pattern in word.patterns]
    pattern = patterns[0]
    if len(patterns) > 1 or pattern.rest or pattern.bucket is None:
        raise ConfigError(
            f"{source}: --view shards takes one bucket, prefix or directory; --include and"
            " --exclude choose what of it"
        )
    found = LooseObjects(pattern.bucket, pattern.directory, [], Counter())
    async for path, info in walk(lister, pattern.bucket, pattern.directory, source.keys.enters):
        if is_link(info):
            found.exclusions[LINK] += 1
        elif is_shard_of_dataset(os.fsencode(path.rpartition("/")[2])):
            found.exclusions[SHARD] += 1
        elif not source.keys.wants(path):
            found.exclusions[EXCLUDED] += 1
        else:
            found.objects.append(info)
    if not found.objects:
        raise SourceMissing(f"{source}: {nothing(found.exclusions)}")
    return found


def nothing(exclusions: Counter[str]) -> str:
    """Return the message that there is nothing to make shards of, and what there is instead."""
    reasons = summarize(exclusions)
    shuffled = "; --shuffle SEED makes them of the samples of shards" if exclusions[SHARD] else ""
    return (
        "no loose objects there to make shards of" + (f": {reasons}" if reasons else "") + shuffled
    )
