"""Objects of a cluster, to be packed.

They are read while the shards are sent, by a client of their own: it never waits for a connection that an
upload holds, which waits for it.
"""

import os
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from aisfs.app.buckets.contents import list_place
from aisfs.app.buckets.places import find_place
from aisfs.app.packing.tree import Choice, Place, ReadFile, is_own
from aisfs.core.names.listing import path_of
from aisfs.core.names.sources import BucketSource, Everything, Source
from aisfs.core.views.shuffled_tar import File, ShardNames
from aisfs.errors import AisfsError, ConfigError, ContentUnreadable
from aisfs.model import Bucket, ObjectInfo
from aisfs.mount.source import open_source
from aisfs.settings import ClusterSettings


@dataclass(slots=True)
class Objects:
    """Objects with the names that they have in the shards; see `Tree`."""

    cluster: ClusterSettings
    files: list[File] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    source: Source = field(default_factory=Everything)
    """One of the places where they are."""
    found: dict[bytes, tuple[Bucket, ObjectInfo]] = field(default_factory=dict)

    def add(self, name: str, bucket: Bucket, info: ObjectInfo) -> None:
        """Add an object.

        Raises:
            ConfigError: another one has the name.
        """
        raw = os.fsencode(name)
        before = self.found.setdefault(raw, (bucket, info))
        if before != (bucket, info):
            both = f"{before[0]}/{before[1].key} and {bucket}/{info.key}"
            raise ConfigError(f"{both} would both be {name} in the shards; pack them one by one")
        self.files.append(File(raw, info.size))

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[ReadFile]:
        """See `Tree`."""
        token = trio.lowlevel.current_trio_token()
        async with open_source(self.source, self.cluster, may_be_unlistable=True) as opened:

            def read(file: File, at: int, view: memoryview) -> None:
                bucket, info = self.found[file.path]
                args = (bucket, info, at, view)
                try:
                    trio.from_thread.run(opened.store.read_range, *args, trio_token=token)
                except AisfsError as error:
                    raise ContentUnreadable(str(error)) from error

            yield read


async def find_objects(
    sources: Sequence[str],
    settings: Mapping[str, object],
    place: Place,
    names: ShardNames,
    choice: Choice,
) -> Objects:
    """Return the chosen objects of SOURCEs as `aisfs ls` takes them, but for the shards that are made of them.

    Those of a bucket or a directory are named by what follows it, others by their whole key.

    Raises:
        ConfigError: a SOURCE makes no sense, or two objects would have one name.
        SourceMissing: there is nothing of that name.
    """
    objects = Objects(ClusterSettings.load(settings))
    for source in sources:
        there = find_place(source, settings)
        if isinstance(there.source, Everything):
            raise ConfigError(f"{source}: pack one bucket, or a part of it")
        objects.source = there.source
        refused: Counter[str] = Counter()
        listed = list_place(there, settings, refused, recursive=True)
        for entry in [entry async for entries in listed for entry in entries]:
            info = entry.info
            if info is not None and not _is_new(place, entry.bucket, info.key, names):
                name = path_of(info.key if "://" in entry.path else entry.path)
                if choice.wants(name):
                    objects.add(name, entry.bucket, info)
        objects.left_out += [f"{source}: {n} keys: {why}" for why, n in sorted(refused.items())]
    return objects


def _is_new(place: Place, bucket: Bucket, key: str, names: ShardNames) -> bool:
    """Return whether a key is that of a shard that is being made."""
    return isinstance(place, BucketSource) and place.bucket == bucket and is_own(key, names)
