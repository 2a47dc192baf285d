"""What a mount has on top of its `FileSystem` when it can be written."""

from collections.abc import Callable
from dataclasses import dataclass

from aisfs.engine.listing import Lister
from aisfs.engine.writing.uploads import Writer
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.trees.bucket_tree import Tree
from aisfs.filesystem.write.acknowledge import Acknowledger
from aisfs.filesystem.write.buckets import BucketMaker
from aisfs.filesystem.write.commit import Committer
from aisfs.filesystem.write.create import Creator
from aisfs.filesystem.write.open_files import OpenFiles
from aisfs.filesystem.write.rename import Renamer
from aisfs.filesystem.write.rename_directory import DirectoryRenamer
from aisfs.filesystem.write.setattr import AttributeSetter
from aisfs.filesystem.write.write_back import WriteBack
from aisfs.settings import WriteSettings


@dataclass(frozen=True, slots=True)
class WriteLayer:
    """The operations that change something."""

    files: OpenFiles
    creator: Creator
    attributes: AttributeSetter
    names: Renamer
    acknowledger: Acknowledger | None
    """Lets small files wait for their upload; None where every close waits for the store."""
    write_back: WriteBack | None
    """Uploads them."""

    async def flush(self) -> int:
        """Upload what waits; return how many files. See `WriteBack.flush`."""
        return await self.write_back.flush() if self.write_back is not None else 0


def write_layer(
    filesystem: FileSystem,
    tree: Tree,
    lister: Lister,
    writer: Writer,
    settings: WriteSettings,
    clock: Callable[[], float],
) -> WriteLayer:
    """Put the operations together; `lister` is that of `tree`."""
    overlay = lister.overlay
    acknowledger = None
    if writer.journal is not None:
        acknowledger = Acknowledger(writer.journal, writer, settings.write_back, clock)
    committer = Committer(filesystem, tree, overlay, writer, acknowledger)
    write_back = WriteBack(committer, acknowledger) if acknowledger is not None else None
    files = OpenFiles(filesystem, committer, overlay, writer)
    buckets = BucketMaker(tree, lister.buckets, writer, allowed=settings.allow_bucket_changes)
    drops = settings.ignore_attr_changes
    creator = Creator(
        filesystem, tree, committer, files, overlay, writer, buckets, clock, drops_modes=drops
    )
    attributes = AttributeSetter(filesystem, committer, files, creator, writer, settings)
    directories = DirectoryRenamer(
        filesystem.inodes, committer, overlay, writer, settings.rename_dir_limit
    )
    names = Renamer(filesystem, tree, committer, files, directories, overlay, writer)
    return WriteLayer(files, creator, attributes, names, acknowledger, write_back)
