"""Samples whose parts lie in the shards of several sources: one sample for each key.

A sample has the parts with one key of all shards of all sources. Invariants:
- samples are in the order in which their keys first occur: that of the shards of the first source
  and of their members, then what only later sources have;
- parts of a sample are adjacent, in the order of sources, shards and rows;
- a part that an earlier shard has for the same key is left out, so each extension comes from one
  shard. Of members of one shard with one name the last wins.

The cost is linear in the number of members, also where one key has all of them. What is kept takes 12
bytes for each part and 4 for each sample; meanwhile there is a table of all keys.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain, pairwise, repeat
from typing import NamedTuple

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.views.merged import DUPLICATE
from aisfs.core.views.samples import INCOMPLETE, SPLITS, ComponentFinder, Samples, split_name
from aisfs.core.views.spec import Component
from aisfs.core.views.tree import uniform_samples
from aisfs.settings import Join, KeyRule

UNJOINED = "unjoined sample"
"""A sample that not all sources have."""
REPEATED = "repeated part"
"""A part that an earlier shard has for the same key."""
_RARE = 63
"""Extensions below this number have a bit in a mask, as there are few in a dataset. The bit with this
number means any other."""


class Column(NamedTuple):
    """A shard of one source."""

    source: int
    """The position of its source; shards of one source are neighbours."""
    members: MemberIndex


class JoinedSamples:
    """The parts of all samples, sample by sample, as columns."""

    def __init__(
        self,
        columns: Sequence[Column],
        rule: KeyRule,
        parts: "_Parts",
        kept: Sequence[int],
        skipped: Counter[str],
    ) -> None:
        """Keep the samples `kept`, in this order."""
        self._indexes = [column.members for column in columns]
        self._split = SPLITS[rule]
        self.skipped = skipped
        """How many samples and parts are left out, by reason."""
        self.table = list(parts.extensions)
        """Each extension once, in lower case."""
        self.repeated = Counter({self.table[kind]: n for kind, n in parts.repeats.items()})
        """How many parts of each extension an earlier shard has."""
        self.found: list[tuple[int, bytes]] = []
        """How many keys each source has, and the first of them."""
        self.shards, self.rows, self.extensions, self._ends = parts.grouped(kept)

    def __repr__(self) -> str:
        return f"<JoinedSamples: {len(self)} samples of {len(self.rows)} parts>"

    def __len__(self) -> int:
        return len(self._ends) - 1

    def parts(self, sample: int) -> range:
        """Return the positions of a sample's parts in `shards`, `rows` and `extensions`."""
        return range(self._ends[sample], self._ends[sample + 1])

    def key(self, sample: int) -> bytes:
        """Return the key of a sample."""
        at = self._ends[sample]
        found = split_name(self._indexes[self.shards[at]].name(self.rows[at]), self._split)
        assert not isinstance(found, str), "what has no key is no part of a sample"
        return found[0]

    def rows_by_shard(self) -> list["array[int]"]:
        """Return the rows of each shard that are parts of samples, ascending."""
        found = [array("I") for _ in self._indexes]
        for shard, row in zip(self.shards, self.rows, strict=True):
            found[shard].append(row)
        return [array("I", sorted(rows)) for rows in found]

    def homes(self) -> list[tuple[int, range]]:
        """Return each shard that has the first parts of samples, and these samples."""
        firsts = array("I", map(self.shards.__getitem__, self._ends[:-1]))
        found, start = [], 0
        while start < len(firsts):
            stop = bisect_left(firsts, firsts[start] + 1, start)
            found.append((firsts[start], range(start, stop)))
            start = stop
        return found

    def beside(self, shard: int) -> set[int]:
        """Return the shards that have other parts of the samples of a shard."""
        found: set[int] = set()
        shards, ends = self.shards, self._ends
        for start, stop in pairwise(ends):
            own = shards[start:stop]
            if shard in own:
                found.update(own)
        return found - {shard}


