"""What the SOURCEs of `aisfs ls` stand for."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aisfs.core.names.sources import (
    BucketSource,
    DatasetSource,
    DirectorySource,
    Everything,
    ShardPattern,
    Source,
    parse_sources,
)
from aisfs.errors import ConfigError, SourceMissing
from aisfs.model import SERVED, Provider
from aisfs.mount.plan import existing, may_be_directory, read_lists, read_shards


@dataclass(frozen=True, slots=True)
class Place:
    """Where to look for one SOURCE."""

    text: str
    """As it was typed; empty where none was."""
    source: Source
    """What has to exist: a whole bucket, or a local directory."""
    prefix: str = ""
    """The directory, or the object, of that bucket; empty, or ends in `/`."""
    provider: Provider | None = None
    """Whose buckets are meant, where all of them are."""


def find_listed(words: Sequence[str], files_from: str) -> Place:
    """Return what a list file stands for; the one word, if there is one, is the directory of its lines.

    Raises:
        ConfigError: it cannot be read, or makes no sense.
    """
    return Place("", read_shards(words, {"files_from": files_from}))


def find_place(text: str | None, settings: Mapping[str, object], *, lists: bool = True) -> Place:
    """Return what one argument stands for; without one, all buckets.

    Args:
        text: As typed.
        settings: The options that were given, by name of the setting.
        lists: Whether a list of shards stands for these, and not for itself.

    Raises:
        ConfigError: it makes no sense.
        SourceMissing: there is no such local file or directory.
    """
    if text is None:
        return Place("", Everything())
    scheme, separator, rest = text.partition("://")
    if separator and not rest:
        return Place(text, Everything(), provider=_provider(text, scheme))
    listed = read_lists([text]) if lists else {}
    exists = existing(settings)
    source = parse_sources([text], is_directory=os.path.isdir, lists=listed, exists=exists)
    if isinstance(source, DatasetSource) and not listed:
        first, *more = source.words[0].patterns
        is_list = lists and first.bucket is not None and first.listing
        is_one = first.one and not more and not is_list
        if is_one and may_be_directory(text, first):
            return _one(text, first)
    match source:
        case DirectorySource(path):
            return _local(text, path)
        case BucketSource(bucket, prefix):
            return Place(text, BucketSource(bucket, ""), prefix)
    return Place(text, source)


def _one(text: str, pattern: ShardPattern) -> Place:
    """Return the place of one key, which may also be a directory."""
    path = pattern.directory + pattern.rest
    if pattern.bucket is None:
        return _local(text, Path(path))
    return Place(text, BucketSource(pattern.bucket, ""), f"{path}/")


def _provider(text: str, scheme: str) -> Provider:
    known = ", ".join(f"{provider.scheme}://" for provider in SERVED)
    try:
        provider = Provider.parse(scheme)
    except ValueError:
        raise ConfigError(f"{text}: unknown provider {scheme!r}; use one of {known}") from None
    if provider.is_direct:
        raise ConfigError(f"{text}: only AIStore lists its buckets ({known}); name one")
    return provider


def _local(text: str, path: Path) -> Place:
    if path.is_dir():
        return Place(text, DirectorySource(path))
    if not path.exists():
        raise SourceMissing(f"{path}: no such file or directory")
    return Place(text, DirectorySource(path.parent, path.name), f"{path.name}/")
