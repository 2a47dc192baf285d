"""A directory for each label, one file for each sample: `<label>/<key>.<ext>`."""

import os
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from aisfs.config import KeyRule
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.namespace.keys import refusal
from aisfs.core.views.labels import UNUSABLE, LabelColumn
from aisfs.core.views.merged import Namer
from aisfs.core.views.samples import SPLITS, Samples
from aisfs.core.views.spec import LabelRule, LabelSource, ViewSpec

NO_IMAGE = "no image"
NO_LABEL = "no label"
BAD_LABEL = "bad label"
NO_CLASS = "no class name"

_INTEGER = re.compile(rb"[+-]?[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Labelled:
    """The samples of a shard that have an image and a label."""

    rows: "array[int]"
    """Of the images, ascending."""
    ids: "array[int]"
    """The label of each row, as a position in `table`."""
    table: list[bytes]
    skipped: Counter[str]
    """How many samples are not shown, by reason."""


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
    samples = Samples(index, spec.rule, spec.require)
    images: dict[bytes, tuple[int, int]] = {}
    contents: dict[bytes, bytes] = {}
    component = spec.label.component
    said = column.by_row() if column is not None else {}
    for row, key, extension in samples:
        rank = spec.image.rank(extension)
        if rank is not None:
            known = images.get(key)
            if known is None or rank <= known[0]:  # the last of equal ones wins, as elsewhere
                images[key] = (rank, row)
        else:
            images.setdefault(key, (len(spec.image.extensions), -1))
        if row in said and component is not None and component.rank(extension) is not None:
            contents[key] = said[row]
    skipped = +samples.skipped
    ids: dict[bytes, int] = {}
    chosen: list[tuple[int, int]] = []
    label_of = _labeller(index, spec.label, contents, table or {})
    for key, (_, row) in images.items():
        if row < 0:
            skipped[NO_IMAGE] += 1
            continue
        label = label_of(key, row)
        if label is None or label == UNUSABLE:
            skipped[NO_LABEL if label is None else BAD_LABEL] += 1
            continue
        chosen.append((row, ids.setdefault(label, len(ids))))
    chosen.sort()
    rows, places = array("I", (r for r, _ in chosen)), array("I", (i for _, i in chosen))
    return Labelled(rows, places, list(ids), skipped)


def _labeller(
    index: MemberIndex,
    rule: LabelRule,
    contents: Mapping[bytes, bytes],
    table: Mapping[bytes, bytes],
) -> Callable[[bytes, int], bytes | None]:
    """Return the function from a key and a row to the label of the sample."""
    pattern = re.compile(os.fsencode(rule.text if rule.source is LabelSource.PATTERN else ""))

    def by_pattern(key: bytes) -> bytes | None:
        match = pattern.search(key)
        return match[1 if pattern.groups else 0] if match else None

    match rule.source:
        case LabelSource.TABLE:
            return lambda key, row: table.get(key) or table.get(index.name(row))
        case LabelSource.PATTERN:
            return lambda key, _: by_pattern(key)
        case LabelSource.DIRECTORY:
            return lambda _, row: index.name(row).rpartition(b"/")[0].partition(b"/")[0] or None
    return lambda key, _: contents.get(key)


def class_names(
    labels: Iterable[bytes], classes: Sequence[bytes] | None
) -> dict[bytes, bytes | None]:
    """Return the directory of each label; None for a label that cannot be a name.

    If all labels are integers they are padded with zeros to one width, so that they sort by value.
    With `classes`, an integer stands for the name at that position.
    """
    labels = set(labels)
    integers = all(map(_INTEGER.fullmatch, labels))
    if classes is not None:
        known = set(classes)
        return {label: _class_name(label, classes, known) for label in labels}
    if integers:
        width = max((len(b"%d" % abs(int(label))) for label in labels), default=0)
        return {label: b"%0*d" % (width + (int(label) < 0), int(label)) for label in labels}
    return {label: None if b"/" in label or refusal(label) else label for label in labels}


def _class_name(label: bytes, classes: Sequence[bytes], known: set[bytes]) -> bytes | None:
    if _INTEGER.fullmatch(label):
        return classes[int(label)] if 0 <= int(label) < len(classes) else None
    return label if label in known else None


def class_homes(
    index: MemberIndex,
    found: Labelled,
    spec: ViewSpec,
    names: Mapping[bytes, bytes | None],
) -> tuple["array[int]", list[bytes], Counter[str]]:
    """Return the rows that have a directory, these directories, and why other rows have none."""
    rows: array[int] = array("I")
    homes: list[bytes] = []
    exclusions: Counter[str] = Counter()
    split = SPLITS[spec.rule]
    for row, at in zip(found.rows, found.ids, strict=True):
        name = names[found.table[at]]
        if name is None:
            exclusions[NO_CLASS if spec.classes is not None else BAD_LABEL] += 1
            continue
        key, _ = split(index.name(row)) or (index.name(row), b"")
        above = key.rpartition(b"/")[0]
        if spec.label.source is LabelSource.DIRECTORY:
            above = above.partition(b"/")[2]  # the first one is the label
        rows.append(row)
        homes.append(name + b"/" + above if above else name)
    return rows, homes, exclusions


def class_namer(rule: KeyRule) -> Namer:
    """Return the function that names an image: the last part of the key and the last extension."""
    split = SPLITS[rule]

    def name_of(index: MemberIndex, row: int) -> bytes:
        found = split(index.name(row))
        assert found is not None, "an image was chosen by its extension"
        key, extension = found
        return key[key.rfind(b"/") + 1 :] + b"." + extension[extension.rfind(b".") + 1 :]

    return name_of
