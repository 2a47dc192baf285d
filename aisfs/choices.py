"""The words that options take, and what each means. Neither `--help` nor completion waits for the settings with them."""

from enum import StrEnum


class Shards(StrEnum):
    """How a tar shard shows up in its directory."""

    FILE = "file"
    """`X.tar` is listed; `X.tar.d/` is found by name."""
    DIR = "dir"
    """`X.tar/` is listed as a directory; its bytes are found at `X.tar.raw`."""
    BOTH = "both"
    """`X.tar` and `X.tar.d/` are both listed."""


class Scan(StrEnum):
    """How a plain tar without an index is read to find its members."""

    AUTO = "auto"
    """As `stream` if the data fits the disk cache, else as `headers`."""
    HEADERS = "headers"
    """Skip data where a request costs less than the data."""
    STREAM = "stream"
    """Fetch all of it, into the cache."""


class ShardIndex(StrEnum):
    """When AIStore's own index of a shard is used instead of a scan."""

    AUTO = "auto"
    """In views that are not about times and modes, which it does not know: `class` and `flat`."""
    ALWAYS = "always"
    NEVER = "never"


class View(StrEnum):
    """How the members of a dataset are laid out."""

    MEMBERS = "members"
    """`<shard>/<member>`."""
    SAMPLES = "samples"
    """`<shard>/<key>/<member>`."""
    CLASS = "class"
    """`<label>/<key>.<ext>`, one file for each sample."""
    FLAT = "flat"
    """`<member>`, of all shards."""
    SHARDS = "shards"
    """`shard-000000.tar`, made of objects that are no shards."""


class KeyRule(StrEnum):
    """Which part of a member's name is the key of its sample, and which its extension."""

    WDS = "wds"
    """The path up to the first dot of its last component; as webdataset, Energon, Hugging Face."""
    LAST_DOT = "last-dot"
    """The path up to the last dot; as AIStore's `archmode=wdskey` and ishard."""
    BASENAME = "basename"
    """The last component up to its first dot, and what follows its last dot; as AISShardReader."""


class Join(StrEnum):
    """Which samples a mount of several sources shows, if each has some of their parts."""

    INNER = "inner"
    """Those that every source has."""
    OUTER = "outer"
    """All."""


class LogLevel(StrEnum):
    """The lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """What a line of the log looks like."""

    TEXT = "text"
    JSON = "json"
