"""Builds the common tree of all shards when it is first asked for, and again when a shard has changed.

It also logs how a join went (which source lacks keys, and which parts two of them have), and advice where the view
shows nothing, or leaves out more than it shows.
"""

import logging
import os
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from aisfs.cache.names import SingleFlight
from aisfs.core.index.member_index import MemberIndex
from aisfs.core.index.published import LabelColumn
from aisfs.core.views import join, sample_views
from aisfs.core.views import samples as samples_of
from aisfs.core.views.join import UNJOINED, Column, JoinedSamples, join_samples
from aisfs.core.views.merged import MergedView
from aisfs.core.views.sample_views import (
    Labelled,
    SampleFolders,
    class_namer,
    class_names,
    flat_name,
    flat_rows,
    labelled_joined,
    labelled_samples,
    place_flat,
    place_images,
)
from aisfs.core.views.samples import count_samples
from aisfs.core.views.spec import (
    ALL_PICTURES,
    PICTURES,
    Component,
    LabelRule,
    LabelSource,
    ViewSpec,
)
from aisfs.engine.dataset.label_files import NO_CLASSES, StoredClasses
from aisfs.engine.dataset.shard_set import DAMAGED, OpenProgress, Shard, ShardSet, open_each
from aisfs.engine.scanning import ReadContent
from aisfs.engine.shards import Indexer
from aisfs.errors import Archived, NotFound, SourceMissing, Stale
from aisfs.metrics import Metrics
from aisfs.model import Bucket, ObjectInfo
from aisfs.settings import View
from aisfs.stores.pipeline import all_of

log = logging.getLogger(__name__)

NAMED_MAX = 5
"""Extensions and sources that a line of the log names."""


def report_join(joined: JoinedSamples, sources: Sequence[str]) -> None:
    """Log the keys of each source, the parts that were left out, and why nothing was joined.

    Args:
        joined: The samples.
        sources: The words of the sources.
    """
    for text, (number, _) in zip(sources, joined.found, strict=True):
        log.info("--join: %d keys in %s", number, text)
    if joined.repeated:
        named = ", ".join(
            f"{number} of {os.fsdecode(extension)!r}"
            for extension, number in joined.repeated.most_common(NAMED_MAX)
        )
        log.warning(
            "--join: %d parts are left out, since an earlier source or shard has them: %s",
            joined.repeated.total(),
            named,
        )
    if not len(joined) and joined.skipped[UNJOINED]:
        keys = ", ".join(
            f"{os.fsdecode(key)!r} in {text}" if key else f"none in {text}"
            for text, (_, key) in zip(sources[:NAMED_MAX], joined.found, strict=False)
        )
        log.warning("--join: no key is in all sources; the first keys are %s", keys)


TOGETHER = 64
"""Shards that are opened by one call of a thread, if none of them is scanned: as many as one request
fetches published indexes of."""
BATCHES_AT_ONCE = 3
"""While a thread decodes one, others are fetched."""
TRIES = 8
"""Rounds of opening before a dataset that goes on changing is an error."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The tree as of certain versions of the shards."""

    view: MergedView | SampleFolders
    shards: list[Shard]
    """By their place in the view."""
    indexes: list[MemberIndex]
    generation: int
    """How many trees of this dataset this mount had built before."""
    joined: JoinedSamples | None = None
    """What the view shows, where samples are joined."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What one shard brings along."""

    shard: Shard
    index: MemberIndex
    found: Labelled
    """The rows that are shown; without labels where the view has none. Joined ones are found when
    all shards are open."""
    column: LabelColumn | None = None
    """The labels in its contents, where samples are joined."""


