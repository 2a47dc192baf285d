"""What becomes of staged bytes: uploaded, kept for `aisfs recover`, or discarded.

What `close` and `fsync` acknowledged is in the store. Until then the store holds what it held
before; should it come to nothing, the staged bytes are kept.
"""

import logging
from dataclasses import replace

from aisfs.core.names import listing
from aisfs.core.names.inodes import directory_number, member_number
from aisfs.engine.overlay import Overlay
from aisfs.engine.writing.appender import Appended
from aisfs.engine.writing.staging import StagedFile
from aisfs.engine.writing.uploads import Writer
from aisfs.errors import (
    AisfsError,
    AlreadyExists,
    ContentUnreadable,
    DeadlineExceeded,
    NameGone,
    NotFound,
    ProtocolError,
    Stale,
    Unavailable,
)
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.nodes import ShardNode, identity
from aisfs.filesystem.trees.bucket_tree import Tree
from aisfs.filesystem.write.acknowledge import Acknowledger
from aisfs.filesystem.written.files import WrittenFile
from aisfs.model import Bucket, ObjectInfo
from aisfs.stores.posix_metadata import mode_of, mtime_of
from aisfs.system.threads import any_thread

log = logging.getLogger(__name__)


def passes(error: AisfsError) -> bool:
    """Return whether an upload failed because nothing can be uploaded at the moment."""
    return isinstance(error, Unavailable | DeadlineExceeded)


def lasts(error: AisfsError) -> bool:
    """Return whether the store has refused an upload, so that it will again.

    An answer that is none, or that there is no such object or bucket, may be that of something in between, such
    as a gateway. Content that the local disk cannot read stays where it is.
    """
    return not (passes(error) or isinstance(error, ProtocolError | NotFound | ContentUnreadable))


