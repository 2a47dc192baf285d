"""What the folder of each shard of a dataset is called: its file without the suffix, if that is enough."""

import os
from collections import Counter
from collections.abc import Sequence

from aisfs.core.namespace.keys import NAME_MAX, shard_stem

JOINT = "~"
"""Stands between a name and what tells it from another; rare in the names of shards."""


def folder_names(shards: Sequence[tuple[str, str]]) -> list[bytes]:
    """Name each (bucket, key) so that no two names are equal.

    `train/000.tar` is `000`; where that is not the only `000`, as many directories above it as all
    shards of that name need come before it: `train~000`; at last the bucket, and a number.
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


def _numbered(names: list[bytes]) -> list[bytes]:
    """Make names that are still equal, or too long, differ by a number."""
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
