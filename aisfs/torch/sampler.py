"""Samplers that shuffle by shard, go on after a restart, and end at the same step in all processes.

    from aisfs.torch import ShardWindowSampler

    dataset = ImageFolder("/mnt/pets")
    sampler = ShardWindowSampler(dataset, window=8)
    for epoch in range(90):
        sampler.set_epoch(epoch)
        for images, labels in DataLoader(dataset, batch_size=64, sampler=sampler, num_workers=8):
            ...

A DataLoader draws from its sampler ahead of the training loop. So a plain loop says how far it came, and
StatefulDataLoader of torchdata, which calls `state_dict` itself, keeps the state that belongs to each batch:

    torch.save(sampler.state_dict(consumed=steps * 64), "sampler.pt")   # steps of this epoch since the last start
    sampler.load_state_dict(torch.load("sampler.pt"))                   # before the first epoch, which it selects

A state is a place in the order of all samples, the same in all processes. As many processes as you like may go on.

torch is imported only to ask for the rank of a process.
"""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable
from zlib import crc32

import numpy as np

from aisfs.core.names.inodes import SLOT_BITS
from aisfs.order import numbers_of
from aisfs.torch.shuffling import Numbers, epoch_order

CHUNK = 1 << 14
"""Samples of which the numbers become objects of Python at once."""


class FolderDataset(Protocol):
    """A data set of files: torchvision's ImageFolder and DatasetFolder, timm's folder reader."""

    @property
    def samples(self) -> Sequence[tuple[str, int]]:
        """Path and class of each sample."""
        ...


@runtime_checkable
class ShardedDataset(Protocol):
    """A data set that knows its shards, such as `ShardSamples`."""

    def shard_numbers(self) -> Numbers:
        """Return the shard of each sample, as numbers from 0 without gaps."""
        ...


Path = str | os.PathLike[str]
Samples = ShardedDataset | FolderDataset | Sequence[Path | tuple[str, int]]


