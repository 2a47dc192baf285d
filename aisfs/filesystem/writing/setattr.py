"""Sizes, modes and times in a mount that can be written, and what such a mount adds to its `FileSystem`."""

import logging
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from msgspec import structs

from aisfs.engine.listing import Lister
from aisfs.engine.writing.uploads import Writer
from aisfs.errors import AisfsError, NotFound, NotPermitted, ReadOnly, Unsupported
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.handles import OpenFile
from aisfs.filesystem.nodes import (
    Attr,
    DirectoryNode,
    ObjectNode,
    RemovedDirectoryNode,
    ShardNode,
    describe,
)
from aisfs.filesystem.trees import Tree
from aisfs.filesystem.writing.again import Again
from aisfs.filesystem.writing.commit import Acknowledger, Committer, WriteBack
from aisfs.filesystem.writing.create import BucketMaker, Creator, kept_mode
from aisfs.filesystem.writing.open_files import OpenFiles
from aisfs.filesystem.writing.rename import DirectoryRenamer, Renamer
from aisfs.filesystem.writing.restore import Restorer, note
from aisfs.filesystem.written import WrittenFile
from aisfs.settings import WriteSettings
from aisfs.stores.posix_metadata import LINK, mode_of, mtime_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AttributeChanges:
    """What `setattr` is to change; None leaves a value as it is."""

    size: int | None = None
    mode: int | None = None
    mtime_ns: int | None = None
    uid: int | None = None
    gid: int | None = None
    from_root: bool = False
    """Whether root asks. Its programs set the owner of what they copy or extract, and then the rest."""


class AttributeSetter:
    """Changes what `stat` shows."""

    def __init__(
        self,
        filesystem: FileSystem,
        committer: Committer,
        open_files: OpenFiles,
        creator: Creator,
        writer: Writer,
        settings: WriteSettings,
    ) -> None:
        """Store with `writer`; `committer` shows the outcome."""
        self._filesystem = filesystem
        self._committer = committer
        self._open_files = open_files
        self._creator = creator
        self._writer = writer
        self._ignores_refusals = settings.ignore_attr_changes
        self._told_of_owners = False

    async def setattr(self, ino: int, changes: AttributeChanges, handle: OpenFile | None) -> Attr:
        """Change size, mode or time.

        Raises:
            NotPermitted: an owner, or a mode or time that the bucket cannot keep.
            ReadOnly: in a shard.
        """
        node = await self._filesystem.settled(ino)
        attr = await self._filesystem.getattr(ino)
        self._check_owner(changes, attr)
        if isinstance(node, ShardNode):
            return await self._set_folder(node, attr, changes)
        if isinstance(node, DirectoryNode):
            attributes = self._filesystem.inodes.directory_attributes
            mode, mtime_ns = attributes.of(node.bucket, node.prefix)
            attributes.keep(
                node.bucket,
                node.prefix,
                mode if changes.mode is None else changes.mode & 0o7777,
                mtime_ns if changes.mtime_ns is None else changes.mtime_ns,
            )
            return self._filesystem.inodes.attr(node, ino)
        if isinstance(node, RemovedDirectoryNode):
            raise NotFound(f"{describe(node)}: it keeps the mode and times it had")
        if not isinstance(node, ObjectNode):
            raise ReadOnly("the directories of buckets cannot be changed")
        file = handle.file if handle is not None else None
        file = file or self._open_files.written(ino)
        await self._set_file(file, changes)
        return self._filesystem.inodes.written_attr(file)

    async def _set_file(self, file: WrittenFile, changes: AttributeChanges) -> None:
        try:
            async with file.lock:
                file.check_attached()
                if changes.size is not None:
                    if not file.writers:  # else their open has asked
                        await self._open_files.check_version(file)
                    await self._open_files.truncate(file, changes.size)
                if changes.mode is not None or changes.mtime_ns is not None:
                    await self._set_attributes(file, changes)
                note(self._filesystem.inodes, file)
            if changes.size is not None and not file.writers:
                await self._commit_unopened(file)
        finally:
            if not file.handles:
                await self._committer.settle_unopened(file)

    async def _set_folder(self, node: ShardNode, attr: Attr, changes: AttributeChanges) -> Attr:
        """Change mode or time of a directory of a shard: the shard gets another header of it.

        Those of the folder of the shard itself are the object's.
        """
        if not stat.S_ISDIR(attr.mode):
            raise ReadOnly("members of a shard cannot be changed")
        mode = changes.mode
        if mode is not None:
            mode = kept_mode(mode, drops=self._ignores_refusals)
        if mode is None and changes.mtime_ns is None:
            return attr
        path = await self._filesystem.folders.path_of(node, attr.ino)
        if path:
            mtime_ns = attr.mtime_ns if changes.mtime_ns is None else changes.mtime_ns
            entry = await self._creator.store_folder(node, path, mode, mtime_ns)
            self._filesystem.forget(entry.attr.ino, 1)
            return structs.replace(entry.attr, ino=attr.ino)
        try:
            now = await self._writer.head(node.bucket, node.info.key)
            mtime_ns = mtime_of(now) if changes.mtime_ns is None else changes.mtime_ns
            mode = mode_of(now) if mode is None else mode
            info = await self._writer.set_attributes(node.bucket, now, mtime_ns=mtime_ns, mode=mode)
        except Unsupported as error:
            if self._ignores_refusals:
                return attr
            raise NotPermitted(f"{node.bucket} cannot keep modes and times") from error
        self._committer.restamped(node.bucket, now, info)
        return self._filesystem.folders.folder(replace(node, info=info), attr.ino)

    def _check_owner(self, changes: AttributeChanges, attr: Attr) -> None:
        same = changes.uid in (None, attr.uid) and changes.gid in (None, attr.gid)
        if same or self._ignores_refusals:
            return
        if not changes.from_root:
            raise NotPermitted(
                "all files belong to the user who mounted; --ignore-attr-changes accepts others"
            )
        # Python's tarfile, for example, would leave out mode and time after an error.
        if not self._told_of_owners:
            self._told_of_owners = True
            log.warning("root's chown has no effect: all files belong to the user who mounted")

    async def _set_attributes(self, file: WrittenFile, changes: AttributeChanges) -> None:
        """Keep mode and time: with the next upload, or at once where none is due."""
        old = file.mode, file.mtime_ns
        if changes.mode is not None:
            file.mode = self._kept_mode(file, changes.mode)
        if changes.mtime_ns is not None:
            file.mtime_ns = changes.mtime_ns
            if file.staged is not None:
                file.staged.set_mtime(file.mtime_ns)
        if file.unlinked or (file.mode, file.mtime_ns) == old:
            return
        if file.acknowledged:
            await self._wait_with_attributes(file)
            return
        if file.dirty or file.member:  # of a member they are in its header
            self._open_files.record(file)
            file.dirty = True
            return
        assert file.base is not None, "what is not dirty is in the store"
        base = file.base
        try:
            await self._open_files.check_stored(file.node, base)  # what others wrote keeps its own
            with self._filesystem.noticing_change(file.node):
                file.base = await self._writer.set_attributes(
                    file.bucket, base, mtime_ns=file.mtime_ns, mode=file.mode
                )
        except AisfsError as error:
            # `touch` closes a copy of its descriptor, which uploads the file, before it sets the time.
            still_written = file.staged is not None and file.writers > 0
            if isinstance(error, Unsupported) and (self._ignores_refusals or still_written):
                return
            file.mode, file.mtime_ns = old
            if isinstance(error, Unsupported):
                raise NotPermitted(
                    f"{file.bucket} cannot keep modes and times; see --ignore-attr-changes"
                ) from error
            raise
        self._committer.restamped(file.bucket, base, file.base)

    def _kept_mode(self, file: WrittenFile, mode: int) -> int:
        if file.mode == LINK:
            raise NotPermitted("a symbolic link has no permissions of its own")
        return kept_mode(mode, drops=self._ignores_refusals)

    async def _wait_with_attributes(self, file: WrittenFile) -> None:
        """Make mode and time safe of a file that waits for its upload; else it is uploaded now."""
        acknowledger = self._committer.acknowledger
        assert acknowledger is not None, "files wait only where they may"
        if not await acknowledger.again(file):
            await self._committer.commit_locked(file)

    async def _commit_unopened(self, file: WrittenFile) -> None:
        """Commit a change that no close will follow; its error is the caller's, and undoes it."""
        try:
            await self._committer.commit(file, sync=False)
        except AisfsError as error:
            async with file.lock:
                if file.staged is not None and not file.writers:
                    self._committer.discard(file, error)
            raise


