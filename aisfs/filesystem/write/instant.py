"""What can be answered at once on a mount that is written: what this mount has not changed.

Whoever asks holds `changing` meanwhile, except to read. A file is the trio thread's from the moment
it is opened for writing until the kernel has forgotten it.
"""

from aisfs.cache.metadata_cache import WOULD_WAIT, WouldWait
from aisfs.core.namespace.inodes import split_member
from aisfs.engine.fetch.part import Data
from aisfs.engine.read.reader import Reader
from aisfs.filesystem.attributes import Attr, Entry
from aisfs.filesystem.instant import InstantAnswers
from aisfs.filesystem.nodes import ObjectNode, ShardNode
from aisfs.filesystem.shard_folders import ShardFolders
from aisfs.filesystem.trees.bucket_tree import Names
from aisfs.filesystem.write.open_files import WritingFileSystem


class WritableInstantAnswers(InstantAnswers):
    """The answers of a `WritingFileSystem` that need no waiting. All methods are for one thread."""

    _filesystem: WritingFileSystem

    def __init__(
        self, filesystem: WritingFileSystem, tree: Names, folders: ShardFolders, reader: Reader
    ) -> None:
        """Answer for `filesystem`, which stands on the same collaborators."""
        super().__init__(filesystem, tree, folders, reader)
        self.changing = filesystem.changing

    def entry(self, parent: int, name: bytes) -> Entry | WouldWait | None:
        """See `InstantAnswers`; a member that is being written is the trio thread's."""
        node = self._inodes.get(parent)
        if isinstance(node, ShardNode):
            view = self._folders.known_view(node)
            if view is None or self._filesystem.is_new_member(
                node, self._folders.path_in(view, parent, name)
            ):
                return WOULD_WAIT
        return super().entry(parent, name)

    def attr(self, ino: int) -> Attr | None:
        """See `InstantAnswers`."""
        return None if self._filesystem.is_written(ino) else super().attr(ino)

    def read(self, ino: int, offset: int, size: int) -> Data | None:
        """See `InstantAnswers`."""
        return None if self._filesystem.is_written(ino) else super().read(ino, offset, size)

    def write(self, ino: int, offset: int, data: memoryview) -> bool:
        """Write to a file; says whether that could be done."""
        return self._filesystem.write_known(ino, offset, data)

    def open(self, ino: int) -> bool:
        """Open a file to read; says whether that could be done."""
        node = self._inodes.get(ino)
        if isinstance(node, ObjectNode):
            return self._filesystem.open_known(ino)
        _, is_directory, _ = split_member(ino) or (0, True, 0)
        return isinstance(node, ShardNode) and not is_directory

    def release(self, ino: int) -> bool:
        """Close for good what `open` opened; says whether that could be done."""
        if split_member(ino) is not None:  # members never change, so nobody counts who reads them
            return True
        return self._filesystem.release_known(ino)

    def keeps_listing(self, ino: int) -> bool:
        """Say whether the kernel may keep the listing of a directory."""
        return self._filesystem.keeps_listing(ino)
