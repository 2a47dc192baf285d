"""Several requests, or pieces of a command's work, at once; all have to succeed."""

from collections.abc import Awaitable, Callable, Iterable, Sequence

import trio

from aisfs.errors import AisfsError

_AT_ONCE = 8
"""Enough to keep several disks of a target busy; a small cluster answers as many without delaying others."""


async def all_of(jobs: Iterable[Callable[[], Awaitable[None]]], at_once: int = _AT_ONCE) -> None:
    """Run jobs, some at once; the first error ends the others and is raised alone, not in a group."""
    limiter = trio.CapacityLimiter(at_once)
    failed: list[AisfsError] = []

    async def run(job: Callable[[], Awaitable[None]]) -> None:
        async with limiter:
            try:
                await job()
            except AisfsError as error:
                failed.append(error)
                nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for job in jobs:
            nursery.start_soon(run, job)
    if failed:
        raise failed[0]


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
