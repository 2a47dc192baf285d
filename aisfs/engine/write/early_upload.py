"""Large files are sent while they are written, so that their close waits for the last part only.

A part is sent once all of it was written in order, and only once: AIStore destroys what it gets twice.
So when bytes change afterwards, or it is unknown whether a part arrived, what was sent is thrown
away, and the upload at the close sends all. Nothing of it is visible before: an error here only
means parts that the close sends.
"""

import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from aisfs.core.staged.record import StagedRecord
from aisfs.engine.fetch.writer_thread import unattended
from aisfs.engine.write.staging import NEVER, StagedFile
from aisfs.errors import AisfsError
from aisfs.stores.port import UploadAhead, WritableStore
from aisfs.system.threads import any_thread

log = logging.getLogger(__name__)

_PARTS_AT_ONCE = 2
"""Of one file: one is read and summed up while another is on its way."""


@dataclass(eq=False, slots=True)
class _Sending:
    """A file of which parts are being sent."""

    staged: StagedFile
    record: StagedRecord
    """What it was to become when it began."""
    upload: UploadAhead | None = None
    claimed: bool = False
    """Whether the caller of `take` ends `upload`; no more parts are begun then."""
    failed: bool = False
    """Whether a part could not be sent; nor are others then."""
    look: trio.Event = field(default_factory=trio.Event)
    """Set when there may be something to do."""
    over: trio.Event = field(default_factory=trio.Event)
    """Set when no part is under way any more."""


class EarlyUploader:
    """Sends parts of files that are being written."""

    def __init__(self, store: WritableStore, services: trio.Nursery) -> None:
        """Send to `store`, by tasks of `services`."""
        self._store = store
        self._services = services
        self._token = trio.lowlevel.current_trio_token()
        self._sending: dict[StagedFile, _Sending] = {}

    def watch(self, staged: StagedFile) -> None:
        """Send a staged file as soon as it is large."""
        staged.call_at(self._store.ahead_above + 1, self._call)

    async def take(self, staged: StagedFile) -> UploadAhead | None:
        """Return what of a file was sent, for the upload that ends it; None when nothing was.

        Nothing of it is sent ahead again before it is twice as long.
        """
        sending = self._sending.get(staged)
        if sending is None:
            return None
        sending.claimed = True
        sending.look.set()
        try:
            await sending.over.wait()
        except BaseException:
            sending.claimed = False
            if sending.over.is_set() and sending.upload is not None:
                await sending.upload.abandon()
            raise
        staged.sent_ahead = None
        staged.call_at(max(2 * staged.in_order, self._store.ahead_above + 1))
        return sending.upload

    @any_thread
    def _call(self, staged: StagedFile) -> None:
        """Schedule a look at a file."""
        self._token.run_sync_soon(self._look_at, staged)

    def _look_at(self, staged: StagedFile) -> None:
        staged.call_at(NEVER)
        sending, record = self._sending.get(staged), staged.record
        if sending is not None:
            sending.look.set()
        elif record and not record.member and not self._services.cancel_scope.cancel_called:
            sending = self._sending[staged] = _Sending(staged, record)
            what = f"sending {record.name} while it is written"
            self._services.start_soon(unattended, what, partial(self._serve, sending))

    async def _serve(self, sending: _Sending) -> None:
        staged, record = sending.staged, sending.record
        try:
            sending.upload = await self._store.begin_upload(record.bucket, record.key)
            if sending.upload is not None and staged.is_dirty:
                staged.sent_ahead = sending.upload
                staged.note_upload(sending.upload.name)
                await self._send(sending, sending.upload)
        finally:
            del self._sending[staged]
            sending.over.set()
            if sending.upload is not None and not sending.claimed:
                await sending.upload.abandon()

    async def _send(self, sending: _Sending, upload: UploadAhead) -> None:
        """Send parts until the file is closed or not wanted any more, or what was sent is lost."""
        staged, free = sending.staged, trio.Semaphore(_PARTS_AT_ONCE)
        # A descriptor of its own: the file may be removed while a part is read. What another file
        # has in its place by then may be sent too, to an upload that is thrown away.
        content = replace(staged.content(), descriptor=os.dup(staged.content().descriptor))

        async def send(part: Callable[[], Awaitable[None]]) -> None:
            try:
                await part()
            except AisfsError as error:
                log.info("%s: sent when it is closed: %s", sending.record.name, error)
                sending.failed = True
            free.release()

        try:
            async with trio.open_nursery() as parts:
                while not sending.claimed and not upload.is_lost:
                    sending.look = trio.Event()
                    if not staged.is_dirty:
                        parts.cancel_scope.cancel()
                        return
                    wanted = upload.wants
                    if not sending.failed:
                        staged.call_at(wanted, self._call)
                    if sending.failed or staged.in_order < wanted:
                        await sending.look.wait()
                        continue
                    staged.call_at(NEVER)
                    await free.acquire()
                    if not sending.claimed:
                        part = upload.next_part(replace(content, size=wanted))
                        parts.start_soon(send, part)
        finally:
            os.close(content.descriptor)