class Committer:
    """Gets files that were written into the store, or says why not."""

    def __init__(
        self,
        filesystem: FileSystem,
        tree: Tree,
        overlay: Overlay,
        writer: Writer,
        acknowledger: Acknowledger | None = None,
    ) -> None:
        """Upload with `writer`, and show the outcome in `overlay`, the lister of `tree`.

        With `acknowledger`, files may wait for their upload after they were closed.
        """
        self.acknowledger = acknowledger
        self._filesystem = filesystem
        self._tree = tree
        self._inodes = filesystem.inodes
        self._files = filesystem.inodes.files
        self._overlay = overlay
        self._writer = writer
        writer.appender.on_append = self._shard_appended

    async def commit(self, file: WrittenFile, *, sync: bool = True) -> None:
        """Upload a file if it is dirty, and let the kernel know what else that changes.

        Without `sync` it may be made safe on the local disk instead, to be uploaded later.
        """
        async with file.lock:
            if not sync and await self._acknowledged(file):
                return
            committed = await self.commit_locked(file)
        if committed:  # not with the lock, which a rename may wait for
            await self._tell(file)

    async def commit_waiting(self, file: WrittenFile) -> None:
        """Upload a file that waits for it, unless it is being changed by now."""
        async with file.lock:
            committed = file.waits and await self.commit_locked(file)
            if self.acknowledger is not None and not (file.acknowledged and file.dirty):
                # Uploaded, removed, or being changed: its next close lets it wait again.
                self.acknowledger.waiting.pop(file, None)
        if committed:
            await self._tell(file)
            async with file.lock:
                if not file.handles and not file.dirty:
                    self.let_go(file)

    async def _tell(self, file: WrittenFile) -> None:
        """Let the kernel know what else a commit has changed."""
        kernel = self._filesystem.kernel
        if file.member:
            kernel.invalidate_inode(file.node.parent)
        for parent, name in self._other_names(file):
            kernel.invalidate_inode(parent)
            await kernel.invalidated(parent, name)

    async def _acknowledged(self, file: WrittenFile) -> bool:
        if self.acknowledger is None or file.unlinked or not file.dirty or file.write_error:
            return False
        file.check_attached()
        return await self.acknowledger.acknowledge(file)

    async def commit_locked(self, file: WrittenFile) -> bool:
        """Upload a file if it is dirty; returns whether it was. Called with its lock held."""
        file.check_attached()
        if file.unlinked or not file.dirty:
            return False
        if file.write_error is not None:
            raise file.write_error
        try:
            info = await self._upload(file)
        except AisfsError as error:
            if not file.acknowledged or lasts(error):  # else it goes on waiting
                file.failed = error
            raise
        if file.staged is not None:
            file.staged.mark_clean()
        with self._overlay.namespace_lock:
            file.base = info
            file.dirty = file.overwrites = False
            file.failed = None
            if not file.member:
                self._overlay.settle(file.bucket, file.key, info)
        self.end_waiting(file)
        return True

    async def _upload(self, file: WrittenFile) -> ObjectInfo:
        staged = file.staged
        if staged is None:
            assert file.entry is not None, "what is dirty is staged, or in the journal"
            return await self._writer.upload_entry(
                file.bucket,
                file.key,
                file.entry,
                base=file.base,
                mtime_ns=file.mtime_ns,
                mode=file.mode,
                only_new=file.only_new,
                replaces=file.replaces,
            )
        if file.member:
            return await self._append(file, staged)
        return await self._writer.upload(
            file.bucket,
            file.key,
            staged,
            base=file.base,
            mtime_ns=file.mtime_ns,
            mode=file.mode,
            only_new=file.only_new,
            replaces=file.replaces,
        )

    def end_waiting(self, file: WrittenFile) -> None:
        """Drop what was acknowledged of a file: the store has it, or it was removed."""
        if self.acknowledger is not None:
            self.acknowledger.end(file)

    async def settled(self) -> None:
        """Wait until nothing that was removed or renamed would come back after a crash."""
        if self.acknowledger is not None:
            await self.acknowledger.settled()

    async def _append(self, file: WrittenFile, staged: StagedFile) -> ObjectInfo:
        """Append a member to its shard, whatever it is called by now."""
        name_changes = self._filesystem.name_changes
        async with name_changes.using(lambda: frozenset({(file.bucket, file.key)})):
            file.check_attached()
            return await self._writer.append(
                file.bucket,
                file.key,
                file.member,
                staged,
                mtime_ns=file.mtime_ns,
                mode=file.mode,
                again=file.base is not None,
            )

    def _shard_appended(self, appended: Appended) -> None:
        """Make the kernel's numbers in a shard stand for the version that it became here.

        It has what the one before had, and more: a process in one of its folders sees what is new.
        """
        bucket, info, growth = appended.bucket, appended.info, appended.growth
        old = ShardNode(bucket, appended.base, 0, b"")
        with self._overlay.namespace_lock:
            number = self._inodes.number(old)
            node = self._inodes.get(number)
            known = isinstance(node, ShardNode) and identity(node) == identity(old)
            if known and growth.changed and growth.in_place:
                assert isinstance(node, ShardNode), "just asked"
                self._inodes.move(number, replace(node, info=info))
                self._filesystem.kernel.invalidate_inode(directory_number(number, 0))
                if growth.replaced is not None:
                    pages = member_number(number, growth.replaced)
                    self._filesystem.kernel.drop_pages([pages])
            self._overlay.settle(bucket, info.key, info)

    def restamped(self, bucket: Bucket, old: ObjectInfo, new: ObjectInfo) -> None:
        """Show an object whose mode or time was changed; in a directory it is another version then.

        If it is a shard, the kernel's numbers in it stand for that version.
        """
        with self._overlay.namespace_lock:
            shard = ShardNode(bucket, old, 0, b"")
            number = self._inodes.number(shard)
            node = self._inodes.get(number)
            if isinstance(node, ShardNode) and identity(node) == identity(shard):
                self._inodes.move(number, replace(node, info=new))
            self._overlay.settle(bucket, new.key, new)

    async def settle_unopened(self, file: WrittenFile) -> None:
        """Upload what no `close` has uploaded, a mapping for example, and free the local disk."""
        if file.acknowledged and file.failed is not None and not lasts(file.failed):
            assert self.acknowledger is not None, "only it acknowledges"
            self.acknowledger.restore(file)
        error = file.write_error or file.failed
        if file.dirty and error is None and not file.unlinked:
            try:
                await self.commit(file, sync=False)
            except AisfsError as failed:
                error = failed
        async with file.lock:
            if file.handles:
                return
            undone = self.undo_failed(file)
            if file.dirty and not file.unlinked and not file.waits and not undone:
                if error is None:
                    return  # truncated meanwhile, by a task that will settle it as well
                self.park(file, error)
            self.let_go(file)

    @any_thread
    def let_wait(self, file: WrittenFile) -> None:
        """Free what a file has here that waits in the journal; called with the lock held."""
        staged, file.staged = file.staged, None
        if staged is not None:
            staged.discard()

    def let_go(self, file: WrittenFile) -> None:
        """Free what a file without handles has here; called with the lock held, or free."""
        if file.waits:
            self.let_wait(file)
            return
        if file.staged is not None:
            whole = not (file.dirty or file.member or file.unlinked or file.detached_because)
            self._writer.let_go(file.bucket, file.base if whole else None, file.staged)
            file.staged = None
            file.dirty = False
        if file.member and file.detached_because is None:
            file.detached_because = Stale("it is in its shard now")
            self._files.unname(file)
        if self._inodes.get(file.ino) is None:
            self._files.drop(file)
            return
        # The kernel keeps an inode as long as it likes. Made to look its name up again it gets the
        # number of the version that is stored, and forgets this one when it is not used any more.
        old = self._files.rest(file)
        if old is not None and not old.busy:
            self._filesystem.kernel.invalidate_entry(old.node.parent, old.node.name)

    def park(self, file: WrittenFile, error: AisfsError) -> None:
        """Keep what could not be uploaded for `aisfs recover`; the name shows the store again."""
        log.error(
            "%s/%s was not uploaded: %s; `aisfs recover` lists it", file.bucket, file.key, error
        )
        if file.acknowledged and self.acknowledger is not None:
            self.acknowledger.park(file, error)
            if file.staged is not None:
                file.staged.discard()
        else:
            assert file.staged is not None, "what is dirty is staged"
            if file.staged.record is None:  # an empty one, and the disk is full
                file.staged.discard()
            else:
                file.staged.park(str(error))
        file.staged = None
        if not self._back_to_waiting(file):
            self._detach(file, error)

    def undo_failed(self, file: WrittenFile) -> bool:
        """Drop what could not be written whole once nobody writes to it; return whether it was.

        What it was before is seen again, also by those who have it open to read. Of a file that is new they
        keep what they have. Called with the lock held, or free.
        """
        error = file.write_error
        if error is None or file.writers or file.unlinked or not file.dirty or file.staged is None:
            return False
        if file.entry is None and file.base is not None and not file.member:
            self._back_to_stored(file, file.base)
        elif file.entry is None and file.handles:
            return False
        else:
            self.discard(file, error)
        return True

    def _back_to_stored(self, file: WrittenFile, base: ObjectInfo) -> None:
        """Show the version in the store again."""
        assert file.staged is not None, "what is dirty is staged"
        file.staged.discard()
        with self._overlay.namespace_lock:
            file.staged = None
            file.dirty = file.overwrites = False
            file.failed = file.write_error = None
            file.mode, file.mtime_ns = mode_of(base), mtime_of(base)
        self._drop_pages(file)

    def discard(self, file: WrittenFile, error: AisfsError) -> None:
        """Drop content that is not whole: the write that failed has told its writer."""
        assert file.staged is not None, "what is dirty is staged"
        file.staged.discard()
        file.staged = None
        if not self._back_to_waiting(file):
            self._detach(file, error)

    def _back_to_waiting(self, file: WrittenFile) -> bool:
        """Show what was acknowledged before a change that came to nothing; return whether there is such."""
        if file.entry is None or self.acknowledger is None:
            return False
        self.acknowledger.restore(file)
        self._drop_pages(file)
        return True

    def _drop_pages(self, file: WrittenFile) -> None:
        """Make the kernel forget pages and size of what came to nothing, soon; see `show_again`."""
        file.pages_behind = True
        self._filesystem.kernel.drop_pages([file.ino])

    async def show_again(self, file: WrittenFile) -> None:
        """Have the kernel forget what came to nothing before an open of the file gets to see it.

        Raises:
            NameGone: it has; its path is to be looked up again, with the size that the file has now.
        """
        if file.pages_behind:
            await self._filesystem.kernel.invalidated(file.node.parent, file.node.name)
            file.pages_behind = False
            raise NameGone("what was written to it came to nothing while it was opened")

    def _detach(self, file: WrittenFile, error: AisfsError) -> None:
        """Show what the store has under a name again."""
        with self._overlay.namespace_lock:
            file.dirty = False
            file.detached_because = error
            self._files.unname(file)
            if file.base is not None and not file.member:
                self._overlay.settle(file.bucket, file.key, file.base)
            elif not file.member:
                self._overlay.forget(file.bucket, file.key)
                folder, slash, _ = file.key.rpartition("/")
                self._inodes.directory_attributes.touch(file.bucket, folder + slash)
        if isinstance(error, AlreadyExists | Stale):  # another client has written it
            self._tree.changed(file.node)
        self.invalidate(file.node.parent, file.node.name)

    def _other_names(self, file: WrittenFile) -> list[tuple[int, bytes]]:
        """Return the names, beside its own, that mean something else once a file is committed."""
        if not file.member:
            return self._aliases(file.node.parent, file.node.name)
        shard = self._inodes.get(file.node.parent)
        if not isinstance(shard, ShardNode):
            return []
        name = listing.entry_name("", file.key.rpartition("/")[2])
        return [(shard.parent, name), *self._aliases(shard.parent, name)]

    def _aliases(self, parent: int, name: bytes) -> list[tuple[int, bytes]]:
        return [(parent, other) for other in self._tree.names_of(name) if other != name]

    def invalidate_aliases(self, parent: int, name: bytes) -> None:
        """Make the kernel look up the other names of a shard again."""
        for directory, alias in self._aliases(parent, name):
            self.invalidate(directory, alias)

    def invalidate(self, parent: int, name: bytes) -> None:
        """Make the kernel look a name up again, and list its directory again."""
        self._filesystem.kernel.invalidate_entry(parent, name)
        self._filesystem.kernel.invalidate_inode(parent)
