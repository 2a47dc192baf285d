"""Files being written, as the next daemon of a mount finds them when this one dies.

What a file is beside its bytes is a fact in the log of inode numbers (`aisfs.filesystem.takeover`), noted before any program
learns of it. Its bytes lie in the directory of the session, which the next daemon goes on with: in the staged file, or in the
journal once its close was acknowledged. What the store has is found out when the file is uploaded again (`Committer`).

    file <number>      what a written file is, until it is at rest; then its number stands for the version in the store
    place <bucket…>    a directory that only this mount knows, or that only the store lists
    order <bucket…>    names and offsets of a directory, as the kernel reads it: see `core.names.listing`
    change <number>    the last removal or rename in a directory: see `Again`

Others are noted elsewhere: `mounted` and `attributes <bucket…>` of directories (`aisfs.filesystem.inodes`), and `map` (`aisfs.mount.run`).
"""

import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

import trio

from aisfs.core.names.listing import Listing
from aisfs.engine.disk import unattended
from aisfs.engine.overlay import Overlay
from aisfs.engine.writing.journal import JournalEntry
from aisfs.engine.writing.on_disk import StagedRecord
from aisfs.engine.writing.uploads import Writer
from aisfs.errors import AisfsError, Stale, Unavailable
from aisfs.filesystem.handles import OpenFile
from aisfs.filesystem.inodes import Inodes
from aisfs.filesystem.nodes import ObjectNode
from aisfs.filesystem.takeover import (
    spelled_bucket,
    spelled_place,
    spelled_version,
    to_bucket,
    to_place,
)
from aisfs.filesystem.written import WrittenFile
from aisfs.model import Bucket, ObjectInfo
from aisfs.system.threads import any_thread

log = logging.getLogger(__name__)

_FLAGS = (
    "dirty",
    "unlinked",
    "acknowledged",
    "overwrites",
    "entry_overwrites",
    "may_be_stored",
)
_SERIAL = 10
"""Where a fact has the number in the journal."""
WRITES, BYPASSES = 1, 2
"""Flags of handles."""
HALF_MADE_SECONDS = 10.0
"""How long a file waits that was being made until the kernel asks for it again. It does so at once, unless the program was killed."""
_Waiting = dict[int, tuple[JournalEntry, StagedRecord]]
"""What waits in the journal, by its number there."""


class Committer(Protocol):
    """What becomes of files: `aisfs.filesystem.writing.commit`."""

    def settle_unopened(self, file: WrittenFile) -> Awaitable[None]:
        """Upload what no close has uploaded, or keep it."""
        ...

    def discard(self, file: WrittenFile, error: AisfsError) -> None:
        """Drop content."""
        ...

    def let_go(self, file: WrittenFile) -> None:
        """Free what a file has here."""
        ...

    def find_stored(self, file: WrittenFile) -> Awaitable[None]:
        """Find out whether a daemon before has stored it."""
        ...


@any_thread
def note(inodes: Inodes, file: WrittenFile) -> None:
    """Note what a file is now; to be called whenever something of it has changed that the next daemon needs."""
    if inodes.log is None:
        return
    if not file.busy and file.entry is None and not file.unlinked and file.base is not None:
        if not file.member and file.detached_because is None:
            node = file.node
            inodes.settled_as(file.ino, ObjectNode(node.bucket, file.base, node.parent, node.name))
        inodes.fact(f"file {file.ino}", None)
    elif not file.busy and file.entry is None:
        inodes.fact(f"file {file.ino}", None)
    else:
        inodes.fact(f"file {file.ino}", _spelled(file))


def _spelled(file: WrittenFile) -> list[Any]:
    node, base, detached = file.node, file.base, file.detached_because
    return [
        os.fsdecode(file.identity),
        spelled_bucket(node.bucket),
        spelled_version(node.info),
        node.parent,
        os.fsdecode(node.name),
        spelled_version(base) if base is not None else None,
        file.mode,
        file.mtime_ns,
        file.member,
        _slot(file),
        file.entry.serial if file.entry is not None else 0,
        [name for name in _FLAGS if getattr(file, name)],
        str(detached) if detached is not None else "",
        str(file.write_error) if file.write_error is not None else "",
        file.made_only_new,
        file.next_key,
    ]


def _written_down(file: WrittenFile, waiting: _Waiting, claimed: set[int]) -> int:
    """Return the number in the journal of a file that was written down and not noted any more; 0 if none was."""
    if not file.dirty or file.unlinked:
        return 0
    place = file.bucket, file.next_key or file.key
    return next(
        (
            serial
            for serial, (_, record) in waiting.items()
            if (record.bucket, record.key) == place and serial not in claimed
        ),
        0,
    )


def _is_half_made(file: WrittenFile) -> bool:
    """Return whether a file is of a request that is not answered: else it would be open, or acknowledged, or stored."""
    new = file.dirty and file.base is None and not file.acknowledged
    return new and not file.handles and file.staged is not None


def _slot(file: WrittenFile) -> str:
    """Return where its bytes are, unless they are elsewhere as well: then the place is soon another file's."""
    wanted = file.unlinked or (file.dirty and not file.acknowledged)
    return file.staged.path.name if wanted and file.staged is not None else ""


