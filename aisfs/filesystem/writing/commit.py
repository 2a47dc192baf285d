"""What becomes of staged bytes: uploaded, kept for `aisfs recover`, or discarded.

When `close` or `fsync` returns 0, the store has the file. Until then the store holds what it held
before; if the upload fails for good, the staged bytes are kept.

With `--write-back`, the close of a small file waits only until the local disk has it (`Acknowledger`). `WriteBack` uploads such
files: when their time has come, on request, and at the end of the mount.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio
from msgspec import structs

from aisfs.core.names import listing
from aisfs.core.names.inodes import directory_number, member_number
from aisfs.core.names.listing import is_shard
from aisfs.engine.overlay import Overlay
from aisfs.engine.writing.appender import Appended
from aisfs.engine.writing.journal import Journal, JournalEntry, NewEntry, Outcome
from aisfs.engine.writing.on_disk import StagedRecord, version_text
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
from aisfs.filesystem.trees import Tree
from aisfs.filesystem.writing.restore import note
from aisfs.filesystem.written import WrittenFile
from aisfs.model import Bucket, ObjectInfo, is_known
from aisfs.stores.pipeline import all_of
from aisfs.stores.port import Content, Upload, checksum_of
from aisfs.stores.posix_metadata import mode_of, mtime_of, with_posix_metadata
from aisfs.system.threads import any_thread

log = logging.getLogger(__name__)

WAITING_MOST = 20_000
"""Files that wait at once, some 3 KB of memory each; then a close waits for the store."""
REFUSED_SECONDS = 10.0
"""How long the local disk is left alone after it refused to take more."""
POSTPONED_SECONDS = 10.0
"""How long a file waits at least that could not be uploaded, perhaps because of what it is."""


class Acknowledger:
    """Puts files into the journal, and knows which of them wait for their upload."""

    def __init__(
        self,
        journal: Journal,
        writer: Writer,
        overlay: Overlay,
        seconds: float,
        clock: Callable[[], float],
        note: Callable[[WrittenFile], None] = lambda _: None,
    ) -> None:
        """Let files wait in `journal` for so many seconds by `clock`; `overlay` knows which names may be refused.

        `note` is told of files that have begun to wait.
        """
        self._note_file = note
        self._journal = journal
        self._overlay = overlay
        self._writer = writer
        self._seconds = seconds
        self._clock = clock
        self._most = writer.journaled_most
        self._refused_until = float("-inf")
        """The disk has refused an entry: closes wait for the store before it is tried again."""
        self._given_up: dict[Path, tuple[str, AisfsError]] = {}
        """Files that could not be uploaded: their names, and why."""
        self.waiting: dict[WrittenFile, float] = {}
        """When each file is due, the first one first. The journal's thread adds, the trio thread
        takes out, and each of that is one step of the interpreter."""

    def bytes_waiting(self) -> int:
        """Return how many bytes wait."""
        return sum(file.entry.size for file in list(self.waiting) if file.entry is not None)

    def due(self) -> list[WrittenFile]:
        """Return the files that have waited long enough."""
        now = self._clock()
        # The copy is one step. A list of pairs is not: it may collect garbage, and run other threads.
        return [file for file, when in self.waiting.copy().items() if when <= now]

    def postpone(self, file: WrittenFile) -> None:
        """Let others go first: a file that could not be uploaded waits again, for a while at least."""
        if self.waiting.pop(file, None) is not None:
            self.waiting[file] = self._clock() + max(self._seconds, POSTPONED_SECONDS)

    # a close -------------------------------------------------------------------------------------

    @any_thread
    def try_begin(self, file: WrittenFile, told: Callable[[bool], None], *, may_wait: bool) -> bool:
        """Begin to acknowledge a file on which no task is at work; return whether that is so.

        For the fast path. `told` learns whether the file is safe: in the journal's thread, or at once, if that
        is known, or if this thread `may_wait` for the disk and the disk is quick.
        """
        if not file.lock.take_in_thread():
            return False
        begun = later = False
        try:
            if file.detached_because is None and file.failed is None and file.write_error is None:
                if file.waits or file.unlinked or not file.dirty:
                    told(True)
                    begun = True
                elif self._may_wait(file):
                    begun, later = self._begin(file, told, may_wait=may_wait)
        except AisfsError:  # the trio thread will run into it too, and say so
            pass
        finally:
            if not later:
                file.lock.leave_in_thread()
        return begun

    def _begin(
        self, file: WrittenFile, told: Callable[[bool], None], *, may_wait: bool
    ) -> tuple[bool, bool]:
        """Return whether it was begun, and whether the journal's thread will end it."""
        recorded = file.staged.encoded_record if file.staged is not None else b""
        new = self._new_entry(file, recorded or self._record(file).encode())
        if may_wait:
            outcome = self._journal.try_put(partial(told, True), new)
            if isinstance(outcome, JournalEntry):
                self._note(file, outcome)
                return True, False
            if outcome is not None:
                return False, False
        self._journal.put(partial(self._kept, file, told), new)
        return True, True

    def _kept(self, file: WrittenFile, told: Callable[[bool], None], outcome: Outcome) -> None:
        if isinstance(outcome, JournalEntry):
            self._note(file, outcome)
        file.lock.leave_in_thread()
        told(isinstance(outcome, JournalEntry))

    async def acknowledge(self, file: WrittenFile) -> bool:
        """Make a file safe on the local disk; return whether it may wait. Called with its lock held."""
        if file.waits:
            return True
        if file.failed is not None or not self._may_wait(file):
            return False
        return await self.again(file)

    async def again(
        self,
        file: WrittenFile,
        *,
        key: str = "",
        base: ObjectInfo | None = None,
        only_new: str = "",
        instead_of: WrittenFile | None = None,
    ) -> bool:
        """Put a file into the journal as it is now, or as it is about to be called; return whether it is.

        With `key`, `base` is the version in the store that it will replace, `only_new` is what the upload calls
        so, and `instead_of` a file that waits under that name. All of it is one step. Called with the locks held.
        """
        if self._overlay.was_directory(file.bucket, key or file.key):
            return False
        record = self._record(file)
        if key:
            record = structs.replace(record, key=key, base=version_text(base), only_new=only_new)
        try:
            entry = await self._journal.keep(self._new_entry(file, record.encode(), instead_of))
        except AisfsError as error:
            log.warning("closed files are uploaded at once for a while: %s", error)
            self._refused_until = self._clock() + REFUSED_SECONDS
            return False
        self._note(file, entry)
        if instead_of is not None:
            self._forget(instead_of)
        return True

    @any_thread
    def _may_wait(self, file: WrittenFile) -> bool:
        """Return whether a file may wait.

        One that opens as a folder may not: that is made of the object. Nor may one that AIStore may refuse, which
        its close is to say.
        """
        return (
            not file.member
            and file.size <= self._most
            and self._clock() >= self._refused_until
            and (file.entry is not None or len(self.waiting) < WAITING_MOST)
            and not is_shard(file.node.name)
            and not self._overlay.was_directory(file.bucket, file.key)
        )

    @any_thread
    def _record(self, file: WrittenFile) -> StagedRecord:
        return file.record(self._writer.endpoint)

    @any_thread
    def _new_entry(
        self, file: WrittenFile, record: bytes, instead_of: WrittenFile | None = None
    ) -> NewEntry:
        """Return what is to be written of a file, which ends what waits of it and `instead_of` it."""
        content = file.staged or file.entry
        assert content is not None, "what is dirty is on the local disk"
        ended = [e.entry for e in (file, instead_of) if e is not None and e.entry is not None]
        return NewEntry(record, content.read(0, content.size), file.mtime_ns, ended)

    @any_thread
    def _note(self, file: WrittenFile, entry: JournalEntry) -> None:
        file.entry = entry
        file.entry_overwrites = file.overwrites
        file.acknowledged = True
        if file.base is not None:  # others may remove it from the store meanwhile
            self._overlay.set_pending(file.bucket, file.key, file.node.info)
        self.waiting.pop(file, None)
        self.waiting[file] = self._clock() + self._seconds
        if file.staged is not None:
            file.staged.mark_clean()  # else it would be found a second time
        self._note_file(file)

    def wait(self, file: WrittenFile) -> None:
        """Let a file wait that a daemon before has acknowledged."""
        self.waiting[file] = self._clock() + self._seconds

    # the end of waiting --------------------------------------------------------------------------

    def end(self, file: WrittenFile) -> None:
        """Drop what is in the journal of a file that is in the store, or gone; see `settled`."""
        if file.entry is not None:
            self._journal.end([file.entry])
        self._forget(file)

    def restore(self, file: WrittenFile) -> None:
        """Let what was acknowledged of a file wait again: a change of it came to nothing."""
        assert file.entry is not None, "what was acknowledged is in the journal"
        file.acknowledged = file.dirty = True
        file.overwrites = file.entry_overwrites
        file.failed = file.write_error = None
        file.mtime_ns = file.entry.mtime_ns
        self.waiting[file] = self._clock() + self._seconds
        self._note_file(file)

    def _forget(self, file: WrittenFile) -> None:
        file.entry = None
        file.acknowledged = False
        self.waiting.pop(file, None)

    async def settled(self) -> None:
        """Wait until nothing that was ended so far would be uploaded after a crash."""
        await self._journal.settled()

    def give_up(self, file: WrittenFile, error: AisfsError) -> None:
        """Leave what cannot be uploaded to `aisfs recover`."""
        assert file.entry is not None, "what was acknowledged is in the journal"
        record = structs.replace(self._record(file), reason=str(error))
        path = self._writer.staging.give_up_entry(file.entry, record, file.mtime_ns)
        self._given_up[path] = (record.name, error)
        self.end(file)

    def given_up(self) -> list[tuple[str, AisfsError]]:
        """Return which files are kept for `aisfs recover`, and why, until it has uploaded or dropped them."""
        self._given_up = {path: told for path, told in self._given_up.items() if path.exists()}
        return list(self._given_up.values())


