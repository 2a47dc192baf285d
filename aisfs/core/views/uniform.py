"""Samples of shards in which every sample has the same components in the same order, as most have.

Of such a shard all samples are known at once, without a step for each: the general rules
(`samples`, `class_view`) take ten times as long.
"""

from collections.abc import Sequence
from itertools import islice
from operator import lt
from typing import NamedTuple

from aisfs.core.index.columns import KIND_BITS, OPENED
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.regular_names import regular_names

_SPECIAL_FLAGS = bytes(flags for flags in range(256) if flags & (KIND_BITS | OPENED))
_NEED_CARE = (b"__", b"\n")
"""Names with these may be metadata, or are split in another way."""
COMPONENTS_MAX = 64
"""Most components of a sample that are looked for."""


class UniformSamples(NamedTuple):
    """The samples of a shard; member `at` of sample `n` is row `n * len(extensions) + at`."""

    keys: list[bytes]
    """Different ones, by webdataset's rule."""
    extensions: list[bytes]
    """In lower case, all different; the same of every sample."""
    ascending: bool
    """Whether the names of one component ascend."""

    def rows_of(self, at: int) -> range:
        """Return the rows of one component."""
        step = len(self.extensions)
        return range(at, len(self.keys) * step, step)


def uniform_samples(index: MemberIndex) -> UniformSamples | None:
    """Return the samples by webdataset's rule; None if they are not all alike, or any row is special."""
    columns = index.columns
    if not len(index) or len(columns.flags.translate(None, _SPECIAL_FLAGS)) < len(index):
        return None
    if any(care in columns.names for care in _NEED_CARE):
        return None
    regular = regular_names(columns)
    if regular is not None:
        return _samples(regular.keys(), [suffix[1:] for suffix in regular.suffixes], alike=True)
    names = index.names()
    if b"/" in columns.names:
        parts = [(place + slash, *base.partition(b".")) for place, slash, base in
                 [name.rpartition(b"/") for name in names]]  # fmt: skip
        if not all(base for _, base, _, _ in parts):  # it begins with a dot
            return None
        keys = [place + base for place, base, _, _ in parts]
        extensions = [extension for _, _, _, extension in parts]
    else:
        split = [name.partition(b".") for name in names]
        keys = [key for key, _, _ in split]
        extensions = [extension for _, _, extension in split]
        if not all(keys):
            return None
    first = keys[0]
    step = next((at for at, key in enumerate(keys[: COMPONENTS_MAX + 1]) if key != first), 0)
    step = step or len(keys)
    one = extensions[:step]
    if len(keys) % step or extensions != one * (len(keys) // step):
        return None
    firsts = keys[::step]
    if any(keys[at::step] != firsts for at in range(1, step)):
        return None
    return _samples(firsts, one, alike=False)


def _samples(
    keys: list[bytes], extensions: Sequence[bytes], *, alike: bool
) -> UniformSamples | None:
    """Return samples with these keys and extensions, unless some cannot be told apart.

    Args:
        keys: Of all samples.
        extensions: Of each sample.
        alike: Whether the keys have one length and no slash, so that names are in order as keys are.
    """
    lowered = [extension.lower() for extension in extensions]
    ascending = all(map(lt, keys, islice(keys, 1, None)))
    if len(set(lowered)) < len(lowered) or not (ascending or len(set(keys)) == len(keys)):
        return None
    return UniformSamples(keys, lowered, alike and ascending)
