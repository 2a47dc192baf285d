"""Objects side by side in a listing, numbered and described all at once."""

from collections.abc import Callable, Sequence

from aisfs.core.namespace.inodes import numbers_of
from aisfs.filesystem.attributes import FOREVER, AttrMaker, FileRun
from aisfs.filesystem.handles import ObjectRun
from aisfs.filesystem.nodes import ObjectNode, object_identities
from aisfs.filesystem.trees.bucket_tree import Children, Objects

Free = Callable[[Objects, Sequence[int], Sequence[bytes]], int]
"""Says of how many objects, from the first on, the numbers computed from their identities hold."""


class ObjectRuns:
    """Makes runs of objects for the lane's thread."""

    def __init__(self, make: AttrMaker, clock: Callable[[], float], free: Free) -> None:
        """Describe objects as `make` does; give only those that `free` says are."""
        self._make = make
        self._clock = clock
        self._free = free

    def behind(self, ino: int, children: Children, offset: int, most: int) -> ObjectRun | None:
        """Give the objects behind an offset of the directory `ino`, `most` at most; None when the
        next entry is none, or has to be looked at by itself."""
        objects = children.objects(offset, most)
        if objects is None:
            return None
        identities = object_identities(objects.bucket, objects.infos)
        inos = numbers_of(identities)
        count = self._free(objects, inos, identities)
        if not count:
            return None
        bucket, offsets, names, infos = objects
        if count < len(inos):
            inos, names, infos, offsets = (
                inos[:count],
                names[:count],
                infos[:count],
                offsets[:count],
            )
        nodes = [
            ObjectNode(bucket, info, ino, name) for info, name in zip(infos, names, strict=True)
        ]
        timeout = min(max(children.expires - self._clock(), 0.0), FOREVER)
        files = FileRun(inos, *self._make.objects(infos), names)
        return ObjectRun(files, nodes, offsets, self._make.owner, timeout)
