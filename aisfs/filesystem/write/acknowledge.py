"""Files whose close does not wait for the store (`--write-back`): safe on the local disk first."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import structs

from aisfs.core.names.listing import is_shard
from aisfs.engine.writing.journal import Journal, JournalEntry, Outcome
from aisfs.engine.writing.record import StagedRecord
from aisfs.engine.writing.uploads import Writer
from aisfs.errors import AisfsError
from aisfs.filesystem.written.files import WrittenFile
from aisfs.model import ObjectInfo
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
        self, journal: Journal, writer: Writer, seconds: float, clock: Callable[[], float]
    ) -> None:
        """Let files wait in `journal` for so many seconds by `clock`."""
        self._journal = journal
        self._writer = writer
        self._seconds = seconds
        self._clock = clock
        self._most = writer.journaled_most
        self._refused_until = float("-inf")
        """The disk has refused an entry: closes wait for the store before it is tried again."""
        self._parked: dict[Path, tuple[str, AisfsError]] = {}
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
        record = recorded or self._record(file).encode()
        content, mtime_ns = self._content(file), file.mtime_ns
        ended = (file.entry,) if file.entry is not None else ()
        if may_wait:
            outcome = self._journal.try_put(
                partial(told, True), record=record, content=content, mtime_ns=mtime_ns, ended=ended
            )
            if isinstance(outcome, JournalEntry):
                self._note(file, outcome)
                return True, False
            if outcome is not None:
                return False, False
        kept = partial(self._kept, file, told)
        self._journal.put(kept, record=record, content=content, mtime_ns=mtime_ns, ended=ended)
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
        record = self._record(file, key, base, only_new)
        ended = [e.entry for e in (file, instead_of) if e is not None and e.entry is not None]
        try:
            entry = await self._journal.keep(
                record.encode(), self._content(file), file.mtime_ns, ended
            )
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
        """Return whether a file may wait. One that opens as a folder may not: that is made of the object."""
        return (
            not file.member
            and file.size <= self._most
            and self._clock() >= self._refused_until
            and (file.entry is not None or len(self.waiting) < WAITING_MOST)
            and not is_shard(file.node.name)
        )

    @any_thread
    def _record(
        self,
        file: WrittenFile,
        key: str = "",
        base: ObjectInfo | None = None,
        only_new: str = "",
    ) -> StagedRecord:
        return self._writer.record_of(
            file.bucket,
            key or file.key,
            base=base if key else file.base,
            mode=file.mode,
            only_new=only_new if key else file.only_new,  # most renames overwrite
        )

    @any_thread
    def _content(self, file: WrittenFile) -> bytes:
        content = file.staged or file.entry
        assert content is not None, "what is dirty is on the local disk"
        return content.read(0, content.size)

    @any_thread
    def _note(self, file: WrittenFile, entry: JournalEntry) -> None:
        file.entry = entry
        file.entry_overwrites = file.overwrites
        file.acknowledged = True
        self.waiting.pop(file, None)
        self.waiting[file] = self._clock() + self._seconds
        if file.staged is not None:
            file.staged.mark_clean()  # else it would be found a second time

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

    def _forget(self, file: WrittenFile) -> None:
        file.entry = None
        file.acknowledged = False
        self.waiting.pop(file, None)

    async def settled(self) -> None:
        """Wait until nothing that was ended so far would be uploaded after a crash."""
        await self._journal.settled()

    def park(self, file: WrittenFile, error: AisfsError) -> None:
        """Keep what cannot be uploaded for `aisfs recover`."""
        assert file.entry is not None, "what was acknowledged is in the journal"
        record = structs.replace(self._record(file), reason=str(error))
        path = self._writer.park_entry(file.entry, record, file.mtime_ns)
        self._parked[path] = (record.name, error)
        self.end(file)

    def given_up(self) -> list[tuple[str, AisfsError]]:
        """Return which files are kept for `aisfs recover`, and why, until it has uploaded or dropped them."""
        self._parked = {path: told for path, told in self._parked.items() if path.exists()}
        return list(self._parked.values())
