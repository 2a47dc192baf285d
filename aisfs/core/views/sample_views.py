"""The views of samples: a folder for each sample, a directory for each label, or all members in one tree.

`samples` shows `<key>/<member>` with unchanged names, `class` one file for each sample, `<label>/<key>.<ext>`, and
`flat` the paths in the tars. Labels are read from contents while a shard is scanned; only the labels are kept.
"""

import codecs
import csv
import io
import json
import os
import re
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress
from typing import Any

import msgspec

from aisfs.core.index.builder import MemberIndexBuilder
from aisfs.core.index.member_index import MemberIndex, MemberKind
from aisfs.core.index.published import CONTENT_MAX, LabelColumn
from aisfs.core.index.zip_columns import progression
from aisfs.core.names.listing import refusal
from aisfs.core.views.join import JoinedSamples
from aisfs.core.views.merged import MergedChild, MergedView, Namer, Placed, numbered
from aisfs.core.views.samples import (
    EXCLUDED,
    LINK,
    MISSING,
    SPLITS,
    ComponentFinder,
    EveryPart,
    Samples,
)
from aisfs.core.views.spec import LabelRule, LabelSource, ViewSpec
from aisfs.core.views.tree import MembersView, uniform_samples
from aisfs.errors import ConfigError
from aisfs.settings import KeyRule


def flat_rows(index: MemberIndex, spec: ViewSpec) -> tuple["array[int]", Counter[str]]:
    """Return the rows of a shard that are shown, and why others are not."""
    if spec.require:
        samples = Samples(index, spec.rule, spec.require, spec.wanted)
        return array("I", (part.row for part in samples)), +samples.skipped
    # A link is relative to its place in the tar; its target may now be another shard's file.
    links = set(index.rows_of(MemberKind.SYMLINK))
    hidden = links.union(index.rows_of(MemberKind.DIRECTORY), index.opened_tars())
    rows = array("I", (row for row in range(len(index)) if row not in hidden))
    skipped, wanted = Counter({LINK: len(links)}), spec.wanted
    if wanted is not None:
        chosen = array("I", (row for row in rows if wanted(index.name(row))))
        skipped[EXCLUDED], rows = len(rows) - len(chosen), chosen
    return rows, +skipped


def place_flat(shard: bytes, index: MemberIndex, rows: Sequence[int]) -> Placed:
    """Return rows of a shard with the directories they are shown in, which are those of the tar."""
    if b"/" not in index.columns.names:
        return Placed(shard, index, rows, [b""], array("I", bytes(4 * len(rows))))
    names = map(index.names().__getitem__, rows)
    return Placed(shard, index, rows, *numbered(n[: max(n.rfind(b"/"), 0)] for n in names))


def flat_name(name: bytes) -> bytes:
    """Return the name in its directory of a member with this name."""
    return name[name.rfind(b"/") + 1 :]


_STRIDE = 1 << 32
"""Directories of one folder have numbers from a multiple of this on; the root is 0."""


def samples_view(index: MemberIndex, spec: ViewSpec) -> MembersView:
    """Return the tree of a shard with its members grouped by samples."""
    samples = Samples(index, spec.rule, spec.require, spec.wanted)
    paths: list[bytes | None] = [None] * len(index)
    for row, key, _ in samples:
        name = index.name(row)
        paths[row] = key + b"/" + name[name.rfind(b"/") + 1 :]
    return MembersView(index, paths, +samples.skipped)


