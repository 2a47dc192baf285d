"""For training with PyTorch on a mount; nothing else in the package needs this module.

    from aisfs.torch import ShardWindowSampler

    dataset = ImageFolder("/mnt/pets")
    sampler = ShardWindowSampler(dataset, window=8)
    for epoch in range(90):
        sampler.set_epoch(epoch)
        for images, labels in DataLoader(dataset, batch_size=64, sampler=sampler, num_workers=8):
            ...

torch is imported only to ask for the rank of a process.
"""

import os
from array import array
from collections.abc import Iterator, Sequence
from typing import Protocol

from aisfs.core.names.inodes import split_member
from aisfs.core.views.shuffle_order import epoch_order, share_length


class FolderDataset(Protocol):
    """A data set of files: torchvision's ImageFolder and DatasetFolder, timm's folder reader."""

    @property
    def samples(self) -> Sequence[tuple[str, int]]:
        """Path and class of each sample."""
        ...


Path = str | os.PathLike[str]
Samples = FolderDataset | Sequence[Path | tuple[str, int]]


class ShardWindowSampler:
    """Shuffles so that an epoch opens each shard once, and only a few at a time.

    Shards are shuffled, then samples within a window of shards; a shuffled epoch then fetches
    each shard once even if the cache holds no more than the window. DataLoader takes it as its
    `sampler`, like any iterable that has a length.

    It works with every view: the inode number of a file contains its shard, and one listing has the
    numbers of a whole directory. A file outside of shards counts as a shard of its own.
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
    ) -> None:
        """List the directories of the samples once.

        Args:
            samples: A data set with `samples`, or paths, or tuples that begin with a path; in the
                order of the data set's indices.
            window: Number of shards to draw from at once. The cache of the mount should have room
                for that many per training process; larger windows shuffle better.
            seed: The same in all processes.
            num_replicas: Number of processes that share the samples; by default that of
                torch.distributed, or 1 if it is not initialized.
            rank: Index of this process, from 0; by default torch.distributed's.
            drop_last: Leave out samples that cannot be shared evenly, instead of repeating some.

        Raises:
            TypeError: `samples` is a single path.
            ValueError: `window` is below 1, or `rank` not below `num_replicas`.
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
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank {rank} is not one of {num_replicas} replicas, counted from 0")
        self.window = window
        self.seed = seed
        self.num_replicas = num_replicas
        self.rank = rank
        self.drop_last = drop_last
        self.epoch = 0
        self._shards = _shards_of(_paths(samples))

    @property
    def shards(self) -> int:
        """Number of shards with samples; each file outside of shards counts as one."""
        return len(set(self._shards))

    def set_epoch(self, epoch: int) -> None:
        """Select the order of the next epoch; without this call all epochs have the same."""
        self.epoch = epoch

    def __len__(self) -> int:
        return share_length(len(self._shards), self.num_replicas, drop_last=self.drop_last)

    def __iter__(self) -> Iterator[int]:
        return epoch_order(
            self._shards,
            window=self.window,
            seed=self.seed,
            epoch=self.epoch,
            replicas=self.num_replicas,
            rank=self.rank,
            drop_last=self.drop_last,
        )


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


def _paths(samples: Samples) -> Iterator[str]:
    rows = samples if isinstance(samples, Sequence) else samples.samples
    return (os.fspath(row[0] if isinstance(row, tuple) else row) for row in rows)


def _shards_of(paths: Iterator[str]) -> "array[int]":
    """Return a number for the shard of each file, from 0, without a stat of the files."""
    folders: dict[str, list[tuple[int, str]]] = {}
    count = 0
    for count, path in enumerate(paths, start=1):
        folder, name = os.path.split(path)
        folders.setdefault(folder, []).append((count - 1, name))
    found = array("q", bytes(8 * count))
    numbers: dict[int, int] = {}
    for folder, files in folders.items():
        for at, shard in _shards_in(folder or ".", files):
            found[at] = numbers.setdefault(shard, len(numbers))
    return found


def _shards_in(folder: str, files: list[tuple[int, str]]) -> Iterator[tuple[int, int]]:
    """Yield the index of each file of a folder, and what identifies its shard."""
    inside = split_member(os.stat(folder).st_ino)
    if inside is not None:  # the folder is inside a shard, with everything in it
        yield from ((at, inside[0]) for at, _ in files)
        return
    with os.scandir(folder) as entries:
        inodes = {entry.name: entry.inode() for entry in entries}
    for at, name in files:
        inode = inodes.get(name)
        if inode is None:  # a name that exists without being listed, or is missing
            inode = os.stat(os.path.join(folder, name)).st_ino
        member = split_member(inode)
        yield at, inode if member is None else member[0]
