"""The values of `--view` and its options."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from aisfs.config import KeyRule, View, ViewSettings
from aisfs.core.namespace.keys import refusal
from aisfs.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Component:
    """A part of each sample: the member with the first of these extensions."""

    extensions: tuple[bytes, ...]
    """In lower case, without the dot."""

    def rank(self, extension: bytes) -> int | None:
        """Return the rank of an extension, 0 for the preferred one; None when it does not match."""
        lowered = extension.lower()
        return self.extensions.index(lowered) if lowered in self.extensions else None

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
    label: LabelRule = LabelRule(LabelSource.CONTENT, "cls")
    classes: tuple[bytes, ...] | None = None
    """Names of the labels 0, 1, …"""
    split: ShardSplit = ShardSplit()
    """Of virtual shards."""
    shuffle: int | None = None
    """The seed of the order of samples in virtual shards made of shards; None if they are made of
    loose objects."""

    @property
    def merged(self) -> bool:
        """Whether the members of all shards are in the same directories."""
        return self.view in (View.CLASS, View.FLAT)


_MEANS_SOMETHING_IN = {
    "key_rule": (View.SAMPLES, View.CLASS, View.FLAT, View.SHARDS),
    "require": (View.SAMPLES, View.CLASS, View.FLAT, View.SHARDS),
    "label": (View.CLASS,),
    "image": (View.CLASS,),
    "classes": (View.CLASS,),
    "samples_per_shard": (View.SHARDS,),
    "shard_size": (View.SHARDS,),
    "shuffle": (View.SHARDS,),
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
        if name in settings.model_fields_set and view not in views:
            needed = " or ".join(f"--view {v}" for v in views)
            raise ConfigError(f"--{name.replace('_', '-')} needs {needed}")
    require = settings.require
    return ViewSpec(
        view,
        settings.key_rule,
        tuple(_component("--require", text) for text in require.split(","))
        if require is not None
        else (),
        _component("--image", settings.image),
        _label(settings.label),
        _classes(class_names) if class_names is not None else None,
        _split(settings),
        settings.shuffle,
    )


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
    if samples is None and size is None and settings.shuffle is None:
        samples = SAMPLES_PER_SHARD
    return ShardSplit(samples, size)


def _component(option: str, text: str) -> Component:
    extensions = tuple(part.strip().lstrip(".").lower() for part in text.split(";"))
    if not all(extensions) or any("/" in part for part in extensions):
        raise ConfigError(f"{option} {text!r}: expected extensions, such as jpg or 'jpg;png'")
    return Component(tuple(part.encode(errors="surrogateescape") for part in extensions))


def _label(text: str) -> LabelRule:
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


def _classes(lines: Sequence[bytes]) -> tuple[bytes, ...]:
    names = tuple(line.strip() for line in lines)
    while names and not names[-1]:
        names = names[:-1]
    for number, name in enumerate(names, start=1):
        if b"/" in name or refusal(name):
            raise ConfigError(f"--classes, line {number}: {name!r} cannot be a directory's name")
    if not names or len(set(names)) < len(names):
        raise ConfigError("--classes: expected different names, one a line")
    return names
