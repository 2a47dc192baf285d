"""The sources a user can mount, parsed from the command line."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from braceexpand import braceexpand

from aisfs.core.namespace.keys import is_shard_of_dataset
from aisfs.core.namespace.patterns import (
    ASIDE_BRACKETS,
    EVERY_KEY,
    KeyFilter,
    as_glob,
    is_glob,
    is_pattern,
    literal,
    marked,
)
from aisfs.core.namespace.urls import check_path, decoded, itself, place_end, split_url
from aisfs.errors import ConfigError
from aisfs.model import Bucket, Provider


@dataclass(frozen=True, slots=True)
class Everything:
    """Every bucket of the cluster, by provider."""

    def __str__(self) -> str:
        return "aisfs"


@dataclass(frozen=True, slots=True)
class BucketSource:
    """A bucket, or one directory of it."""

    bucket: Bucket
    prefix: str
    """Empty, or ends in `/`."""

    def __str__(self) -> str:
        return f"{self.bucket}/{self.prefix}" if self.prefix else str(self.bucket)


@dataclass(frozen=True, slots=True)
class DirectorySource:
    """A local directory that is mounted like a bucket."""

    path: Path
    named: str = ""
    """The one file of it that was typed; empty if the directory was."""

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class ShardPattern:
    """One place to look for shards: an argument after its braces were expanded."""

    bucket: Bucket | None
    """None for local files."""
    directory: str
    """Prefix, empty or ending in `/`; for local files a directory of this machine."""
    rest: str
    """After `directory`: the name of one shard, a glob, or nothing for all shards below."""
    exact: bool = False
    """Whether it is one name although it looks like a glob."""

    @property
    def one(self) -> bool:
        """Whether this names a single object."""
        return bool(self.rest) and (self.exact or not is_glob(self.rest))

    @property
    def listing(self) -> bool:
        """Whether that object is a list of shards, and not a shard."""
        return self.one and self.bucket is not None and self.rest.endswith(LIST_SUFFIX)

    def __str__(self) -> str:
        place = "" if self.bucket is None else f"{self.bucket}/"
        return place + self.directory + self.rest


@dataclass(frozen=True, slots=True)
class SourceArg:
    """One argument of the command line, or a whole list file, which must lead to some shard."""

    text: str
    patterns: tuple[ShardPattern, ...]
    lines: "tuple[SourceArg, ...]" = ()
    """What each line of a list file names."""


@dataclass(frozen=True, slots=True)
class DatasetSource:
    """Shards of any number of places that are shown together."""

    words: tuple[SourceArg, ...]
    keys: KeyFilter = EVERY_KEY
    root: str = ""
    """The directory whose local files are the objects of a bucket."""
    magic: bool = False
    """Whether files that are named one by one or by a glob are shards by their content."""

    @property
    def local(self) -> bool:
        """Whether the shards are local files; either all of them are, or none."""
        return bool(self.root) or self.words[0].patterns[0].bucket is None

    @property
    def buckets(self) -> list[Bucket]:
        """The buckets of the shards."""
        found = [p.bucket for word in self.words for p in word.patterns if p.bucket is not None]
        return list(dict.fromkeys(found))

    def separated(self) -> "DatasetSource":
        """Return the same with each line of a list file as a word."""
        words = (line for word in self.words for line in word.lines or (word,))
        return replace(self, words=tuple(words))

    def common_directory(self, resolve: Callable[[str], str]) -> str:
        """Return the common parent directory of all local shards, each after `resolve`."""
        return os.path.commonpath([resolve(p.directory) for w in self.words for p in w.patterns])

    def named_files(self, resolve: Callable[[str], str]) -> list[str]:
        """Return the paths of local files that were typed one by one, their directories after `resolve`."""
        patterns = (p for word in self.words for p in word.patterns if p.one)
        return [os.path.join(resolve(p.directory), p.rest) for p in patterns]

    def below(self, root: str, bucket: Bucket, resolve: Callable[[str], str]) -> "DatasetSource":
        """Return the same local shards as objects of `bucket`, which is the directory `root`."""
        words = []
        for word in self.words:
            patterns = []
            for pattern in word.patterns:
                path = os.path.relpath(resolve(pattern.directory), root)
                directory = "" if path == "." else f"{path}/"
                patterns.append(replace(pattern, bucket=bucket, directory=directory))
            words.append(SourceArg(word.text, tuple(patterns)))
        return DatasetSource(tuple(words), self.keys, root, self.magic)

    def __str__(self) -> str:
        return " ".join(word.text for word in self.words)


Source = Everything | BucketSource | DirectorySource | DatasetSource

NO_LISTS: Mapping[str, SourceArg] = MappingProxyType({})

LIST_SUFFIX = ".json"
"""Of a list of shards; see `aisfs.core.namespace.shard_lists`."""
_SEVERAL = re.compile(rf"::(?![^\[\]{ASIDE_BRACKETS}]*[\]{ASIDE_BRACKETS[1]}])")
"""Between sources in one word, as webdataset takes them; not in the address `[::1]` of a server."""
EXPANSIONS_MAX = 1_000_000
"""Most names that the braces of one argument may expand to; LAION-2B has 231,349 shards."""


def parse_source(text: str | None) -> Source:
    """Return the source that `ais://bucket[/prefix/]`, a directory or nothing stands for.

    Raises:
        ConfigError: the URL names no bucket, or what can be none.
    """
    if text is None:
        return Everything()
    if "://" not in text:
        return DirectorySource(Path(text))
    check_path(text)
    bucket, path = split_url(text)
    directory = decoded(bucket, path).strip("/")
    if directory and any(part in ("", ".", "..") for part in directory.split("/")):
        shown = "; a mount of what is above it shows them as aisfs-empty, aisfs-dot, aisfs-dotdot"
        how = shown if bucket.provider is Provider.S3 else ""
        raise ConfigError(f"{text}: a prefix has no empty part, `.` or `..`{how}")
    return BucketSource(bucket, f"{directory}/" if directory else "")


def _never(_text: str) -> bool:
    return False


def parse_sources(
    words: Sequence[str],
    *,
    is_directory: Callable[[str], bool],
    is_file: Callable[[str], bool] = _never,
    view: bool = False,
    listed: SourceArg | None = None,
    lists: Mapping[str, SourceArg] = NO_LISTS,
    keys: KeyFilter = EVERY_KEY,
    exists: Callable[[str], bool] = lambda _: False,
) -> Source:
    """Return what the arguments before the mountpoint stand for.

    Args:
        words: As typed.
        is_directory: Returns whether a local directory of this very name exists.
        is_file: Returns whether a local file of this very name exists, which then is a shard.
        view: Whether a view lays the members of shards out together.
        listed: The content of a list file, if there is one.
        lists: What the arguments stand for that name lists of shards themselves.
        keys: Which shards to leave out.
        exists: Returns whether a key or a local path of this very name exists; see `patterns.marked`.

    Raises:
        ConfigError: an argument is invalid, or the arguments cannot be combined.
    """
    texts = [text if text in lists else marked(text, exists) for text in words]
    plain = not words or (
        len(words) == 1
        and words[0] not in lists
        and (is_directory(words[0]) or not (is_file(words[0]) or _names_shards(texts[0])))
    )
    if plain and not view and listed is None:
        return parse_source(_plain(words[0], texts[0], is_directory) if words else None)
    if not words and listed is None:
        raise ConfigError("--view needs a SOURCE: a bucket, a directory, or shards")
    if listed is not None:
        found = [listed]
    else:
        pairs = zip(words, texts, strict=True)
        found = [
            lists.get(word) or _word(word, text, is_directory, is_file) for word, text in pairs
        ]
    source = DatasetSource(tuple(found), keys)
    kinds = {p.bucket is None for word in source.words for p in word.patterns}
    if len(kinds) > 1:
        raise ConfigError("one mount shows buckets or local files, not both")
    return source


def _plain(word: str, text: str, is_directory: Callable[[str], bool]) -> str:
    return word if is_directory(word) else literal(text)


def parse_list(
    name: str,
    lines: Iterable[str],
    base: str | None,
    *,
    is_directory: Callable[[str], bool],
    is_file: Callable[[str], bool] = _never,
    exists: Callable[[str], bool] = lambda _: False,
) -> SourceArg:
    """Read a list file, with one source a line; empty lines and those that start with `#` are ignored.

    Args:
        name: The name of the file as typed.
        lines: Its text.
        base: A bucket, prefix or directory that lines without a scheme or leading slash are
            relative to.
        is_directory: Returns whether a local directory of this very name exists.
        is_file: See `parse_sources`.
        exists: Returns whether a local path of this very name exists. Objects are not looked for, which would be
            a request for each line.

    Raises:
        ConfigError: a line is invalid, or there is none.
    """
    found: list[SourceArg] = []
    for number, line in enumerate(lines, start=1):
        text = line.strip("\r\n")
        if not text.strip() or text.startswith("#"):
            continue
        if base is not None and "://" not in text and not text.startswith("/"):
            text = f"{base.rstrip('/')}/{text}"
        try:
            found.append(_word(text, marked(text, exists), is_directory, is_file))
        except ConfigError as error:
            raise ConfigError(f"{name}, line {number}: {error}") from error
    if not found:
        raise ConfigError(f"{name} names no source")
    patterns = tuple(pattern for word in found for pattern in word.patterns)
    return SourceArg(f"--files-from {name}", patterns, tuple(found))


def absolute(source: Source) -> Source:
    """Return the source with absolute paths, since the daemon changes its working directory."""
    if isinstance(source, DirectorySource):
        return replace(source, path=source.path.absolute())
    if not isinstance(source, DatasetSource) or not source.local:
        return source
    words = tuple(
        SourceArg(word.text, tuple(_absolute(pattern) for pattern in word.patterns))
        for word in source.words
    )
    return replace(source, words=words)


def without_aistore(source: Source, azure_account: str = "") -> Source:
    """Return the source with each bucket of a cloud as that cloud serves it; see `urls.itself`.

    Raises:
        ConfigError: there is no such way to one of them.
    """
    if isinstance(source, BucketSource):
        return replace(source, bucket=itself(source.bucket, azure_account))
    if not isinstance(source, DatasetSource):
        return source

    def change(word: SourceArg) -> SourceArg:
        patterns = (pattern_without_aistore(p, azure_account) for p in word.patterns)
        return SourceArg(word.text, tuple(patterns), tuple(map(change, word.lines)))

    return replace(source, words=tuple(map(change, source.words)))


def pattern_without_aistore(pattern: ShardPattern, azure_account: str = "") -> ShardPattern:
    """Return the pattern with the bucket of a cloud as that cloud serves it; see `urls.itself`."""
    if pattern.bucket is None:
        return pattern
    return replace(pattern, bucket=itself(pattern.bucket, azure_account))


def _absolute(pattern: ShardPattern) -> ShardPattern:
    directory = os.path.abspath(pattern.directory or ".")
    return replace(pattern, directory=directory.rstrip("/") + "/")


def _names_shards(text: str) -> bool:
    """Return whether an argument cannot be a plain bucket, prefix or directory."""
    last = _several(text)[-1]
    return last != text or is_pattern(text) or _is_shard_key(text) or _is_list_key(text)


def _several(text: str) -> list[str]:
    """Return the sources in a word of several, such as `ais://b/x.tar::ais://b/y.tar`."""
    parts = _SEVERAL.split(text)
    alike = len({"://" in part for part in parts}) == 1  # else it is a chain of fsspec
    return parts if alike else [text]


def _is_shard_key(text: str) -> bool:
    return is_shard_of_dataset(os.fsencode(literal(text[place_end(text) :].rpartition("/")[2])))


def _is_list_key(text: str) -> bool:
    """Return whether this names a list of shards in a bucket."""
    return "://" in text and text[place_end(text) :].endswith(LIST_SUFFIX)


def _word(
    word: str, text: str, is_directory: Callable[[str], bool], is_file: Callable[[str], bool]
) -> SourceArg:
    """Return what an argument names; `text` is the same, `marked`."""
    if is_directory(word):
        return SourceArg(word, (ShardPattern(None, word.rstrip("/") + "/", ""),))
    if not is_file(word) and len(several := _several(text)) > 1:
        words = [_word(literal(part), part, is_directory, is_file) for part in several]
        return SourceArg(word, tuple(pattern for one in words for pattern in one.patterns))
    if "{" not in text:
        return SourceArg(word, (_pattern(text, is_directory, is_file),))
    try:
        names = list(islice(braceexpand(text), EXPANSIONS_MAX + 1))
    except ValueError as error:
        message = "the braces do not match; `\\{` and `\\}` stand for themselves"
        raise ConfigError(f"{word}: {message}") from error
    if len(names) > EXPANSIONS_MAX:
        raise ConfigError(f"{word} stands for more than {EXPANSIONS_MAX:,} names")
    return SourceArg(word, tuple(_pattern(name, is_directory, is_file) for name in names))


def _pattern(
    text: str, is_directory: Callable[[str], bool], is_file: Callable[[str], bool]
) -> ShardPattern:
    """Split a text without braces into the directory to look in and the name to look for."""
    if not text:
        raise ConfigError("a SOURCE cannot be empty")
    if is_file(literal(text)) and not is_glob(text):
        return pattern_of_shard(literal(text))
    return _split(text, len(text) if is_directory(literal(text)) else _cut(text))


def pattern_of_shard(text: str) -> ShardPattern:
    """Return where to look for one shard.

    Raises:
        ConfigError: the URL names no bucket, or what can be none.
    """
    check_path(text)
    text = marked(text, lambda _: True)
    return _split(text, max(place_end(text), text.rfind("/") + 1))


def _split(text: str, cut: int) -> ShardPattern:
    directory, one = literal(text[:cut]), not is_glob(text[cut:])
    rest = literal(text[cut:]) if one else as_glob(text[cut:])
    exact = one and is_glob(rest)
    if "://" not in text:
        return ShardPattern(None, directory if rest else directory.rstrip("/") + "/", rest, exact)
    place = parse_source(directory)
    assert isinstance(place, BucketSource), "what has a scheme is a bucket"
    return ShardPattern(place.bucket, place.prefix, decoded(place.bucket, rest), exact)


def _cut(text: str) -> int:
    """Return where the name of a shard, or the first component that is a glob, begins."""
    check_path(text)
    start = place_end(text)
    if "://" in text and is_glob(text[:start]):
        raise ConfigError(f"{text}: a bucket's name can have braces, but no pattern")
    for end in (i for i, c in enumerate(text) if c == "/" and i >= start):
        if is_glob(text[start:end]):
            return start
        start = end + 1
    last = text[start:]
    found = is_glob(last) or _is_shard_key(last) or _is_list_key(text)
    return start if found else len(text)