class _Members(NamedTuple):
    """The members of a shard that are parts of samples."""

    keys: Sequence[bytes]
    """Of each member; or of each sample, if all have the same extensions in the same order."""
    extensions: Sequence[bytes]
    """Of each member, or of each part of any sample; in lower case."""
    rows: "array[int] | None"
    """Of each member; None if all samples are alike: all rows, sample by sample."""


class _Parts:
    """The parts of all samples in the order in which they are found."""

    def __init__(self) -> None:
        self.extensions: dict[bytes, int] = {}
        """Each extension and its number."""
        self.repeats: Counter[int] = Counter()
        """How many parts of each extension samples had already."""
        self.samples, self.shards = array("I"), array("I")
        self.rows, self.kinds = array("I"), array("I")
        """The sample, the shard, the row and the extension of each part."""
        self._masks = array("Q")
        self._rare: set[tuple[int, int]] = set()
        """What samples have of the shards before: the first extensions as bits, and others."""

    def add(self, shard: int, samples: "array[int]", members: _Members) -> None:
        """Add the members of a shard to samples, without those that samples have already.

        Args:
            shard: The shard.
            samples: The sample of each key.
            members: What the shard has.
        """
        if samples:
            self._masks.extend([0] * (max(samples) + 1 - len(self._masks)))
        kinds = [
            self.extensions.setdefault(extension, len(self.extensions))
            for extension in members.extensions
        ]
        if members.rows is not None:
            self._add_each(shard, samples, members.rows, kinds)
        elif not self._add_alike(shard, samples, kinds):
            each = chain.from_iterable(repeat(sample, len(kinds)) for sample in samples)
            count = len(samples) * len(kinds)
            self._add_each(shard, array("I", each), range(count), kinds * len(samples))

    def _add_alike(self, shard: int, samples: "array[int]", kinds: Sequence[int]) -> bool:
        """Add samples with the same extensions; return whether no sample has any of them yet."""
        bits, masks = sum(1 << kind for kind in kinds), self._masks
        if bits >= 1 << _RARE or any(masks[sample] & bits for sample in samples):
            return False
        step, first, count = len(kinds), len(self.samples), len(samples) * len(kinds)
        self.samples.extend(array("I", [0]) * count)
        for at in range(step):
            self.samples[first + at :: step] = samples
        self.shards.extend(array("I", [shard]) * count)
        self.rows.extend(range(count))
        self.kinds.extend(array("I", kinds) * len(samples))
        for sample in samples:
            masks[sample] |= bits
        return True

    def _add_each(
        self, shard: int, samples: "array[int]", rows: Iterable[int], kinds: Sequence[int]
    ) -> None:
        first, masks = len(self.samples), self._masks
        for sample, row, kind in zip(samples, rows, kinds, strict=True):
            if masks[sample] and self._has(sample, kind):
                self.repeats[kind] += 1
                continue
            self.samples.append(sample)
            self.shards.append(shard)
            self.rows.append(row)
            self.kinds.append(kind)
        for sample, kind in zip(self.samples[first:], self.kinds[first:], strict=True):
            masks[sample] |= 1 << min(kind, _RARE)
            if kind >= _RARE:
                self._rare.add((sample, kind))

    def _has(self, sample: int, kind: int) -> bool:
        if kind < _RARE:
            return bool(self._masks[sample] >> kind & 1)
        return (sample, kind) in self._rare

    def grouped(
        self, kept: Sequence[int]
    ) -> tuple["array[int]", "array[int]", "array[int]", "array[int]"]:
        """Return shards, rows and extensions with the parts of each sample adjacent, and the ends."""
        places = array("I", bytes(4 * len(self._masks)))
        for place, sample in enumerate(kept, start=1):
            places[sample] = place
        counts = array("I", bytes(4 * (len(kept) + 1)))
        for place in map(places.__getitem__, self.samples):
            counts[place] += 1
        counts[0] = 0
        ends = array("I", accumulate(counts))
        following = ends[:]
        shards, rows, kinds = (array("I", bytes(4 * ends[-1])) for _ in range(3))
        parts = zip(self.samples, self.shards, self.rows, self.kinds, strict=True)
        for sample, shard, row, kind in parts:
            place = places[sample]
            if place:
                at = following[place - 1]
                following[place - 1] = at + 1
                shards[at], rows[at], kinds[at] = shard, row, kind
        return shards, rows, kinds, ends


