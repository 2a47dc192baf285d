"""A cluster whose jobs are to be started or watched."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from aisfs.settings import ClusterSettings
from aisfs.stores.ais.client import AISClient
from aisfs.stores.ais.jobs import Jobs
from aisfs.stores.pipeline import CallPipeline
from aisfs.stores.port import ObjectStore


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster: its jobs, and its objects."""

    jobs: Jobs
    store: ObjectStore


@asynccontextmanager
async def open_cluster(endpoint: str | None) -> AsyncIterator[Cluster]:
    """Connect to the cluster of an option or the environment; nothing is asked yet.

    Raises:
        NoEndpoint: neither names one.
    """
    settings = ClusterSettings.load({"endpoint": endpoint})
    client = AISClient(settings)
    try:
        store = CallPipeline(client, deadline=settings.io_timeout)
        yield Cluster(Jobs(client, deadline=settings.io_timeout), store)
    finally:
        with trio.CancelScope(shield=True):
            await client.aclose()
