"""The advice that a mount gives when its view shows nothing, or leaves out more than it shows."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.views import join, sample_views
from aisfs.core.views import samples as samples_of
from aisfs.core.views.spec import ALL_PICTURES, PICTURES, Component, LabelSource, ViewSpec
from aisfs.settings import View

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
