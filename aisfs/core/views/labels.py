"""Labels of samples: read from contents while a shard is scanned.

Only the labels are kept, never whole contents.
"""

import codecs
import csv
import io
import json
import os
import re
from array import array
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from aisfs.core.index.builder import MemberIndexBuilder
from aisfs.core.index.label_column import CONTENT_MAX, LabelColumn
from aisfs.core.index.member_index import MemberIndex, MemberKind
from aisfs.core.views.spec import LabelRule, LabelSource
from aisfs.errors import ConfigError

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
