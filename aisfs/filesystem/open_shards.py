"""The members of open shards, for pushing them into the kernel's page cache."""

from collections.abc import Sequence
from dataclasses import dataclass

from aisfs.core.views.tree import MembersView
from aisfs.engine.parts import Data
from aisfs.engine.reader import MemberReads, Reader
from aisfs.errors import AisfsError
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.nodes import ShardNode
from aisfs.model import ByteRange
from aisfs.system.threads import any_thread


@dataclass(frozen=True, slots=True)
class OpenShard:
    """A shard whose members are in memory."""

    node: ShardNode
    view: MembersView
    reads: MemberReads


@any_thread
class Members:
    """What pushing asks of the file system. Nothing here waits."""

    def __init__(self, filesystem: FileSystem, reader: Reader) -> None:
        """Look into the shards that `filesystem` shows."""
        self._inodes = filesystem.inodes.table
        self._folders = filesystem.folders
        self._reader = reader

    def find(self, ino: int, last: OpenShard | None) -> OpenShard | None:
        """Return the shard of a member or of a directory in it; None when it is not open.

        `last` is what was found for it before, and is given again when nothing has changed.
        """
        node = self._inodes.get(ino)
        if not isinstance(node, ShardNode):
            return None
        if last is not None and last.node is node:
            return last
        view = self._folders.try_view(node)
        if view is None or view.index.packing is not None:
            return None  # members of a zip have no bytes of their own in the object
        if last is not None and last.view is view:  # forgotten and looked up again
            return last
        try:
            return OpenShard(
                node, view, self._reader.open_shard(node.bucket, node.info, view.index)
            )
        except AisfsError:
            return None

    def in_memory(self, shard: OpenShard, rows: Sequence[int]) -> bool:
        """Return whether most bytes of members are in the daemon's memory, as after a scan."""
        if not rows:
            return False
        data_range = shard.view.index.data_range
        start, stop = data_range(rows[0]).start, data_range(rows[-1]).stop
        if start >= stop:  # a hardlink lies where its content does, perhaps before all of these
            return False
        return 2 * shard.reads.opened.in_memory(ByteRange(start, stop)) > stop - start

    def stored(self, shard: OpenShard, wanted: ByteRange) -> Data | None:
        """Return stored bytes of a shard that are in memory or mapped, for the kernel."""
        return shard.reads.opened.try_read(wanted, push=True)

    def border(self, shard: OpenShard, position: int) -> int:
        """Return up to where bytes from `position` on lie in one buffer, if they are in memory."""
        return shard.reads.opened.border(position)

    def copied(self, shard: OpenShard, wanted: ByteRange) -> bytearray | memoryview | None:
        """Return a copy of them."""
        return shard.reads.opened.try_copy(wanted, push=True)

    def will_be_read(self, shard: OpenShard, row: int) -> None:
        """Prepare for a READ of a member."""
        shard.reads.opened.will_be_read(shard.view.index.data_range(row))

    def pushed(
        self, shard: OpenShard, row: int, last: int, rows: Sequence[int], lacking: Sequence[int]
    ) -> None:
        """Record that members were read for a reader that need not ask for them.

        Args:
            shard: The shard.
            row: The member that reader was last seen at.
            last: The last member it need not ask for.
            rows: Those pushed now.
            lacking: Those that were to be pushed, and whose bytes are not there.
        """
        index = shard.view.index
        done = rows or lacking[:1]
        span = ByteRange(index.data_range(done[0]).start, index.data_range(done[-1]).stop)
        self._reader.pushed(shard.reads, row, last, span, stalled=bool(lacking))
