"""The view `flat`: all members of all shards in one tree, under their paths in the tars."""

from array import array
from collections import Counter
from collections.abc import Sequence

from aisfs.core.index.member_index import MemberIndex, MemberKind
from aisfs.core.views.merged import Placed, numbered
from aisfs.core.views.samples import EXCLUDED, LINK, Samples
from aisfs.core.views.spec import ViewSpec


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
