"""Tells the mount of a data set in which order a sampler draws its files, so that it fetches just ahead of the workers.

    from aisfs.torch import AnnouncedSampler

    dataset = ImageFolder("/mnt/pets")
    sampler = AnnouncedSampler(dataset, RandomSampler(dataset))
    for epoch in range(90):
        for images, labels in DataLoader(dataset, batch_size=64, sampler=sampler, num_workers=8):
            ...

    announce(dataset, DistributedSampler(dataset, 4, 0), epoch=3)    # earlier, or without drawing

One listing of each directory says the inode numbers of all files; it is made once for each data set.
"""

import os
import warnings
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from aisfs.order import NotAnnounced, numbers_of
from aisfs.order import announce as announce_numbers
from aisfs.torch.sampler import FolderDataset, Path, ShardWindowSampler, SpreadBatches, paths_of

Files = FolderDataset | Sequence[Path | tuple[str, int]]


class Sampler(Protocol):
    """A sampler, which draws numbers, or a batch sampler, which draws lists of them."""

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...


_known: "WeakKeyDictionary[Any, tuple[str, NDArray[np.uint64]]]" = WeakKeyDictionary()
"""By data set: a directory of it, and the inode number of each sample."""


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
    place, numbers = _numbers(dataset)
    if not len(order):
        return 0
    wanted = array("Q")
    wanted.frombytes(numbers[order].tobytes())
    return announce_numbers(place, wanted, str(os.getpid()))


def _numbers(dataset: Files) -> tuple[str, NDArray[np.uint64]]:
    known = None if isinstance(dataset, list | tuple) else _known.get(dataset)
    if known is None:
        paths = list(paths_of(dataset))
        place = os.path.dirname(paths[0]) if paths else ""
        known = place or ".", np.frombuffer(numbers_of(paths), np.uint64)
        if not isinstance(dataset, list | tuple):
            _known[dataset] = known
    return known


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
