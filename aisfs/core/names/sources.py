"""The sources that a user can mount, as typed on the command line, in a list file, or in a JSON list.

Globs over keys have wcmatch's syntax: `*` and `?` stop at a slash, `**` does not, `[...]` and `{a,b}` are as in shells. `{000..}`
stands for the numbers from 0 on with at least three digits, as `aisfs pack` counts. A pattern also says which directories need
no listing.

JSON lists of shards are those of wids, webdataset's library for random access:

    {"wids_version": 1, "shardlist": [{"url": "train-000.tar", "nsamples": 1000, "filesize": 30720000}]}

A URL that is relative is below `base` if the list has one, else below the directory of the list.
"""

import math
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import ascii_letters
from types import MappingProxyType
from typing import Annotated

import msgspec
from braceexpand import braceexpand

from aisfs.core.names.listing import is_shard_of_dataset
from aisfs.core.names.urls import check_path, decoded, itself, place_end, split_url
from aisfs.errors import ConfigError
from aisfs.model import Bucket, Provider

_OPEN_RANGE = re.compile(r"\{([0-9]+)\.\.\}")
_MAGIC = re.compile(r"[*?\[]|" + _OPEN_RANGE.pattern)
_MARKED_RANGE = re.compile("\0([0-9]+)\0")
"""An open range while wcmatch, which does not know them, translates a pattern; no key has such a character."""
_Compiled = tuple[re.Pattern[str], ...]


SPECIAL = "{}[]*?,\\"
"""Characters with a meaning in patterns. A backslash before one of them makes it stand for itself."""
_QUOTED = re.compile(r"\\([{}\[\]*?,\\]?)")
_ASIDE = 0xD800
"""What is added to a character that stands for itself: no argument has these code points, so nothing takes it for
part of a pattern until `literal` brings it back."""
_TO_ASIDE = {ord(c): chr(_ASIDE + ord(c)) for c in SPECIAL}
ASIDE_BRACKETS = "[]".translate(_TO_ASIDE)
_FROM_ASIDE = {_ASIDE + ord(c): c for c in SPECIAL}
_ADDRESS = re.compile(r"(?<=://)(?:[^/@\[\]]*@)?\[[0-9A-Fa-f:.]+\]")
"""The host of a URL as an IPv6 address: its brackets are part of it."""
_FROM_ASIDE_TO_GLOB = {_ASIDE + ord(c): f"\\{c}" for c in SPECIAL}


def marked(text: str, exists: Callable[[str], bool]) -> str:
    """Return an argument with the characters set aside that stand for themselves; see `literal`.

    These are the quoted ones, and those of each directory, and at last of the name, that exists as it is written.

    Args:
        text: As typed: a pattern over paths, or over what follows a bucket.
        exists: Returns whether there is a file, an object, or if it ends in a slash a directory, of this name.
    """
    text = _aside_address(text)
    start = place_end(text)
    if not any(c in text for c in SPECIAL):
        return text
    if any(c in text[:start] for c in SPECIAL):
        return _unquoted(text)
    while start < len(text):
        end = text.find("/", start) + 1 or len(text)
        if any(c in text[start:end] for c in SPECIAL) and not exists(text[:end]):
            break
        start = end
    return text[:start].translate(_TO_ASIDE) + _unquoted(text[start:])


def _aside_address(text: str) -> str:
    return _ADDRESS.sub(lambda found: found[0].translate(_TO_ASIDE), text)


def _unquoted(text: str) -> str:
    """Return a text with quoted characters set aside, and without their backslashes."""
    return _QUOTED.sub(lambda found: (found[1] or "\\").translate(_TO_ASIDE), text)


def literal(text: str) -> str:
    """Return a text that names one thing, with all characters that were set aside."""
    return text.translate(_FROM_ASIDE)


def as_glob(text: str) -> str:
    """Return a glob in which what was set aside is quoted."""
    return text.translate(_FROM_ASIDE_TO_GLOB)


def is_glob(text: str) -> bool:
    """Return whether a text has characters with a meaning in globs."""
    return _MAGIC.search(text) is not None


