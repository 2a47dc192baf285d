"""Opens many shards: some at a time, with a word in the log how far it is."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

from aisfs.errors import AisfsError

log = logging.getLogger(__name__)

T = TypeVar("T")

PROGRESS_SECONDS = 10.0
"""Between lines of the log while shards are opened."""


async def open_each(
    shards: Sequence[T], open_one: Callable[[T], Awaitable[None]], at_once: int
) -> None:
    """Open shards with `open_one`, so many at a time.

    Raises:
        AisfsError: the first that `open_one` raised. No shard was begun after it; those under way
            were opened.
    """
    if not shards:
        return
    errors: list[AisfsError] = []
    opened = 0
    waiting = iter(shards)

    async def work() -> None:
        nonlocal opened
        for shard in waiting:  # shared: a task for each shard would take more memory than its index
            if errors:
                return
            try:
                await open_one(shard)
                opened += 1
            except AisfsError as error:
                errors.append(error)

    async def tell() -> None:
        while True:
            await trio.sleep(PROGRESS_SECONDS)
            log.info("opened %d of %d shards", opened, len(shards))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell)
        async with trio.open_nursery() as openers:
            for _ in range(min(at_once, len(shards))):
                openers.start_soon(work)
        nursery.cancel_scope.cancel()
    if errors:
        raise errors[0]
    log.info("opened %d shards", opened)
