"""Opens many shards: some at a time, with a word in the log how far it is."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

from aisfs.errors import AisfsError

log = logging.getLogger(__name__)

T = TypeVar("T")

AT_ONCE = 4
"""Shards opened at once; each keeps several requests busy."""
PROGRESS_SECONDS = 10.0
"""Between lines of the log while shards are opened."""


async def open_each(shards: Sequence[T], open_one: Callable[[T], Awaitable[None]]) -> None:
    """Open shards with `open_one`, `AT_ONCE` at a time.

    Raises:
        AisfsError: the first that `open_one` raised. No shard was begun after it; those under way
            were opened.
    """
    if not shards:
        return
    errors: list[AisfsError] = []
    opened = 0
    limiter = trio.CapacityLimiter(AT_ONCE)

    async def open_next(shard: T) -> None:
        nonlocal opened
        async with limiter:
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
            for shard in shards:
                openers.start_soon(open_next, shard)
        nursery.cancel_scope.cancel()
    if errors:
        raise errors[0]
    log.info("opened %d shards", opened)
