"""Uploads the files that wait for it: when their time has come, on request, and at the end of the mount."""

import logging
from collections.abc import Callable, Iterable

import trio

from aisfs.errors import AisfsError, Unavailable
from aisfs.filesystem.write.acknowledge import Acknowledger
from aisfs.filesystem.write.commit import Committer, lasts, passes
from aisfs.filesystem.written.files import WrittenFile

log = logging.getLogger(__name__)

UPLOADS_AT_ONCE = 16
"""Half of the connections of a mount: the others are for those who wait for an answer."""
LOOK_SECONDS = 0.5
"""How often it is looked for files that are due."""
DOUBTFUL_MOST = 16
"""Files that may fail for reasons of their own before the others are left for the next time."""
RETRY_SECONDS = 10.0
"""After an upload that may succeed later: the store has tried for `--io-timeout` by then."""


class WriteBack:
    """Uploads in the background; reports what has failed to whoever asks next."""

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
        remaining = iter(files)
        problems: list[AisfsError] = []

        async def work() -> None:
            for file in remaining:
                if len(problems) >= DOUBTFUL_MOST or any(map(passes, problems)):
                    return
                problem = await self._upload(file)
                if problem is not None:
                    problems.append(problem)

        async with trio.open_nursery() as nursery:
            for _ in range(UPLOADS_AT_ONCE):
                nursery.start_soon(work)
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