class ShardWindowSampler:
    """Shuffles so that an epoch opens each shard once, and only a few at a time.

    Shards are shuffled, then samples within a window of shards; a shuffled epoch then fetches
    each shard once even if the cache holds no more than the window. DataLoader takes it as its
    `sampler`, like any iterable that has a length.

    It works with every view: the inode number of a file contains its shard, and one listing has the
    numbers of a whole directory. A file outside of shards counts as a shard of its own.

    All processes have one order in common, of which each takes every `num_replicas`-th sample.
    """

    def __init__(
        self,
        samples: Samples,
        *,
        window: int,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
        drop_last: bool = False,
        pieces: int = 1,
    ) -> None:
        """List the directories of the samples once.

        Args:
            samples: `ShardSamples`, a data set with `samples`, or paths, or tuples that begin with a path; in
                the order of the data set's indices.
            window: Number of shards to draw from at once, in each piece. The cache of the mount should have
                room for all of them; larger windows shuffle better.
            seed: The same in all processes.
            num_replicas: Number of processes that share the samples; by default that of
                torch.distributed, or 1 if it is not initialized.
            rank: Index of this process, from 0; by default torch.distributed's.
            drop_last: Leave out samples that cannot be shared evenly, instead of repeating some.
                `SpreadBatches` does neither.
            pieces: Number of pieces that the sequence of shards is cut into, so that each process reads other
                shards: the number of processes, or of machines, with a mount each. The order depends on it.

        Raises:
            TypeError: `samples` is a single path.
            ValueError: `window` or `pieces` is below 1, or `rank` not below `num_replicas`.
            OSError: a directory of samples does not exist, or cannot be listed.
        """
        if isinstance(samples, str | os.PathLike):
            raise TypeError(
                f"samples must be a data set or a list of paths, not the path {samples}"
            )
        if num_replicas is None or rank is None:
            world, place = _distributed()
            num_replicas = world if num_replicas is None else num_replicas
            rank = place if rank is None else rank
        if window < 1:
            raise ValueError(f"window must be at least one shard, not {window}")
        if pieces < 1:
            raise ValueError(f"there is at least one piece, not {pieces}")
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank {rank} is not one of {num_replicas} replicas, counted from 0")
        self.window = window
        self.seed = seed
        self.num_replicas = num_replicas
        self.rank = rank
        self.drop_last = drop_last
        self.pieces = pieces
        self.epoch = 0
        self._shards = _numbers(samples)
        self._sum = crc32(self._shards.data)
        self.samples = len(self._shards)
        self._next = 0
        """Where in the order the next iteration begins."""
        self._begun = 0
        """Where this one began."""
        self._place = 0
        """Behind the samples that were drawn, by all processes together."""

    @property
    def shards(self) -> int:
        """Number of shards with samples; each file outside of shards counts as one."""
        return int(self._shards.max()) + 1 if self.samples else 0

    def set_epoch(self, epoch: int) -> None:
        """Select the order of the next epoch; without this call all epochs have the same.

        The epoch that a state was loaded of goes on where it was.
        """
        if epoch != self.epoch:
            self.epoch = epoch
            self._next = self._begun = self._place = 0

    def order(self, epoch: int | None = None) -> Numbers:
        """Return the samples of this epoch, or another one, of all processes in their order."""
        return epoch_order(
            self._shards,
            window=self.window,
            seed=self.seed,
            epoch=self.epoch if epoch is None else epoch,
            pieces=self.pieces,
        )

    def upcoming(self, epoch: int | None = None) -> Numbers:
        """Return the samples that this process draws in the next iteration, or in another epoch."""
        begun = self._next if epoch is None or epoch == self.epoch else 0
        world = self.num_replicas
        return self.order(epoch)[begun + (self.rank - begun) % world :: world]

    def __len__(self) -> int:
        """Return how many samples this process draws in a whole epoch; after a restart, fewer are left."""
        return self._share(self.samples)

    def __iter__(self) -> Iterator[int]:
        self._begin()
        return self._draw(self._begun)

    def _draw(self, begun: int) -> Iterator[int]:
        self._start()
        order, world = self.order(), self.num_replicas
        share = self._share(self.samples - begun)
        first = begun + (self.rank - begun) % world
        for start in range(0, share, CHUNK):
            places = np.arange(start, min(start + CHUNK, share)) * world + first
            for drawn, sample in enumerate(order[places % self.samples].tolist(), start + 1):
                self._reach(begun + drawn * world)
                yield sample

    def _share(self, samples: int) -> int:
        """Return how many of so many samples each process draws."""
        return samples // self.num_replicas if self.drop_last else -(-samples // self.num_replicas)

    # where an iteration is ----------------------------------------------------------------------

    def _begin(self) -> int:
        """Prepare an iteration; return where it begins. A loader may ask for several and use the last."""
        self._begun = self._place = self._next
        return self._begun

    def _start(self) -> None:
        """Note that an iteration draws: another one after it begins at the start."""
        self._next = 0

    def _reach(self, place: int) -> None:
        """Note how far in the order all processes are."""
        self._place = min(place, self.samples)

    def state_dict(self, consumed: int | None = None) -> dict[str, int]:
        """Return where an epoch is to go on, the same in all processes at the same step.

        Args:
            consumed: How many samples of this iteration this process is done with, if a loader has drawn more:
                the number of batches times their size. Without it, all that were drawn.
        """
        place = self._place
        if consumed is not None:
            place = min(self._begun + consumed * self.num_replicas, self.samples)
        return {
            "epoch": self.epoch,
            "place": place,
            "seed": self.seed,
            "window": self.window,
            "pieces": self.pieces,
            "samples": self.samples,
            "shards": self._sum,
        }

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on with the order, the epoch and at the place of a state.

        Raises:
            ValueError: it is of other samples.
        """
        if (state["samples"], state["shards"]) != (self.samples, self._sum):
            raise ValueError(
                f"the state is of {state['samples']} samples in other shards than these {self.samples}"
            )
        self.epoch, self.seed = state["epoch"], state["seed"]
        self.window, self.pieces = state["window"], state["pieces"]
        self._next = self._begun = self._place = state["place"]


class SpreadBatches:
    """Batches in which each sample is once an epoch, and of which all processes have as many.

    The samples that cannot be shared evenly make some batches smaller by one sample. DataLoader takes it as its
    `batch_sampler`. Only where fewer samples than processes are left for a step, some are repeated.
    """

    drop_last = False

    def __init__(self, sampler: ShardWindowSampler, batch_size: int) -> None:
        """Take at most `batch_size` samples of the sampler's order in each process at each step.

        Raises:
            ValueError: `batch_size` is below 1.
        """
        if batch_size < 1:
            raise ValueError(f"a batch has at least one sample, not {batch_size}")
        self.sampler = sampler
        self.batch_size = batch_size

    def upcoming(self, epoch: int | None = None) -> Numbers:
        """Return the samples that this process draws in the next iteration, or in another epoch."""
        return self.sampler.upcoming(epoch)

    def __len__(self) -> int:
        """Return the number of steps of a whole epoch; after a restart, fewer are left."""
        return -(-self.sampler.samples // (self.batch_size * self.sampler.num_replicas))

    def __iter__(self) -> Iterator[list[int]]:
        return self._draw(self.sampler._begin())

    def _draw(self, begun: int) -> Iterator[list[int]]:
        sampler = self.sampler
        sampler._start()
        order, world = sampler.order(), sampler.num_replicas
        stop = begun
        for step in itertools.count(1):
            start, stop = stop, self._place(begun, step)
            if start == stop:
                return
            first = start + (sampler.rank - start) % world
            places = np.arange(first, max(stop, first + 1), world)
            sampler._reach(stop)
            yield order[places % len(order)].tolist()

    def _place(self, begun: int, step: int) -> int:
        """Return where a step begins, of those that are left at a place of the order; the last one ends there, too.

        The first ones take a sample more than the others, so that what is left after any of them is cut in the same way.
        """
        left = self.sampler.samples - begun
        steps = max(-(-left // (self.batch_size * self.sampler.num_replicas)), 1)
        least, more = divmod(left, steps)
        return begun + min(step, steps) * least + min(step, more)

    def state_dict(self, consumed: int | None = None) -> dict[str, int]:
        """Return where an epoch is to go on, as of the sampler, which may take it as well.

        Args:
            consumed: How many batches of this iteration this process is done with, if a loader has drawn more.
        """
        if consumed is None:
            return self.sampler.state_dict()
        state = self.sampler.state_dict(consumed=0)
        return {**state, "place": self._place(state["place"], consumed)}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on at the place of a state.

        Raises:
            ValueError: it is of other samples.
        """
        self.sampler.load_state_dict(state)


