"""`aisfs mb`: new buckets."""

from collections.abc import Mapping, Sequence

from aisfs.core.names.listing import check_new_bucket
from aisfs.core.names.sources import BucketSource, Everything, parse_source
from aisfs.errors import AlreadyExists, ConfigError, InvalidName, Unsupported
from aisfs.model import Bucket
from aisfs.mount.plan import load_cluster
from aisfs.mount.source import open_source


async def make_buckets(
    texts: Sequence[str], settings: Mapping[str, object], *, may_exist: bool
) -> list[str]:
    """Make buckets; return those of them that were not there.

    Args:
        texts: As typed.
        settings: The options that were given, by name of the setting.
        may_exist: Accept those that are there.

    Raises:
        ConfigError: AIStore makes no bucket of such a name; then none is made.
        AlreadyExists: one is there; those before it are made.
    """
    buckets = [_parse(text) for text in texts]
    made = []
    cluster = load_cluster(Everything(), settings)
    async with open_source(Everything(), cluster, may_be_unlistable=True) as opened:
        for bucket in buckets:
            try:
                await opened.store.create_bucket(bucket)
                made.append(str(bucket))
            except AlreadyExists as error:
                if not may_exist:
                    raise AlreadyExists(f"{bucket} exists; --exist-ok accepts that") from error
    return made


def _parse(text: str) -> Bucket:
    source = parse_source(text)
    if not isinstance(source, BucketSource):
        raise ConfigError(f"{text}: write a bucket as ais://NAME")
    if source.prefix:
        raise ConfigError(f"{text}: a bucket's name has no `/`; directories need not be made")
    try:
        check_new_bucket(source.bucket)
    except (InvalidName, Unsupported) as error:
        raise ConfigError(str(error)) from error
    return source.bucket
