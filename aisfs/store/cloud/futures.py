"""obstore's futures, awaited by trio.

obstore asks asyncio for the running loop: for its futures, and for a way to complete them from a
thread of its own. That is all there is to this loop; trio runs everything. So a call costs no thread
of ours, and cancelling it ends the request at once, which a blocking call would not.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from typing import Any, TypeVar

import trio

T = TypeVar("T")


class _Loop(asyncio.AbstractEventLoop):
    """What obstore needs of an event loop."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> None:
        """Call back at once: in trio's thread nothing else can be under way."""
        if context is None:
            callback(*args)
        else:
            context.run(callback, *args)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> None:
        with suppress(trio.RunFinishedError):  # then nobody waits for it any more
            self._token.run_sync_soon(lambda: self.call_soon(callback, *args, context=context))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Ignore failures of calls that were cancelled: nobody waits for them."""


class Futures:
    """Waits for futures of obstore. Of one run of trio, and only in its thread."""

    def __init__(self) -> None:
        self._loop: _Loop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Whose futures these are."""
        if self._loop is None:
            self._loop = _Loop()  # type: ignore[abstract]  # most of a loop is never asked for
        return self._loop

    async def wait(self, call: Callable[..., Awaitable[T]], *args: object, **kwargs: object) -> T:
        """Make a call of obstore and wait for its result; a cancellation drops the call.

        Raises:
            Exception: what the call raises.
        """
        future = self.begin(call, *args, **kwargs)
        await settled(future)
        return future.result()

    def begin(
        self, call: Callable[..., Awaitable[T]], *args: object, **kwargs: object
    ) -> "asyncio.Future[T]":
        """Make a call of obstore and return its future."""
        asyncio._set_running_loop(self.loop)
        try:
            future = call(*args, **kwargs)
        finally:
            asyncio._set_running_loop(None)
        assert isinstance(future, asyncio.Future), "obstore's own functions return futures"
        return future


async def settled(future: "asyncio.Future[Any]", *, keep: bool = False) -> None:
    """Wait until a future is done; a cancellation cancels it too, unless it is to be kept."""
    task = trio.lowlevel.current_task()
    waiting = True

    def wake(_: object) -> None:
        if waiting:
            trio.lowlevel.reschedule(task)

    def abort(_: object) -> trio.lowlevel.Abort:
        nonlocal waiting
        waiting = False
        future.remove_done_callback(wake)
        if not keep:
            future.cancel()
        return trio.lowlevel.Abort.SUCCEEDED

    if future.done():
        await trio.lowlevel.checkpoint()
        return
    future.add_done_callback(wake)
    await trio.lowlevel.wait_task_rescheduled(abort)