def _distributed() -> tuple[int, int]:
    """Return the number of processes that train together, and the index of this one."""
    try:
        from torch import distributed
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "aisfs.torch asks torch for the rank of this process: pip install torch, "
            "or give num_replicas and rank"
        ) from error
    if not (distributed.is_available() and distributed.is_initialized()):
        return 1, 0
    return distributed.get_world_size(), distributed.get_rank()


def _numbers(samples: Samples) -> Numbers:
    if isinstance(samples, ShardedDataset):
        return samples.shard_numbers()
    return _shards_of(paths_of(samples))


def paths_of(samples: FolderDataset | Sequence[Path | tuple[str, int]]) -> Iterator[str]:
    """Return the paths of the files of a data set, in the order of its indices."""
    rows = samples if isinstance(samples, Sequence) else samples.samples
    return (os.fspath(row[0] if isinstance(row, tuple) else row) for row in rows)


def _shards_of(paths: Iterator[str]) -> Numbers:
    """Return a number for the shard of each file, from 0 in the order in which they come, without a stat of the files."""
    files = np.frombuffer(numbers_of(paths), np.uint64)
    shards = np.where(files >> np.uint64(63), files >> np.uint64(SLOT_BITS), files)
    _, first, found = np.unique(shards, return_index=True, return_inverse=True)
    places = np.empty(len(first), np.uint32)
    places[np.argsort(first)] = np.arange(len(first), dtype=np.uint32)
    return places[found]
