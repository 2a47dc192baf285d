"""Statistics of shards: samples, components with sizes, labels, what is missing or damaged.

A shard is summarized from its index alone; summaries of many shards add up.
"""

import os
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median_low

from aisfs.core.index.member_index import MemberIndex, MemberKind
from aisfs.core.views.samples import ComponentFinder, sample_key
from aisfs.core.views.spec import ViewSpec
from aisfs.core.views.tree import MembersView

LABEL = b"cls"
LABEL_MAX = 256
"""Most bytes of a label; longer ones are only counted."""
LABELS_MAX = 100_000
"""Most different labels counted; more are no classification, and would fill memory."""
HOLE_SHARE = 100
"""Numbers spread over more than this many times their count are dates or hashes, no sequence."""
_NUMBERED = re.compile(rb"(.*?)([0-9]{1,18})([^0-9]*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the members of one component, in bytes."""

    count: int
    min: int
    median: int
    max: int
    total: int


def sizes_of(values: "array[int]") -> Sizes:
    """Return the statistics of one or more sizes."""
    return Sizes(len(values), min(values), median_low(values), max(values), sum(values))


def shown_rows(view: MembersView) -> list[tuple[int, bytes]]:
    """Return row and name of each shown file, in the order of the shard."""
    index = view.index
    files = {*index.rows_of(MemberKind.FILE), *index.rows_of(MemberKind.HARDLINK)}
    names = index.names()
    last = {name: row for row, name in enumerate(names) if row in files}
    return sorted((row, name) for name, row in last.items())


def extension(name: bytes) -> bytes | None:
    """Return the component of a sample that a member is; None if it belongs to no sample."""
    key = sample_key(name)
    if name == key or not key or key.endswith(b"/"):
        return None
    return name[len(key) + 1 :]


class Summary:
    """The statistics of some shards together."""

    def __init__(self) -> None:
        """Start with none."""
        self.shards = 0
        self.bytes = 0
        """The stored size of the objects."""
        self.forms: Counter[str] = Counter()
        self.members = 0
        self.samples = 0
        self.images = 0
        """Samples with the part that `--view class` shows by default."""
        self.sizes: defaultdict[bytes, array[int]] = defaultdict(lambda: array("Q"))
        """By component; members without a sample have an empty one."""
        self.skipped: Counter[str] = Counter()
        self.labels: Counter[bytes] = Counter()
        self.labels_left_out = 0
        """Labels that are too long, or exceed the maximum number."""

    def add(self, view: MembersView, size: int) -> list[int]:
        """Count a shard whose object has `size` bytes; return the rows of its labels."""
        self.shards += 1
        self.bytes += size
        self.forms[form_name(view.index)] += 1
        self.skipped.update(view.skipped)
        keys = set()
        images = ComponentFinder(ViewSpec().image)
        labels = []
        for row, name in shown_rows(view):
            self.members += 1
            component = extension(name)
            self.sizes[component or b""].append(view.index.size(row))
            if component is not None:
                keys.add(sample_key(name))
                images.offer(sample_key(name), row, component)
            if component is not None and component.lower() == LABEL:
                labels.append(row)
        self.samples += len(keys)
        self.images += sum(row >= 0 for _, row in images)
        return labels

    def add_label(self, content: bytes | None) -> None:
        """Count a label; None for one that is too long."""
        label = None if content is None else content.strip()
        if label is None or (label not in self.labels and len(self.labels) >= LABELS_MAX):
            self.labels_left_out += 1
        else:
            self.labels[label] += 1

    def components(self) -> list[tuple[bytes, Sizes]]:
        """Return each component, the most frequent first."""
        found = [(name, sizes_of(values)) for name, values in self.sizes.items()]
        return sorted(found, key=lambda item: (-item[1].count, item[0]))


def form_name(index: MemberIndex) -> str:
    """Return the archive format of an index as its suffix."""
    return index.form.name.lower().replace("_", ".")


def holes(names: Iterable[bytes]) -> Iterator[bytes]:
    """Yield shards that are missing between others: numbers left out of names that only differ there.

    Names whose last number has the same width form one sequence.
    """
    sequences: defaultdict[tuple[bytes, int, bytes], set[int]] = defaultdict(set)
    for name in names:
        directory, slash, base = name.rpartition(b"/")
        stem = base[: base.find(b".")] if b"." in base else base
        parts = _NUMBERED.fullmatch(stem)
        if parts is not None:
            before, digits, after = parts.groups()
            place = directory + slash + before, len(digits), after + base[len(stem) :]
            sequences[place].add(int(digits))
    for (before, width, after), there in sorted(sequences.items()):
        if max(there) - min(there) > HOLE_SHARE * len(there):
            continue
        for number in sorted(set(range(min(there), max(there))) - there):
            yield before + b"%0*d" % (width, number) + after


def shown(name: bytes) -> str:
    """Return a name as text for people and for JSON."""
    return os.fsdecode(name).encode(errors="backslashreplace").decode()
