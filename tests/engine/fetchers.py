"""A fetcher as a mount has it, over any store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from aisfs.engine.disk import background_thread
from aisfs.engine.fetcher import Fetcher

MIB = 1 << 20


@asynccontextmanager
async def fetcher_of(
    store: Any, *, cache: Any = None, memory_limit: int = 64 * MIB, read_ahead_max: int = 8 * MIB
) -> AsyncIterator[tuple[Fetcher, trio.Nursery]]:
    """Yield the fetcher, and the nursery of the services, which end with the block."""
    async with background_thread() as background, trio.open_nursery() as services:
        yield (
            Fetcher(
                store,
                services,
                background,
                cache=cache,
                origin="test",
                memory_limit=memory_limit,
                read_ahead_max=read_ahead_max,
            ),
            services,
        )
        services.cancel_scope.cancel()
