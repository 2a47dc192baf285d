"""The lock of a written file: tasks of trio queue for it, the dispatcher takes it only when it is free."""

from types import TracebackType

import trio

from aisfs.system.locks import Rank, ranked_lock


class ContentLock:
    """Held by one task at a time, for as long as it likes; or by another thread, for moments."""

    def __init__(self, token: trio.lowlevel.TrioToken | None = None) -> None:
        """Start unheld; to be made in the trio thread, unless its `token` is given."""
        self._tasks: trio.Lock | None = None
        """Made for the first task: most files are made and written without any."""
        self._token = token or trio.lowlevel.current_trio_token()
        self._guard = ranked_lock(Rank.CONTENT)
        """Held for an instant, while the thread's part is looked at or changed."""
        self._in_thread = False
        self._left: trio.Event | None = None
        """Set for the task that waits until the thread is done."""

    async def __aenter__(self) -> None:
        """Wait for the tasks that came before, then for the thread, which comes in no more."""
        tasks = self._tasks = self._tasks or trio.Lock()
        try:
            tasks.acquire_nowait()  # saves a turn of all tasks, where it is free
        except trio.WouldBlock:
            await tasks.acquire()
        try:
            await self._thread_left()
        except BaseException:
            tasks.release()
            raise

    async def _thread_left(self) -> None:
        with self._guard:
            if not self._in_thread:
                return
            self._left = left = trio.Event()
        await left.wait()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release the lock."""
        assert self._tasks is not None, "a task has it"
        self._tasks.release()

    @property
    def is_free(self) -> bool:
        """Whether a task could have it now."""
        return not self._in_thread and not self._has_task()

    def _has_task(self) -> bool:
        return self._tasks is not None and self._tasks.locked()

    def take_in_thread(self) -> bool:
        """Take it, unless a task has it or is about to; returns whether. From one thread only.

        Another thread may return it.
        """
        with self._guard:
            if self._in_thread or self._has_task():
                return False
            self._in_thread = True
            return True

    def leave_in_thread(self) -> None:
        """Return it back."""
        with self._guard:
            self._in_thread = False
            left, self._left = self._left, None
        if left is not None:
            self._token.run_sync_soon(left.set)
