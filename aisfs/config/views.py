"""Which shards are one dataset, and how their members are laid out."""

from enum import StrEnum

from pydantic import Field

from aisfs.config.values import AbsolutePath, Patterns, Settings, Size


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
    """Which samples are shown whose parts lie in several sources."""

    INNER = "inner"
    """Those that every source has."""
    OUTER = "outer"
    """All."""


class ViewSettings(Settings):
    """Which shards are shown as one dataset, and how their members are laid out."""

    view: View | None = None
    """None is `members`, and a plain bucket, prefix or directory is shown as it is."""
    key_rule: KeyRule = KeyRule.WDS
    require: str | None = None
    """Components a sample must have, with commas between; samples without are left out."""
    label: str = "cls"
    """Where the label of a sample comes from; webdataset's usual component."""
    image: str = "jpg;jpeg;png"
    """The component shown for each sample: the first of these that it has."""
    classes: AbsolutePath | None = None
    """A file of class names, one per line, the first for label 0."""
    files_from: str | None = None
    """A file of sources, one per line; `-` is standard input."""
    samples_per_shard: int | None = Field(default=None, ge=1)
    """Samples in one virtual shard; without this and `shard_size` it is 1000, or with `shuffle` as
    many as make as many shards as there are."""
    shard_size: Size | None = Field(default=None, ge=1)
    """Most bytes of one virtual shard, unless a single sample is larger."""
    shuffle: int | None = Field(default=None, ge=0)
    """The seed by which the samples of shards are shuffled into virtual ones."""
    join: Join | None = None
    """Each source has some parts of the samples; None: each has samples of its own."""
    lazy: bool = False
    """Return before the dataset is ready; then the first listing waits. Off, since a program that
    lists what was mounted would wait in silence."""
    strict: bool = False
    """Fail the mount if the view shows nothing. Off, since an empty dataset is no error of the mount."""
    member_include: Patterns | None = None
    """Only members are shown whose path in the shard matches one of these."""
    member_exclude: Patterns | None = None
    """No member is shown whose path in the shard matches one of these."""
    include: Patterns | None = None
    exclude: Patterns | None = None