class Merger:
    """Opens all shards and merges their members."""

    def __init__(
        self,
        shards: ShardSet,
        indexer: Indexer,
        read: ReadContent,
        spec: ViewSpec,
        services: trio.Nursery,
        metrics: Metrics,
        *,
        table: Mapping[bytes, bytes] | None = None,
        classes: StoredClasses = NO_CLASSES,
        progress: OpenProgress | None = None,
        strict: bool = False,
    ) -> None:
        """Merge `shards`; the work runs in `services`.

        Args:
            shards: The dataset.
            indexer: Opens them.
            read: Reads labels where no scan passes them.
            spec: The view.
            services: Outlives every reader.
            metrics: Count what is excluded.
            table: Labels by sample key, for a view that takes them from a table.
            classes: Names of labels that lie beside the shards.
            progress: Kept up to date while shards are opened.
            strict: The first tree must show something.
        """
        self._shards = shards
        self._indexer = indexer
        self._read = read
        self._spec = spec
        self._metrics = metrics
        self._table = table
        self.classes = classes
        """Names of labels that lie beside the shards; those of the next tree."""
        self.note = ""
        """Where the labels of the tree are from, if nobody said that."""
        self._progress = progress or OpenProgress()
        self._strict = strict
        self._advice = ""
        """What was logged last about a view that leaves out most."""
        self._builds: SingleFlight[str, Merged] = SingleFlight(services)
        self._parts: dict[int, _Part] = {}
        """By place in the dataset, while they are of the current version."""
        self._doubted: list[tuple[Merged, int]] = []
        """Shards that changed, whose samples have parts in other shards."""
        self._skipped: Counter[str] = Counter()
        self._built = 0
        self.known: Merged | None = None
        """The tree if it is built and no shard is known to have changed since."""

    @property
    def exclusions(self) -> Mapping[str, int]:
        """What is not shown: reason and how many. Samples are counted once they were looked at."""
        return self._shards.exclusions + self._skipped

    async def merged(self) -> Merged:
        """Return the tree; open all shards if that was not done before.

        Raises:
            SourceMissing: it shows nothing, and must not at first.
            AisfsError: a shard cannot be opened; those that could are not opened again next time.
        """
        return self.known or await self._builds.fetch("", self._build)

    def changed(self, bucket: Bucket, info: ObjectInfo) -> list[bytes]:
        """Mark a shard as no longer this version; return the names in the root it is in."""
        known = self.known
        if not self._shards.changed(bucket, info) or known is None:
            return []
        self.known = None
        self._indexer.forget(bucket, info)
        at = next(i for i, s in enumerate(known.shards) if (s.bucket, s.info) == (bucket, info))
        if known.joined is None:
            return list(known.view.touching(at))
        self._doubted.append((known, at))
        return list(known.view.touching(None))  # files of other shards may go with it

    def renew(self, found: ShardSet) -> list[bytes]:
        """Show the shards that were found again; return the names in the root that may have changed."""
        known = self.known
        if not self._shards.renew(found) or known is None:
            return []
        self.known = None
        return list(known.view.touching(None))

    async def _build(self) -> Merged:
        await self._doubt_companions()
        for _ in range(TRIES):
            renewals = self._shards.renewals
            await self._shards.settle()
            await self._shards.make_all()
            await self._open_all()
            if not self._shards.settled:
                continue
            # Those of one source side by side: what was found anew has the last places.
            ordered = sorted(self._parts.items(), key=lambda item: (item[1].shard.source, item[0]))
            merged = await trio.to_thread.run_sync(self._merge, [part for _, part in ordered])
            if renewals == self._shards.renewals:
                break
        else:
            raise Stale("shards go on changing while they are opened")
        if self._shards.settled:
            self.known = merged
        return merged

    async def _doubt_companions(self) -> None:
        """Have the shards asked for that have other parts of the samples of one that changed.

        They may have been replaced together, and nothing else would read a shard of labels again.
        """
        while self._doubted:
            merged, at = self._doubted.pop()
            assert merged.joined is not None, "only joined samples have parts in other shards"
            for other in await trio.to_thread.run_sync(merged.joined.beside, at):
                shard = merged.shards[other]
                self._shards.changed(shard.bucket, shard.info)

    async def _open_all(self) -> None:
        """Open the shards that are not opened yet, some at a time."""
        current = dict(self._shards.current)
        self._parts = {
            at: part for at, part in self._parts.items() if current.get(at) == part.shard
        }
        missing = [(at, shard) for at, shard in current.items() if at not in self._parts]
        files = sum(len(part.found.rows) for part in self._parts.values())
        self._progress.begin(len(current), len(self._parts), files)

        await self._take_known(missing)
        missing = [(at, shard) for at, shard in missing if at not in self._parts]

        archived: list[int] = []

        async def open_one(item: tuple[int, Shard]) -> None:
            at, shard = item
            try:
                self._parts[at] = part = await self._open(shard)
                self._progress.add(len(part.found.rows))
            except (Stale, NotFound):
                self._shards.changed(shard.bucket, shard.info)
            except Archived:
                archived.append(at)

        await open_each(missing, open_one, self._indexer.at_once)
        self._shards.leave_out(sorted(archived))

    @property
    def _rule(self) -> LabelRule | None:
        """The rule by which labels are in contents; None if they are elsewhere."""
        spec = self._spec
        has_labels = spec.view is View.CLASS and spec.label.component is not None
        return spec.label if has_labels else None

    async def _take_known(self, missing: Sequence[tuple[int, Shard]]) -> None:
        """Open the shards that need no scan, many at once."""
        in_vain = 0

        async def take(batch: Sequence[tuple[int, Shard]]) -> None:
            nonlocal in_vain
            if in_vain >= BATCHES_AT_ONCE:
                return  # nor are the others known, most likely
            shards = [shard for _, shard in batch]

            def choose(at: int, index: MemberIndex, column: LabelColumn | None) -> _Part:
                return self._choose(shards[at], index, column)

            ids = [(shard.bucket, shard.info) for shard in shards]
            parts = await self._indexer.use_known(ids, self._rule, choose)
            for (at, _), part in zip(batch, parts, strict=True):
                if part is not None:
                    self._parts[at] = part
                    self._progress.add(len(part.found.rows))
            in_vain += not any(parts)

        batches = (missing[at : at + TOGETHER] for at in range(0, len(missing), TOGETHER))
        await all_of((partial(take, batch) for batch in batches), BATCHES_AT_ONCE)

    async def _open(self, shard: Shard) -> _Part:
        rule, column = self._rule, None
        if rule is not None:
            index, column = await self._indexer.labels(shard.bucket, shard.info, rule, self._read)
        else:
            index = (await self._indexer.open(shard.bucket, shard.info)).index
        return await trio.to_thread.run_sync(self._choose, shard, index, column)

    def _choose(self, shard: Shard, index: MemberIndex, column: LabelColumn | None) -> _Part:
        """Choose the rows that are shown. Runs in a worker thread."""
        if self._spec.join is not None:  # the samples are known when all shards are open
            return _Part(shard, index, Labelled(array("I"), array("I"), [], Counter()), column)
        if self._spec.view is View.FLAT:
            rows, skipped = flat_rows(index, self._spec)
            return _Part(shard, index, Labelled(rows, array("I"), [], skipped))
        return _Part(shard, index, labelled_samples(index, self._spec, column, self._table))

    def _merge(self, parts: list[_Part]) -> Merged:
        """Put the parts together. Runs in a worker thread."""
        spec = self._spec
        generation, self._built = self._built, self._built + 1
        skipped: Counter[str] = Counter()
        for part in parts:
            skipped.update(part.index.skipped)
            skipped[DAMAGED] += bool(part.index.warnings)
        joined = self._join(parts)
        shards, indexes = [part.shard for part in parts], [part.index for part in parts]
        view: MergedView | SampleFolders
        if joined is not None and spec.view is View.SAMPLES:
            view = SampleFolders([shard.name for shard in shards], indexes, joined)
            unplaced = joined.skipped
        else:
            view, unplaced = self._place(parts, joined)
        self._skipped = +(skipped + unplaced)
        for reason, number in self._skipped.items():
            self._metrics.exclusions.labels(reason.replace(" ", "_")).set(number)
            log.info("%d left out: %s", number, reason)
        log.info("%s: %d files", spec.view, view.files)
        self._progress.files = view.files
        self._advise(parts, view.files, joined, must_show=self._strict and generation == 0)
        return Merged(view, shards, indexes, generation, joined)

    def _join(self, parts: list[_Part]) -> JoinedSamples | None:
        """Join the samples of all shards; None if each has its own."""
        spec, sources = self._spec, self._shards.sources
        if spec.join is None:
            return None
        columns = [Column(part.shard.source, part.index) for part in parts]
        joined = join_samples(
            columns, len(sources), spec.rule, spec.require, spec.join, spec.wanted
        )
        report_join(joined, sources)
        return joined

    def _place(
        self, parts: list[_Part], joined: JoinedSamples | None
    ) -> tuple[MergedView, Counter[str]]:
        """Return common directories of what is shown of all shards, and why what is not shown."""
        spec, skipped = self._spec, Counter[str]()
        every, unlabelled = self._chosen(spec, parts, joined)
        if spec.label_is_default and not any(found.rows for found in every):
            by_directory = replace(spec, label=LabelRule(LabelSource.DIRECTORY))
            others, lost = self._chosen(by_directory, parts, joined)
            if any(found.rows for found in others):
                spec, every, unlabelled = by_directory, others, lost
        skipped += unlabelled
        labels = {label for found in every for label in found.table}
        stored = self.classes.names if spec.label.component is not None else ()
        names = class_names(labels, spec.classes, stored)
        self._note(spec, names)
        placed = []
        for part, found in zip(parts, every, strict=True):
            skipped.update(found.skipped)
            if spec.view is View.FLAT:
                placed.append(place_flat(part.shard.name, part.index, found.rows))
            else:
                own, out = place_images(part.shard.name, part.index, found, spec, names)
                placed.append(own)
                skipped.update(out)
        view = MergedView(placed, flat_name if spec.view is View.FLAT else class_namer(spec))
        return view, skipped + view.skipped

    def _chosen(
        self, spec: ViewSpec, parts: list[_Part], joined: JoinedSamples | None
    ) -> tuple[list[Labelled], Counter[str]]:
        """Return what is shown of each shard, and why how many joined samples are not shown.

        Args:
            spec: This view, or one with other labels.
            parts: The shards.
            joined: Their samples, if they are joined.
        """
        if joined is None:
            if spec is self._spec:
                return [part.found for part in parts], Counter()
            return [
                labelled_samples(part.index, spec, None, self._table) for part in parts
            ], Counter()
        if spec.view is View.FLAT:
            shown = joined.rows_by_shard()
            every = [Labelled(rows, array("I"), [], Counter()) for rows in shown]
            return every, joined.skipped
        indexes, columns = [part.index for part in parts], [part.column for part in parts]
        every, unlabelled = labelled_joined(joined, indexes, spec, columns, self._table)
        return every, joined.skipped + unlabelled

    def _note(self, spec: ViewSpec, names: Mapping[bytes, bytes | None]) -> None:
        """Say in one line where the labels are from, if nobody asked for that."""
        said = []
        if spec.label.source is not self._spec.label.source:
            said.append(
                "labels are the first directories of the members, since no sample has a part cls"
            )
        if any(label != name and name in self.classes.names for label, name in names.items()):
            said.append(f"labels are called as in {self.classes.place}")
        note = "; ".join(said)
        if note and note != self.note:
            log.info("%s", note)
        self.note = note

    def _advise(
        self, parts: list[_Part], shown: int, joined: JoinedSamples | None, *, must_show: bool
    ) -> None:
        """Warn if the view leaves out more than it shows, and tell what would help.

        Raises:
            SourceMissing: it `must_show` something, and does not.
        """
        spec = self._spec
        if joined is not None and spec.view is not View.CLASS:
            shown = len(joined)
        elif spec.view is View.FLAT and spec.require and shown:  # samples are what is left out
            counts = (count_samples(p.index, p.found.rows, spec.rule) for p in parts)
            shown = sum(counts)
        if not loses_most(shown, self._skipped):
            self._advice = ""
            return
        found = Found()
        lossy = [part for part in parts if part.found.skipped or not shown or joined is not None]
        for part in lossy[:: len(lossy) // LOOKED_AT + 1]:  # of all sources
            found.add(part.index, spec)
        advice = advise(spec, shown, self._skipped, found)
        if must_show and not shown:
            raise SourceMissing(advice)
        if advice != self._advice:
            log.warning("%s", advice)
            self._advice = advice


LOSSES = (
    sample_views.NO_IMAGE,
    sample_views.UNCLEAR_IMAGE,
    sample_views.NO_LABEL,
    sample_views.BAD_LABEL,
    sample_views.NO_CLASS,
    samples_of.INCOMPLETE,
    join.UNJOINED,
    samples_of.LINK,
)
"""Reasons that count against a view. Hidden files and metadata are meant to be left out."""
LOOKED_AT = 10
"""Shards whose parts are counted; the shards of a dataset are much alike."""
PARTS_NAMED = 8
TRIED = 3
"""Parts that are named, and options that are proposed: what can be read at a glance."""


@dataclass(slots=True)
class Found:
    """What the samples of some shards are made of."""

    parts: Counter[bytes] = field(default_factory=Counter)
    """In how many places each extension occurs, in lower case."""
    key: bytes = b""
    """Of one sample, in a directory if any is."""

    def add(self, index: MemberIndex, spec: ViewSpec) -> None:
        """Count the parts of a shard."""
        for _, key, extension in samples_of.Samples(index, spec.rule, (), spec.wanted):
            if not self.key or (b"/" in key and b"/" not in self.key):
                self.key = key
            self.parts[extension.lower()] += 1

    def named(self) -> str:
        """Return the most frequent parts as words."""
        common = sorted(self.parts.items(), key=lambda item: (-item[1], item[0]))
        names = [_text(name) for name, _ in common if name][:PARTS_NAMED]
        if not names:
            return "names have no extension" if self.parts else "there are no samples"
        return f"parts are {', '.join(names)}" + (", …" if len(common) > PARTS_NAMED else "")


def loses_most(shown: int, exclusions: Mapping[str, int]) -> bool:
    """Return whether a view that shows so many samples leaves out more, or shows nothing."""
    return not shown or sum(exclusions.get(reason, 0) for reason in LOSSES) > shown


def advise(spec: ViewSpec, shown: int, exclusions: Mapping[str, int], found: Found) -> str:
    """Return one line about a view that `loses_most`.

    Args:
        spec: The view.
        shown: How many samples it shows, or files where it knows no samples.
        exclusions: What it does not show, by reason.
        found: What there is instead.
    """
    lost = {reason: exclusions[reason] for reason in LOSSES if exclusions.get(reason)}
    total = shown + sum(lost.values())
    whole = spec.require or spec.join is not None
    noun = "files" if spec.view is View.FLAT and not whole else "samples"
    head = f"--view {spec.view} shows " + (f"{shown:,} of {total:,} {noun}" if shown else "nothing")
    if not lost:
        rest = ", ".join(f"{n:,} {reason}" for reason, n in sorted(exclusions.items()) if n)
        return f"{head}: " + (f"left out are {rest}" if rest else "its shards have no members")
    main = max(lost, key=lambda reason: lost[reason])
    others = [f"{n:,} {reason}" for reason, n in lost.items() if reason != main]
    also = f"; also left out: {', '.join(others)}" if others else ""
    return f"{head}: {_explain(spec, main, lost[main], found)}{also}"


def _explain(spec: ViewSpec, reason: str, number: int, found: Found) -> str:
    samples, have = ("sample", "has") if number == 1 else ("samples", "have")
    count = f"{number:,} {samples}"
    match reason:
        case sample_views.NO_IMAGE:
            wanted = "picture" if spec.all_images else _alternatives(spec.image)
            text = f"{count} {have} no {wanted}; {found.named()}"
            return text + _proposal("--image", _pictures(found))
        case sample_views.UNCLEAR_IMAGE:
            ends = tuple(b"." + extension for extension in spec.image.extensions)
            several = [part for part in _pictures(found) if part.endswith(ends)][: TRIED - 1]
            several.append(ALL_PICTURES.encode())
            text = f"{count} {have} several parts that end in {_alternatives(spec.image)}"
            return f"{text}; {found.named()}" + _proposal("--image", several)
        case sample_views.NO_LABEL:
            return f"{count} {_unlabelled(spec, have, found)}"
        case sample_views.BAD_LABEL:
            if spec.label.source is LabelSource.JSON:
                return f"{count} {have} no text or integer at json:{spec.label.text}"
            return f"{count} {have} a label that is blank or cannot be the name of a directory"
        case sample_views.NO_CLASS:
            return f"{count} {have} a label without a line in --classes"
        case samples_of.INCOMPLETE:
            wanted = ",".join(map(str, spec.require))
            return f"{count} {have} not all parts of --require {wanted}; {found.named()}"
        case join.UNJOINED:
            return f"{count} {have} no part in some source; try --join outer"
    return f"{number:,} symbolic links"


def _unlabelled(spec: ViewSpec, have: str, found: Found) -> str:
    component, key = spec.label.component, f"a key is {_text(found.key)}"
    try_labels = _proposal("--label", _labels(found))
    match spec.label.source:
        case LabelSource.DIRECTORY:
            return f"{have} no directory; {key}{try_labels}"
        case LabelSource.PATTERN:
            return f"{have} no match of re:{spec.label.text} in the key; {key}"
        case LabelSource.TABLE:
            return f"{have} no row in csv:{spec.label.text}; {key}"
    assert component is not None, "other labels are contents"
    return f"{have} no {_alternatives(component)}; {found.named()}{try_labels}"


def _alternatives(component: Component) -> str:
    names = [_text(name) for name in component.extensions]
    return " or ".join([*([", ".join(names[:-1])] if names[1:] else []), names[-1]])


def _pictures(found: Found) -> list[bytes]:
    return [part for part, _ in found.parts.most_common() if PICTURES.loose_rank(part) is not None]


def _labels(found: Found) -> list[bytes]:
    """Return where labels may come from, the likeliest first."""
    parts = [part for part, _ in found.parts.most_common()]
    likely = [part for part in parts if part.rpartition(b".")[2] == b"cls"]
    likely += [b"json:PATH"] if b"json" in parts else []
    likely += [part for part in parts if part.rpartition(b".")[2] in (b"txt", b"label")]
    likely += [b"dir"] if b"/" in found.key else []
    return likely or [b"csv:FILE"]


def _proposal(option: str, values: Iterable[bytes]) -> str:
    tried: Sequence[str] = [f"{option} {_text(value)}" for value in values][:TRIED]
    return f"; try {' or '.join(tried)}" if tried else ""


def _text(name: bytes) -> str:
    return os.fsdecode(name).encode(errors="backslashreplace").decode()
