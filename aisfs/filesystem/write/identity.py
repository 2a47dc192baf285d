"""Names, numbers and attributes in a tree that is written: which inode a name stands for.

Above `FileSystem`, which knows versions of objects, and below `filesystem.writing`, which changes them.
"""

import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from msgspec import structs

from aisfs.cache.metadata_cache import WOULD_WAIT
from aisfs.config import WriteSettings
from aisfs.core.namespace import keys
from aisfs.core.namespace.inodes import directory_number, member_number
from aisfs.engine.dataset.synthetic_reader import SyntheticReader
from aisfs.engine.listing.overlay import OverlaidLister
from aisfs.engine.read.reader import Reader
from aisfs.engine.write.appender import Appended
from aisfs.engine.write.writer import Writer
from aisfs.errors import (
    NameGone,
    Stale,
)
from aisfs.filesystem.attributes import Attr, AttrMaker, Entry
from aisfs.filesystem.directory_attributes import DirectoryAttributes
from aisfs.filesystem.filesystem import FileSystem
from aisfs.filesystem.handles import DirectoryHandle
from aisfs.filesystem.nodes import DirectoryNode, Node, ObjectNode, ShardNode, identity
from aisfs.filesystem.shard_folders import ShardFolders
from aisfs.filesystem.trees.bucket_tree import Children, Found, Objects, Tree
from aisfs.filesystem.write.files import (
    WrittenFile,
    WrittenFiles,
    versioned_identity,
)
from aisfs.filesystem.write.name_locks import NameChanges


