"""Tells the mount of a data set in which order a sampler draws its files, so that it fetches just ahead of the workers.

    from aisfs.torch import AnnouncedSampler

    dataset = ImageFolder("/mnt/pets")
    sampler = AnnouncedSampler(dataset, RandomSampler(dataset))
    for epoch in range(90):
        for images, labels in DataLoader(dataset, batch_size=64, sampler=sampler, num_workers=8):
            ...

    announce(dataset, DistributedSampler(dataset, 4, 0), epoch=3)    # earlier, or without drawing

One listing of each directory says the inode numbers of all files; it is made once for each data set. `ShardSamples` of shards
in a mount is announced as well; without a mount there is nobody to be told.
"""

import os
import warnings
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from aisfs.order import NotAnnounced, numbers_of
from aisfs.order import announce as announce_numbers
from aisfs.torch.sampler import FolderDataset, Path, ShardWindowSampler, SpreadBatches, paths_of
from aisfs.torch.samples import ShardSamples

Files = ShardSamples[Any] | FolderDataset | Sequence[Path | tuple[str, int]]


class Sampler(Protocol):
    """A sampler, which draws numbers, or a batch sampler, which draws lists of them."""

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...


class _Known(NamedTuple):
    """What is known of the files of a data set."""

    place: str
    """A directory of theirs."""
    numbers: NDArray[np.uint64]
    """Their inode numbers, sample after sample."""
    counts: NDArray[np.int64] | None
    """How many each sample has; one without it."""


_known: "WeakKeyDictionary[Any, _Known]" = WeakKeyDictionary()
"""By data set."""


def announce(dataset: Files, sampler: Sampler, epoch: int | None = None) -> int:
    """Tell the mount of a data set what a sampler will draw in an epoch; return how many files.

    It comes after what was announced by this process before and is not read yet.

    Args:
        dataset: Files in one mount.
        sampler: A sampler, or batch sampler, whose order its epoch decides: one with `set_epoch`, which keeps its epoch.
        epoch: Which; the sampler's own by default.

    Raises:
        TypeError: the order of the sampler is known only when it is drawn; `AnnouncedSampler` announces it then.
        NotAnnounced: the data set is in no mount of aisfs, or the mount takes no order.
        OSError: a file does not exist, or a directory cannot be listed.
        Stale: a shard has changed since the data set was made.
    """
    return _announce(dataset, _order(sampler, epoch))


class AnnouncedSampler:
    """Draws what another sampler, or batch sampler, draws, and announces it at the beginning of each epoch."""

    def __init__(self, dataset: Files, sampler: Sampler) -> None:
        """Announce the order of `sampler` to the mount of `dataset`.

        Raises:
            TypeError: the sampler keeps its own place, and would lose it, since all of its order is drawn at once.
        """
        known = isinstance(sampler, ShardWindowSampler | SpreadBatches)
        if not known and hasattr(sampler, "state_dict"):
            raise TypeError(
                f"{type(sampler).__name__} keeps its own place; ShardWindowSampler does, too, and can be announced"
            )
        self.dataset = dataset
        self.sampler = sampler

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - set_epoch, state_dict, batch_size and the like
        if name in ("dataset", "sampler"):  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.sampler, name)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        # A generator, as a loader asks for several iterators and uses one.
        drawn: Iterable[Any] = self.sampler
        if isinstance(self.sampler, ShardWindowSampler | SpreadBatches):
            order = self.sampler.upcoming()
        else:
            drawn = numbers = list(self.sampler)  # another iteration may draw another order
            order = _flat(numbers)
        try:
            _announce(self.dataset, order)
        except NotAnnounced as error:  # files are read as without
            warnings.warn(str(error), stacklevel=2)
        yield from drawn


def _announce(dataset: Files, order: NDArray[Any]) -> int:
    known = _files_of(dataset)
    if not len(order):
        return 0
    if known.counts is not None:
        order = _spread(order, known.counts)
    wanted = array("Q")
    wanted.frombytes(known.numbers[order].tobytes())
    return announce_numbers(known.place, wanted, str(os.getpid()))


def _files_of(dataset: Files) -> _Known:
    kept = not isinstance(dataset, list | tuple)
    known = _known.get(dataset) if kept else None
    if known is not None:
        return known
    if isinstance(dataset, ShardSamples):
        place, samples = dataset.files()
        numbers, counts = array("Q"), array("q")
        for files in samples:
            numbers.extend(files)
            counts.append(len(files))
        known = _Known(place, np.frombuffer(numbers, np.uint64), np.frombuffer(counts, np.int64))
    else:
        paths = list(paths_of(dataset))
        place = os.path.dirname(paths[0]) if paths else ""
        known = _Known(place or ".", np.frombuffer(numbers_of(paths), np.uint64), None)
    if kept:
        _known[dataset] = known
    return known


def _spread(order: NDArray[Any], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of the files of samples, of which all before have so many."""
    wanted = counts[order]
    first = np.cumsum(counts)[order] - wanted
    return np.repeat(first - np.cumsum(wanted) + wanted, wanted) + np.arange(wanted.sum())


def _order(sampler: Sampler, epoch: int | None) -> NDArray[Any]:
    if isinstance(sampler, ShardWindowSampler | SpreadBatches):
        return sampler.upcoming(epoch)
    inner: Any = sampler
    while not hasattr(inner, "set_epoch"):
        inner = getattr(inner, "sampler", None)
        if inner is None:
            raise TypeError(
                f"{type(sampler).__name__} has no epochs, so its order is known only when it is drawn:"
                " give DataLoader AnnouncedSampler(dataset, sampler)"
            )
    now = inner.epoch
    try:
        inner.set_epoch(now if epoch is None else epoch)
        return _flat(list(sampler))
    finally:
        inner.set_epoch(now)


def _flat(drawn: Sequence[Any]) -> NDArray[Any]:
    if drawn and not isinstance(drawn[0], int):
        return np.fromiter(chain.from_iterable(drawn), np.int64)
    return np.asarray(drawn, np.int64)
