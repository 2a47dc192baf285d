"""The plan of `aisfs pack`: which files go into which shard, and the place of every byte.

The bytes of a shard only depend on names and contents: no times, no owners, mode 0644. So the same
files make the same shard on any machine, and an existing shard can be recognised.
"""

import os
import random
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from aisfs.core.names.listing import CLASSES_NAME
from aisfs.core.names.sources import is_pattern, literal, marked
from aisfs.core.views.shuffled_tar import member_header, member_size
from aisfs.errors import ConfigError

END_BLOCKS = bytes(1024)
"""The end of a tar, without the padding to records of 10 KiB for tapes."""

_WDS = re.compile(rb"((?:.*/)?[^./][^/.]*)\.[^/]*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class File:
    """A future member: a file of the tree, or a generated one."""

    name: bytes
    """Path in the shard."""
    size: int
    content: bytes | None = None
    """The bytes of a generated file; None for a file of the tree."""
    renamed_from: bytes = b""
    """Path below the tree, if it differs from that in the shard."""

    @property
    def path(self) -> bytes:
        """Path below the tree."""
        return self.renamed_from or self.name


@dataclass(frozen=True, slots=True)
class Sample:
    """Files with the same key, which stay together, in the order of their names."""

    key: bytes
    files: tuple[File, ...]


def key_wds(name: bytes) -> bytes:
    """Return the path up to the first dot of the last component, as webdataset does."""
    match = _WDS.fullmatch(name)
    return match[1] if match else name


def key_last_dot(name: bytes) -> bytes:
    """Return the path without its last extension."""
    return os.path.splitext(name)[0]


def key_basename(name: bytes) -> bytes:
    """Return the last component up to its first dot; directories do not count."""
    return key_wds(name.rpartition(b"/")[2])


KEY_RULES: dict[str, Callable[[bytes], bytes]] = {
    "wds": key_wds,
    "last-dot": key_last_dot,
    "basename": key_basename,
}


def samples_of(files: Sequence[File], rule: Callable[[bytes], bytes]) -> list[Sample]:
    """Return files grouped by key; samples, and the files of each, are sorted bytewise."""
    ordered = sorted(files, key=lambda file: (rule(file.name), file.name))
    grouped = groupby(ordered, key=lambda file: rule(file.name))
    return [Sample(key, tuple(members)) for key, members in grouped]


_WORD = re.compile(rb"(?=.*[A-Za-z])[0-9A-Za-z_+~\x80-\xff-]{1,24}")
"""What may be an extension, or a part of one: `jpg`, `7z`, `seg`; not `05`, nor ` Smith`."""
_PICTURES = frozenset(b"jpg jpeg png webp gif bmp tif tiff ppm".split())


def _extension(file: File, key: bytes) -> list[bytes]:
    """Return the parts of what follows the key and its dot, in lower case."""
    base, last = file.name.rpartition(b"/")[2], key.rpartition(b"/")[2]
    return base[len(last) + 1 :].lower().split(b".")


@dataclass(frozen=True, slots=True)
class Merged:
    """Files that share a key and look like samples of their own."""

    first: bytes
    second: bytes
    samples: int
    """How many samples have such files."""


def find_merged(samples: Sequence[Sample]) -> Merged | None:
    """Return the first of the samples, grouped as webdataset does, that seem to be several.

    Their files differ in something that is no extension, as in `22.05.jpg` and `22.06.jpg`, in case only, or
    in a word before the same extension that other samples do not have there: `left.jpg` and `right.jpg` are
    parts of a sample if most of the samples that have several such parts have these.
    """
    several = [(sample, _by_last(sample)) for sample in samples if len(sample.files) > 1]
    groups = Counter(last for _, by_last in several for last, ends in by_last.items() if ends[1:])
    uses = Counter(
        end for _, by_last in several for ends in by_last.values() if ends[1:] for end in ends
    )

    def is_odd(last: bytes, ends: list[tuple[bytes, ...]]) -> bool:
        if any(word and _WORD.fullmatch(word) is None for end in ends for word in end):
            return True
        if not ends[1:]:
            return False
        rare = groups[last] < 2 or any(2 * uses[end] < groups[last] for end in ends if end[1:])
        return rare or len(set(ends)) < len(ends)

    odd = [
        sample
        for sample, by_last in several
        if any(is_odd(last, ends) for last, ends in by_last.items())
    ]
    if not odd:
        return None
    first, second = _two_alike(odd[0])
    return Merged(first.name, second.name, len(odd))


def _by_last(sample: Sample) -> dict[bytes, list[tuple[bytes, ...]]]:
    """Return the extensions of a sample's files, by their last part."""
    found: dict[bytes, list[tuple[bytes, ...]]] = {}
    for file in sample.files:
        parts = _extension(file, sample.key)
        found.setdefault(parts[-1], []).append(tuple(parts))
    return found


def _two_alike(sample: Sample) -> tuple[File, File]:
    """Return two files of a sample, with the same last extension if there are such."""
    by_last: dict[bytes, File] = {}
    for file in sample.files:
        last = _extension(file, sample.key)[-1]
        if last in by_last:
            return by_last[last], file
        by_last[last] = file
    return sample.files[0], sample.files[1]


def without_dots(samples: Sequence[Sample]) -> list[Sample]:
    """Return samples by the rule `last-dot` with `_` for each dot in a key, so that every reader finds these keys.

    Raises:
        ConfigError: two keys would become one.
    """
    renamed: dict[bytes, Sample] = {}
    for sample in samples:
        folder, slash, base = sample.key.rpartition(b"/")
        key = folder + slash + base[:1] + base[1:].replace(b".", b"_")
        if key in renamed:
            names = [os.fsdecode(each.files[0].path) for each in (renamed[key], sample)]
            raise ConfigError(
                f"{names[0]} and {names[1]} would have one key, {os.fsdecode(key)}: rename one"
            )
        cut = len(sample.key)
        files = (
            file
            if key == sample.key
            else replace(file, name=key + file.name[cut:], renamed_from=file.name)
            for file in sample.files
        )
        renamed[key] = Sample(key, tuple(files))
    return list(renamed.values())


def reading_notes(samples: Sequence[Sample]) -> list[str]:
    """Return lines about what readers of the shards see otherwise than it was packed.

    Readers end a key at the first dot, as webdataset does, and skip names without an extension.
    """
    keys, bare, skipped = set[bytes](), list[bytes](), 0
    crowded: list[tuple[File, File]] = []
    for sample in samples:
        ends = {file.name: key_wds(file.name) for file in sample.files}
        without = [name for name, key in ends.items() if key == name]
        keys.update(key for name, key in ends.items() if key != name)
        bare += without
        skipped += len(without) == len(ends)
        pair = _two_pictures(sample)
        crowded += [pair] if pair is not None else []
    notes = []
    if len(keys) != len(samples) - skipped:
        notes.append(
            f"{len(samples)} sample{'s' * (len(samples) != 1)} packed, and readers that end a key at the first dot see {len(keys)}"
        )
    if bare:
        named = os.fsdecode(bare[0])
        notes.append(
            f"without an extension: {len(bare)} file{'s' * (len(bare) != 1)}, such as {named}; webdataset skips them"
        )
    if crowded:
        first, second = (os.fsdecode(file.name) for file in crowded[0])
        notes.append(
            f"several pictures in one sample: {len(crowded)} times, such as {first} and {second}; --view class"
            " shows one of them"
        )
    return notes


def _two_pictures(sample: Sample) -> tuple[File, File] | None:
    """Return two pictures of a sample with similar names: both without a word before the extension, or
    with the same extension. `1.jpg` and `1.seg.png` are not."""
    if len(sample.files) < 2:
        return None
    seen: dict[bytes, File] = {}
    for file in sample.files:
        words = _extension(file, sample.key)
        if words[-1] in _PICTURES:
            for kind in (b"", words[-1]) if len(words) == 1 else (words[-1],):
                if kind in seen:
                    return seen[kind], file
                seen[kind] = file
    return None


def class_names_of(samples: Sequence[Sample], before: Sequence[bytes] = ()) -> list[bytes]:
    """Return the names of the classes 0, 1, …, which are the first directories.

    Args:
        samples: All of them.
        before: Names that have numbers already: they keep them, and others follow. Without them, classes
            are numbered in the order of their names, as torchvision's ImageFolder does.
    """
    names = {sample.files[0].name.split(b"/", 1)[0] for sample in samples}
    return [*before, *sorted(names.difference(before))]


def with_classes(
    samples: Sequence[Sample], extension: bytes, classes: Sequence[bytes]
) -> list[Sample]:
    """Add a member `key.extension` with the number of the class, which is the first directory.

    Raises:
        ConfigError: a file is in no class, or its sample already has such a member.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    labelled = []
    for sample in samples:
        directories = {file.name.rpartition(b"/")[0].split(b"/", 1)[0] for file in sample.files}
        first = sample.files[0].name
        if directories == {b""} or len(directories) > 1:
            raise ConfigError(
                f"{os.fsdecode(first)}: not in the directory of one class; --exclude leaves out files"
            )
        name = sample.key + b"." + extension
        if any(file.name == name for file in sample.files):
            raise ConfigError(f"{os.fsdecode(name)}: exists, and --class-to would write it too")
        text = str(numbers[first.split(b"/", 1)[0]]).encode()
        files = sorted((*sample.files, File(name, len(text), text)), key=lambda file: file.name)
        labelled.append(Sample(sample.key, tuple(files)))
    return labelled


def shuffled(samples: Sequence[Sample], seed: int) -> list[Sample]:
    """Return the samples in an order that only depends on the seed."""
    order = list(samples)
    random.Random(seed).shuffle(order)
    return order


@dataclass(slots=True)
class Layout:
    """Where each file of a shard lies."""

    samples: int = 0
    files: list[File] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    """Where the headers of each file begin."""
    size: int = len(END_BLOCKS)
    """Bytes of the whole shard."""

    def add(self, sample: Sample) -> None:
        """Append a sample."""
        self.samples += 1
        for file in sample.files:
            self.files.append(file)
            self.starts.append(self.size - len(END_BLOCKS))
            self.size += stored_size(file)

    def pieces(self, start: int, stop: int) -> Iterator[tuple[File | None, int, int]]:
        """Yield the contents of the bytes `[start, stop)`.

        Yields:
            A file and a range of its stored form (headers, content, padding), or None and a range
            of the end.
        """
        end = self.size - len(END_BLOCKS)
        row = bisect_right(self.starts, start) - 1
        while start < min(stop, end):
            base = self.starts[row]
            until = min(stop, self.starts[row + 1] if row + 1 < len(self.starts) else end)
            yield self.files[row], start - base, until - base
            start, row = until, row + 1
        if start < stop:
            yield None, start - end, stop - end


def header_of(file: File) -> bytes:
    """Return the headers of a member: one block, or three and more for a long or odd name."""
    return member_header(os.fsdecode(file.name), file.size, mode=0o644)


def stored_size(file: File) -> int:
    """Return how many bytes a file takes in a shard."""
    return member_size(os.fsdecode(file.name), file.size)


def shards_of(samples: Sequence[Sample], max_count: int, max_size: int) -> list[Layout]:
    """Return the shards of samples, filled one after the other.

    Args:
        samples: In their order.
        max_count: Samples of one shard.
        max_size: Bytes of one shard; a single sample may be larger.
    """
    shards: list[Layout] = []
    for sample in samples:
        size = sum(stored_size(file) for file in sample.files)
        full = shards and (shards[-1].samples == max_count or shards[-1].size + size > max_size)
        if full or not shards:
            shards.append(Layout())
        shards[-1].add(sample)
    return shards


_RANGE = re.compile(r"\{(\d+)\.\.(\d*)\}")


@dataclass(frozen=True, slots=True)
class ShardNames:
    """Names such as `train-{000000..}.tar` or `train-{00..18}.tar`, or a single one."""

    before: str
    after: str
    first: int
    last: int | None
    """None without an end."""
    width: int
    """Least number of digits; 0 for a single name without digits."""

    @classmethod
    def parse(cls, text: str) -> "ShardNames":
        """Return the names of a text with one range in braces, or without.

        Raises:
            ConfigError: the braces contain something else, or this is not the name of a shard.
        """
        if not text.endswith(".tar"):
            raise ConfigError(
                f"{literal(text)}: the name of a shard ends in .tar: write one, or a range as in train-{{000000..}}.tar"
            )
        text = marked(text, lambda _: False)
        found = list(_RANGE.finditer(text))
        rest = _RANGE.sub("", text)
        if len(found) > 1 or is_pattern(rest) or "}" in rest:
            raise ConfigError(
                f"{literal(text)}: new shards need names, not a pattern: write one range, as in train-{{000000..}}.tar"
            )
        if not found:
            return cls(literal(text), "", 0, 0, 0)
        match = found[0]
        last = int(match[2]) if match[2] else None
        if last is not None and last < int(match[1]):
            raise ConfigError(f"{literal(text)}: the range is empty")
        before, after = literal(text[: match.start()]), literal(text[match.end() :])
        return cls(before, after, int(match[1]), last, len(match[1]))

    @property
    def classes_key(self) -> str:
        """The name of the file with the names of classes that lies beside the shards."""
        directory, slash, _ = self.before.rpartition("/")
        return f"{directory}{slash}{CLASSES_NAME}"

    def name(self, index: int) -> str:
        """Return the name of the shard `index`, counted from 0.

        Raises:
            ConfigError: there are fewer names.
        """
        number = self.first + index
        if self.last is not None and number > self.last:
            count = self.last - self.first + 1
            raise ConfigError(f"{self}: only {count} names, and more shards; write {{N..}}")
        return f"{self.before}{number:0{self.width}d}{self.after}" if self.width else self.before

    def index(self, name: str) -> int | None:
        """Return the index of a name; None for a name that is not one of these."""
        if not self.width:
            return 0 if name == self.before else None
        middle = name[len(self.before) : len(name) - len(self.after)]
        if not middle.isascii() or not middle.isdecimal():
            return None
        index = int(middle) - self.first
        if index < 0 or (self.last is not None and int(middle) > self.last):
            return None
        return index if self.name(index) == name else None

    def __str__(self) -> str:
        if not self.width:
            return self.before
        last = "" if self.last is None else f"{self.last:0{self.width}d}"
        return f"{self.before}{{{self.first:0{self.width}d}..{last}}}{self.after}"
