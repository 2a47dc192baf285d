"""Inodes inside a shard: members and the directories between them.

Their numbers say which shard and which row they are, so nothing is stored per member here.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial

from aisfs.core.index.builder import NestedTars
from aisfs.core.index.columns import column_at
from aisfs.core.index.member_index import EXECUTABLE, MemberIndex, MemberKind
from aisfs.core.names.inodes import directory_number, member_number, split_member
from aisfs.core.views.tree import Child, Directory, MembersView
from aisfs.engine.shards import Indexer
from aisfs.errors import NotADirectory, NotFound, ShardDamaged
from aisfs.filesystem.attributes import LONGEST_TIMEOUT, Attr, AttrMaker, Entry, FileRun
from aisfs.filesystem.nodes import ShardNode
from aisfs.stores.posix_metadata import mtime_of
from aisfs.system.threads import any_thread

Listed = FileRun | Entry | None
"""What is listed next: plain files, or something else, or nothing more."""


class ShardFolders:
    """Looks into shards."""

    def __init__(self, indexer: Indexer, make: AttrMaker) -> None:
        """Open shards with `indexer`."""
        self._indexer = indexer
        self._make = make

    async def view(self, shard: ShardNode) -> MembersView:
        """Open the shard, scanning it when it was not opened before."""
        return await self._indexer.open(shard.bucket, shard.info)

    @any_thread
    def try_view(self, shard: ShardNode) -> MembersView | None:
        """Return the members of a shard that is open. Waits for nothing."""
        return self._indexer.try_open(shard.bucket, shard.info)

    def describe(self, shard: ShardNode, ino: int) -> str:
        """Return the path of a member or directory in its shard, for the log; empty if it is not open."""
        view = self.try_view(shard)
        if view is None:
            return ""
        _, is_directory, low = _split(ino)
        if not is_directory:
            return "/" + os.fsdecode(view.index.name(low))
        return f"/{os.fsdecode(view.path(low))}/" if low else "/"

    def attr(self, view: MembersView, shard: ShardNode, ino: int) -> Attr:
        """Describe the member or directory with the number `ino` of an open shard."""
        first, is_directory, low = _split(ino)
        child = Child(b"", None, low) if is_directory else Child(b"", low, None)
        return self._attr(shard, view, first, child)

    def folder(self, shard: ShardNode, ino: int) -> Attr:
        """Describe the folder of a shard without opening it."""
        return self._make.directory(ino, mtime_of(shard.info))

    def find(self, view: MembersView, shard: ShardNode, ino: int, name: bytes) -> Entry | None:
        """Look up a name in the directory with the number `ino` of an open shard."""
        first, _, low = _split(ino)
        child = view.directory(low).find(name)
        return self._entry(shard, view, first, child) if child is not None else None

    async def path(self, shard: ShardNode, ino: int, name: bytes) -> str:
        """Return the path, inside the shard, of a name in the directory with the number `ino`."""
        check_directory(shard, ino)
        if is_folder(ino):
            return os.fsdecode(name)
        return self.path_in(await self.view(shard), ino, name)

    def path_in(self, view: MembersView, ino: int, name: bytes) -> str:
        """Return the path of a name in the directory with the number `ino` of an open shard."""
        folder = view.directory(_split(ino)[2]).path
        return os.fsdecode(folder + b"/" + name if folder else name)

    async def path_of(self, shard: ShardNode, ino: int) -> str:
        """Return the path, inside the shard, of the directory with the number `ino`."""
        if is_folder(ino):
            return ""
        return os.fsdecode((await self.view(shard)).path(_split(ino)[2]))

    async def resolve(self, shard: ShardNode, first: int, path: str) -> Entry:
        """Return the entry of what is at a path, in the shard whose first number is `first`.

        Raises:
            NotFound: there is nothing.
        """
        view = await self.view(shard)
        child = view.resolve(os.fsencode(path))
        if child is None:
            raise NotFound(f"{shard.info.key}: nothing at {path!r}")
        return self._entry(shard, view, first, child)

    async def in_opened_tar(self, shard: ShardNode, ino: int) -> bool:
        """Return whether the directory with the number `ino` is in a tar in the shard."""
        _, _, low = _split(ino)
        return bool(low) and (await self.view(shard)).in_opened_tar(low)

    async def check_whole(self, shard: ShardNode) -> None:
        """Raise `ShardDamaged` when what is known of the shard says that nothing can be added to it."""
        for warning in (await self.view(shard)).index.warnings:
            if not NestedTars.is_about(warning):
                raise ShardDamaged(f"{shard.info.key}: nothing can be added: {warning}")

    def children_in(
        self, view: MembersView, shard: ShardNode, ino: int
    ) -> Callable[[int], Iterator[tuple[int, Entry]]]:
        """List the directory with the number `ino` of an open shard."""
        first, _, low = _split(ino)
        return partial(self._entries, shard, view, first, view.directory(low))

    def listed_in(
        self, view: MembersView, shard: ShardNode, ino: int
    ) -> Callable[[int, int], Listed]:
        """List the directory with the number `ino` of an open shard, from an offset on and with so
        many files at most."""
        first, _, low = _split(ino)
        return partial(self._listed, shard, view, first, view.directory(low))

    def _listed(
        self,
        shard: ShardNode,
        view: MembersView,
        first: int,
        directory: Directory,
        offset: int,
        most: int,
    ) -> Listed:
        if offset >= len(directory):
            return None
        rows, names = directory.plain_files(offset, most)
        if not names:
            return self._entry(shard, view, first, directory.child(offset))
        columns = view.index.columns
        plain, executable = self._make.file_mode(), self._make.file_mode(executable=True)
        modes = [executable if e & EXECUTABLE else plain for e in column_at(columns.flags, rows)]
        sizes, mtimes = column_at(columns.sizes, rows), column_at(columns.mtimes, rows)
        return FileRun([first | row for row in rows], sizes, mtimes, modes, names)

    def _entries(
        self, shard: ShardNode, view: MembersView, first: int, directory: Directory, offset: int
    ) -> Iterator[tuple[int, Entry]]:
        for position in range(offset, len(directory)):
            yield position + 1, self._entry(shard, view, first, directory.child(position))

    def _entry(self, shard: ShardNode, view: MembersView, first: int, child: Child) -> Entry:
        # A version of a shard never changes, so neither do the names in it.
        return Entry(child.name, self._attr(shard, view, first, child), LONGEST_TIMEOUT)

    def _attr(self, shard: ShardNode, view: MembersView, first: int, child: Child) -> Attr:
        if child.directory is not None:
            mtime = view.directory(child.directory).mtime_ns
            number = directory_number(first, child.directory)
            return self._make.directory(number, mtime_of(shard.info) if mtime is None else mtime)
        assert child.row is not None, "a child is a row or a directory"
        return self.member(view.index, first, child.row)

    def member(self, index: MemberIndex, first: int, row: int) -> Attr:
        """Describe the member in a row of the shard with the first number `first`."""
        row = index.content_row(row)
        number = member_number(first, row)
        if index.kind(row) is MemberKind.SYMLINK:
            return self._make.symlink(number, index.link_target(row), index.mtime_ns(row))
        executable = index.executable(row)
        return self._make.file(number, index.size(row), index.mtime_ns(row), executable=executable)


def check_directory(shard: ShardNode, ino: int) -> None:
    """Raise `NotADirectory` when the inode `ino` of a shard is a member."""
    if not _split(ino)[1]:
        raise NotADirectory(f"{shard.info.key}: a member is not a directory")


def is_folder(ino: int) -> bool:
    """Return whether `ino` is the folder of the shard itself."""
    return _split(ino)[1:] == (True, 0)


def _split(ino: int) -> tuple[int, bool, int]:
    parts = split_member(ino)
    assert parts is not None, f"inode {ino} is not in a shard"
    return parts
