"""Runs the pieces of a command's work, some at a time."""

from collections.abc import Awaitable, Callable, Sequence

import trio

from aisfs.errors import AisfsError


async def each(jobs: int, works: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Run all works, `jobs` at a time; the first that fails cancels the others.

    Raises:
        AisfsError: what that one raised.
    """
    failed: list[AisfsError] = []
    left = iter(works)

    async def worker(scope: trio.CancelScope) -> None:
        for work in left:
            try:
                await work()
            except AisfsError as error:
                failed.append(error)
                scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in range(min(jobs, len(works))):
            nursery.start_soon(worker, nursery.cancel_scope)
    if failed:
        raise failed[0]
