"""Open directories: their entries one by one, and objects side by side all at once."""

from collections.abc import Callable, Iterator
from functools import partial

from msgspec import structs

from aisfs.cache.names import WOULD_WAIT
from aisfs.core.names.inodes import numbers_of
from aisfs.core.views.tree import MembersView
from aisfs.engine.overlay import Overlay
from aisfs.filesystem.attributes import LONGEST_TIMEOUT, AttrMaker, Entry, FileRun
from aisfs.filesystem.handles import DirectoryHandle, MemberRows, ObjectRun
from aisfs.filesystem.inodes import Inodes
from aisfs.filesystem.nodes import DirectoryNode, Node, ObjectNode, ShardNode, object_identities
from aisfs.filesystem.shard_folders import ShardFolders
from aisfs.filesystem.trees.bucket_tree import Children, Found, Names, Objects
from aisfs.system.threads import any_thread


@any_thread
class DirectoryHandles:
    """Makes the handles of directories."""

    def __init__(
        self,
        inodes: Inodes,
        tree: Names,
        folders: ShardFolders,
        make: AttrMaker,
        clock: Callable[[], float],
        overlay: Overlay | None,
    ) -> None:
        """List what the collaborators know; `overlay` has what this mount itself changes."""
        self._inodes = inodes
        self._tree = tree
        self._folders = folders
        self._make = make
        self._clock = clock
        self._overlay = overlay

    def of_members(self, view: MembersView, node: ShardNode, ino: int) -> DirectoryHandle:
        """Open a directory of an open shard."""
        members = self._folders.children_in(view, node, ino)
        listed = self._folders.listed_in(view, node, ino)

        def entries(offset: int) -> Iterator[tuple[int, Entry, Node]]:
            return ((at, entry, node) for at, entry in members(offset))

        return DirectoryHandle(entries, entries, MemberRows(node, *self._make.owner, listed))

    def of_children(self, ino: int, children: Children) -> DirectoryHandle:
        """Open a directory above the shards, whose listing the kernel is going to be given."""
        inodes, validity = self._inodes, self._inodes.validity
        validity.listed(ino, children.expires)
        refreshes = validity.refreshes

        def current(found: Found) -> Found:
            """Return what the kernel may keep only if nothing was refreshed since."""
            return found if validity.refreshes == refreshes else structs.replace(found, expires=0.0)

        if self._overlay is not None:
            children = self._without_changes(ino, children, self._overlay)
        return DirectoryHandle(
            lambda offset: (
                (found.offset, inodes.entry(current(found)), found.node)
                for found in children.entries(offset)
            ),
            lambda offset: (
                (found.offset, inodes.try_entry(current(found)), found.node)
                for found in children.entries(offset)
            ),
            objects=partial(self._run, ino, children, refreshes),
        )

    def _without_changes(self, ino: int, children: Children, overlay: Overlay) -> Children:
        """Leave out what this mount changes while the listing is read: the kernel would believe it."""
        made = overlay.changes

        def entries(offset: int) -> Iterator[Found]:
            for found in children.entries(offset):
                now = found if overlay.changes == made else self._found_again(ino, found)
                if now is not None:
                    yield now

        def objects(offset: int, most: int) -> Objects | None:
            return children.objects(offset, most) if overlay.changes == made else None

        return Children(entries, children.expires, objects)

    def _found_again(self, ino: int, found: Found) -> Found | None:
        """Return what the name of an entry stands for by now."""
        node = self._inodes.get(ino)
        if not isinstance(node, DirectoryNode):
            return found
        now = self._tree.try_find(node, ino, found.name)
        if now is WOULD_WAIT:
            return found  # as old as it is believed to be: the kernel asks again
        return structs.replace(now, offset=found.offset) if now is not None else None

    def _run(
        self, ino: int, children: Children, refreshes: int, offset: int, most: int
    ) -> ObjectRun | None:
        """Return the objects behind an offset, `most` at most; None when the next entry is none, or
        has to be looked at by itself."""
        objects = children.objects(offset, most)
        if objects is None or self._inodes.validity.refreshes != refreshes:
            return None
        bucket, offsets, names, infos = objects
        identities = object_identities(bucket, infos)
        inos = numbers_of(identities)
        count = self._inodes.free(objects, inos, identities)
        if not count:
            return None
        if count < len(inos):
            inos, names, infos = inos[:count], names[:count], infos[:count]
            offsets = offsets[:count]
        nodes = [
            ObjectNode(bucket, info, ino, name) for info, name in zip(infos, names, strict=True)
        ]
        timeout = min(max(children.expires - self._clock(), 0.0), LONGEST_TIMEOUT)
        files = FileRun(inos, *self._make.objects(infos), names)
        return ObjectRun(files, nodes, offsets, self._make.owner, timeout)
