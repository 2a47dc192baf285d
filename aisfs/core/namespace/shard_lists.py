"""Lists of shards as JSON, as wids writes and reads them: webdataset's library for random access.

    {"wids_version": 1, "shardlist": [{"url": "train-000.tar", "nsamples": 1000, "filesize": 30720000}]}

A URL that is relative is below `base` if the list has one, else below the directory of the list.
"""

import posixpath
from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec

from aisfs.core.namespace.sources import LIST_SUFFIX, ShardPattern, pattern_of_shard
from aisfs.core.namespace.urls import place_end
from aisfs.errors import ConfigError

LIST_MAX = 256 << 20
"""Most bytes of a list: a million shards with long URLs."""
_VERSION = 1
_KIND = "wids-shard-index-v1"


class ListedShard(msgspec.Struct, frozen=True, omit_defaults=True):
    """One shard of a list."""

    url: Annotated[str, msgspec.Meta(min_length=1)]
    nsamples: int | None = None
    """As wids counts: members in a row that have one key are a sample."""
    filesize: int | None = None


class _Part(msgspec.Struct):
    shardlist: list[ListedShard] = []
    base: str | None = None
    source_url: str | None = None


class _List(_Part):
    wids_version: int = _VERSION
    datasets: list[_Part] = []


def is_shard_list(name: str, data: bytes) -> bool:
    """Return whether a list file holds JSON, and not a source on each line.

    A line may begin with a brace, too, but does not go on like JSON.
    """
    if name.endswith(LIST_SUFFIX):
        return True
    try:
        return data.lstrip()[:1] == b"{" and bool(msgspec.json.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


def parse_shard_list(
    name: str, data: bytes, *, directory: str, base: str | None = None
) -> tuple[ShardPattern, ...]:
    """Return the shards of a list.

    Args:
        name: What messages call the list.
        data: Its content.
        directory: Where the list lies: a bucket or prefix, or a local directory.
        base: What its relative URLs are below, whatever the list says.

    Raises:
        ConfigError: it is no such list, or names what cannot be mounted.
    """
    try:
        found = msgspec.json.decode(data, type=_List)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name} is no list of shards as wids writes it: {error}") from None
    if found.wids_version != _VERSION:
        raise ConfigError(f"{name}: only version {_VERSION} of wids' lists is understood")
    patterns = tuple(_patterns(name, found, directory, base))
    if not patterns:
        raise ConfigError(f"{name} names no shard")
    return patterns


def _patterns(name: str, found: _List, directory: str, base: str | None) -> Iterator[ShardPattern]:
    for part in (found, *found.datasets):
        if part.source_url is not None:
            raise ConfigError(f"{name} leads to another list: give {part.source_url} itself")
        place = base if base is not None else _joined(directory, part.base or "")
        for number, shard in enumerate(part.shardlist, start=1):
            try:
                yield pattern_of_shard(_joined(place, shard.url))
            except ConfigError as error:
                raise ConfigError(f"{name}, shard {number}: {error}") from error


def _joined(place: str, url: str) -> str:
    """Return where a URL leads that may be relative to `place`, a directory."""
    if url.startswith("file:///") or not place_end(place):
        url = url.removeprefix("file://")
    if "://" in url or url.startswith("/"):
        return url
    end = place_end(place)
    if not end:
        return posixpath.normpath(posixpath.join(place, url))
    head = place[:end].removesuffix("/")
    return head + posixpath.normpath(posixpath.join("/" + place[end:].strip("/"), url))


def encode_shard_list(shards: Iterable[ListedShard]) -> bytes:
    """Return a list as JSON; the same shards give the same bytes."""
    found = {"__kind__": _KIND, "wids_version": _VERSION, "shardlist": list(shards)}
    return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"
