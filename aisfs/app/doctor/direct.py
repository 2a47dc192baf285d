"""A store that is reached without AIStore: how, as whom, and whether the source is there."""

from collections.abc import AsyncIterator

from aisfs.app.doctor.check import Check, note, ok, wrong
from aisfs.core.names.sources import Source
from aisfs.errors import AccessDenied, AisfsError, ConfigError, NotFound, Unavailable
from aisfs.mount.source import open_source
from aisfs.settings import ClusterSettings, fields

_CLOUDS = {"s3": "S3", "gs": "Google Cloud Storage", "az": "Azure Blob Storage"}
_NAMES = {**_CLOUDS, "web": "web server", "hf": "Hugging Face"}


async def direct_checks(
    settings: ClusterSettings, source: Source, store: str
) -> AsyncIterator[Check]:
    """Check the way to a store, as far as the first obstacle.

    Args:
        settings: How to reach it.
        source: What is to be read, as it is served.
        store: Which one; see `Bucket.store`.
    """
    name = _NAMES.get(store, f"{store}:// by fsspec")
    endpoint = fields.endpoint_of(store)
    yield ok("store", f"{name}{f' at {endpoint}' if endpoint else ''}, without AIStore in between")
    if store in _CLOUDS:
        yield _credentials(settings, store)
    try:
        async with open_source(source, settings):
            yield ok("source", f"{source} can be listed")
    except AccessDenied as error:
        cure = "set other credentials, or give --anonymous if everybody may read it"
        yield wrong("source", str(error), cure)
    except NotFound as error:
        yield wrong("source", str(error), "look at the name, the region and the account")
    except Unavailable as error:
        yield wrong("source", str(error), "is the network up, and is the endpoint right?")
    except ConfigError as error:
        yield wrong("source", str(error), "mend this, and run aisfs doctor again")
    except AisfsError as error:
        yield wrong("source", str(error), "give a SOURCE as aisfs mount takes it")


def _credentials(settings: ClusterSettings, store: str) -> Check:
    """Say where credentials come from; never what they are."""
    if settings.anonymous:
        return ok("credentials", "none, with --anonymous")
    found = fields.credentials_of(store)
    if found:
        return ok("credentials", found)
    cure = "give --anonymous for what everybody may read, or set them as the cloud's tools want it"
    return note("credentials", "none are set: those of this machine, if it has a role", cure)
