"""A map-style data set of the samples in shards, as webdataset forms them: of a mount, or of sources without one.

    dataset = ShardSamples("ais://pets/samples-{00..18}.tar", transform=decode)
    dataset = ShardSamples("/mnt/pets")
    len(dataset), dataset[0]    # {"__key__": "sample_0000", "__url__": …, "image.jpg": b"…", "cls": b"1"}

The shards are opened once, when the data set is made: their indexes come from where a mount would take them,
so that nothing is scanned where they are published or in the disk cache. A data set keeps no more than 8 bytes for
each shard; each process that reads has the indexes of the last `open_shards` shards.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from aisfs.order import NotAnnounced
from aisfs.torch.shuffling import Numbers

if TYPE_CHECKING:  # it takes a second, and who only wants a sampler has no need of it
    from aisfs.torch.reading import SampleReader

T = TypeVar("T")
Sample = dict[str, Any]
"""`__key__`, `__url__`, and the contents of the members by extension."""


def _as_it_is(sample: Sample) -> Sample:
    return sample


class ShardSamples(Generic[T]):
    """Samples by number, in the order of the shards and of the members in them.

    It can be pickled, and each process, also a forked one, opens what it needs when it first reads. The shards
    must not change: a sample of one that did raises `Stale`.
    """

    def __init__(
        self,
        *sources: str | os.PathLike[str],
        transform: Callable[[Sample], T] = _as_it_is,  # type: ignore[assignment]
        open_shards: int = 64,
        **settings: object,
    ) -> None:
        """Find the shards and count their samples.

        Args:
            sources: Shards as `aisfs mount --view` takes them: a bucket or prefix, a directory, names with
                braces and globs, a list. Those in a mount are read through it.
            transform: Makes of a sample what the data set returns; called where it is read, in a worker.
            open_shards: Of how many shards each process keeps the index. It should not be less than the window
                of the sampler.
            settings: Options of `aisfs mount`, as `endpoint`, `cache_size` or `include`, for what is
                read without a mount. `memory_limit` counts for each process.

        Raises:
            AisfsError: there is no such source, or it cannot be read.
            TypeError: there is no such option.
            ValueError: `open_shards` is below 1.
        """
        if open_shards < 1:
            raise ValueError(f"at least one shard is open, not {open_shards}")
        from aisfs.torch import reading

        self.transform = transform
        self._setup = reading.Setup(
            tuple(os.fspath(source) for source in sources), settings, open_shards
        )
        self._shards, counts = reading.find_shards(self._setup)
        self._starts = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        self._reader: SampleReader | None = None

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, number: int) -> T:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[T]:
        """Return several samples, which are fetched together; DataLoader asks for a batch this way.

        Raises:
            IndexError: there are not as many samples.
            AisfsError: a shard has changed, or cannot be read.
        """
        places = [self._place(number) for number in numbers]
        return [self.transform(sample) for sample in self._reader_here().read(places)]

    def shard_numbers(self) -> Numbers:
        """Return the shard of each sample, as numbers from 0; shards without any have none."""
        counts = np.diff(self._starts)
        counts = counts[counts > 0]
        return np.repeat(np.arange(len(counts), dtype=np.uint32), counts)

    def files(self) -> tuple[str, Iterator[list[int]]]:
        """Return a directory of the mount that is read, and the inode numbers of the files of each sample.

        Raises:
            NotAnnounced: not all shards are read through one mount.
        """
        from aisfs.torch import reading

        outside = next((shard.url for shard in self._shards if not shard.folder), None)
        if outside is not None:
            raise NotAnnounced(f"{outside} is read without a mount, and there is none to be told")
        if len({os.stat(shard.folder).st_dev for shard in self._shards}) > 1:
            raise NotAnnounced("its shards are in several mounts, and an order is for one")
        place = os.path.dirname(self._shards[0].folder)
        return place, reading.numbers_of_members(self._shards)

    def _place(self, number: int) -> tuple[int, int]:
        """Return the shard of a sample, and its number there."""
        at = number + len(self) if number < 0 else number
        if not 0 <= at < len(self):
            raise IndexError(f"there is no sample {number} of {len(self)}")
        shard = bisect_right(self._starts, at) - 1
        return shard, at - int(self._starts[shard])

    def _reader_here(self) -> "SampleReader":
        """Return what reads in this process; that of a parent does not work in a forked one."""
        if self._reader is None or self._reader.process != os.getpid():
            from aisfs.torch.reading import SampleReader

            self._reader = SampleReader(self._setup, self._shards)
        return self._reader

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_reader": None}
