"""One epoch with each reader: everything is read once, and counted so that nobody skips a byte."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.processes import NotMeasured

BATCH = 64
"""Samples per batch of a data loader's worker."""
Tally = tuple[int, int]
"""Samples and bytes."""


def size_of(sample: object) -> int:
    """Give the bytes of a sample in whatever form its reader hands it out."""
    if isinstance(sample, bytes):
        return len(sample)
    if isinstance(sample, tuple):
        return size_of(sample[1])
    assert isinstance(sample, dict), type(sample)
    return sum(len(part) for name, part in sample.items() if not name.startswith("__"))


def tally(batch: Sequence[Any]) -> Tally:
    """Count a batch; in the worker, so that no bytes travel between processes."""
    return len(batch), sum(map(size_of, batch))


def read_through(dataset: Any, workers: int) -> Tally:  # noqa: ANN401 (any data set)
    """Read a data set: in a plain loop, or in the worker processes of torch's DataLoader."""
    if workers:
        from torch.utils.data import DataLoader

        batches: Iterable[Tally] = DataLoader(
            dataset,
            batch_size=BATCH,
            num_workers=workers,
            collate_fn=tally,
            multiprocessing_context="fork",
        )
    elif hasattr(dataset, "__getitem__") and not hasattr(dataset, "__iter__"):
        batches = (tally((dataset[at],)) for at in range(len(dataset)))
    else:
        batches = (tally((sample,)) for sample in dataset)
    samples = size = 0
    for count, length in batches:
        samples += count
        size += length
    return samples, size


class Files:
    """A map-style data set of paths.

    Without a buffer, as whole files need none, and as programs in other languages read them: with
    one, `open` of Python asks whether the file is a terminal, which FUSE has to ask the daemon.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, at: int) -> bytes:
        with open(self._paths[at], "rb", buffering=0) as file:
            return file.read()


class BufferedFiles(Files):
    """The same with plain `open`, as PIL reads them."""

    def __getitem__(self, at: int) -> bytes:
        with open(self._paths[at], "rb") as file:
            return file.read()


class FilesOnce(Files):
    """The same, and the page cache forgets each file: as if the data were larger than memory."""

    def __getitem__(self, at: int) -> bytes:
        with open(self._paths[at], "rb") as file:
            data = file.read()
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return data


class Gets:
    """A map-style data set of URLs: one GET each, over a session per process."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._session: Any = None
        self._owner = 0

    def __len__(self) -> int:
        return len(self._urls)

    def __getitem__(self, at: int) -> bytes:
        if self._owner != os.getpid():
            import requests

            self._session, self._owner = requests.Session(), os.getpid()
        reply = self._session.get(self._urls[at], timeout=60)
        reply.raise_for_status()
        content: bytes = reply.content
        return content


def object_url(endpoint: str, bucket: str, key: str) -> str:
    """Give the URL of an object at the proxy."""
    return f"{endpoint}/v1/objects/{bucket}/{key}?provider=ais"


def list_files(folders: Iterable[Path]) -> list[str]:
    """List the files below folders, sorted, as ImageFolder does."""
    found: list[str] = []
    for folder in folders:
        for where, _, names in os.walk(folder):
            found += [f"{where}/{name}" for name in names]
    return sorted(found)


def read_files(
    folders: Sequence[Path], workers: int, dataset: Callable[[Sequence[str]], Files] = Files
) -> Tally:
    """List folders and read all files in them."""
    return read_through(dataset(list_files(folders)), workers)


def get_objects(endpoint: str, bucket: str, keys: Sequence[str], workers: int) -> Tally:
    """Get each object: what the seed benchmark starts from."""
    return read_through(Gets([object_url(endpoint, bucket, key) for key in keys]), workers)


def sdk_objects(endpoint: str, bucket: str, workers: int) -> Tally:
    """Read objects with the SDK's AISIterDataset."""
    from aistore.pytorch import AISIterDataset
    from aistore.sdk import Client

    return read_through(AISIterDataset(Client(endpoint).bucket(bucket)), workers)


def sdk_shards(
    endpoint: str, bucket: str, workers: int, keys: Sequence[str] | None = None
) -> Tally:
    """Read shards, all or these, with the SDK's AISShardReader."""
    from aistore.pytorch import AISShardReader
    from aistore.sdk import Client

    source = Client(endpoint).bucket(bucket)
    chosen = {} if keys is None else {source: list(keys)}
    return read_through(AISShardReader(source, prefix_map=chosen), workers)


def sdk_random(endpoint: str, bucket: str, order: Sequence[int]) -> Tally:
    """Read objects in a given order with the SDK's AISMapDataset."""
    from aistore.pytorch import AISMapDataset
    from aistore.sdk import Client

    dataset = AISMapDataset(Client(endpoint).bucket(bucket))
    return tally([dataset[at] for at in order])


def webdataset_shards(urls: Sequence[str], workers: int) -> Tally:
    """Read shards with webdataset: URLs through its curl, or paths."""
    import webdataset

    dataset = webdataset.WebDataset(list(urls), shardshuffle=False, empty_check=False)
    return read_through(dataset, workers)


def checked(read: Callable[[], Tally], samples: int, size: int) -> Callable[[], Tally]:
    """Make a reader that missed something have no result."""

    def run() -> Tally:
        got = read()
        if got != (samples, size):
            raise NotMeasured(
                f"read {got[0]} samples, {got[1]} bytes of {samples} samples, {size} bytes"
            )
        return got

    return run