def is_pattern(text: str) -> bool:
    """Return whether a text may stand for several names: by braces, or as a glob."""
    return "{" in text or is_glob(_aside_address(text))


def _compile(patterns: Sequence[str]) -> _Compiled:
    if not patterns:
        return ()
    from wcmatch import glob  # most mounts need none

    flags = glob.GLOBSTAR | glob.DOTGLOB | glob.BRACE | glob.FORCEUNIX
    marked = [_OPEN_RANGE.sub("\0\\1\0", pattern) for pattern in patterns]
    wanted, _ = glob.translate(marked, flags=flags)
    return tuple(re.compile(_MARKED_RANGE.sub(lambda m: _at_least(m[1]), text)) for text in wanted)


def _at_least(first: str) -> str:
    """Return the expression for numbers from `first` on, with leading zeros up to its length."""
    width = len(first)
    ways = [first, f"[1-9][0-9]{{{width},}}"]
    for at, digit in enumerate(first):
        if digit != "9":
            ways.append(f"{first[:at]}[{int(digit) + 1}-9][0-9]{{{width - at - 1}}}")
    return f"(?:{'|'.join(ways)})"


def _matches(compiled: _Compiled, path: str) -> bool:
    return any(pattern.match(path) for pattern in compiled)


class GlobPattern:
    """One pattern over whole paths."""

    def __init__(self, text: str) -> None:
        self._whole = _compile([text])
        self._parts: list[_Compiled | None] = []
        """What each directory must match; None for `**`, below which anything may match."""
        *parts, name = text.split("/")
        for part in [*parts, name] if "**" in name else parts:
            self._parts.append(None if "**" in part else _compile([part]))

    def matches(self, path: str) -> bool:
        """Return whether a path matches."""
        return _matches(self._whole, path)

    def enters(self, directory: str) -> bool:
        """Return whether anything below a directory, written `a/b/`, can match."""
        names = directory.rstrip("/").split("/")
        for depth, name in enumerate(names):
            if depth >= len(self._parts):
                return False
            part = self._parts[depth]
            if part is None:
                return True
            if not _matches(part, name):
                return False
        return True


@dataclass(frozen=True)
class KeyFilter:
    """Which paths are wanted: those that match an `include`, if there are any, and no `exclude`.

    As in restic and rclone, a pattern matches at any depth, but one that starts with `/` only from
    the root, and a pattern that matches a directory includes everything below it.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    _included: _Compiled = field(init=False, repr=False, compare=False)
    _excluded: _Compiled = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_included", _compile([*map(_anchored, self.include)]))
        object.__setattr__(self, "_excluded", _compile([*map(_anchored, self.exclude)]))

    def __bool__(self) -> bool:
        return bool(self.include or self.exclude)

    def wants(self, path: str) -> bool:
        """Return whether an object is wanted."""
        ways = _with_parents(path)
        if self.include and not any(_matches(self._included, way) for way in ways):
            return False
        return not any(_matches(self._excluded, way) for way in ways)

    def below(self, prefix: str) -> Callable[[str], bool] | None:
        """Return the test for keys, and for prefixes that end in a slash; None when all are shown.

        Patterns apply to the part after `prefix`.
        """
        if not self:
            return None
        cut = len(prefix)
        return lambda key: self.enters(key[cut:]) if key.endswith("/") else self.wants(key[cut:])

    def enters(self, directory: str) -> bool:
        """Return whether something below a directory, written `a/b/`, may be wanted."""
        ways = _with_parents(directory.rstrip("/"))
        if any(_matches(self._excluded, way) for way in ways):
            return False
        if not self.include or any(_matches(self._included, way) for way in ways):
            return True
        return any(_may_match_below(pattern, directory) for pattern in self.include)


def _anchored(pattern: str) -> str:
    directory = pattern.rstrip("/")
    return directory[1:] if directory.startswith("/") else f"**/{directory}"


def _may_match_below(pattern: str, directory: str) -> bool:
    if not pattern.startswith("/") or "{" in pattern:  # braces may have a slash in them
        return True
    return GlobPattern(pattern.strip("/")).enters(directory)


def _with_parents(path: str) -> list[str]:
    """Return a path and the directories above it."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]


