"""Several requests at once, of which all have to succeed."""

from collections.abc import Awaitable, Callable, Iterable

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