def passes(error: AisfsError) -> bool:
    """Return whether an upload failed because nothing can be uploaded at the moment."""
    return isinstance(error, Unavailable | DeadlineExceeded)


def lasts(error: AisfsError) -> bool:
    """Return whether the store has refused an upload, so that it will again.

    An answer that is none, or that there is no such object or bucket, may be that of something in between, such
    as a gateway. Content that the local disk cannot read stays where it is.
    """
    return not (passes(error) or isinstance(error, ProtocolError | NotFound | ContentUnreadable))


async def is_content(info: ObjectInfo, content: Content) -> bool:
    """Return whether an object has these bytes."""
    kind = info.checksum.partition(":")[0]
    if info.size != content.size or not is_known(kind):
        return False
    return await trio.to_thread.run_sync(checksum_of, content, kind) == info.checksum


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
        known = await self._stored_before(file)
        file.may_be_stored = not file.member
        note(self._inodes, file)
        try:
            info = known or await self._upload(file)
        except AisfsError as error:
            file.may_be_stored &= not lasts(error)
            if not file.acknowledged or lasts(error):  # else it goes on waiting
                file.failed = error
            raise
        self._stored(file, info)
        return True

    def _stored(self, file: WrittenFile, info: ObjectInfo) -> None:
        """Know that the store has all of a file; called with its lock held."""
        if file.staged is not None:
            file.staged.mark_clean()
        with self._overlay.namespace_lock:
            file.base = info
            file.dirty = file.overwrites = file.may_be_stored = False
            file.failed = None
            if not file.member:
                self._overlay.settle(file.bucket, file.key, info)
        note(self._inodes, file)
        self.end_waiting(file)
        note(self._inodes, file)

    async def find_stored(self, file: WrittenFile) -> None:
        """Find out whether a daemon before has stored a file, before it is changed: then that would not be known any more.

        If the store cannot say now, its next commit asks again.
        """
        try:
            async with file.lock:
                if file.dirty and not file.unlinked and (known := await self._stored_before(file)):
                    self._stored(file, known)
        except AisfsError as error:
            log.warning(
                "%s/%s: it is not known whether it is stored: %s", file.bucket, file.key, error
            )
        finally:
            self._inodes.unsettled.pop(file.ino, None)

    async def _stored_before(self, file: WrittenFile) -> ObjectInfo | None:
        """Return the version in the store that a daemon before has made of these very bytes, if it has."""
        content = file.staged or file.entry
        if not (file.resumed and file.may_be_stored) or content is None:
            return None
        stored = None
        with suppress(NotFound):
            now = await self._writer.head(file.bucket, file.key)
            changed = file.base is None or not now.same_content(file.base)
            stored = now if changed and await is_content(now, content.content()) else None
        file.resumed = False
        return stored

    async def _upload(self, file: WrittenFile) -> ObjectInfo:
        staged, written = file.staged, file.staged or file.entry
        if file.member and staged is not None:
            return await self._append(file, staged)
        assert written is not None, "what is dirty is staged, or in the journal"
        known = file.base.custom if file.base is not None else {}
        custom = with_posix_metadata(known, mtime_ns=file.mtime_ns, mode=file.mode)
        upload = Upload(
            file.bucket,
            file.key,
            written.content(),
            custom,
            only_new=file.only_new,
            replaces=file.replaces,
        )
        return await self._writer.upload(upload, staged)

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
                again=file.base is not None or file.resumed,  # a daemon before may have got so far
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

        If it is a shard, the kernel's numbers in it stand for that version, and its copy on the local disk is of it.
        """
        self._writer.appender.restamped(bucket, old, new)
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
                self.give_up(file, error)
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
        note(self._inodes, file)
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

    def give_up(self, file: WrittenFile, error: AisfsError) -> None:
        """Leave what could not be uploaded to `aisfs recover`; the name shows the store again."""
        log.error(
            "%s/%s was not uploaded: %s; `aisfs recover` lists it", file.bucket, file.key, error
        )
        if file.acknowledged and self.acknowledger is not None:
            self.acknowledger.give_up(file, error)
            if file.staged is not None:
                file.staged.discard()
        else:
            assert file.staged is not None, "what is dirty is staged"
            if file.staged.record is None:  # an empty one, and the disk is full
                file.staged.discard()
            else:
                file.staged.give_up(str(error))
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
        note(self._inodes, file)
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
            raise NameGone("its last writes failed, and were dropped while it was opened")

    def _detach(self, file: WrittenFile, error: AisfsError) -> None:
        """Show what the store has under a name again."""
        with self._overlay.namespace_lock:
            file.dirty = False
            file.detached_because = error
            self._files.unname(file)
            note(self._inodes, file)
            if file.base is not None and not file.member:
                self._overlay.settle(file.bucket, file.key, file.base)
            elif not file.member:
                self._overlay.forget(file.bucket, file.key)
                folder, slash, _ = file.key.rpartition("/")
                self._inodes.directory_attributes.touch(file.bucket, folder + slash)
        is_new = file.base is None and not file.member
        # Another client has written it, or a listing is believed from before this mount removed that name.
        if isinstance(error, AlreadyExists | Stale) or is_new:
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


UPLOADS_AT_ONCE = 16
"""Half of the connections of a mount: the others are for requests that a program waits for."""
LOOK_SECONDS = 0.5
"""How often it is looked for files that are due."""
DOUBTFUL_MOST = 16
"""Files that may fail for reasons of their own before the others are left for the next time."""
RETRY_SECONDS = 10.0
"""After an upload that may succeed later: the store has tried for `--io-timeout` by then."""


class WriteBack:
    """Uploads in the background; reports what has failed to the next request that asks."""

    def __init__(self, committer: Committer, acknowledger: Acknowledger) -> None:
        """Upload with `committer` what `acknowledger` lets wait."""
        self._committer = committer
        self._acknowledger = acknowledger
        self._refused: dict[WrittenFile, AisfsError] = {}
        """Files that cannot be uploaded, and that some program still has open, or that the local disk
        could not keep for `aisfs recover`."""
        self._doubtful: dict[WrittenFile, AisfsError] = {}
        """Files that wait on after an answer that may not be the store's last word."""

    def waiting(self) -> tuple[int, int]:
        """Return how many files wait, and their bytes."""
        return len(self._acknowledger.waiting), self._acknowledger.bytes_waiting()

    def failures(self) -> list[tuple[str, AisfsError]]:
        """Return which files could not be uploaded, and why, until `aisfs recover` has dealt with them."""
        self._refused = {
            file: error
            for file, error in self._refused.items()
            if file.acknowledged and file.failed
        }
        refused = [(f"{file.bucket}/{file.key}", error) for file, error in self._refused.items()]
        return [*self._acknowledger.given_up(), *refused]

    def failed(self) -> int:
        """Return of how many files the last upload failed, whatever becomes of them."""
        self._doubtful = {file: error for file, error in self._doubtful.items() if file.waits}
        return len(self.failures()) + len(self._doubtful)

    async def run(self) -> None:
        """Upload what is due, until cancelled."""
        troubled = False
        while True:
            await trio.sleep(LOOK_SECONDS)
            due = self._acknowledger.due()
            problem = await self._upload_all(due)
            if problem is not None and passes(problem):
                if not troubled:
                    count = len(self._acknowledger.waiting)
                    log.warning("%d closed files still wait for their upload: %s", count, problem)
                troubled = True
                await trio.sleep(RETRY_SECONDS)
            elif due:
                troubled = False

    async def flush(self, within: Callable[[WrittenFile], bool] = lambda _: True) -> int:
        """Upload what waits now; return how many files.

        Raises:
            AisfsError: not all of it is in the store, or something closed earlier could not be uploaded;
                the message says what becomes of it.
        """
        files = [file for file in list(self._acknowledger.waiting) if within(file)]
        problem = await self._upload_all(files)
        for file, error in list(self._refused.items()):
            if file.acknowledged:  # the disk may have room for it now
                await self._give_up(file, error)
        await self._committer.settled()
        failures = self.failures()
        if failures:
            name, error = failures[0]
            raise type(error)(
                f"{len(failures)} closed files could not be uploaded, such as {name} ({error}); "
                "`aisfs recover` lists them"
            )
        if problem is not None:
            left = sum(file.waits for file in files)
            raise type(problem)(f"{left} closed files still wait for their upload: {problem}")
        return len(files)

    async def _upload_all(self, files: Iterable[WrittenFile]) -> AisfsError | None:
        """Upload files, many at once; return an error after which some wait on. Stop if nothing can be uploaded."""
        problems: list[AisfsError] = []

        async def one(file: WrittenFile) -> None:
            if len(problems) >= DOUBTFUL_MOST or any(map(passes, problems)):
                return
            problem = await self._upload(file)
            if problem is not None:
                problems.append(problem)

        await all_of((partial(one, file) for file in files), UPLOADS_AT_ONCE)
        return next((one for one in problems if passes(one)), problems[0] if problems else None)

    async def _upload(self, file: WrittenFile) -> AisfsError | None:
        """Upload a file; return an error after which it waits on."""
        try:
            await self._committer.commit_waiting(file)
        except AisfsError as error:
            if lasts(error):
                await self._give_up(file, error)
                return None
            if not passes(error):
                self._doubt(file, error)
            return error
        except Exception as error:
            log.exception("an upload failed: this is a bug in aisfs, please report it")
            return Unavailable(f"{file.bucket}/{file.key}: {error}")
        self._doubtful.pop(file, None)
        if file.acknowledged and file.failed is not None:  # a rename, for example, had to upload it
            await self._give_up(file, file.failed)
        return None

    def _doubt(self, file: WrittenFile, error: AisfsError) -> None:
        """Let a file wait on, and be seen as it is, after an answer that makes no sense."""
        if self._doubtful.get(file) is None:
            log.error(
                "%s/%s was not uploaded: %s; it waits and is tried again",
                file.bucket,
                file.key,
                error,
            )
        self._doubtful[file] = error
        self._acknowledger.postpone(file)

    async def _give_up(self, file: WrittenFile, error: AisfsError) -> None:
        """Keep a file for `aisfs recover` once no program has it open."""
        async with file.lock:
            if file.failed is None:  # changed meanwhile: its next close lets it wait again
                return
            self._acknowledger.waiting.pop(file, None)
        if file.handles:
            self._refused[file] = error
            return
        try:
            await self._committer.settle_unopened(file)
        except Exception as failed:  # no room, for example; an error would end the mount
            log.error(
                "%s/%s was not uploaded: %s; it stays in the journal until the mount ends: %s",
                file.bucket,
                file.key,
                error,
                failed,
                exc_info=not isinstance(failed, AisfsError),
            )
            self._refused[file] = error
