"""The journal of one daemon: small files that were closed, safe on the local disk, and wait for their upload.

Files that are closed at the same time share one flush of the disk. A file that is closed alone is written by the thread that
closes it, if the disk is quick, which saves two wake-ups. A journal has a fixed size and is filled with zeros
before it is used: flushing overwritten bytes does not wait for the file system's own journal. It is removed when
none of its files waits, the oldest first, since the later ones say what has ended in it.
"""

import logging
import os
import queue
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from aisfs.engine.writing.on_disk import (
    JOURNAL,
    Frame,
    StagedRecord,
    StagingErrors,
    content_at,
    decode,
    encode,
    live,
    session_seed,
)
from aisfs.errors import AisfsError, OutOfSpace, Unavailable
from aisfs.stores.port import FileContent, PartOfContent
from aisfs.system.locks import Rank, ranked_lock
from aisfs.system.threads import any_thread, start_service_thread


class JournalSegment:
    """One journal file."""

    def __init__(self, path: Path, capacity: int, *, found: bool = False) -> None:
        """Make one for so many bytes, or open one that was `found`, to which nothing is written any more."""
        self.path = path
        self._capacity = capacity
        self.used = 0
        """Bytes of the entries, with those that are to be written next."""
        self.live = 0
        """Entries that have not ended."""
        self._next: list[bytes] = []
        if found:
            self.used = capacity
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return
        zeroing = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _fill(zeroing, capacity)
            _sync_directory(path.parent)
            _sync_directory(path.parent.parent)
            # One call writes and flushes, and takes the interpreter's lock back once.
            self.descriptor = os.open(path, os.O_RDWR | os.O_DSYNC | os.O_CLOEXEC)
        except BaseException:
            self.remove()
            raise
        finally:
            os.close(zeroing)

    def has_room(self, size: int) -> bool:
        """Return whether so many bytes more fit in."""
        return self.used + size <= self._capacity

    def add(self, frame: bytes) -> int:
        """Take a frame that is to be written next; return where it begins."""
        start = self.used
        self._next.append(frame)
        self.used += len(frame)
        return start

    def write(self) -> None:
        """Write what was added, and return once the disk has it."""
        frames, self._next = self._next, []
        rest = memoryview(b"".join(frames))
        start = self.used - len(rest)
        failed = self._capacity
        """Where the next one begins if this fails: what the disk has then is not known."""
        try:
            with StagingErrors(self.path):
                while rest:
                    rest = rest[write_through(self.descriptor, rest, self.used - len(rest)) :]
            failed = self.used
        except OutOfSpace:
            # The room there is may do for what ends others, without which removed files come back.
            failed = start if self._cut(start) else failed
            raise
        except AisfsError:
            self._cut(start)
            raise
        finally:
            self.used = failed

    def _cut(self, length: int) -> bool:
        """Forget what is behind; return whether the disk did: frames told as failed may be whole.

        The journal stays as long as it is, or it would seem to have lost what is behind.
        """
        with suppress(OSError):
            os.ftruncate(self.descriptor, length)
            os.ftruncate(self.descriptor, self._capacity)
            os.fsync(self.descriptor)
            return True
        return False

    def remove(self) -> None:
        """Remove the file."""
        with suppress(OSError):  # what nothing waits in goes with the session
            os.unlink(self.path)

    def __del__(self) -> None:
        """Close it, once no entry of it can be read any more: a reader may still be at one that has ended."""
        with suppress(AttributeError):  # it could not be made
            os.close(self.descriptor)