class SampleFolders:
    """The tree of joined samples: `<shard>/<key>/<member>`.

    The folder of a shard has the samples whose first part is in this shard, whole. What is in it is
    laid out when it is first entered, by `prepare`, so that a view of millions of samples begins soon.
    """

    def __init__(
        self, names: Sequence[bytes], indexes: Sequence[MemberIndex], joined: JoinedSamples
    ) -> None:
        """Show `joined`, whose shards have these names and indexes."""
        self._shard_names = names
        self._indexes = indexes
        self._joined = joined
        homes = joined.homes()
        self._samples = [samples for _, samples in homes]
        self._names = [names[shard] for shard, _ in homes]
        self._numbers = {name: number for number, name in enumerate(self._names, start=1)}
        self._folders: dict[int, tuple[MergedView, array[int]]] = {}
        """What is laid out: the tree of a folder, and the shards that it counts."""

    @property
    def files(self) -> int:
        """How many files there are."""
        return len(self._joined.rows)

    def ready(self, path: bytes) -> bool:
        """Return whether the directory at a path is laid out."""
        number = self._folder_of(path)
        return number is None or number in self._folders

    def prepare(self, path: bytes) -> None:
        """Lay out the folder that a path leads into. Runs in a worker thread."""
        number = self._folder_of(path)
        if number is not None and number not in self._folders:
            self._folders[number] = self._lay_out(self._samples[number - 1])

    def resolve(self, path: bytes) -> int | None:
        """Return the number of the directory at a path that is ready; None if there is none."""
        if not path:
            return 0
        number = self._folder_of(path)
        if number is None:
            return None
        inner = self._folders[number][0].resolve(path.partition(b"/")[2])
        return None if inner is None else number * _STRIDE + inner

    def count(self, number: int) -> int:
        """Return how many entries a directory has."""
        if not number:
            return len(self._names)
        return self._folders[number // _STRIDE][0].count(number % _STRIDE)

    def child(self, number: int, position: int) -> MergedChild:
        """Return the entry of a directory at a position below its count."""
        if not number:
            return MergedChild(self._names[position], 0, 0, (position + 1) * _STRIDE)
        view = self._folders[number // _STRIDE][0]
        return self._outer(number, view.child(number % _STRIDE, position))

    def find(self, number: int, name: bytes) -> MergedChild | None:
        """Return the entry with a name."""
        if not number:
            at = self._numbers.get(name)
            return None if at is None else self.child(0, at - 1)
        child = self._folders[number // _STRIDE][0].find(number % _STRIDE, name)
        return None if child is None else self._outer(number, child)

    def touching(self, shard: int | None) -> Sequence[bytes]:
        """Return names in the root that lead to files of a shard: all, since any folder may."""
        return self._names

    def skipped_in(self, path: bytes) -> Mapping[str, int]:
        """Return why how many members of a folder that is ready have no place in it."""
        number = self._numbers.get(path)
        return +self._folders[number][0].skipped if number is not None else {}

    def _folder_of(self, path: bytes) -> int | None:
        return self._numbers.get(path.partition(b"/")[0])

    def _outer(self, number: int, child: MergedChild) -> MergedChild:
        folder = number // _STRIDE
        if child.directory is not None:
            return child._replace(directory=folder * _STRIDE + child.directory)
        return child._replace(shard=self._folders[folder][1][child.shard])

    def _lay_out(self, samples: range) -> tuple[MergedView, "array[int]"]:
        joined = self._joined
        found: dict[int, list[tuple[int, bytes]]] = {}
        for sample in samples:
            key = joined.key(sample)
            for at in joined.parts(sample):
                found.setdefault(joined.shards[at], []).append((joined.rows[at], key))
        shards = array("I", sorted(found))
        placed = []
        for shard in shards:
            members = sorted(found[shard])
            rows = array("I", (row for row, _ in members))
            homes = numbered(key for _, key in members)
            placed.append(Placed(self._shard_names[shard], self._indexes[shard], rows, *homes))
        return MergedView(placed, flat_name), shards


UNUSABLE = b""
"""Stands for a content without a valid label."""


def read_label(rule: LabelRule, content: bytes) -> bytes:
    """Return the label in a content; `UNUSABLE` when it has none."""
    if rule.source is LabelSource.CONTENT:
        return without_mark(content).strip()
    try:
        value = _parsed(content)
        for part in rule.text.split("."):
            value = value[int(part)] if isinstance(value, list) else value[part]
    except (RecursionError, KeyError, IndexError, TypeError, ValueError):
        return UNUSABLE
    if isinstance(value, bool) or not isinstance(value, str | int):
        return UNUSABLE
    return str(value).strip().encode(errors="surrogatepass")


def without_mark(text: bytes) -> bytes:
    """Return text without a byte order mark; what one marks as UTF-16 becomes UTF-8."""
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        with suppress(UnicodeDecodeError):
            return text.decode("utf-16").encode(errors="surrogatepass")
    return text.removeprefix(codecs.BOM_UTF8)


def _parsed(content: bytes) -> Any:  # noqa: ANN401 - any JSON value
    """Return parsed JSON, also with Python's extensions: NaN, lone surrogates, UTF-16, a BOM."""
    try:
        return msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return json.loads(content)


class LabelScan:
    """Reads labels from the bytes that a `TarScanner` is fed."""

    def __init__(self, rule: LabelRule, rows: MemberIndexBuilder) -> None:
        """Follow the rows that the scanner adds."""
        self._rule = rule
        self._suffix = _suffix(rule)
        self._rows = rows
        self._seen = 0
        self._pending: deque[tuple[int, int]] = deque()
        """Offset and size of the contents still to be read."""
        self._part = bytearray()
        """The bytes received of the first one."""
        self._ids: dict[bytes, int] = {}
        self._found: dict[int, int] = {}
        """By offset, since resolving links can move the rows."""

    @property
    def needed(self) -> int | None:
        """The offset of the next byte needed; None when none is needed yet."""
        return self._pending[0][0] + len(self._part) if self._pending else None

    def feed(self, start: int, data: memoryview) -> None:
        """Read the bytes from offset `start` on, after the scanner was fed them."""
        fresh = self._rows.contents_of(self._suffix, self._seen, CONTENT_MAX)
        self._pending.extend(fresh)
        self._seen = len(self._rows)
        stop = start + len(data)
        while self._pending:
            offset, size = self._pending[0]
            position = offset + len(self._part)
            if not start <= position < stop:
                return
            self._part += data[position - start : offset + size - start]
            if len(self._part) < size:
                return
            label = read_label(self._rule, bytes(self._part))
            self._found[offset] = self._ids.setdefault(label, len(self._ids))
            self._part.clear()
            self._pending.popleft()

    def finish(self, index: MemberIndex) -> LabelColumn:
        """Return the labels of the rows of the finished index."""
        labels = list(self._ids)
        return labels_at(index, {offset: labels[at] for offset, at in self._found.items()})


def labels_at(index: MemberIndex, found: Mapping[int, bytes]) -> LabelColumn:
    """Return the column of the labels that were found in contents, by their offset."""
    return label_column(
        (row, found[offset])
        for row, offset in enumerate(index.columns.offsets)
        if offset in found and index.size(row)
    )


def label_rows(rule: LabelRule, index: MemberIndex) -> list[int]:
    """Return the members of a finished index whose contents are labels."""
    suffix = _suffix(rule)
    return [
        row
        for row, name in enumerate(index.names())
        if name.lower().endswith(suffix)
        and index.kind(row) is MemberKind.FILE
        and 0 < index.size(row) <= CONTENT_MAX
    ]


def _suffix(rule: LabelRule) -> bytes:
    assert rule.component is not None, "labels that come from names need no contents"
    return b"." + rule.component.extensions[0]


def label_column(labels: Iterable[tuple[int, bytes]]) -> LabelColumn:
    """Return the column of rows, in ascending order, and their labels."""
    column = LabelColumn(array("I"), array("I"), [])
    ids: dict[bytes, int] = {}
    for row, label in labels:
        column.rows.append(row)
        column.ids.append(ids.setdefault(label, len(ids)))
    column.table.extend(ids)
    return column


def parse_table(name: str, data: bytes) -> dict[bytes, bytes]:
    """Return the labels by sample key of a CSV file, whose separator is the first `,`, `;` or tab.

    The columns are those that the first row calls `key` (or `filename`, `file_name`, `image`, `id`)
    and `label` (or `class`, `target`), else the first two.

    Raises:
        ConfigError: there are no two columns.
    """
    text = os.fsdecode(without_mark(data))
    first = _FIRST_FIELD.match(text)
    try:
        lines = io.StringIO(text, newline="")
        reader = csv.reader(lines, delimiter=first["separator"] if first else ",")
        rows = [row for row in reader if row]
    except csv.Error as error:
        raise ConfigError(f"--label csv:{name}: {error}") from error
    if not rows or len(rows[0]) < 2:
        raise ConfigError(f"--label csv:{name}: expected columns of keys and labels")
    titles = [title.strip().lower() for title in rows[0]]
    key = next((at for at, t in enumerate(titles) if t in _KEY_TITLES), None)
    label = next((at for at, t in enumerate(titles) if t in _LABEL_TITLES), None)
    if key is None or label is None:
        key, label = 0, 1
    else:
        del rows[0]
    table: dict[bytes, bytes] = {}
    for row in rows:
        if len(row) > max(key, label):
            table[os.fsencode(row[key].strip())] = os.fsencode(row[label].strip())
    return table


_FIRST_FIELD = re.compile(r'[\r\n ]*("(?:[^"]|"")*"|[^",;\t\r\n]*)(?P<separator>[,;\t])')
_KEY_TITLES = ("key", "__key__", "filename", "file_name", "image", "id")
_LABEL_TITLES = ("label", "class", "target", "cls")


NO_IMAGE = "no image"
UNCLEAR_IMAGE = "ambiguous image"
NO_LABEL = "no label"
BAD_LABEL = "bad label"
NO_CLASS = "no class name"

_INTEGER = re.compile(rb"[+-]?[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Labelled:
    """The samples of a shard that have an image and a label."""

    rows: Sequence[int]
    """Of the images, ascending."""
    ids: "array[int]"
    """The label of each row, as a position in `table`."""
    table: list[bytes]
    skipped: Counter[str]
    """How many samples are not shown, by reason."""
    ascending: bool = False
    """Whether the names of the images are known to ascend."""


def labelled_samples(
    index: MemberIndex,
    spec: ViewSpec,
    column: LabelColumn | None,
    table: Mapping[bytes, bytes] | None,
) -> Labelled:
    """Return the image and the label of each sample of a shard.

    Args:
        index: The members.
        spec: The view.
        column: The labels, where they come from contents.
        table: Labels by key, where they come from a table.
    """
    alike = None if spec.all_images else _labelled_alike(index, spec, column)
    if alike is not None:
        return alike
    samples = Samples(index, spec.rule, spec.require, spec.wanted)
    images = EveryPart(spec.image) if spec.all_images else ComponentFinder(spec.image)
    contents: dict[bytes, bytes] = {}
    component = spec.label.component
    said = column.by_row() if column is not None else {}
    for row, key, extension in samples:
        images.offer(key, row, extension)
        if row in said and component is not None and component.rank(extension) is not None:
            contents[key] = said[row]
    skipped = +samples.skipped
    ids: dict[bytes, int] = {}
    chosen: list[tuple[int, int]] = []
    label_of = _labeller(spec.label, table or {})
    for key, row in images:
        if row < 0:
            skipped[NO_IMAGE if row == MISSING else UNCLEAR_IMAGE] += 1
            continue
        label = label_of(key, index, row, contents.get(key))
        if label is None or label == UNUSABLE:
            skipped[NO_LABEL if label is None else BAD_LABEL] += 1
            continue
        chosen.append((row, ids.setdefault(label, len(ids))))
    chosen.sort()
    rows, places = array("I", (r for r, _ in chosen)), array("I", (i for _, i in chosen))
    return Labelled(rows, places, list(ids), skipped)


def _labelled_alike(
    index: MemberIndex, spec: ViewSpec, column: LabelColumn | None
) -> Labelled | None:
    """Return the same for a shard in which all samples are alike and labelled by their contents."""
    component = spec.label.component
    if column is None or component is None or spec.rule is not KeyRule.WDS or spec.require:
        return None
    if spec.members:
        return None
    samples = uniform_samples(index)
    if samples is None or UNUSABLE in column.table:
        return None
    images = ComponentFinder(spec.image)
    for at, extension in enumerate(samples.extensions):
        images.offer(b"", at, extension)
    ((_, image),) = images
    labels = [at for at, ext in enumerate(samples.extensions) if component.rank(ext) is not None]
    if image < 0 or len(labels) != 1 or column.rows != progression(samples.rows_of(labels[0])):
        return None
    rows, ascending = samples.rows_of(image), samples.ascending
    return Labelled(rows, column.ids, column.table, Counter(), ascending)


def labelled_joined(
    joined: JoinedSamples,
    indexes: Sequence[MemberIndex],
    spec: ViewSpec,
    columns: Sequence[LabelColumn | None],
    table: Mapping[bytes, bytes] | None,
) -> tuple[list[Labelled], Counter[str]]:
    """Return the images and labels of joined samples, by the shard of the image.

    Args:
        joined: The samples.
        indexes: The members of each shard.
        spec: The view.
        columns: The labels of each shard, where they come from contents.
        table: Labels by key, where they come from a table.

    Returns:
        What is shown of each shard, and why how many samples are not shown.
    """
    skipped = Counter[str]()
    rows, label_ids = [[array("I") for _ in indexes] for _ in range(2)]
    ids: list[dict[bytes, int]] = [{} for _ in indexes]
    places = _places(joined, spec)
    label_of = _labeller(spec.label, table or {})
    by_key = spec.label.source in (LabelSource.TABLE, LabelSource.PATTERN)
    for sample in range(len(joined)):
        parts = joined.parts(sample)
        images, labels = places(parts)
        content = None
        for part in map(parts.__getitem__, labels):
            column = columns[joined.shards[part]]
            label = column.find(joined.rows[part]) if column is not None else None
            content = content if label is None else label
        key = joined.key(sample) if by_key else b""
        for at in images:
            if at < 0:
                skipped[NO_IMAGE if at == MISSING else UNCLEAR_IMAGE] += 1
                continue
            shard, row = joined.shards[parts[at]], joined.rows[parts[at]]
            label = label_of(key, indexes[shard], row, content)
            if label is None or label == UNUSABLE:
                skipped[NO_LABEL if label is None else BAD_LABEL] += 1
                continue
            rows[shard].append(row)
            label_ids[shard].append(ids[shard].setdefault(label, len(ids[shard])))
    return list(map(_ascending, rows, label_ids, map(list, ids))), skipped


def _places(
    joined: JoinedSamples, spec: ViewSpec
) -> Callable[[range], tuple[list[int], list[int]]]:
    """Return the function from a sample's parts to the places of the images and of labels in them."""
    component = spec.label.component
    known: dict[bytes, tuple[list[int], list[int]]] = {}
    """By the extensions of a sample, since most samples have the same."""

    def places(parts: range) -> tuple[list[int], list[int]]:
        kinds = joined.extensions[parts.start : parts.stop]
        answer = known.get(kinds.tobytes())
        if answer is None:
            own = [joined.table[kind] for kind in kinds]
            holds = [component is not None and component.rank(each) is not None for each in own]
            finder = EveryPart(spec.image) if spec.all_images else ComponentFinder(spec.image)
            for at, extension in enumerate(own):
                finder.offer(b"", at, extension)
            images = [at for _, at in finder] or [MISSING]
            answer = images, list(compress(range(len(own)), holds))
            known[kinds.tobytes()] = answer
        return answer

    return places


def _ascending(rows: "array[int]", ids: "array[int]", table: list[bytes]) -> Labelled:
    """Return images with ascending rows."""
    order = sorted(range(len(rows)), key=rows.__getitem__)
    rows, ids = (array("I", map(column.__getitem__, order)) for column in (rows, ids))
    return Labelled(rows, ids, table, Counter())


def _labeller(
    rule: LabelRule, table: Mapping[bytes, bytes]
) -> Callable[[bytes, MemberIndex, int, bytes | None], bytes | None]:
    """Return the function from a key, the image and the label in a content to the sample's label."""
    pattern = re.compile(os.fsencode(rule.text if rule.source is LabelSource.PATTERN else ""))

    def by_pattern(key: bytes) -> bytes | None:
        match = pattern.search(key)
        return match[1 if pattern.groups else 0] if match else None

    def by_directory(name: bytes) -> bytes | None:
        return name.rpartition(b"/")[0].partition(b"/")[0] or None

    match rule.source:
        case LabelSource.TABLE:
            return lambda key, index, row, _: table.get(key) or table.get(index.name(row))
        case LabelSource.PATTERN:
            return lambda key, *_: by_pattern(key)
        case LabelSource.DIRECTORY:
            return lambda _, index, row, __: by_directory(index.name(row))
    return lambda _, __, ___, content: content


def class_names(
    labels: Iterable[bytes], classes: Sequence[bytes] | None, stored: Sequence[bytes] = ()
) -> dict[bytes, bytes | None]:
    """Return the directory of each label; None for a label that cannot be a name.

    If all labels are integers they are padded with zeros to one width, so that they sort by value.
    With `classes`, an integer stands for the name at that position. So it does with `stored`, but a label
    without a name there stays what it is.
    """
    labels = set(labels)
    integers = all(map(_INTEGER.fullmatch, labels))
    if classes is not None:
        known = set(classes)
        return {label: _class_name(label, classes, known) for label in labels}
    if integers:
        width = max((len(b"%d" % abs(int(label))) for label in labels), default=0)
        numbers = {label: b"%0*d" % (width + (int(label) < 0), int(label)) for label in labels}
        named = {label: _class_name(label, stored, frozenset()) for label in labels}
        return {label: named[label] or numbers[label] for label in labels}
    return {label: None if b"/" in label or refusal(label) else label for label in labels}


def _class_name(label: bytes, classes: Sequence[bytes], known: AbstractSet[bytes]) -> bytes | None:
    if _INTEGER.fullmatch(label):
        return classes[int(label)] if 0 <= int(label) < len(classes) else None
    return label if label in known else None


def place_images(
    shard: bytes,
    index: MemberIndex,
    found: Labelled,
    spec: ViewSpec,
    names: Mapping[bytes, bytes | None],
) -> tuple[Placed, Counter[str]]:
    """Return the rows of a shard that have a directory, and why other rows have none."""
    rows: array[int] = array("I")
    homes: list[bytes] = []
    exclusions: Counter[str] = Counter()
    own = [name for name in map(names.__getitem__, found.table) if name is not None]
    if b"/" not in index.columns.names and len(own) == len(found.table):
        return Placed(shard, index, found.rows, own, found.ids, found.ascending), exclusions
    split = SPLITS[spec.rule]
    for row, at in zip(found.rows, found.ids, strict=True):
        name = names[found.table[at]]
        if name is None:
            exclusions[NO_CLASS if spec.classes is not None else BAD_LABEL] += 1
            continue
        key, _ = split(index.name(row)) or (index.name(row), b"")
        above = key.rpartition(b"/")[0]
        first, _, rest = above.partition(b"/")
        if spec.label.source is LabelSource.DIRECTORY or first == name:
            above = rest  # the first one is the label
        rows.append(row)
        homes.append(name + b"/" + above if above else name)
    return Placed(shard, index, rows, *numbered(homes)), exclusions


def class_namer(spec: ViewSpec) -> Namer:
    """Return the function that names an image: the last part of the key and the last extension.

    If all images of a sample are shown, they have all of the extension.
    """
    split = SPLITS[spec.rule]
    if spec.all_images:
        return lambda name: name[name.rfind(b"/") + 1 :]

    def name_of(name: bytes) -> bytes:
        if name.count(b".") == 1 and b"/" not in name:  # as most are, whichever the rule
            return name
        found = split(name)
        assert found is not None, "an image was chosen by its extension"
        key, extension = found
        return key[key.rfind(b"/") + 1 :] + b"." + extension[extension.rfind(b".") + 1 :]

    return name_of
