"""Which shards are one dataset, and how their members are laid out."""

from pydantic import Field

from aisfs.choices import Join, KeyRule, View
from aisfs.config.values import AbsolutePath, Patterns, Settings, Size


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
