"""Names for the folders of the shards of a dataset: the file name without suffix, made unique."""

import os
from collections import Counter
from collections.abc import Sequence

from aisfs.core.namespace.keys import NAME_MAX, shard_stem

JOINT = "~"
"""Separates a name from what makes it unique; rare in the names of shards."""


def folder_names(shards: Sequence[tuple[str, str]]) -> list[bytes]:
    """Return a unique name for each (bucket, key).

    `train/000.tar` is `000`. If that is not unique, as many parent directories as needed come first:
    `train~000`; finally the bucket, and a number.
    """
    paths = [(bucket, *shard_stem(key).split("/")) for bucket, key in shards]
    names = [path[-1] for path in paths]
    for depth in range(2, 2 + max(map(len, paths), default=0)):
        twice = {name for name, count in Counter(names).items() if count > 1}
        if not twice:
            break
        names = [
            JOINT.join(path[-depth:]) if name in twice else name
            for name, path in zip(names, paths, strict=True)
        ]
    return _numbered([os.fsencode(name) for name in names])


def folder_names_of_columns(sources: Sequence[Sequence[tuple[str, str]]]) -> list[bytes]:
    """Return unique names for all shards of joined sources; the first is named as if it were alone."""
    names = folder_names([shard for shards in sources for shard in shards])
    return _numbered([*folder_names(sources[0]), *names[len(sources[0]) :]])


def _numbered(names: list[bytes]) -> list[bytes]:
    """Make names that are still equal or too long unique by a number."""
    taken: set[bytes] = set()
    result = []
    for name in names:
        candidate, number = name[-NAME_MAX:], 1
        while candidate in taken:
            number += 1
            end = f"{JOINT}{number}".encode()
            candidate = name[-NAME_MAX + len(end) :] + end
        taken.add(candidate)
        result.append(candidate)
    return result
