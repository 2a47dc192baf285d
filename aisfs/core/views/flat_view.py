"""The view `flat`: all members of all shards in one tree, under their paths in the tars."""

from array import array
from collections import Counter

from aisfs.core.index.member_index import MemberIndex, MemberKind
from aisfs.core.views.samples import LINK, Samples
from aisfs.core.views.spec import ViewSpec


def flat_rows(index: MemberIndex, spec: ViewSpec) -> tuple["array[int]", Counter[str]]:
    """Return the rows of a shard that are shown, and why others are not."""
    if spec.require:
        samples = Samples(index, spec.rule, spec.require)
        return array("I", (part.row for part in samples)), +samples.skipped
    # A link is relative to its place in the tar; its target may now be another shard's file.
    links = set(index.rows_of(MemberKind.SYMLINK))
    hidden = links.union(index.rows_of(MemberKind.DIRECTORY), index.opened_tars())
    rows = array("I", (row for row in range(len(index)) if row not in hidden))
    return rows, +Counter({LINK: len(links)})


def flat_home(index: MemberIndex, row: int) -> bytes:
    """Return the directory of a member."""
    name = index.name(row)
    return name[: max(name.rfind(b"/"), 0)]


def flat_name(index: MemberIndex, row: int) -> bytes:
    """Return the name of a member in its directory."""
    name = index.name(row)
    return name[name.rfind(b"/") + 1 :]
