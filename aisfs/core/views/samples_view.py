"""The view `samples`: a folder for each sample, `<key>/<member>`, with unchanged names."""

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.views.directory_tree import MembersView
from aisfs.core.views.samples import Samples
from aisfs.core.views.spec import ViewSpec


def samples_view(index: MemberIndex, spec: ViewSpec) -> MembersView:
    """Return the tree of a shard with its members grouped by samples."""
    samples = Samples(index, spec.rule, spec.require)
    paths: list[bytes | None] = [None] * len(index)
    for row, key, _ in samples:
        name = index.name(row)
        paths[row] = key + b"/" + name[name.rfind(b"/") + 1 :]
    return MembersView(index, paths, +samples.skipped)
