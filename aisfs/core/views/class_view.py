"""A directory for each label, one file for each sample: `<label>/<key>.<ext>`."""

import os
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import compress

from aisfs.core.index.integer_codec import progression
from aisfs.core.index.label_column import LabelColumn
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.namespace.keys import refusal
from aisfs.core.views.component_finder import MISSING, ComponentFinder, EveryPart
from aisfs.core.views.join import JoinedSamples
from aisfs.core.views.labels import UNUSABLE
from aisfs.core.views.merged import Namer, Placed, numbered
from aisfs.core.views.samples import SPLITS, Samples
from aisfs.core.views.spec import LabelRule, LabelSource, ViewSpec
from aisfs.core.views.uniform import uniform_samples
from aisfs.settings import KeyRule

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
