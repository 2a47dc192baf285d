"""Renames of directories: of every object below one."""

import logging
from contextlib import AsyncExitStack
from functools import partial

from msgspec import structs

from aisfs.engine.overlay import Overlay
from aisfs.engine.writing.uploads import Writer
from aisfs.errors import (
    AccessDenied,
    AisfsError,
    InvalidName,
    NotADirectory,
    NotEmpty,
    NotFound,
    Stale,
)
from aisfs.filesystem.inodes import Inodes
from aisfs.filesystem.nodes import DirectoryNode, ObjectNode
from aisfs.filesystem.trees.bucket_tree import Found
from aisfs.filesystem.write.commit import Committer
from aisfs.model import Bucket, ObjectInfo

log = logging.getLogger(__name__)


class DirectoryRenamer:
    """Renames directories, which the store does not know as such."""

    def __init__(
        self,
        inodes: Inodes,
        committer: Committer,
        overlay: Overlay,
        writer: Writer,
        limit: int,
    ) -> None:
        """Rename at most `limit` objects at a time with `writer`, and show that in `overlay`."""
        self._inodes = inodes
        self._files = inodes.files
        self._committer = committer
        self._overlay = overlay
        self._writer = writer
        self._limit = limit

    async def check_empty(self, node: DirectoryNode, *, keep_marker: bool = False) -> None:
        """Raise `NotEmpty` if there is something in a directory, whatever was believed about it.

        Published indexes and markers of directories, which are not listed, go with the last of what is
        listed; a marker may be kept for the directory that takes the place of this one.
        """
        empty = partial(self._overlay.is_empty, node.bucket, node.prefix)
        if await empty():
            return
        await self._writer.remove_indexes(node.bucket, node.prefix)
        rest = await empty(but_for_marker=True)
        if rest and not keep_marker:
            await self._writer.remove_marker(node.bucket, node.prefix)
            rest = await empty()
        if not rest:
            raise NotEmpty(f"{node.bucket}/{node.prefix} is not empty")

    async def beside(self, node: DirectoryNode) -> ObjectInfo | None:
        """Return the object that has the name of a directory: it is there when the directory is gone."""
        try:
            return await self._writer.head(node.bucket, node.prefix.removesuffix("/"))
        except (NotFound, AccessDenied):
            return None

    def removed(self, node: DirectoryNode, beside: ObjectInfo | None) -> None:
        """Show a directory no more, but an object of its name."""
        self._overlay.remove(node.bucket, node.prefix)
        if beside is not None:
            self._overlay.settle(node.bucket, beside.key, beside)

    async def drop_indexes(self, node: DirectoryNode) -> None:
        """Remove what is left of a removed directory in the bucket of indexes."""
        await self._writer.drop_indexes(node.bucket, node.prefix)

    async def rename(self, node: DirectoryNode, victim: Found | None, new_prefix: str) -> None:
        """Rename every object below a directory, or none; nothing is lost on the way."""
        bucket, prefix = node.bucket, node.prefix
        if victim is not None:
            if not isinstance(victim.node, DirectoryNode):
                raise NotADirectory(f"{bucket}/{new_prefix[:-1]} is not a directory")
            await self.check_empty(victim.node, keep_marker=True)
        if new_prefix.startswith(prefix):
            raise InvalidName(f"{bucket}/{prefix} cannot be moved into itself")
        async with AsyncExitStack() as locks:
            # What is written meanwhile is uploaded under its new name.
            for file in self._files.below(bucket, prefix):
                await locks.enter_async_context(file.lock)
                await self._committer.commit_locked(file)
            await self._rename_objects(node, new_prefix)
        await self._committer.settled()

    async def _rename_objects(self, node: DirectoryNode, new_prefix: str) -> None:
        """Rename what the store has below a directory."""
        bucket, prefix = node.bucket, node.prefix
        found = await self._writer.objects_below(bucket, prefix, self._limit)
        beside = await self.beside(node)
        moved: dict[str, ObjectInfo] = {}
        try:
            for info in found:
                new_key = new_prefix + info.key[len(prefix) :]
                moved[info.key] = await self._writer.rename(bucket, info.key, new_key)
        except AisfsError as error:
            await self._rename_back(bucket, prefix, new_prefix, moved, len(found), error)
            raise
        with self._overlay.namespace_lock:
            now = {info.key: info for info in found}
            self._forget_older(bucket, now)
            self._moved_directory(node, new_prefix, now, moved)
            self.removed(node, beside)
        await self._writer.move_indexes(bucket, prefix, new_prefix, self._limit)

    async def _rename_back(
        self,
        bucket: Bucket,
        prefix: str,
        new_prefix: str,
        moved: dict[str, ObjectInfo],
        total: int,
        error: AisfsError,
    ) -> None:
        """Undo a rename of a directory that failed half-way, and account for every object."""
        stranded = []
        for old_key, info in moved.items():
            try:
                back = await self._writer.rename(bucket, info.key, old_key)
                self._overlay.settle(bucket, old_key, back)
            except AisfsError as failed:
                stranded.append(info.key)
                log.error("%s/%s could not go back to %s: %s", bucket, info.key, old_key, failed)
                self._overlay.remove(bucket, old_key)
                self._overlay.settle(bucket, info.key, info, below=new_prefix)
        log.error(
            "%s/%s was not renamed: %s; of %d objects %d were moved, %d of these moved back, "
            "%d are under the new name: %s",
            bucket, prefix, error, total, len(moved), len(moved) - len(stranded), len(stranded),
            ", ".join(stranded) or "none",
        )  # fmt: skip

    def _forget_older(self, bucket: Bucket, now: dict[str, ObjectInfo]) -> None:
        """Have the kernel look up anew what other clients have changed since it did.

        Its numbers, and pages, of such a version do not go on under the new names.
        """
        for ino, known in self._inodes.known():
            file = self._files.by_ino.get(ino)
            node = known if file is None else file.node
            if not isinstance(node, ObjectNode) or node.bucket != bucket:
                continue
            info = node.info if file is None else file.base
            if node.info.key not in now or info is None or info.same_content(now[node.info.key]):
                continue
            if file is not None:
                file.detached_because = Stale("another client has changed it")
                self._files.unname(file)
            self._committer.invalidate(node.parent, node.name)

    def _moved_directory(
        self,
        node: DirectoryNode,
        new_prefix: str,
        found: dict[str, ObjectInfo],
        moved: dict[str, ObjectInfo],
    ) -> None:
        """Move everything known below the old name to below the new one."""
        bucket, prefix = node.bucket, node.prefix

        def renamed(key: str) -> str:
            return new_prefix + key[len(prefix) :]

        for file in self._files.below(bucket, prefix):
            info = moved.get(file.key, file.base)
            self._files.rename(file, renamed(file.key), file.node.parent, file.node.name)
            file.base = info
        for member in self._files.new_members(bucket, prefix):
            self._files.rename(member, renamed(member.key), member.node.parent, member.node.name)
        self._move_inodes_below(node, new_prefix, found, moved)
        for held in self._overlay.held.below(bucket, prefix):
            self._overlay.remove(bucket, held, hold=False)
            self._overlay.set_pending(bucket, renamed(held), None)
        for old_key, new_info in moved.items():
            self._overlay.remove(bucket, old_key, hold=False, below=prefix)
            self._overlay.settle(bucket, new_info.key, new_info, below=new_prefix)
        self._inodes.directory_attributes.rename(bucket, prefix, new_prefix)
        if not moved:
            self._overlay.set_pending(bucket, new_prefix, None)

    def _move_inodes_below(
        self,
        node: DirectoryNode,
        new_prefix: str,
        found: dict[str, ObjectInfo],
        moved: dict[str, ObjectInfo],
    ) -> None:
        """Make the kernel's numbers of what lies in a renamed directory stand for the new names.

        Those of the empty directory that it replaces, and of what others emptied in that, stand for nothing.
        """
        bucket, prefix = node.bucket, node.prefix
        all_known = self._inodes.known()
        for _, known in all_known:
            match known:
                case DirectoryNode(b, p) if b == bucket and p.startswith(new_prefix):
                    self._inodes.removed(known)
        for ino, known in all_known:
            new: ObjectNode | DirectoryNode
            match known:
                case DirectoryNode(b, p) if b == bucket and p.startswith(prefix):
                    new = DirectoryNode(bucket, new_prefix + p[len(prefix) :])
                case ObjectNode(b, info) if b == bucket and info.key in moved:
                    if ino in self._files.by_ino or not info.same_content(found[info.key]):
                        continue
                    new = structs.replace(known, info=moved[info.key])
                case _:
                    continue
            self._inodes.move(ino, new)