class Restorer:
    """Goes on with what a daemon before has written. For the start of a mount."""

    def __init__(
        self,
        inodes: Inodes,
        overlay: Overlay,
        writer: Writer,
        readers: Counter[int],
        wait: Callable[[WrittenFile], None] | None,
    ) -> None:
        """Show in `overlay` what `writer` will upload.

        Args:
            inodes: What the kernel knows.
            overlay: See above.
            writer: See above.
            readers: Counts open handles that are not for writing.
            wait: Has a file that was acknowledged wait for its upload.
        """
        self._inodes = inodes
        self._files = inodes.files
        self._overlay = overlay
        self._writer = writer
        self._readers = readers
        self._wait = wait
        overlay.note = self._note_place
        overlay.note_order = self._note_order

    def _note_place(self, bucket: Bucket, prefix: str, state: str) -> None:
        """Note that a directory is `held` here, or `gone`; empty if the store knows it."""
        self._inodes.fact(f"place {spelled_place(bucket, prefix)}", state or None)

    def _note_order(self, bucket: Bucket, prefix: str, listing: Listing | None) -> None:
        if self._inodes.log is None:
            return
        names, offsets = listing.order if listing is not None else ([], [])
        order = [[os.fsdecode(name) for name in names], list(offsets)]
        key = f"order {spelled_place(bucket, prefix)}"
        self._inodes.fact(key, order if listing is not None else None)

    def restore(self, keep: Callable[[int, OpenFile], None], committer: Committer) -> None:
        """Know everything again, before the first request.

        Args:
            keep: Given each handle that is in a table, and what it is now.
            committer: Asks the store what has become of uploads, before requests about such a file are carried out.
        """
        told = self._inodes.log
        assert told is not None, "there was a daemon before"
        for ino, node in self._inodes.earlier.nodes():
            self._inodes.restored(ino, node)
        for key, state in list(told.facts("place")):
            self._overlay.restore(*to_place(key), state)
        for key, (names, offsets) in list(told.facts("order")):
            order = Listing.of_order([os.fsencode(name) for name in names], offsets)
            self._overlay.restore_order(to_place(key), order)
        journal = self._writer.staging.journal
        waiting = (
            {entry.serial: (entry, record) for entry, record in journal.found} if journal else {}
        )
        files = list(told.facts("file"))
        claimed = {file[_SERIAL] for _, file in files}
        for number, said in reversed(files):  # of two with one place the later one has it
            self._restore_file(int(number), said, waiting, claimed)
        if journal is not None:  # uploaded, removed, or replaced
            journal.end([entry for entry, _ in waiting.values()])
        for handle, (ino, _, flags, count) in list(told.handles.items()):
            self._restore_handle(handle, ino, flags, count, keep)
        self._writer.staging.tidy_found()
        for each in self._files.by_ino.values():
            note(self._inodes, each)
            if each.may_be_stored:
                self._inodes.unsettled[each.ino] = partial(committer.find_stored, each)

    async def settle(self, committer: Committer) -> None:
        """Upload, keep or drop what nobody has open."""
        left = [file for file in self._files.by_ino.values() if not file.handles]
        half_made = [file for file in left if _is_half_made(file)]
        for file in left:
            if file not in half_made:
                what = f"{file.bucket}/{file.key}"
                await unattended(what, partial(committer.settle_unopened, file))
        await trio.sleep(HALF_MADE_SECONDS)
        for file in half_made:
            if _is_half_made(file):
                committer.discard(file, Stale("its maker has ended"))
                committer.let_go(file)

    def _restore_file(
        self, ino: int, said: list[Any], waiting: _Waiting, claimed: set[int]
    ) -> None:
        identity, bucket, info, parent, name, base, mode, mtime_ns, member, slot, serial, *rest = (
            said
        )
        flags, detached, broken, made_only_new, file_next = rest
        node = ObjectNode(to_bucket(bucket), ObjectInfo(*info), parent, os.fsencode(name))
        version = ObjectInfo(*base) if base is not None else None
        file = WrittenFile(ino, os.fsencode(identity), node, version, mode, mtime_ns, member)
        file.resumed, file.made_only_new, file.next_key = True, made_only_new, file_next
        for flag in flags:
            setattr(file, flag, True)
        if detached:
            file.detached_because = Stale(detached)
        if broken:
            file.write_error = Unavailable(f"a write failed before its daemon ended: {broken}")
        if not serial or serial not in waiting:
            serial = _written_down(file, waiting, claimed)
        self._restore_content(file, slot, serial, waiting)
        self._inodes.restored_written(file)
        if file.unlinked or file.detached_because is not None:
            self._files.unname(file)
        elif file.dirty and not member and (version is None or file.entry is not None):
            self._overlay.set_pending(node.bucket, node.info.key, node.info)
        if file.waits and self._wait is not None:
            self._wait(file)

    def _restore_content(
        self, file: WrittenFile, slot: str, serial: int, waiting: _Waiting
    ) -> None:
        """Find the bytes of a file: staged, in the journal, or both."""
        if serial in waiting and not file.unlinked:
            file.entry, _ = waiting.pop(serial)
        found = self._writer.staging.take_over(slot) if slot else None
        if found is not None:
            file.staged, changed_ns = found
            self._writer.resume(file.staged)
            if file.acknowledged or not (file.dirty or file.unlinked):
                file.staged.discard()
                file.staged = None
            elif file.dirty:
                file.mtime_ns = changed_ns
        if file.acknowledged and file.entry is not None:
            file.mtime_ns = file.entry.mtime_ns
        if file.dirty and file.staged is None and file.entry is None:
            file.dirty = file.acknowledged = False
            file.detached_because = Stale("its daemon has ended, and its bytes are gone")

    def _restore_handle(
        self, handle: int, ino: int, flags: int, count: int, keep: Callable[[int, OpenFile], None]
    ) -> None:
        file = self._files.by_ino.get(ino)
        if file is not None:
            file.handles += count
        if flags & WRITES and file is not None:
            file.writers += count
            file.bypassing += count if flags & BYPASSES else 0
            file.shared = file.bypassing not in (0, file.handles)
        else:
            self._readers[ino] += count
        keep(handle, OpenFile(ino, file if flags & WRITES else None, bool(flags & BYPASSES)))
