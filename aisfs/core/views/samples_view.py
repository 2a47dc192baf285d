"""The view `samples`: a folder for each sample, `<key>/<member>`, with unchanged names."""

from array import array
from collections.abc import Mapping, Sequence

from aisfs.core.index.member_index import MemberIndex
from aisfs.core.views.directory_tree import MembersView
from aisfs.core.views.flat_view import flat_name
from aisfs.core.views.join import JoinedSamples
from aisfs.core.views.merged import MergedChild, MergedView, Placed, numbered
from aisfs.core.views.samples import Samples
from aisfs.core.views.spec import ViewSpec

_STRIDE = 1 << 32
"""Directories of one folder have numbers from a multiple of this on; the root is 0."""


def samples_view(index: MemberIndex, spec: ViewSpec) -> MembersView:
    """Return the tree of a shard with its members grouped by samples."""
    samples = Samples(index, spec.rule, spec.require, spec.wanted)
    paths: list[bytes | None] = [None] * len(index)
    for row, key, _ in samples:
        name = index.name(row)
        paths[row] = key + b"/" + name[name.rfind(b"/") + 1 :]
    return MembersView(index, paths, +samples.skipped)


class SampleFolders:
    """The tree of joined samples: `<shard>/<key>/<member>`.

    The folder of a shard has the samples whose first part is in this shard, whole. What is in it is
    laid out when it is first entered, by `prepare`, so that a view of millions of samples begins soon.
    """

    def __init__(
        self, names: Sequence[bytes], indexes: Sequence[MemberIndex], joined: JoinedSamples
    ) -> None:
        """Show `joined`, whose shards have these names and indexes."""
        self._shard_names = names
        self._indexes = indexes
        self._joined = joined
        homes = joined.homes()
        self._samples = [samples for _, samples in homes]
        self._names = [names[shard] for shard, _ in homes]
        self._numbers = {name: number for number, name in enumerate(self._names, start=1)}
        self._folders: dict[int, tuple[MergedView, array[int]]] = {}
        """What is laid out: the tree of a folder, and the shards that it counts."""

    @property
    def files(self) -> int:
        """How many files there are."""
        return len(self._joined.rows)

    def ready(self, path: bytes) -> bool:
        """Return whether the directory at a path is laid out."""
        number = self._folder_of(path)
        return number is None or number in self._folders

    def prepare(self, path: bytes) -> None:
        """Lay out the folder that a path leads into. Runs in a worker thread."""
        number = self._folder_of(path)
        if number is not None and number not in self._folders:
            self._folders[number] = self._lay_out(self._samples[number - 1])

    def resolve(self, path: bytes) -> int | None:
        """Return the number of the directory at a path that is ready; None if there is none."""
        if not path:
            return 0
        number = self._folder_of(path)
        if number is None:
            return None
        inner = self._folders[number][0].resolve(path.partition(b"/")[2])
        return None if inner is None else number * _STRIDE + inner

    def count(self, number: int) -> int:
        """Return how many entries a directory has."""
        if not number:
            return len(self._names)
        return self._folders[number // _STRIDE][0].count(number % _STRIDE)

    def child(self, number: int, position: int) -> MergedChild:
        """Return the entry of a directory at a position below its count."""
        if not number:
            return MergedChild(self._names[position], 0, 0, (position + 1) * _STRIDE)
        view = self._folders[number // _STRIDE][0]
        return self._outer(number, view.child(number % _STRIDE, position))

    def find(self, number: int, name: bytes) -> MergedChild | None:
        """Return the entry with a name."""
        if not number:
            at = self._numbers.get(name)
            return None if at is None else self.child(0, at - 1)
        child = self._folders[number // _STRIDE][0].find(number % _STRIDE, name)
        return None if child is None else self._outer(number, child)

    def touching(self, shard: int | None) -> Sequence[bytes]:
        """Return names in the root that lead to files of a shard: all, since any folder may."""
        return self._names

    def skipped_in(self, path: bytes) -> Mapping[str, int]:
        """Return why how many members of a folder that is ready have no place in it."""
        number = self._numbers.get(path)
        return +self._folders[number][0].skipped if number is not None else {}

    def _folder_of(self, path: bytes) -> int | None:
        return self._numbers.get(path.partition(b"/")[0])

    def _outer(self, number: int, child: MergedChild) -> MergedChild:
        folder = number // _STRIDE
        if child.directory is not None:
            return child._replace(directory=folder * _STRIDE + child.directory)
        return child._replace(shard=self._folders[folder][1][child.shard])

    def _lay_out(self, samples: range) -> tuple[MergedView, "array[int]"]:
        joined = self._joined
        found: dict[int, list[tuple[int, bytes]]] = {}
        for sample in samples:
            key = joined.key(sample)
            for at in joined.parts(sample):
                found.setdefault(joined.shards[at], []).append((joined.rows[at], key))
        shards = array("I", sorted(found))
        placed = []
        for shard in shards:
            members = sorted(found[shard])
            rows = array("I", (row for row, _ in members))
            homes = numbered(key for _, key in members)
            placed.append(Placed(self._shard_names[shard], self._indexes[shard], rows, *homes))
        return MergedView(placed, flat_name), shards