class WrittenNames(FileSystem):
    """One mount's tree, with the files that this mount writes.

    The lane's thread takes `changing` before it asks for anything that can change, and never waits
    for it. Of a file that was written since the kernel first heard of it, it is told nothing.
    """

    tree: Tree

    def __init__(
        self,
        root: Node,
        *,
        tree: Tree,
        folders: ShardFolders,
        reader: Reader,
        assembler: SyntheticReader,
        lister: OverlaidLister,
        make: AttrMaker,
        clock: Callable[[], float],
        writer: Writer,
        settings: WriteSettings,
    ) -> None:
        """Serve the tree below `root`; write with `writer`."""
        super().__init__(
            root,
            tree=tree,
            folders=folders,
            reader=reader,
            assembler=assembler,
            make=make,
            clock=clock,
            list_ttl=lister.list_ttl,
        )
        self._lister = lister
        self.changing = lister.changing
        """Held by the trio thread while it changes something here that takes several steps, during
        which it never waits for anything; and by the lane's thread while it looks."""
        self._writer = writer
        self._settings = settings
        self._files = WrittenFiles()
        self._readers: Counter[int] = Counter()
        """Open handles by inode that are not for writing; changed while `changing` is held."""
        self._name_changes = NameChanges()
        self._going: set[int] = set()
        """Versions that are being removed: who opens one now has to be known to the trio thread."""
        self._salted: dict[int, bytes] = {}
        writer.appender.on_append = self._shard_appended
        self._directory_attrs = DirectoryAttributes()

    # names to inodes -------------------------------------------------------------------------

    async def lookup(self, parent: int, name: bytes) -> Entry | None:
        """See `FileSystem`; a new member of a shard is there before its shard has it."""
        await self._settled(parent)
        file = await self._new_member(parent, name)
        if file is None:
            return await super().lookup(parent, name)
        entry = Entry(name, self._file_attr(file), 0.0)
        self.remember(entry.attr.ino, file.node)
        return entry

    def _shard_appended(self, appended: Appended) -> None:
        """Let the kernel's numbers in a shard stand for the version that it became here.

        It has what the one before had, and more: whoever stands in a folder of it sees what is new.
        """
        bucket, info, growth = appended.bucket, appended.info, appended.growth
        old = ShardNode(bucket, appended.base, 0, b"")
        with self.changing:
            number = self.inodes.number(identity(old), shard=True)
            node = self.inodes.get(number)
            known = isinstance(node, ShardNode) and identity(node) == identity(old)
            if known and growth.changed and growth.in_place:
                assert isinstance(node, ShardNode), "just asked"
                moved = replace(node, info=info)
                with self._lock:
                    self.inodes.move(number, identity(moved), moved)
                if self.kernel is not None:
                    self.kernel.invalidate_inode(directory_number(number, 0))
                    if growth.replaced is not None:
                        self.kernel.drop_pages([member_number(number, growth.replaced)])
            self._lister.settle(bucket, info.key, info)

    async def _new_member(self, parent: int, name: bytes) -> WrittenFile | None:
        node = self.node(parent)
        if not isinstance(node, ShardNode):
            return None
        path = await self._folders.path(node, parent, name)
        return self._files.of_member(node.bucket, node.info.key, path)

    async def _settled(self, ino: int) -> Node:
        """Give a node when no change decides any more where it is.

        Raises:
            NameGone: it has lost its name meanwhile; the kernel looks up what has the name now.
        """
        while True:
            node = self.node(ino)
            change = self._name_changes.of(node)
            if change is None:
                return node
            await change.over.wait()
            if ino in change.gone:
                raise NameGone("it was removed or replaced while it was being opened")

    def node(self, ino: int) -> Node:
        """See `FileSystem`; a written file is the version it was committed as last."""
        file = self._files.by_ino.get(ino)
        if file is None:
            return super().node(ino)
        return file.node if file.base is None else structs.replace(file.node, info=file.base)

    def _remember(self, ino: int, node: Node, count: int) -> None:
        """See `FileSystem`; a written file keeps the identity it began with."""
        file = self._files.by_ino.get(ino)
        if file is not None:
            self.inodes.remember(ino, file.identity, file.node, count)
        elif ino in self._salted:
            self.inodes.remember(ino, self._salted[ino], node, count)
        else:
            super()._remember(ino, node, count)

    def forget(self, ino: int, count: int) -> None:
        """See `FileSystem`; a written file that nobody knows any more is a version like any other."""
        super().forget(ino, count)
        if self.inodes.get(ino) is not None:
            return
        self._salted.pop(ino, None)
        file = self._files.by_ino.get(ino)
        if file is not None and not file.busy:
            self._files.drop(file)

    def entry(self, found: Found) -> Entry:
        """See `FileSystem`; the name of a written file stands for that file."""
        entry = super().entry(found)
        node = found.node
        if not isinstance(node, ObjectNode):
            return entry
        file = self._current(node)
        attr = self.file_attr(node, self._number(node)) if file is None else self._file_attr(file)
        return replace(entry, attr=attr)

    def known_entry(self, found: Found) -> Entry | None:
        """See `FileSystem`; the entries of written files are the trio thread's."""
        node = found.node
        if isinstance(node, ObjectNode) and (
            self._files.of_key(node.bucket, node.info.key) is not None
            or self.is_written(self.inodes.number(identity(node)))
        ):
            return None
        return super().entry(found)

    def is_written(self, ino: int) -> bool:
        """Say whether a number has become that of a written file. From any thread."""
        return ino in self._files.by_ino

    def is_new_member(self, shard: ShardNode, path: str) -> bool:
        """Say whether a member is being written that its shard does not have. From any thread."""
        return self._files.of_member(shard.bucket, shard.info.key, path) is not None

    def _current(self, node: ObjectNode) -> WrittenFile | None:
        """Give the written file that the name of a version stands for in this mount."""
        file = self._files.of_key(node.bucket, node.info.key)
        if file is None:
            return None
        if file.stands_for(node.info):
            return file
        self._files.unname(file)  # somebody else wrote another version
        return None

    def _number(self, node: ObjectNode) -> int:
        """Number a version; not with a number that has become a written file's."""
        again = 0
        while True:
            spelled = versioned_identity(node, again)
            number = self.inodes.number(spelled)
            if number not in self._files.by_ino:
                if again:
                    self._salted[number] = spelled
                return number
            again += 1

    # directories -----------------------------------------------------------------------------

    def children_handle(self, ino: int, children: Children) -> DirectoryHandle:
        """See `FileSystem`; what this mount changes while a listing is read is left out of it.

        Who reads it gives the kernel entries, and the kernel would believe them.
        """
        made = self._lister.changes

        def entries(offset: int) -> Iterator[Found]:
            for found in children.entries(offset):
                now: Found | None = found
                if self._lister.changes != made:
                    now = self._found_again(ino, found)
                if now is not None:
                    yield now

        def objects(offset: int, most: int) -> Objects | None:
            return children.objects(offset, most) if self._lister.changes == made else None

        return super().children_handle(ino, Children(entries, children.expires, objects))

    def _free(self, objects: Objects, inos: Sequence[int], identities: Sequence[bytes]) -> int:
        """See `FileSystem`; those of written files are the trio thread's."""
        count = super()._free(objects, inos, identities)
        if not self._files and not self._salted:
            return count
        for at, (ino, info) in enumerate(zip(inos, objects.infos, strict=True)):
            if at == count or ino in self._salted or self.is_written(ino):
                return at
            if self._files.of_key(objects.bucket, info.key) is not None:
                return at
        return count

    def _found_again(self, ino: int, found: Found) -> Found | None:
        """Give what the name of an entry stands for by now."""
        node = self.inodes.get(ino)
        if not isinstance(node, DirectoryNode):
            return found
        now = self.tree.known(node, ino, found.name)
        if now is WOULD_WAIT:
            return found  # as old as it is believed to be: the kernel asks again
        return replace(now, offset=found.offset) if now is not None else None

    def keeps_listing(self, ino: int) -> bool:
        """Say whether the mtime of a directory tells when it has to be listed again.

        It does not where somebody has set it. From any thread.
        """
        node = self.inodes.get(ino)
        if not isinstance(node, DirectoryNode):
            return True
        _, mtime_ns = self._directory_attrs.of(node.bucket, node.prefix)
        return mtime_ns is None

    # attributes ------------------------------------------------------------------------------

    async def getattr(self, ino: int) -> Attr:
        """Describe an inode."""
        file = self._files.by_ino.get(ino)
        if file is not None:
            if file.lost is not None:
                raise Stale(f"{file.bucket}/{file.key}: {file.lost}")
            return self._file_attr(file)
        return await super().getattr(ino)

    def _file_attr(self, file: WrittenFile) -> Attr:
        attr = self._make.file(file.ino, file.size, file.mtime_ns)
        if file.mode is not None:
            attr = replace(attr, mode=stat.S_IFREG | file.mode)
        return attr

    def directory_attr(self, node: Node, ino: int) -> Attr:
        """See `FileSystem`; what somebody set in this mount is shown."""
        attr = super().directory_attr(node, ino)
        if not isinstance(node, DirectoryNode):
            return attr
        mode, mtime_ns = self._directory_attrs.of(node.bucket, node.prefix)
        return replace(
            attr,
            mode=attr.mode if mode is None else stat.S_IFDIR | mode,
            mtime_ns=attr.mtime_ns if mtime_ns is None else mtime_ns,
        )

    # what else a change concerns ------------------------------------------------------------

    def _other_names(self, file: WrittenFile) -> list[tuple[int, bytes]]:
        """Give the names, beside its own, that stand for something else when a file was committed."""
        if not file.member:
            return self._aliases(file.node.parent, file.node.name)
        shard = self.inodes.get(file.node.parent)
        if not isinstance(shard, ShardNode):
            return []
        name = keys.entry_name("", file.key.rpartition("/")[2])
        return [(shard.parent, name), *self._aliases(shard.parent, name)]

    def _aliases(self, parent: int, name: bytes) -> list[tuple[int, bytes]]:
        """Give the other names of a shard."""
        return [(parent, other) for other in self.tree.names_of(name) if other != name]

    def _invalidate_aliases(self, parent: int, name: bytes) -> None:
        for directory, alias in self._aliases(parent, name):
            self._invalidate(directory, alias)

    def _invalidate(self, parent: int, name: bytes) -> None:
        if self.kernel is not None:
            self.kernel.invalidate_entry(parent, name)
            self.kernel.invalidate_inode(parent)
