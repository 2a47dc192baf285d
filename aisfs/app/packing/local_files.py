"""The files of a local directory, to be packed."""

import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aisfs.app.packing.tree import Choice, Place, ReadFile, is_own
from aisfs.core.names.sources import DirectorySource
from aisfs.core.views.shuffled_tar import File, ShardNames
from aisfs.errors import ContentUnreadable, SourceMissing
from aisfs.stores.local import Links


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


def find_files(
    root: Path, place: Place, names: ShardNames, choice: Choice, *, follow_links: bool
) -> LocalFiles:
    """Return the chosen files below a directory, but for the shards that are made of them.

    Raises:
        SourceMissing: there is no such directory, or a part of it cannot be read.
    """
    files, left_out = _walk(root, choice, follow_links=follow_links)
    if isinstance(place, DirectorySource):
        files = _but_own(files, os.path.relpath(place.path, root.resolve()), names)
    return LocalFiles(root, files, left_out)


def _walk(root: Path, choice: Choice, *, follow_links: bool) -> tuple[list[File], list[str]]:
    """Find the chosen files below a directory, following the links that a mount of it follows.

    Returns:
        The files, and a line for each thing that cannot be packed.

    Raises:
        SourceMissing: there is no such directory, or a part of it cannot be read.
    """
    top, files, odd = os.fsencode(os.path.realpath(root)), list[File](), list[str]()
    links = Links(top, follow_links)
    if not os.path.isdir(top):
        raise SourceMissing(f"{root}: no such directory")

    def shown(path: bytes) -> str:
        return os.path.normpath(os.path.join(root, os.fsdecode(os.path.relpath(path, top))))

    def fail(error: OSError) -> None:
        raise SourceMissing(f"{shown(error.filename)}: {error.strerror}") from error

    for folder, directories, names in os.walk(top, onerror=fail, followlinks=follow_links):
        if not directories and not names and folder != top:
            odd.append(f"{shown(folder)}: an empty directory")
        above = "" if folder == top else f"{os.fsdecode(os.path.relpath(folder, top))}/"
        others = [d for d in directories if not links.enters(os.path.join(folder, d))]
        directories[:] = [
            d for d in directories if d not in others and choice.wants(f"{above}{os.fsdecode(d)}/")
        ]
        for name in (*names, *others):
            path = os.path.join(folder, name)
            if not choice.wants(above + os.fsdecode(name)):
                continue
            size = _look(path, links)
            if isinstance(size, str):
                odd.append(f"{shown(path)}: {size}")
            else:
                files.append(File(os.path.relpath(path, top), size))
    return files, odd


def _look(path: bytes, links: Links) -> int | str:
    """Return the size of a file, or why it cannot be packed."""
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            found = links.target(path)
            if found is None:
                os.stat(path)  # a link that leads nowhere is called that
                return "a link that is not followed; --follow-links follows all"
            status = found[1]
    except OSError as error:
        return error.strerror or "cannot be looked at"
    return status.st_size if stat.S_ISREG(status.st_mode) else "no file"


def _but_own(files: list[File], folder: str, names: ShardNames) -> list[File]:
    """Leave out the shards themselves and their indexes, should they lie in the tree that is packed."""
    start = "" if folder == "." else f"{folder}/"
    paths = map(os.fsdecode, (file.name for file in files))
    return [
        file
        for file, path in zip(files, paths, strict=True)
        if not path.startswith(start) or not is_own(path[len(start) :], names)
    ]
