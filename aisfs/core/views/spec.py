"""The values of `--view` and its options: which members a view shows, and where labels come from."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from aisfs.core.names.listing import refusal
from aisfs.core.names.sources import EVERY_KEY, KeyFilter
from aisfs.errors import ConfigError
from aisfs.settings import Join, KeyRule, View, ViewSettings


@dataclass(frozen=True, slots=True)
class Component:
    """A part of each sample: the member with the first of these extensions (`component_finder`)."""

    extensions: tuple[bytes, ...]
    """In lower case, without the dot."""

    def rank(self, extension: bytes) -> int | None:
        """Return the rank of an extension, 0 for the preferred one; None when it does not match."""
        lowered = extension.lower()
        return self.extensions.index(lowered) if lowered in self.extensions else None

    def loose_rank(self, extension: bytes) -> int | None:
        """Return `rank`; for an extension that only ends like one of these, one behind all ranks."""
        exact = self.rank(extension)
        if exact is not None:
            return exact
        lowered, least = extension.lower(), len(self.extensions)
        ends = (least + at for at, e in enumerate(self.extensions) if lowered.endswith(b"." + e))
        return next(ends, None)

    def __str__(self) -> str:
        return b";".join(self.extensions).decode(errors="surrogateescape")


class LabelSource(Enum):
    """Where labels come from."""

    CONTENT = auto()
    """The text of a component."""
    JSON = auto()
    """A value in the component `json`."""
    DIRECTORY = auto()
    """The first directory of the key."""
    PATTERN = auto()
    """A regular expression on the key."""
    TABLE = auto()
    """A table of keys and labels."""


_LABEL_PREFIX = {
    LabelSource.CONTENT: "",
    LabelSource.JSON: "json:",
    LabelSource.DIRECTORY: "dir",
    LabelSource.PATTERN: "re:",
    LabelSource.TABLE: "csv:",
}


@dataclass(frozen=True, slots=True)
class LabelRule:
    """How to find the label of a sample."""

    source: LabelSource
    text: str = ""
    """The extension, the path in the JSON, the expression, or the location of the table."""

    @property
    def component(self) -> Component | None:
        """The component whose content has the label; None when labels come from elsewhere."""
        if self.source is LabelSource.CONTENT:
            return Component((self.text.encode(),))
        return Component((b"json",)) if self.source is LabelSource.JSON else None

    def __str__(self) -> str:
        """Return the rule as `--label` takes it."""
        return _LABEL_PREFIX[self.source] + self.text


PICTURES = Component(
    tuple(b"jpg jpeg jpe png webp gif bmp tif tiff ppm pgm jp2 avif heic jxl dng exr".split())
)
"""Parts that are pictures."""
ALL_PICTURES = "all"
"""What `--image` says for all pictures of a sample."""

SAMPLES_PER_SHARD = 1000


@dataclass(frozen=True, slots=True)
class ShardSplit:
    """How samples are divided into virtual shards.

    Without either limit there are as many as shards to shuffle, with equal numbers of samples.
    """

    samples: int | None = SAMPLES_PER_SHARD
    """Samples in each shard but the last."""
    size: int | None = None
    """Most bytes of a shard, unless a single sample is larger."""


@dataclass(frozen=True, slots=True)
class ViewSpec:
    """One layout of a dataset."""

    view: View = View.MEMBERS
    rule: KeyRule = KeyRule.WDS
    require: tuple[Component, ...] = ()
    image: Component = Component((b"jpg", b"jpeg", b"png"))
    all_images: bool = False
    """Whether each part that is one of `image` or ends like it is shown, and not just one."""
    label: LabelRule = LabelRule(LabelSource.CONTENT, "cls")
    label_is_default: bool = False
    """Whether nobody said where labels come from: if no sample has one there, directories are the labels."""
    classes: tuple[bytes, ...] | None = None
    """Names of the labels 0, 1, …; None for those that are stored beside the shards, if any are."""
    split: ShardSplit = ShardSplit()
    """Of virtual shards."""
    shuffle: int | None = None
    """The seed of the order of samples in virtual shards made of shards; None if they are made of
    loose objects."""
    join: Join | None = None
    """Which samples are shown whose parts lie in several sources; None if each source has its own."""
    members: KeyFilter = EVERY_KEY
    """Which members are shown, by their path in the shard."""

    @property
    def wanted(self) -> Callable[[bytes], bool] | None:
        """The test for names of members that are shown; None if all are."""
        return (lambda name: self.members.wants(os.fsdecode(name))) if self.members else None

    @property
    def merged(self) -> bool:
        """Whether the members of several shards are in the same directories."""
        joined = self.view is View.SAMPLES and self.join is not None
        return self.view in (View.CLASS, View.FLAT) or joined

    @property
    def reshaped(self) -> bool:
        """Whether virtual shards are made of the samples of shards, not of loose objects."""
        return self.view is View.SHARDS and (self.shuffle is not None or self.join is not None)


_MEANS_SOMETHING_IN = {
    "key_rule": (View.SAMPLES, View.CLASS, View.FLAT, View.SHARDS),
    "require": (View.SAMPLES, View.CLASS, View.FLAT, View.SHARDS),
    "label": (View.CLASS,),
    "image": (View.CLASS,),
    "classes": (View.CLASS,),
    "samples_per_shard": (View.SHARDS,),
    "shard_size": (View.SHARDS,),
    "shuffle": (View.SHARDS,),
    "join": (View.SAMPLES, View.CLASS, View.FLAT, View.SHARDS),
}


def parse_view(settings: ViewSettings, class_names: Sequence[bytes] | None = None) -> ViewSpec:
    """Return the options of a view.

    Args:
        settings: As typed.
        class_names: The lines of `--classes`, if it was given.

    Raises:
        ConfigError: a value is invalid, or an option has no effect in this view.
    """
    view = settings.view or View.MEMBERS
    for name, views in _MEANS_SOMETHING_IN.items():
        if name in settings.typed and view not in views:
            needed = " or ".join(f"--view {v}" for v in views)
            raise ConfigError(f"--{name.replace('_', '-')} needs {needed}")
    require, all_images = settings.require, settings.image.strip().lower() == ALL_PICTURES
    spec = ViewSpec(
        view,
        settings.key_rule,
        tuple(_component("--require", text) for text in require.split(","))
        if require is not None
        else (),
        PICTURES if all_images else _component("--image", settings.image),
        all_images,
        parse_label(settings.label),
        "label" not in settings.typed,
        parse_classes(class_names, "--classes") if class_names is not None else None,
        _split(settings),
        settings.shuffle,
        settings.join,
        KeyFilter(settings.member_include or (), settings.member_exclude or ()),
    )
    _check_start(settings, spec)
    return spec


def _check_start(settings: ViewSettings, spec: ViewSpec) -> None:
    if spec.members and spec.view is View.SHARDS and not spec.reshaped:
        raise ConfigError(
            "--member-include and --member-exclude: loose objects are chosen with --include and --exclude"
        )
    for name in ("lazy", "strict"):
        if name in settings.typed and not spec.merged:
            raise ConfigError(f"--{name} needs --view class, --view flat, or samples with --join")
    if {"lazy", "strict"} <= settings.typed and settings.lazy and settings.strict:
        raise ConfigError("--strict: not with --lazy, which returns before anything is known")


def is_path(table: str) -> bool:
    """Return whether the place of a table is always a local file, even if a bucket is mounted."""
    return table.startswith(("/", "./", "../"))


def absolute_table(spec: ViewSpec, *, local: bool) -> ViewSpec:
    """Return the view with an absolute path of labels, since the daemon changes its directory.

    If the shards are `local` files, any name is that of a file.
    """
    label = spec.label
    if label.source is not LabelSource.TABLE or "://" in label.text:
        return spec
    if not local and not is_path(label.text):
        return spec
    return replace(spec, label=replace(label, text=os.path.abspath(label.text)))


def _split(settings: ViewSettings) -> ShardSplit:
    samples, size = settings.samples_per_shard, settings.shard_size
    if samples is not None and size is not None:
        raise ConfigError("--samples-per-shard and --shard-size: give one of them")
    of_shards = settings.shuffle is not None or settings.join is not None
    if samples is None and size is None and not of_shards:
        samples = SAMPLES_PER_SHARD
    return ShardSplit(samples, size)


def _component(option: str, text: str) -> Component:
    extensions = tuple(part.strip().lstrip(".").lower() for part in text.split(";"))
    if not all(extensions) or any("/" in part for part in extensions):
        raise ConfigError(f"{option} {text!r}: expected extensions, such as jpg or 'jpg;png'")
    return Component(tuple(part.encode(errors="surrogateescape") for part in extensions))


def parse_label(text: str) -> LabelRule:
    """Return what `--label` asks for.

    Raises:
        ConfigError: it makes no sense.
    """
    kind, colon, rest = text.partition(":")
    if kind == "json" and rest:
        return LabelRule(LabelSource.JSON, rest)
    if kind == "csv" and rest:
        return LabelRule(LabelSource.TABLE, rest)
    if kind == "re" and rest:
        try:
            re.compile(rest)
        except re.error as error:
            raise ConfigError(f"--label {text}: {error}") from error
        return LabelRule(LabelSource.PATTERN, rest)
    if text == "dir":
        return LabelRule(LabelSource.DIRECTORY)
    if colon or not text or "/" in text or kind == "json":
        raise ConfigError(
            f"--label {text!r}: expected cls, txt or another extension, json:PATH, dir, re:REGEX or"
            " csv:OBJECT"
        )
    return LabelRule(LabelSource.CONTENT, text.lstrip(".").lower())


def parse_classes(lines: Sequence[bytes], place: str) -> tuple[bytes, ...]:
    """Return the names of the labels 0, 1, … that a file has.

    Raises:
        ConfigError: these lines are no different names; the message begins with `place`.
    """
    names = tuple(line.strip() for line in lines)
    while names and not names[-1]:
        names = names[:-1]
    for number, name in enumerate(names, start=1):
        if b"/" in name or refusal(name):
            raise ConfigError(f"{place}, line {number}: {name!r} cannot be a directory's name")
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"{place}: expected different names, one a line")
    return names