def join_samples(
    columns: Sequence[Column],
    sources: int,
    rule: KeyRule,
    require: tuple[Component, ...],
    join: Join,
    wanted: Callable[[bytes], bool] | None = None,
) -> JoinedSamples:
    """Join the members of all shards by their keys.

    Args:
        columns: All shards, those of one source adjacent.
        sources: How many sources there are.
        rule: The rule for keys.
        require: Components that a sample must have, from whatever source.
        join: Whether a sample must be in every source.
        wanted: Returns whether a member of this name is shown; None if all are.
    """
    numbers: dict[bytes, int] = {}
    parts, skipped = _Parts(), Counter[str]()
    counts, last = array("I"), array("I")
    """In how many sources each sample is, and the last of these."""
    totals: Counter[int] = Counter()
    first_keys: dict[int, bytes] = {}
    for shard, (source, index) in enumerate(columns):
        members = _members_of(index, rule, skipped, wanted)
        samples = array("I", (numbers.setdefault(key, len(numbers)) for key in members.keys))
        if samples:
            first_keys.setdefault(source, members.keys[0])
        new = len(numbers) - len(counts)
        counts.extend([0] * new)
        last.extend([0] * new)
        for sample in samples:
            if last[sample] != source + 1:
                last[sample] = source + 1
                counts[sample] += 1
                totals[source] += 1
        parts.add(shard, samples, members)
    total = len(numbers)
    del numbers, last
    kept: Sequence[int] = range(total)
    if join is Join.INNER:
        kept = array("I", (s for s in range(total) if counts[s] == sources))
        skipped[UNJOINED] += total - len(kept)
    if require:
        complete = _complete(parts, kept, require)
        skipped[INCOMPLETE] += len(kept) - len(complete)
        kept = complete
    skipped[REPEATED] += parts.repeats.total()
    joined = JoinedSamples(columns, rule, parts, kept, +skipped)
    joined.found = [(totals[source], first_keys.get(source, b"")) for source in range(sources)]
    return joined


def _members_of(
    index: MemberIndex, rule: KeyRule, skipped: Counter[str], wanted: Callable[[bytes], bool] | None
) -> _Members:
    """Return the members of a shard that are parts of samples; count the others."""
    alike = uniform_samples(index) if rule is KeyRule.WDS and wanted is None else None
    if alike is not None:
        return _Members(alike.keys, alike.extensions, None)
    found = Samples(index, rule, (), wanted)
    skipped.update(found.skipped)
    names = index.names()
    last = {names[member.row]: member.row for member in found}
    members = [member for member in found if last[names[member.row]] == member.row]
    skipped[DUPLICATE] += sum(1 for _ in found) - len(members)
    return _Members(
        [member.key for member in members],
        [member.extension.lower() for member in members],
        array("I", (member.row for member in members)),
    )


def _complete(parts: _Parts, kept: Sequence[int], require: Sequence[Component]) -> "array[int]":
    """Return those of the samples that have all components."""
    _, _, kinds, ends = parts.grouped(kept)
    table = list(parts.extensions)
    finders = [ComponentFinder(component) for component in require]
    known: dict[bytes, bool] = {}
    """By the extensions of a sample, since most samples have the same."""

    def has_all(place: int) -> bool:
        own = kinds[ends[place] : ends[place + 1]]
        answer = known.get(own.tobytes())
        if answer is None:
            named = [table[kind] for kind in own]
            answer = all(finder.choose(enumerate(named)) >= 0 for finder in finders)
            known[own.tobytes()] = answer
        return answer

    return array("I", (sample for place, sample in enumerate(kept) if has_all(place)))