@dataclass(eq=False, slots=True)
class JournalEntry:
    """The content of one file in the journal."""

    serial: int
    segment: JournalSegment
    start: int
    size: int
    mtime_ns: int
    """The time of the file."""

    def read(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; shorter only at the end."""
        length = max(min(size, self.size - offset), 0)
        with StagingErrors(self.segment.path):
            return os.pread(self.segment.descriptor, length, self.start + offset)

    def content(self) -> PartOfContent:
        """Return the bytes to upload."""
        whole = FileContent(self.segment.descriptor, self.start + self.size, str(self.segment.path))
        return PartOfContent(whole, self.start, self.size)


def _fill(descriptor: int, size: int) -> None:
    piece = bytes(1 << 20)
    for start in range(0, size, len(piece)):
        os.pwrite(descriptor, piece[: size - start], start)
    os.fsync(descriptor)


def write_through(descriptor: int, data: memoryview, start: int) -> int:
    """Write to the disk; return how many bytes it has. The file was opened for that."""
    return os.pwrite(descriptor, data, start)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


log = logging.getLogger(__name__)

CONTENT_MAX = 1 << 20
"""Bytes of a file that is small enough: writing more to the local disk first takes longer than it saves."""
JOURNAL_BYTES = 16 << 20
"""Of one journal: thousands of small files, and zeros that a disk takes in a tenth of a second."""
ENDS_BYTES = 1 << 20
"""At the end of a journal, for what ends files: 20,000 single ones. A disk without room for another journal
must not make removed files come back."""
_OWED_SECONDS = 5.0
"""How soon it is tried again to write what ended, if nothing else is to be written."""
_BATCH_MAX = 256
"""Files that share a flush at most, so that the first of them need not wait for too many others."""
AT_ONCE_MAX = 64 << 10
"""Bytes of a file that the dispatcher may write to the disk itself."""
QUICK_SECONDS = 0.001
"""A disk that took no longer the last time is quick: the dispatcher may wait for it."""
_LOOK_SECONDS = 1.0
"""How often it is looked whether there is still a thread that will answer."""


Outcome = JournalEntry | AisfsError | None
"""What came of a request: where its content is, why it failed, or None if it had no content."""


@dataclass(frozen=True, slots=True)
class NewEntry:
    """What is to be written in one step: the content of a file, or what ends others, or both."""

    record: bytes = b""
    """What the content is to become, encoded; empty if there is none."""
    content: bytes = b""
    mtime_ns: int = 0
    """The time of the file."""
    ended: Sequence[JournalEntry] = ()


@dataclass(frozen=True, slots=True)
class _Asked:
    new: NewEntry
    told: Callable[[Outcome], None]


class Journal:
    """Writes entries in a thread of its own, or in the one that asks."""

    def __init__(
        self,
        session: Path,
        take: Callable[[int], None],
        give_back: Callable[[int], None],
    ) -> None:
        """Write to the directory of a staging session; `take` and `give_back` count its bytes."""
        self._session = session
        self._seed = session_seed(session.name)
        self._take = take
        self._give_back = give_back
        self._asked: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._writing = ranked_lock(Rank.JOURNAL)
        """Held while something is written, and until the disk has it; guards what follows."""
        self._quick = False
        """Whether the disk was quick the last time."""
        self._segments: deque[JournalSegment] = deque()
        """Those with entries, the oldest first; only the last one is written to."""
        self._serial = 0
        self._written_ns = 0
        self._ended = 0
        """How often something was ended."""
        self._settled = 0
        """How many of these the disk has."""
        self._owed: list[JournalEntry] = []
        """What has ended and could not be written; the journal's thread does so with what comes next."""
        self._troubled = False
        """Whether that was logged."""
        self.found: list[tuple[JournalEntry, StagedRecord]] = []
        """What the daemon before has left of this session: files that still wait, and what they are to become."""
        self._take_over()
        self._thread = start_service_thread("aisfs journal", self._serve)

    @any_thread
    def put(self, told: Callable[[Outcome], None], new: NewEntry) -> None:
        """Write an entry; `told` is called in the journal's thread."""
        self._asked.put(_Asked(new, told))

    @any_thread
    def try_put(self, told: Callable[[], None], new: NewEntry) -> Outcome:
        """Write an entry in this thread, which waits for the disk; return what came of it.

        None, and nothing is written, if the disk may not be quick, or others are being written: then they
        better share its flush. `told` is called when the disk has it, before all that can be done later.
        """
        if (
            len(new.content) > AT_ONCE_MAX
            or not self._quick
            or not self._asked.empty()
            or not self._writing.acquire(blocking=False)
        ):
            return None
        try:
            frame = self._frame(new)
            if self._owed or not self._has_room(len(frame) + ENDS_BYTES):
                return None
            began = time.monotonic()
            entry = self._add(frame, new, self._segments[-1])
            try:
                entry.segment.write()
            except AisfsError as error:
                return error
            took = time.monotonic() - began
            told()
            self._quick = took <= QUICK_SECONDS
            self._count(entry, new)
            return entry
        finally:
            self._writing.release()

    async def keep(self, new: NewEntry) -> JournalEntry:
        """Do the same, and return once the disk has it.

        Raises:
            OutOfSpace, Unavailable: it could not be written; the others go on.
        """
        outcome = await self._ask(new)
        if isinstance(outcome, AisfsError):
            raise outcome
        assert outcome is not None, "an entry with a record has a place"
        return outcome

    def end(self, entries: Sequence[JournalEntry]) -> None:
        """Record that entries are not needed any more, soon; see `settled`."""
        if entries:
            self._ended += 1
            self.put(_nobody, NewEntry(ended=tuple(entries)))

    async def settled(self) -> None:
        """Wait until the disk has what was ended so far, or has refused it."""
        if self._settled < self._ended or self._owed:
            ended = self._ended
            await self._ask(NewEntry())
            self._settled = max(self._settled, ended)

    async def _ask(self, new: NewEntry) -> Outcome:
        done, token = trio.Event(), trio.lowlevel.current_trio_token()
        outcomes: list[Outcome] = []

        def told(outcome: Outcome) -> None:
            outcomes.append(outcome)
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(done.set)

        self.put(told, new)
        with trio.CancelScope(shield=True):  # the local disk answers, and then it has happened
            while not done.is_set():
                lives = self._thread.is_alive()
                with trio.move_on_after(_LOOK_SECONDS):
                    await done.wait()
                if not lives and not outcomes:
                    return Unavailable("the journal's thread has ended")
        return outcomes[0]

    def _take_over(self) -> None:
        """Go on with the journals of a daemon before."""
        frames: list[Frame] = []
        segments: dict[int, JournalSegment] = {}
        for path in sorted(self._session.glob(f"*{JOURNAL}"), key=lambda one: int(one.stem)):
            with StagingErrors(path):
                segment = JournalSegment(path, JOURNAL_BYTES, found=True)
                here, gaps = decode(path.read_bytes(), self._seed)
            self._take(JOURNAL_BYTES)
            self._segments.append(segment)
            segment.live += len(gaps)  # so that it is looked at once the session is over
            if any(gap.size for gap in gaps):
                log.error("%s is damaged, and what was closed may be lost", path)
            frames += here
            segments |= {frame.serial: segment for frame in here}
            self._serial = max([self._serial, int(path.stem) + 1, *(one.serial for one in here)])
        for frame in live(frames):
            if frame.record is not None:
                segment = segments[frame.serial]
                segment.live += 1
                if not frame.damaged:
                    place = frame.serial, segment, frame.start, frame.size, frame.mtime_ns
                    self.found.append((JournalEntry(*place), frame.record))

    def close(self) -> None:
        """End the thread after what was asked for; what has not ended stays."""
        self._asked.put(None)
        self._thread.join()
        self._segments.clear()

    # the journal's thread ------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            with self._writing:
                self._segment_for(0)  # the first close need not wait for it
        except AisfsError:  # that close runs into it as well
            pass
        except Exception:
            log.exception("%s: no journal could be made", self._session)
        last = False
        while not last and (asked := self._next()) is not None:
            batch = [asked]
            while len(batch) < _BATCH_MAX and not self._asked.empty():
                following = self._asked.get()
                if following is None:
                    last = True
                    break
                batch.append(following)
            self._write_and_tell(batch)
        if self._owed:
            self._write_and_tell([])

    def _next(self) -> _Asked | None:
        """Return what is asked for next; until then try to write what is owed."""
        while True:
            try:
                return self._asked.get(timeout=_OWED_SECONDS if self._owed else None)
            except queue.Empty:
                self._write_and_tell([])

    def _write_and_tell(self, batch: Sequence[_Asked]) -> None:
        with self._writing:
            written = self._write(batch)
        for asked, outcome in written:
            try:
                asked.told(outcome if asked.new.record or isinstance(outcome, AisfsError) else None)
            except Exception:  # the others need their answers as well
                log.exception(
                    "a close could not be answered: this is a bug in aisfs, please report it"
                )
        with self._writing:
            self._tidy()

    # with `_writing` held ------------------------------------------------------------------------

    def _write(self, batch: Sequence[_Asked]) -> list[tuple[_Asked, Outcome]]:
        """Write all of a batch, and flush the disk once for each journal it goes to."""
        owed, self._owed = self._owed, []
        if owed:
            batch = [_Asked(NewEntry(ended=owed), _nobody), *batch]
        written = [(asked, self._written(asked.new)) for asked in batch]
        began = time.monotonic()
        for segment in {e.segment: None for _, e in written if isinstance(e, JournalEntry)}:
            try:
                segment.write()
            except AisfsError as error:
                written = [
                    (asked, error if isinstance(e, JournalEntry) and e.segment is segment else e)
                    for asked, e in written
                ]
        if any(isinstance(outcome, JournalEntry) for _, outcome in written):
            self._quick = time.monotonic() - began <= QUICK_SECONDS
        self._account(written)
        return written

    def _account(self, written: Sequence[tuple[_Asked, Outcome]]) -> None:
        """Count what waits in each journal, and note what has ended and is not written."""
        for asked, outcome in written:
            if isinstance(outcome, JournalEntry):
                self._count(outcome, asked.new)
            elif not asked.new.record and asked.new.ended:
                self._owed.extend(asked.new.ended)
                if not self._troubled:
                    log.warning(
                        "%s: until the disk takes more, uploaded and removed files would come back "
                        "after a crash: %s",
                        self._session,
                        outcome,
                    )
                self._troubled = True

    def _count(self, entry: JournalEntry, new: NewEntry) -> None:
        """Count what the disk has now: an entry, and what it ends."""
        entry.segment.live += bool(new.record)
        for each in new.ended:
            each.segment.live -= 1
        self._troubled = False

    def _written(self, new: NewEntry) -> Outcome:
        try:
            if not new.record and not new.ended:
                return None
            frame = self._frame(new)
            segment = self._segment_for(len(frame) + (ENDS_BYTES if new.record else 0))
            return self._add(frame, new, segment)
        except AisfsError as error:
            return error
        except Exception as error:  # without this thread no close would be answered any more
            log.exception("the journal failed: this is a bug in aisfs, please report it")
            return Unavailable(f"{self._session}: {error}")

    def _frame(self, new: NewEntry) -> bytes:
        self._serial += 1
        serials = [entry.serial for entry in new.ended]
        self._written_ns = max(
            self._written_ns + 1, time.time_ns()
        )  # in order, if the clock is not
        return encode(
            self._serial, new.mtime_ns, serials, new.record, new.content,
            written_ns=self._written_ns, seed=self._seed, capacity=JOURNAL_BYTES,
        )  # fmt: skip

    def _add(self, frame: bytes, new: NewEntry, segment: JournalSegment) -> JournalEntry:
        """Take the last frame, to be written to a journal."""
        size = len(new.content)
        at = content_at(frame, size)
        return JournalEntry(self._serial, segment, segment.add(frame) + at, size, new.mtime_ns)

    def _has_room(self, size: int) -> bool:
        """Return whether so many bytes fit into the journal that is written to."""
        return bool(self._segments) and self._segments[-1].has_room(size)

    def _segment_for(self, size: int) -> JournalSegment:
        """Return a journal with room for so many bytes."""
        if self._has_room(size):
            return self._segments[-1]
        self._take(JOURNAL_BYTES)
        path = self._session / f"{self._serial}{JOURNAL}"
        try:
            with StagingErrors(path):
                segment = JournalSegment(path, JOURNAL_BYTES)
        except BaseException:
            self._give_back(JOURNAL_BYTES)
            raise
        self._segments.append(segment)
        return segment

    def _tidy(self) -> None:
        """Remove the oldest journals that nothing is left in, except the one that is written to."""
        while len(self._segments) > 1 and not self._segments[0].live:
            self._segments.popleft().remove()
            self._give_back(JOURNAL_BYTES)


def _nobody(_: Outcome) -> None:
    """Tell nobody."""
