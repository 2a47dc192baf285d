"""Run a blocking call in a thread so that cancelling it ends it.

`trio.to_thread.run_sync` offers two ways: wait however long the thread takes, or leave it behind,
still writing into a buffer that its owner believes free. Here a cancellation asks the call to end
(`interrupt`), and then waits for it.
"""

import contextvars
from collections.abc import Callable
from typing import Any, TypeVar

import trio

T = TypeVar("T")


async def run_interruptible(call: Callable[[], T], interrupt: Callable[[], None]) -> T:
    """Run `call` in a worker thread.

    Args:
        call: The blocking work.
        interrupt: Makes a `call` under way return soon, in any manner; it must not wait, and may
            come before `call` has begun.

    On a cancellation `interrupt` is called once; the thread has ended when Cancelled comes out.
    """
    await trio.lowlevel.checkpoint_if_cancelled()
    task = trio.lowlevel.current_task()
    token = trio.lowlevel.current_trio_token()
    context = contextvars.copy_context()
    cancelled: list[Callable[[], Any]] = []

    def deliver(result: Any) -> None:  # noqa: ANN401 - an outcome.Outcome[T]
        token.run_sync_soon(trio.lowlevel.reschedule, task, result)

    def abort(raise_cancel: Callable[[], Any]) -> trio.lowlevel.Abort:
        cancelled.append(raise_cancel)
        interrupt()
        # The thread still runs; the task goes on when `deliver` says that it has ended.
        return trio.lowlevel.Abort.FAILED

    trio.lowlevel.start_thread_soon(lambda: context.run(call), deliver, "aisfs request")
    try:
        result: T = await trio.lowlevel.wait_task_rescheduled(abort)
    except Exception:
        # The call failed because it was interrupted: that failure is nobody's news.
        if cancelled:
            cancelled[0]()
        raise
    return result
