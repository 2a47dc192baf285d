"""A shard with a folder for each sample: `<key>/<member>`, names of members unchanged."""

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.views.directory_tree import MembersView
from aisfs.core.views.samples import Samples
from aisfs.core.views.spec import ViewSpec


def samples_view(index: MemberIndex, spec: ViewSpec) -> MembersView:
    """Lay the members of a shard out by their samples."""
    samples = Samples(index, spec.rule, spec.require)
    paths: list[bytes | None] = [None] * len(index)
    for row, key, _ in samples:
        name = index.name(row)
        paths[row] = key + b"/" + name[name.rfind(b"/") + 1 :]
    return MembersView(index, paths, +samples.skipped)
