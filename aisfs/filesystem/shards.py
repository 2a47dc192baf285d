"""Inodes inside a shard: members and the directories between them.

Their numbers say which shard and which row they are, so nothing is stored per member here.
"""

import os
from collections.abc import Callable, Iterator

from aisfs.core.inodes import directory_number, member_number, split_member
from aisfs.core.member_index import MemberKind
from aisfs.core.views import Child, Directory, MembersView
from aisfs.engine.indexer import Indexer
from aisfs.errors import NotADirectory
from aisfs.filesystem.attributes import FOREVER, Attr, AttrMaker, Entry
from aisfs.filesystem.nodes import ShardNode


class ShardFolders:
    """Looks into shards."""

    def __init__(self, indexer: Indexer, make: AttrMaker) -> None:
        """Open shards with `indexer`."""
        self._indexer = indexer
        self._make = make

    async def view(self, shard: ShardNode) -> MembersView:
        """Open the shard, scanning it when it was not opened before."""
        return await self._indexer.open(shard.bucket, shard.info)

    async def attr(self, shard: ShardNode, ino: int) -> Attr:
        """Describe the member or directory with the number `ino`."""
        first, is_directory, low = _split(ino)
        if is_directory and low == 0:  # the folder itself must not cost a scan: `ls -l` shows it
            return self.folder(shard, ino)
        view = await self.view(shard)
        child = Child(b"", None, low) if is_directory else Child(b"", low, None)
        return self._attr(shard, view, first, child)

    def folder(self, shard: ShardNode, ino: int) -> Attr:
        """Describe the folder of a shard without opening it."""
        return self._make.directory(ino, shard.info.mtime_ns)

    async def find(self, shard: ShardNode, ino: int, name: bytes) -> Entry | None:
        """Look up a name in the directory with the number `ino`."""
        first, is_directory, low = _split(ino)
        if not is_directory:
            raise NotADirectory(f"{shard.info.key}: a member is not a directory")
        view = await self.view(shard)
        child = view.directory(low).find(name)
        return self._entry(shard, view, first, child) if child is not None else None

    def opened(self, shard: ShardNode) -> MembersView | None:
        """Give the members of the shard if they are in memory."""
        return self._indexer.opened(shard.bucket, shard.info)

    @staticmethod
    def is_top(ino: int) -> bool:
        """Say whether a number is that of the folder of a shard itself."""
        _, is_directory, low = _split(ino)
        return is_directory and low == 0

    async def path(self, shard: ShardNode, ino: int, name: bytes) -> str:
        """Give the path, inside the shard, of a name in the directory with the number `ino`."""
        _, is_directory, low = _split(ino)
        if not is_directory:
            raise NotADirectory(f"{shard.info.key}: a member is not a directory")
        folder = (await self.view(shard)).directory(low).path if low else b""
        return os.fsdecode(folder + b"/" + name if folder else name)

    async def children(
        self, shard: ShardNode, ino: int
    ) -> Callable[[int], Iterator[tuple[int, Entry]]]:
        """List the directory with the number `ino`; gives (offset, entry) behind an offset."""
        first, is_directory, low = _split(ino)
        if not is_directory:
            raise NotADirectory(f"{shard.info.key}: a member is not a directory")
        view = await self.view(shard)
        directory = view.directory(low)
        return lambda offset: self._entries(shard, view, first, directory, offset)

    def _entries(
        self, shard: ShardNode, view: MembersView, first: int, directory: Directory, offset: int
    ) -> Iterator[tuple[int, Entry]]:
        for position in range(offset, len(directory)):
            yield position + 1, self._entry(shard, view, first, directory.child(position))

    def _entry(self, shard: ShardNode, view: MembersView, first: int, child: Child) -> Entry:
        # A version of a shard never changes, so neither do the names in it.
        return Entry(child.name, self._attr(shard, view, first, child), FOREVER)

    def _attr(self, shard: ShardNode, view: MembersView, first: int, child: Child) -> Attr:
        if child.directory is not None:
            mtime = view.directory(child.directory).mtime_ns
            number = directory_number(first, child.directory)
            return self._make.directory(number, shard.info.mtime_ns if mtime is None else mtime)
        assert child.row is not None, "a child is a row or a directory"
        index = view.index
        row = index.content_row(child.row)
        number = member_number(first, row)
        if index.kind(row) is MemberKind.SYMLINK:
            return self._make.symlink(number, index.link_target(row), index.mtime_ns(row))
        executable = index.executable(row)
        return self._make.file(number, index.size(row), index.mtime_ns(row), executable=executable)


def _split(ino: int) -> tuple[int, bool, int]:
    parts = split_member(ino)
    assert parts is not None, f"inode {ino} is not in a shard"
    return parts