@dataclass(frozen=True, slots=True)
class WriteLayer:
    """The operations that change something."""

    files: OpenFiles
    creator: Creator
    attributes: AttributeSetter
    names: Renamer
    committer: Committer
    again: Again
    """Does what a daemon before has not answered."""
    restorer: Restorer
    """Goes on with what a daemon before has written."""
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
    overlay, inodes = lister.overlay, filesystem.inodes
    acknowledger = None
    journal = writer.staging.journal
    if journal is not None:
        acknowledger = Acknowledger(
            journal, writer, overlay, settings.write_back, clock, partial(note, inodes)
        )
    committer = Committer(filesystem, tree, overlay, writer, acknowledger)
    write_back = WriteBack(committer, acknowledger) if acknowledger is not None else None
    files = OpenFiles(filesystem, committer, overlay, writer)
    buckets = BucketMaker(tree, lister.buckets, writer, allowed=settings.allow_bucket_changes)
    drops = settings.ignore_attr_changes
    creator = Creator(
        filesystem, tree, committer, files, overlay, writer, buckets, clock, drops_modes=drops
    )
    attributes = AttributeSetter(filesystem, committer, files, creator, writer, settings)
    directories = DirectoryRenamer(inodes, committer, overlay, writer, settings.rename_dir_limit)
    names = Renamer(filesystem, tree, committer, files, directories, overlay, writer)
    again = Again(filesystem, tree, overlay, committer, files, creator, names, directories)
    wait = acknowledger.wait if acknowledger is not None else None
    restorer = Restorer(inodes, overlay, writer, files.readers, wait)
    return WriteLayer(
        files, creator, attributes, names, committer, again, restorer, acknowledger, write_back
    )
