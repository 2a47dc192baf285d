"""Where the published indexes of shards lie: beside them, or in a bucket of their own.

    beside       DIR/NAME.tar  ->  DIR/.aisfs-index/NAME.tar.idx
    on AIStore   ais://BUCKET/DIR/NAME.tar  ->  ais://aisfs-index/ais/BUCKET/DIR/NAME.tar.idx

Whatever reads a whole bucket finds what lies beside its shards. So there is one bucket for the indexes of all
others, in which a bucket is called as in a mount of all buckets: no two shards have one name there.
"""

from dataclasses import dataclass

from aisfs.core.namespace.keys import INDEX_DIRECTORY
from aisfs.model import Bucket, Provider

_SUFFIX = ".idx"


def published_key(key: str) -> str:
    """Return the key of the index that lies beside a shard."""
    directory, slash, name = key.rpartition("/")
    return f"{directory}{slash}{INDEX_DIRECTORY}/{name}{_SUFFIX}"


def shard_of_published(key: str) -> str | None:
    """Return the shard beside which an index of this key lies; None if it is no such key."""
    directory, _, name = key.rpartition("/")
    above, slash, own = directory.rpartition("/")
    shard = name.removesuffix(_SUFFIX)
    if own != INDEX_DIRECTORY or not shard or shard == name:
        return None
    return f"{above}{slash}{shard}"


@dataclass(frozen=True, slots=True)
class IndexPlace:
    """Where the indexes of the shards of one bucket lie."""

    bucket: Bucket
    """What has them."""
    root: str | None = None
    """What the keys of indexes begin with before the key of the shard; None for beside the shards."""
    renewable: bool = False
    """Whether the bucket of the shards may be made again while these indexes stay: its versions are numbers
    that begin anew then, and only with their times do they tell shards apart."""

    def key(self, shard: str) -> str:
        """Return the key of the index of a shard."""
        return published_key(shard) if self.root is None else f"{self.root}{shard}{_SUFFIX}"

    def directory(self, prefix: str) -> str:
        """Return the directory that has the indexes of the shards of a directory."""
        return f"{prefix}{INDEX_DIRECTORY}/" if self.root is None else f"{self.root}{prefix}"


def place_in(indexes: Bucket, bucket: Bucket) -> IndexPlace:
    """Return the place of a bucket's indexes in the bucket `indexes`."""
    root = f"{bucket.provider.scheme}/{bucket.name}{bucket.namespace}/"
    return IndexPlace(indexes, root, renewable=bucket.provider is Provider.AIS)
