"""A map-style data set of the files below a directory: name and bytes of each.

It stands for AISMapDataset of AIStore's SDK when the bucket is mounted. The sizes come with the
listing, so that the SDK's DynamicBatchSampler works on it without a request for each file.
"""

import os
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

from torch.utils.data import Dataset


class PathDataset(Dataset):
    """The files whose names, relative to the directory, begin with one of the prefixes."""

    def __init__(self, root: str, prefixes: Sequence[str] = ("",)) -> None:
        """List the directory once; folders that no prefix leads into are not looked at."""
        self._root = root
        self._files = [file for prefix in prefixes for file in _listed(root, prefix)]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, at: int) -> tuple[str, bytes]:
        name = self._files[at].name
        # Buffered, `open` asks whether the file is a terminal: a message per file on any FUSE mount.
        with open(os.path.join(self._root, name), "rb", buffering=0) as file:
            return name, file.read()

    def get_obj_list(self) -> list[SimpleNamespace]:
        """Return name and size of each file in the form that DynamicBatchSampler expects."""
        return self._files


def _listed(root: str, prefix: str) -> Iterator[SimpleNamespace]:
    folder, _, start = prefix.rpartition("/")
    try:
        with os.scandir(os.path.join(root, folder)) as entries:
            found = sorted(
                (entry.name, entry.is_dir(), entry.stat().st_size)
                for entry in entries
                if entry.name.startswith(start)
            )
    except FileNotFoundError:
        return
    for base, is_folder, size in found:
        name = os.path.join(folder, base)
        if is_folder:
            yield from _listed(root, f"{name}/")
        else:
            yield SimpleNamespace(name=name, props_cached=SimpleNamespace(size=size))