EVERY_KEY = KeyFilter()
"""The filter that accepts every key."""


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


def missing_path(path: object, what: str) -> str:
    """Return what is wrong with a local path where nothing is; it may be a bucket without its scheme."""
    return f"{path}: no such {what}; a bucket is written ais://BUCKET"


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

    @property
    def directories(self) -> list[tuple[Bucket, str]]:
        """The directories that the shards are in, or below."""
        found = [(p.bucket, p.directory) for w in self.words for p in w.patterns if p.bucket]
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

    def within(self, directory: str) -> "DatasetSource":
        """Return the same shards below a directory, `a/`, of each bucket."""
        words = []
        for word in self.words:
            patterns = [replace(p, directory=directory + p.directory) for p in word.patterns]
            words.append(replace(word, patterns=tuple(patterns), lines=()))
        return replace(self, words=tuple(words))

    def __str__(self) -> str:
        return " ".join(word.text for word in self.words)


Source = Everything | BucketSource | DirectorySource | DatasetSource

NO_LISTS: Mapping[str, SourceArg] = MappingProxyType({})

LIST_SUFFIX = ".json"
"""Of a list of shards; see `aisfs.core.names.sources`."""
_SEVERAL = re.compile(rf"::(?![^\[\]{ASIDE_BRACKETS}]*[\]{ASIDE_BRACKETS[1]}])")
"""Between sources in one word, as webdataset takes them; not in the address `[::1]` of a server."""
EXPANSIONS_MAX = 1_000_000
"""Most names that the braces of one argument may expand to; LAION-2B has 231,349 shards."""
_DEPTH_MAX = 20
"""Most braces around others; each takes some of Python's stack."""
_INNERMOST = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(?:(-?\d+)\.\.(-?\d+)|([A-Za-z])\.\.([A-Za-z]))(?:\.\.(-?\d+))?\n?")
_COUNT = re.compile(r"\0(\d+);")
"""Stands for braces that were counted; no name has a NUL."""


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
        path = source.path.absolute()
        # It may lead through the mountpoint, as in `aisfs mount ../data .`: the daemon would wait for itself.
        return replace(source, path=Path(os.path.realpath(path)) if ".." in path.parts else path)
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
        if _count_expansions(text) > EXPANSIONS_MAX:
            raise ConfigError(f"{word} stands for more than {EXPANSIONS_MAX:,} names")
        names = list(braceexpand(text))
    except ValueError as error:
        message = "the braces do not match; `\\{` and `\\}` stand for themselves"
        raise ConfigError(f"{word}: {message}") from error
    return SourceArg(word, tuple(_pattern(name, is_directory, is_file) for name in names))


def _count_expansions(text: str) -> int:
    """Return how many names braces stand for. `braceexpand` itself makes all numbers of a range before the first name.

    Raises:
        ValueError: there are braces in braces in braces, and so on.
    """

    def counted(braces: re.Match[str]) -> str:
        inner = braces[1]
        if ends := _RANGE.fullmatch(inner):
            first, last = (_place(ends[n] or ends[n + 2]) for n in (1, 2))
            number = abs(last - first) // (abs(int(ends[5] or 1)) or 1) + 1
        else:
            number = sum(map(product_of_counts, inner.split(",")))
        return f"\0{number};"

    def product_of_counts(part: str) -> int:
        return math.prod(int(number) for number in _COUNT.findall(part))

    left, found, depth = re.sub(r"\\.", "", text, flags=re.DOTALL), 1, 0
    while found:
        left, found = _INNERMOST.subn(counted, left)
        depth += 1
        if depth > _DEPTH_MAX:
            raise ValueError("braces in braces")
    return product_of_counts(left)


def _place(end: str) -> int:
    """Return the place of a number or a letter among those of its kind."""
    return ascii_letters.swapcase().index(end) if end.isalpha() else int(end)


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
        raise ConfigError(f"{name} is not a wids shard list: {error}") from None
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
