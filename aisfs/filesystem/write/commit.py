"""What becomes of staged bytes: uploaded, kept for `aisfs recover`, or let go.

What `close` and `fsync` acknowledged is in the store. Until then the store holds what it held
before; should it come to nothing, the staged bytes are kept.
"""

import logging

from aisfs.engine.write.staging import StagedFile
from aisfs.errors import AisfsError, Stale
from aisfs.filesystem.kernel_port import WaitingKernel
from aisfs.filesystem.write.files import WrittenFile
from aisfs.filesystem.write.identity import WrittenNames
from aisfs.model import ObjectInfo

log = logging.getLogger(__name__)


class CommittingFileSystem(WrittenNames):
    """Gets files that were written into the store, or says why not."""

    kernel: WaitingKernel | None

    async def commit(self, file: WrittenFile) -> None:
        """Upload a file if it is dirty, and let the kernel know what else that changes."""
        async with file.lock:
            committed = await self._commit_locked(file)
        if committed and self.kernel is not None:  # not with the lock, which a rename may wait for
            if file.member:
                self.kernel.invalidate_inode(file.node.parent)
            for parent, name in self._other_names(file):
                self.kernel.invalidate_inode(parent)
                await self.kernel.invalidated(parent, name)

    async def _commit_locked(self, file: WrittenFile) -> bool:
        """Upload a file if it is dirty; says whether it was."""
        self._check_not_lost(file)
        if file.unlinked or not file.dirty:
            return False
        assert file.staged is not None, "what is dirty is staged"
        if file.torn is not None:
            raise file.torn
        try:
            if file.member:
                info = await self._append(file, file.staged)
            else:
                info = await self._writer.upload(
                    file.bucket,
                    file.key,
                    file.staged,
                    base=file.base,
                    mtime_ns=file.mtime_ns,
                    mode=file.mode,
                )
        except AisfsError as error:
            file.failed = error
            raise
        file.staged.mark_clean()
        with self.changing:
            file.base = info
            file.dirty = False
            file.failed = None
            if not file.member:
                self._lister.settle(file.bucket, file.key, info)
        return True

    async def _append(self, file: WrittenFile, staged: StagedFile) -> ObjectInfo:
        """Append a member to its shard, whatever it is called by now."""
        async with self._name_changes.using(lambda: frozenset({(file.bucket, file.key)})):
            self._check_not_lost(file)
            return await self._writer.append(
                file.bucket,
                file.key,
                file.member,
                staged,
                mtime_ns=file.mtime_ns,
                mode=file.mode,
                again=file.base is not None,
            )

    async def _settle_unopened(self, file: WrittenFile) -> None:
        """Upload what nobody has closed properly, a mapping for example, and let the disk go."""
        error = file.torn or file.failed
        if file.dirty and error is None and not file.unlinked:
            try:
                await self.commit(file)
            except AisfsError as failed:
                error = failed
        async with file.lock:
            if file.handles:
                return
            if file.dirty and not file.unlinked:
                if error is None:
                    return  # truncated meanwhile, by somebody who will settle it as well
                if file.torn is not None:
                    self._discard(file, error)
                else:
                    self._park(file, error)
            self._let_go(file)

    def _let_go(self, file: WrittenFile) -> None:
        """Free what a file without handles has here; called with the lock held, or free."""
        if file.staged is not None:
            file.staged.discard()
            file.staged = None
            file.dirty = False
        if file.member and file.lost is None:
            file.lost = Stale("it is in its shard now")
            self._files.unname(file)
        if self.inodes.get(file.ino) is None:
            self._files.drop(file)
            return
        # The kernel keeps an inode as long as it likes. Made to look its name up again it gets the
        # number of the version that is stored, and forgets this one when nobody uses it.
        old = self._files.rest(file)
        if old is not None and not old.busy and self.kernel is not None:
            self.kernel.invalidate_entry(old.node.parent, old.node.name)

    def _park(self, file: WrittenFile, error: AisfsError) -> None:
        """Keep what could not be uploaded for `aisfs recover`; the name shows the store again."""
        assert file.staged is not None, "what is dirty is staged"
        log.error(
            "%s/%s was not uploaded: %s; `aisfs recover` lists it", file.bucket, file.key, error
        )
        file.staged.park(str(error))
        file.staged = None
        self._lose(file, error)

    def _discard(self, file: WrittenFile, error: AisfsError) -> None:
        """Let go what is not whole: whoever wrote it was told so by a write that failed."""
        assert file.staged is not None, "what is dirty is staged"
        file.staged.discard()
        file.staged = None
        self._lose(file, error)

    def _lose(self, file: WrittenFile, error: AisfsError) -> None:
        """Show what the store has under a name again."""
        with self.changing:
            file.dirty = False
            file.lost = error
            self._files.unname(file)
            if file.base is None and not file.member:
                self._lister.forget(file.bucket, file.key)
        self._invalidate(file.node.parent, file.node.name)

    def _check_not_lost(self, file: WrittenFile) -> None:
        if file.lost is not None:
            raise Stale(f"{file.bucket}/{file.key}: {file.lost}; open it again")
