"""The files of a local directory, to be packed."""

import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aisfs.app.packing.tree import Choice, Place, ReadFile, is_own
from aisfs.core.namespace.sources import DirectorySource
from aisfs.core.synthetic.packing import File, ShardNames
from aisfs.errors import ContentUnreadable, SourceMissing


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """Files below a directory; see `Tree`."""

    root: Path
    files: list[File]
    left_out: list[str]

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[ReadFile]:
        """See `Tree`."""
        yield self._read

    def _read(self, file: File, at: int, view: memoryview) -> None:
        path = os.path.join(os.fsencode(self.root), file.path)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                size = os.fstat(descriptor).st_size
                done = 0
                while done < len(view) and (got := os.preadv(descriptor, [view[done:]], at + done)):
                    done += got
            finally:
                os.close(descriptor)
        except OSError as error:
            raise ContentUnreadable(f"{os.fsdecode(path)}: {error.strerror}") from error
        if size != file.size or done < len(view):
            raise ContentUnreadable(f"{os.fsdecode(path)}: changed while it was packed")


def find_files(root: Path, place: Place, names: ShardNames, choice: Choice) -> LocalFiles:
    """Return the chosen files below a directory, but for the shards that are made of them.

    Raises:
        SourceMissing: there is no such directory, or a part of it cannot be read.
    """
    files, left_out = _walk(root, choice)
    if isinstance(place, DirectorySource):
        files = _but_own(files, os.path.relpath(place.path, root.resolve()), names)
    return LocalFiles(root, files, left_out)


def _walk(root: Path, choice: Choice) -> tuple[list[File], list[str]]:
    """Find the chosen files below a directory, following symbolic links to files but not to directories.

    Returns:
        The files, and a line for each thing that cannot be packed.

    Raises:
        SourceMissing: there is no such directory, or a part of it cannot be read.
    """
    top, files, odd = os.fsencode(root), [], []
    if not os.path.isdir(top):
        raise SourceMissing(f"{root}: no such directory")

    def fail(error: OSError) -> None:
        raise SourceMissing(f"{os.fsdecode(error.filename)}: {error.strerror}") from error

    for folder, directories, names in os.walk(top, onerror=fail):
        links = [d for d in directories if os.path.islink(os.path.join(folder, d))]
        if not directories and not names and folder != top:
            odd.append(f"{os.fsdecode(folder)}: an empty directory")
        above = "" if folder == top else f"{os.fsdecode(os.path.relpath(folder, top))}/"
        directories[:] = [d for d in directories if choice.wants(f"{above}{os.fsdecode(d)}/")]
        for name in (*names, *links):
            path = os.path.join(folder, name)
            if not choice.wants(above + os.fsdecode(name)):
                continue
            try:
                status = os.stat(path)
            except OSError as error:
                odd.append(f"{os.fsdecode(path)}: {error.strerror}")
                continue
            if stat.S_ISREG(status.st_mode):
                files.append(File(os.path.relpath(path, top), status.st_size))
            else:
                odd.append(f"{os.fsdecode(path)}: no file")
    return files, odd


def _but_own(files: list[File], folder: str, names: ShardNames) -> list[File]:
    """Leave out the shards themselves and their indexes, should they lie in the tree that is packed."""
    start = "" if folder == "." else f"{folder}/"
    paths = map(os.fsdecode, (file.name for file in files))
    return [
        file
        for file, path in zip(files, paths, strict=True)
        if not path.startswith(start) or not is_own(path[len(start) :], names)
    ]
